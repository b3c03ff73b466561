"""Settings in words: what distinguishes them, and which of them a figure or a table shows."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol, TypeVar

from worldsize.answer.as_dict import flat_setting
from worldsize.report.words.numbers import counted
from worldsize.spec.setting import SeriesKey, Setting


class Placed(Protocol):
    """Anything measured at a setting: a row of a table, a point of a figure."""

    @property
    def setting(self) -> Setting: ...


P = TypeVar("P", bound=Placed)

WORDS: dict[str, Callable[[Any], str]] = {
    "workers": lambda workers: counted(workers, "worker"),
    "batch_per_worker": lambda batch: f"batch {batch:,} per worker",
    "global_batch": lambda batch: f"batch {batch}",
    "strategy": str,
    "precision": str,
    "accumulation": lambda parts: f"in {parts} parts",
    "place": lambda place: f"on {place}",
    "variant": str,
}
"""Puts a field of a setting, or of a table row, into words."""
HOW = ("strategy", "precision", "accumulation", "place")
TOLD = ("workers", "batch_per_worker", *HOW, "variant")


def configuration(setting: Setting, among: Iterable[Setting]) -> str:
    """Strategy, precision, accumulation and place, where they differ among these settings."""
    return _differing(HOW, flat_setting(setting), [flat_setting(other) for other in among])


def _differing(names: Iterable[str], entry: Mapping[str, Any], among: Sequence[Mapping[str, Any]]) -> str:
    kept = [name for name in names if name in entry and len({str(other.get(name)) for other in among}) > 1]
    return ", ".join(WORDS[name](entry[name]) for name in kept)


def _entry(row: Placed) -> dict[str, Any]:
    return {**flat_setting(row.setting), "variant": getattr(row, "variant", None)}


def distinguished(row: Placed, among: Iterable[Placed], *, but: Iterable[str] = ()) -> str:
    """What distinguishes a row from the others: workers, batch, strategy, ... where they differ."""
    names = [name for name in TOLD if name not in but]
    return _differing(names, _entry(row), [_entry(other) for other in among])


def name_of_series(rows: Sequence[Placed], among: Iterable[Placed]) -> str:
    """What distinguishes rows that differ only in workers from the others."""
    first, others = rows[0], list(among)
    if first.setting.scaling == "weak":
        return distinguished(first, others, but=("workers", "variant"))
    batches = len({row.setting.global_batch for row in others}) > 1
    lead = [f"global batch {first.setting.global_batch:,}"] if batches else []
    return ", ".join(
        filter(None, [*lead, distinguished(first, others, but=("workers", "batch_per_worker", "variant"))])
    )


def more_words(count: int, noun: str) -> str:
    """Says how many are not drawn."""
    if count <= 0:
        return ""
    return f" {count} more {noun} {'is' if count == 1 else 'are'} in the table."


def by_series(rows: Iterable[P], first: Setting | None = None) -> list[list[P]]:
    """Groups of rows that differ only in workers, in the order of these. The series of `first` comes first."""
    groups: dict[SeriesKey, list[P]] = {}
    for row in sorted(rows, key=lambda row: row.setting.workers):
        groups.setdefault(row.setting.series, []).append(row)
    return sorted(groups.values(), key=lambda group: first is None or group[0].setting.series != first.series)


def lines_over_workers(rows: Iterable[P], first: Setting | None = None) -> dict[str, list[P]]:
    """Groups of at least two rows that differ only in workers, by name, each drawn as one line."""
    kept = [group for group in by_series(rows, first) if len(group) > 1]
    return {name_of_series(group, [row for other in kept for row in other]) or "trained": group for group in kept}
