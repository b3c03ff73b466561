"""Numbers in words: counts, durations, sizes, intervals. Plain text; the caller escapes for its medium."""

from __future__ import annotations

import math
from collections.abc import Callable

from worldsize.analysis.estimate import LEVEL, Estimate


def with_range(estimate: Estimate, words: Callable[[float], str] | None = None) -> str:
    """` (1.2 to 1.4)`; empty without an interval."""
    return f" ({range_of(estimate, words or number)})" if estimate.has_interval else ""


def metric_value(value: float) -> str:
    """Four decimals for values from 0.001 to 100, such as accuracies; otherwise four significant digits."""
    return f"{value:.4f}" if 0.001 <= abs(value) < 100 or value == 0 else f"{value:.4g}"


def number(value: float) -> str:
    """Three significant digits, never in scientific notation."""
    if value == 0 or not math.isfinite(value):
        return str(value)
    decimals = max(0, 2 - math.floor(math.log10(abs(value))))
    return f"{value:,.{min(decimals, 6)}f}"


def range_of(estimate: Estimate, words: Callable[[float], str] = number) -> str:
    return " to ".join(map(words, estimate.ends))


def whole(value: float) -> str:
    """A number of steps or epochs: whole, unless it is a mean below 10."""
    return f"{value:,.0f}" if value >= 10 or abs(value - round(value)) < 1e-6 else number(value)


def percent(share: float) -> str:
    return f"{share * 100:.0f} %"


def byte_size(count: float) -> str:
    return f"{number(count / 1e9)} GB" if count >= 1e9 else f"{number(count / 1e6)} MB"


def duration(seconds: float) -> str:
    """Two units at most: 1.8 s, 45 s, 3 min 20 s, 2 h 05 min."""
    if seconds < 1:
        return f"{number(seconds * 1e3)} ms"
    if seconds < 10:
        return f"{seconds:.0f} s" if seconds == round(seconds) else f"{seconds:.1f} s"
    if round(seconds) < 60:
        return f"{seconds:.0f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest:02d} s"
    return f"{minutes // 60} h {minutes % 60:02d} min"


def counted(count: int, noun: str, nouns: str = "") -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {nouns or noun + 's'}"


LEVEL_WORDS = f"{LEVEL:.0%} interval".replace("%", " %")


def times_words(estimate: Estimate) -> str:
    return f"{duration(estimate.value)}{with_range(estimate, duration)}"


Value = float | int | str | None


def integer(value: float) -> str:
    return f"{value:,.0f}"


def decimals(least: float) -> Callable[[float], str]:
    """One format for a whole table of times: three digits of the shortest step, at least two decimals."""
    places = min(max(2 - math.floor(math.log10(least)), 2), 6) if least > 0 else 2

    def format_value(value: float) -> str:
        rounded = f"{value:,.{places}f}"
        return rounded.lstrip("-") if float(rounded.replace(",", "")) == 0 else rounded

    return format_value


def percents(value: float) -> str:
    return f"{value:.0f}" if abs(value) >= 10 else f"{value:.1f}"


def rate(value: float) -> str:
    return f"{value:.4g}"
