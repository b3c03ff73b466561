"""Tables of what was learned: optimisers and rates, large batches."""

from __future__ import annotations

from collections.abc import Iterator

from worldsize.report.document import Document
from worldsize.report.picks import Entry, setting_key
from worldsize.report.sheet import (
    COUNTS,
    REPEATS,
    Cell,
    Column,
    Sheet,
    how_columns,
    integer,
    interval,
    plain_cells,
    rate,
)
from worldsize.report.words import LEVEL_WORDS, metric_value, whole


def _learning_columns(document: Document) -> tuple[Column, ...]:
    metric = document["metric"]
    return (
        Column(key="peak_rate", title="rate", say=rate),
        Column(key=f"test_{metric}", title=f"test {metric}", say=metric_value),
        *((Column(key="test_loss", title="test loss", say=metric_value),) if metric != "loss" else ()),
        Column(key="train_s", title="training time", unit="s"),
        Column(key="steps_to_target", title="steps to target", say=whole),
        Column(key="epochs_until_stable", title="epochs until stable", say=whole),
        Column(key="diverged", title="diverged", say=integer),
        REPEATS,
    )


def _learning_cells(document: Document, entry: Entry, trained: Entry) -> Iterator[Cell]:
    yield Cell(value=trained["peak_rate"])
    yield interval(entry["metric"])
    if document["metric"] != "loss":
        yield interval(trained["test_loss"])
    yield interval(trained["train_s"])
    target, stable = entry["target"], entry["stable"]
    yield interval(target["steps"]) if target else Cell(value=None)
    yield Cell(value=stable["epoch"], low=stable["low"], high=stable["high"]) if stable else Cell(value=None)
    yield Cell(value=entry["diverged"])
    yield Cell(value=entry["repeats"])


def _learned(document: Document) -> list[tuple[Entry, Entry]]:
    trained = {(setting_key(entry), entry["variant"]): entry for entry in document["training"]}
    return [
        (entry, trained[setting_key(entry), entry["variant"]])
        for entry in document["learning"]
        if (setting_key(entry), entry["variant"]) in trained
    ]


def optimizers(document: Document) -> Sheet | None:
    pairs = _learned(document)
    if len({entry["variant"] for entry, _ in pairs}) < 2:
        return None
    lead = (*COUNTS, *how_columns([entry for entry, _ in pairs]))
    columns = (Column(key="variant", title="trained with"), *lead, *_learning_columns(document))
    rows = [
        (Cell(value=entry["variant"]), *plain_cells(entry, lead), *_learning_cells(document, entry, trained))
        for entry, trained in pairs
    ]
    return _sheet("optimizers", "Optimisers and rates, the best of each setting first", columns, rows)


def large_batch(document: Document) -> Sheet | None:
    pairs = _learned(document)
    if len({entry["global_batch"] for entry, _ in pairs}) < 2:
        return None
    if optimizers(document) is not None:  # which lists all variants; here the best of each setting
        pairs = list({setting_key(pair[0]): pair for pair in reversed(pairs)}.values())
    ordered = sorted(pairs, key=lambda pair: (pair[0]["global_batch"], pair[0]["workers"]))
    lead = (COUNTS[2], *COUNTS[:2], *how_columns([entry for entry, _ in pairs]))
    columns = (*lead, Column(key="variant", title="trained with"), *_learning_columns(document))
    rows = [
        (*plain_cells(entry, lead), Cell(value=entry["variant"]), *_learning_cells(document, entry, trained))
        for entry, trained in ordered
    ]
    return _sheet("large-batch", "What a larger batch does to learning", columns, rows)


def trained(document: Document) -> Sheet | None:
    """Where neither optimisers nor batches differ, what was trained is still a table."""
    pairs = _learned(document)
    if optimizers(document) or large_batch(document) or not pairs:
        return None
    lead = (*COUNTS, *how_columns([entry for entry, _ in pairs]))
    rows = [(*plain_cells(entry, lead), *_learning_cells(document, entry, trained)) for entry, trained in pairs]
    return _sheet("trained", "What was trained", (*lead, *_learning_columns(document)), rows)


def _sheet(key: str, title: str, columns: tuple[Column, ...], rows: list[tuple[Cell, ...]]) -> Sheet:
    note = f"{LEVEL_WORDS}s over n repeats; rate after the rate rule.".capitalize()
    return Sheet(key=key, section="learning", title=title, columns=columns, rows=tuple(rows), note=note)
