"""Numbers as text: counts, durations, sizes, intervals. Plain text; the writers escape it for their medium."""

from __future__ import annotations

import math
from collections.abc import Callable

from worldsize.analysis.estimate import LEVEL, Estimate


def with_range(estimate: Estimate, words: Callable[[float], str] | None = None) -> str:
    """Return ` (1.2 to 1.4)`, with a leading space; empty without an interval."""
    return f" ({range_of(estimate, words or number)})" if estimate.has_interval else ""


def metric_value(value: float) -> str:
    """Format with four decimals from 0.001 to 100, as for accuracies, otherwise with four significant digits."""
    return f"{value:.4f}" if 0.001 <= abs(value) < 100 or value == 0 else f"{value:.4g}"


def metric_difference(value: float) -> str:
    """Format a difference of metrics with four decimals, like the metrics; an end of its interval may be almost 0."""
    return f"{value:.4f}" if abs(value) < 100 else metric_value(value)


def number(value: float) -> str:
    """Format with three significant digits, never in scientific notation."""
    if value == 0 or not math.isfinite(value):
        return str(value)
    decimals = max(0, 2 - math.floor(math.log10(abs(value))))
    return f"{value:,.{min(decimals, 6)}f}"


def range_of(estimate: Estimate, words: Callable[[float], str] = number) -> str:
    """Return `1.2 to 1.4`."""
    return " to ".join(map(words, estimate.ends))


def whole(value: float) -> str:
    """Format a number of steps or epochs as a whole number, unless it is a mean below 10."""
    return f"{value:,.0f}" if value >= 10 or abs(value - round(value)) < 1e-6 else number(value)


def percent(share: float) -> str:
    """Format a share of 1 in percent: `64 %`."""
    return f"{share * 100:.0f} %"


def byte_size(count: float) -> str:
    return f"{number(count / 1e9)} GB" if count >= 1e9 else f"{number(count / 1e6)} MB"


def duration(seconds: float) -> str:
    """Format with at most two units: 1.8 s, 45 s, 3 min 20 s, 2 h 05 min."""
    if seconds < 1:
        return f"{number(seconds * 1e3)} ms"
    if seconds < 10:
        return f"{seconds:.0f} s" if seconds == round(seconds) else f"{seconds:.1f} s"
    if round(seconds) < 60:
        return f"{seconds:.0f} s"
    minutes, remainder = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {remainder:02d} s"
    return f"{minutes // 60} h {minutes % 60:02d} min"


def rough_duration(seconds: float) -> str:
    """Format an estimate with one unit: 50 s, 11 min, 1.7 hours, 13 days."""
    for unit, length in (("day", 86_400.0), ("hour", 3600.0)):
        if (amount := seconds / length) >= 1:
            words = f"{amount:.1f}" if amount < 9.95 else f"{amount:.0f}"
            return f"{words.removesuffix('.0')} {unit}{'' if words == '1.0' else 's'}"
    return f"{seconds / 60:.0f} min" if seconds >= 90 else f"{max(round(seconds, -1), 10):.0f} s"


def counted(count: int, noun: str, nouns: str = "") -> str:
    """Return `1 worker` or `2 workers`. `nouns`: the plural, if it is not `noun` and s."""
    return f"{count} {noun}" if count == 1 else f"{count} {nouns or noun + 's'}"


LEVEL_WORDS = f"{LEVEL:.0%} interval".replace("%", " %")


def times_words(estimate: Estimate) -> str:
    """Return a duration with its interval: `12 min 30 s (11 min 00 s to 14 min 10 s)`."""
    return f"{duration(estimate.value)}{with_range(estimate, duration)}"


Value = float | int | str | None


def as_written(value: float) -> str:
    """A value that a user chose, with all its digits."""
    return f"{value:g}"


def integer(value: float) -> str:
    """Format as a whole number with thousands separators."""
    return f"{value:,.0f}"


def decimals(least: float) -> Callable[[float], str]:
    """Return one format for all times of a table: three digits for the shortest one, and at least two decimals."""
    places = min(max(2 - math.floor(math.log10(least)), 2), 6) if least > 0 else 2

    def format_value(value: float) -> str:
        rounded = f"{value:,.{places}f}"
        return rounded.lstrip("-") if float(rounded.replace(",", "")) == 0 else rounded

    return format_value


def percents(value: float) -> str:
    """Format a value that is already in percent, without the sign."""
    return f"{value:.0f}" if abs(value) >= 10 else f"{value:.1f}"


def rate(value: float) -> str:
    """Format a learning rate."""
    return f"{value:.4g}"
