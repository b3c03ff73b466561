"""Batches that a search tried, as a table: throughput, time of an epoch, memory, and where it ran out."""

from __future__ import annotations

from typing import Any

from rich.table import Table
from rich.text import Text

from worldsize.analysis.batches import BatchRow, LargestBatch
from worldsize.analysis.estimates import Estimate
from worldsize.report.tables import how, plain_table
from worldsize.report.words import LEVEL_WORDS, byte_size, number
from worldsize.results import Results


def batches_view(results: Results) -> list[Any]:
    """Nothing for a study that lists its batches."""
    return [Text(""), _table(results)] if results.largest else []


def _table(results: Results) -> Table:
    facts = results.facts
    settings = [found.setting for found in results.largest]
    several = len({setting.workers for setting in settings}) > 1
    mixed = bool(how(settings[0], settings))
    table = plain_table(f"batches that were tried, with {LEVEL_WORDS}s")
    headers = [*(["workers"] if several else []), "batch/\nworker", *(["how"] if mixed else []), f"{facts.unit}/s"]
    for header in (*headers, "seconds\nan epoch", "memory\n(fullest rank)"):
        table.add_column(header, justify="right", overflow="fold")
    for found in results.largest:
        place = [str(found.setting.workers)] if several else []
        told = [how(found.setting, settings)] if mixed else []
        for row in found.rows:
            table.add_row(
                *(*place, str(row.batch_per_worker), *told),
                *_cells(row, facts.units_per_sample),
                style=_style(found, row),
            )
    return table


def _cells(row: BatchRow, units_per_sample: int) -> list[Text]:
    if not row.fits:
        return [Text("out of memory"), Text(""), Text("")]
    memory = Text("" if row.memory_bytes is None else byte_size(row.memory_bytes))
    return [_estimate(row.samples_per_s, units_per_sample), _estimate(row.epoch_s), memory]


def _estimate(found: Estimate | None, factor: float = 1.0) -> Text:
    if found is None:
        return Text("")
    if found.low is None or found.high is None:
        return Text(number(found.value * factor))
    reach = f"{number(found.low * factor)}–{number(found.high * factor)}"
    return Text.assemble(number(found.value * factor), "\n", (reach, "dim not bold"))


def _style(found: LargestBatch, row: BatchRow) -> str:
    if not row.fits:
        return "dim"
    return "bold" if row.batch_per_worker == found.enough else ""
