"""Settings in words: what distinguishes them, and which of them a figure or a table shows."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import fields
from typing import Any

from worldsize.answer.as_dict import flat_setting
from worldsize.answer.results import Results
from worldsize.report.blocks import Document, Fields
from worldsize.report.words.numbers import counted
from worldsize.spec.setting import Method, Setting

WORDS: dict[str, Callable[[Any], str]] = {
    "workers": lambda workers: counted(workers, "worker"),
    "batch_per_worker": lambda batch: f"batch {batch:,} a worker",
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


def describe(setting: Setting, among: Iterable[Setting]) -> str:
    """Everything that distinguishes this setting from the others."""
    names = ("workers", "global_batch", *HOW)
    return _differing(names, flat_setting(setting), [flat_setting(other) for other in among])


def _differing(names: Iterable[str], entry: Fields, among: Sequence[Fields]) -> str:
    kept = [name for name in names if name in entry and len({str(other.get(name)) for other in among}) > 1]
    return ", ".join(WORDS[name](entry[name]) for name in kept)


def configuration_words(results: Results) -> str:
    """Strategy, precision and accumulation of the recommended setting, where the study varies them."""
    row = results.answer.row
    return "" if row is None else configuration(row.setting, [other.setting for other in results.rows])


def describe_entry(entry: Fields, among: Sequence[Fields], *, but: Iterable[str] = ()) -> str:
    """What distinguishes an entry from the others: workers, batch, strategy, ... where they differ."""
    return _differing([name for name in TOLD if name not in but], entry, among)


def series(document: Document) -> dict[tuple[Any, ...], list[Fields]]:
    """Rows of the scaling table, grouped by series: rows of one group differ only in workers."""
    groups: dict[tuple[Any, ...], list[Fields]] = {}
    for row in document["table"]:
        groups.setdefault(series_key(row), []).append(row)
    return groups


def series_key(row: Fields) -> tuple[Any, ...]:
    """Key shared by the rows of one scaling curve, like `Setting.series` for settings."""
    return method_key(row), row["batch_per_worker"] if row["scaling"] == "weak" else row["global_batch"]


def method_key(row: Fields) -> tuple[Any, ...]:
    """Key within which worker counts and batches are compared, like `Setting.method` for settings."""
    return tuple(row[field.name] for field in fields(Method))


def series_name(rows: Sequence[Fields], among: Sequence[Fields]) -> str:
    first = rows[0]
    if first["scaling"] == "strong":
        batches = len({row["global_batch"] for row in among}) > 1
        lead = [f"global batch {first['global_batch']:,}"] if batches else []
        return ", ".join(
            [*lead, *filter(None, [describe_entry(first, among, but=("workers", "batch_per_worker", "variant"))])]
        )
    return describe_entry(first, among, but=("workers", "variant"))


def along_workers(document: Document, entries: Sequence[Fields]) -> dict[str, list[Fields]]:
    """Groups of at least two entries that differ only in workers, each drawn as one line.

    The recommended series comes first.
    """
    groups: dict[tuple[Any, ...], list[Fields]] = {}
    for entry in sorted(entries, key=lambda entry: entry["workers"]):
        groups.setdefault(series_key(entry), []).append(entry)
    best = recommended_row(document)
    first = series_key(best) if best else None
    kept = [group for key, group in sorted(groups.items(), key=lambda item: item[0] != first) if len(group) > 1]
    return {
        series_name(group, [entry for other_group in kept for entry in other_group]) or "trained": group
        for group in kept
    }


def more_words(count: int, noun: str) -> str:
    """Says how many are not drawn."""
    if count <= 0:
        return ""
    return f" {count} more {noun} {'is' if count == 1 else 'are'} in the table."


def recommended_row(document: Document) -> Fields | None:
    """The row that the answer recommends."""
    row: Fields | None = document["answer"]["setting"]
    return row


def setting_key(entry: Fields) -> tuple[Any, ...]:
    """Key shared by the entries of one setting."""
    return tuple(entry[field.name] for field in fields(Setting))


def best_of_settings(document: Document) -> list[Fields]:
    """The best training of each setting: `learning` lists the best first."""
    best: dict[tuple[Any, ...], str] = {}
    for entry in document["learning"]:
        best.setdefault(setting_key(entry), entry["variant"])
    return [entry for entry in document["training"] if best.get(setting_key(entry)) == entry["variant"]]
