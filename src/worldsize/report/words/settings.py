"""Settings in words: what distinguishes them, and how rows are grouped into series."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol, TypeVar

from worldsize.answer.as_dict import flat_setting
from worldsize.report.words.numbers import counted
from worldsize.spec.setting import SeriesKey, Setting


class Placed(Protocol):
    """Anything that was measured at a setting: a row of a table or a point of a figure."""

    @property
    def setting(self) -> Setting: ...


P = TypeVar("P", bound=Placed)

WORDS: dict[str, Callable[[Any], str]] = {
    "workers": lambda workers: counted(workers, "worker"),
    "batch_per_worker": lambda batch: f"batch {batch:,} per worker",
    "global_batch": lambda batch: f"global batch {batch:,}",
    "strategy": str,
    "precision": str,
    "accumulation": lambda steps: counted(steps, "accumulation step"),
    "place": lambda place: f"on {place}",
    "variant": str,
}
"""Function that describes the value of each field of a setting or a table row."""
HOW = ("strategy", "precision", "accumulation", "place")
DISTINGUISHING = ("workers", "batch_per_worker", *HOW, "variant")
"""Fields that may distinguish rows, in the order in which they are named."""


def configuration(setting: Setting, among: Iterable[Setting]) -> str:
    """Return strategy, precision, accumulation and place, as far as they differ among these settings."""
    return _differing(HOW, flat_setting(setting), [flat_setting(other) for other in among])


def _differing(names: Iterable[str], entry: Mapping[str, Any], among: Sequence[Mapping[str, Any]]) -> str:
    differing = [name for name in names if name in entry and len({str(other.get(name)) for other in among}) > 1]
    return ", ".join(WORDS[name](entry[name]) for name in differing)


def _entry(row: Placed) -> dict[str, Any]:
    return {**flat_setting(row.setting), "variant": getattr(row, "variant", None)}


def distinguished(row: Placed, among: Iterable[Placed], *, but: Iterable[str] = ()) -> str:
    """Describe a row by what differs among the rows: workers, batch, strategy, ... Fields in `but` are left out."""
    names = [name for name in DISTINGUISHING if name not in but]
    return _differing(names, _entry(row), [_entry(other) for other in among])


def name_of_series(rows: Sequence[Placed], among: Iterable[Placed]) -> str:
    """Name rows that differ only in workers by what distinguishes them from the other rows."""
    first, others = rows[0], list(among)
    if first.setting.scaling == "weak":
        return distinguished(first, others, but=("workers", "variant"))
    batches = len({row.setting.global_batch for row in others}) > 1
    lead = [f"global batch {first.setting.global_batch:,}"] if batches else []
    return ", ".join(
        filter(None, [*lead, distinguished(first, others, but=("workers", "batch_per_worker", "variant"))])
    )


def more_words(count: int, noun: str) -> str:
    """Say how many are not drawn, as a sentence with a leading space; empty if all are."""
    if count <= 0:
        return ""
    return f" {count} more {noun} {'is' if count == 1 else 'are'} in the table."


def by_series(rows: Iterable[P], first: Setting | None = None) -> list[list[P]]:
    """Group rows that differ only in workers, sorted by workers. The series of the setting `first` comes first."""
    groups: dict[SeriesKey, list[P]] = {}
    for row in sorted(rows, key=lambda row: row.setting.workers):
        groups.setdefault(row.setting.series, []).append(row)
    return sorted(groups.values(), key=lambda group: first is None or group[0].setting.series != first.series)


def lines_over_workers(rows: Iterable[P], first: Setting | None = None) -> dict[str, list[P]]:
    """Return the series with at least two rows by name. A figure draws each as one line."""
    groups = [group for group in by_series(rows, first) if len(group) > 1]
    drawn_rows = [row for group in groups for row in group]
    return {name_of_series(group, drawn_rows) or "trained": group for group in groups}
