"""Settings in words: what tells one from the others, and which of them a figure or a table picks out."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from worldsize.answer.results import Results
from worldsize.report.blocks import Document, Entry
from worldsize.report.words.numbers import counted
from worldsize.spec.setting import Setting

HOW: dict[str, Callable[[Setting], str]] = {
    "strategy": lambda setting: setting.strategy,
    "precision": lambda setting: setting.precision,
    "accumulation": lambda setting: f"in {setting.accumulation} parts",
    "on": lambda setting: f"on {setting.on}",
}
WHERE: dict[str, Callable[[Setting], str]] = {
    "workers": lambda setting: counted(setting.workers, "worker"),
    "global_batch": lambda setting: f"batch {setting.global_batch}",
    **HOW,
}


def how(setting: Setting, among: Iterable[Setting]) -> str:
    """Strategy, precision, accumulation and target, as far as they differ among these settings."""
    return _differing(HOW, setting, among)


def where(setting: Setting, among: Iterable[Setting]) -> str:
    """All that tells this setting from the others."""
    return _differing(WHERE, setting, among)


def _differing(facts: dict[str, Callable[[Setting], str]], setting: Setting, among: Iterable[Setting]) -> str:
    others = list(among)
    return ", ".join(say(setting) for name, say in facts.items() if len({getattr(other, name) for other in others}) > 1)


def how_words(results: Results) -> str:
    """Strategy, precision and accumulation of the recommended setting, where the study has several of them."""
    row = results.answer.row
    return "" if row is None else how(row.setting, [other.setting for other in results.rows])


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


def setting_key(entry: Entry) -> tuple[Any, ...]:
    """By which entries of one setting are found."""
    return tuple(entry[name] for name in ("workers", "batch_per_worker", "accumulation", "strategy", "precision", "on"))


def best_of_settings(document: Document) -> list[Entry]:
    """What was trained best at each setting: `learning` lists the best first."""
    best: dict[tuple[Any, ...], str] = {}
    for entry in document["learning"]:
        best.setdefault(setting_key(entry), entry["variant"])
    return [entry for entry in document["training"] if best.get(setting_key(entry)) == entry["variant"]]
