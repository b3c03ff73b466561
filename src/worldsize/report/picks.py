"""What figures and tables pick out of the document alike: settings told apart, intervals in words, axes of counts."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from worldsize.report.document import Document
from worldsize.report.marks import Axis, colour
from worldsize.report.words import number

Entry = Mapping[str, Any]

TOLD: dict[str, Callable[[Entry], str]] = {
    "workers": lambda one: f"{one['workers']} worker{'' if one['workers'] == 1 else 's'}",
    "batch_per_worker": lambda one: f"batch {one['batch_per_worker']:,} a worker",
    "strategy": lambda one: str(one["strategy"]),
    "precision": lambda one: str(one["precision"]),
    "accumulation": lambda one: f"in {one['accumulation']} parts",
    "on": lambda one: f"on {one['on']}",
    "variant": lambda one: str(one["variant"]),
}


def told_apart(entry: Entry, among: Sequence[Entry], *, but: Iterable[str] = ()) -> str:
    """What tells it from the others: workers, batch, strategy, ... as far as they differ."""
    kept = [
        (name, say)
        for name, say in TOLD.items()
        if name not in but and name in entry and len({str(other.get(name)) for other in among}) > 1
    ]
    return ", ".join(say(entry) for _, say in kept)


def series(document: Document) -> dict[tuple[Any, ...], list[Entry]]:
    """Rows of the scaling table that differ in workers only, in order."""
    found: dict[tuple[Any, ...], list[Entry]] = {}
    for row in document["table"]:
        found.setdefault(series_key(row), []).append(row)
    return found


def series_colours(document: Document) -> dict[tuple[Any, ...], str]:
    """A series has one hue in all figures that show it."""
    return {key: colour(place) for place, key in enumerate(series(document))}


def series_key(row: Entry) -> tuple[Any, ...]:
    batch = row["batch_per_worker"] if row["scaling"] == "weak" else row["global_batch"]
    return row["scaling"], batch, row["accumulation"], row["strategy"], row["precision"], row["on"]


def series_name(rows: Sequence[Entry], among: Sequence[Entry]) -> str:
    first = rows[0]
    if first["scaling"] == "strong":
        batches = len({row["global_batch"] for row in among}) > 1
        lead = [f"global batch {first['global_batch']:,}"] if batches else []
        return ", ".join(
            [*lead, *filter(None, [told_apart(first, among, but=("workers", "batch_per_worker", "variant"))])]
        )
    return told_apart(first, among, but=("workers", "variant"))


def along_workers(document: Document, entries: Sequence[Entry]) -> dict[str, list[Entry]]:
    """What one line joins: entries that differ in workers only, in their order, where there are at least two.

    That of the answer comes first.
    """
    found: dict[tuple[Any, ...], list[Entry]] = {}
    for entry in sorted(entries, key=lambda entry: entry["workers"]):
        found.setdefault(series_key(entry), []).append(entry)
    best = chosen(document)
    first = series_key(best) if best else None
    kept = [here for key, here in sorted(found.items(), key=lambda item: item[0] != first) if len(here) > 1]
    return {series_name(here, [entry for of in kept for entry in of]) or "trained": here for here in kept}


def more_words(count: int, noun: str) -> str:
    """Of what is not drawn."""
    if count <= 0:
        return ""
    return f" {count} more {noun} {'is' if count == 1 else 'are'} in the table."


def chosen(document: Document) -> Entry | None:
    """The row that the answer names."""
    found: Entry | None = document["answer"]["setting"]
    return found


def worker_axis(counts: Iterable[float]) -> Axis:
    """Ticks at the counts themselves; equal distances for equal factors once they span much."""
    ordered = sorted(set(counts))
    spread = ordered[-1] / ordered[0] if ordered else 1
    powers = [count for count in ordered if math.log2(count).is_integer() or count == ordered[-1]]
    shown = ordered if len(ordered) <= 8 else powers
    return Axis(title="workers", log=spread >= 8, ticks=tuple((count, f"{count:,.0f}") for count in shown))


def batch_axis(sizes: Iterable[float], title: str) -> Axis:
    ordered = sorted(set(sizes))
    several = len(ordered) > 1
    log = several and ordered[-1] / ordered[0] >= 8
    return Axis(
        title=title,
        # All panels reach as far, also those that say nothing of what did not fit.
        least=ordered[0] if several else 0.0,
        most=ordered[-1] if several else None,
        log=log,
        ticks=tuple((size, short(size)) for size in apart(ordered, log=log)),
    )


def apart(ordered: Sequence[float], *, log: bool) -> list[float]:
    """Of values to be ticks, those that leave room for their labels: a search halves its steps at its end."""
    places = [math.log(value) if log else value for value in ordered]
    room = (places[-1] - places[0]) / 12 if places else 0.0
    kept: list[int] = []
    for at in range(len(ordered)):
        if not kept or places[at] - places[kept[-1]] >= room:
            kept.append(at)
    return [ordered[at] for at in kept]


def short(size: float) -> str:
    """1,024 as 1k: ticks are narrow."""
    if size >= 1024 and size % 1024 == 0:
        return f"{size / 1024:.0f}k" if size < 1024**2 else f"{size / 1024**2:.0f}M"
    return f"{size:,.0f}"


def exact(
    value: float, low: float | None, high: float | None, unit: str = "", say: Callable[[float], str] = number
) -> str:
    """`1.52 x (1.43 to 1.60)`; the interval where there is one."""
    lead = f"{say(value)}{unit}"
    return lead if low is None or high is None or (low == value == high) else f"{lead} ({say(low)} to {say(high)})"


def setting_key(entry: Entry) -> tuple[Any, ...]:
    """By which entries of one setting are found."""
    return tuple(entry[name] for name in ("workers", "batch_per_worker", "accumulation", "strategy", "precision", "on"))


def best_of_settings(document: Document) -> list[Entry]:
    """What was trained best at each setting: `learning` lists the best first."""
    best: dict[tuple[Any, ...], str] = {}
    for entry in document["learning"]:
        best.setdefault(setting_key(entry), entry["variant"])
    return [entry for entry in document["training"] if best.get(setting_key(entry)) == entry["variant"]]
