"""Projections of tables from elsewhere, in the terminal: one block a series, measured and projected never alike."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import Any

from rich.console import Group
from rich.text import Text

from worldsize.errors import visible
from worldsize.report.tables import plain_table
from worldsize.report.words import number
from worldsize.tableprojection import Projection

WORDS = {
    "samples_per_s": "samples/s",
    "tokens_per_s": "tokens/s",
    "step_s": "seconds a step",
    "epoch_s": "seconds an epoch",
    "train_s": "seconds of training",
}


def table_view(projected: Sequence[Projection]) -> Group:
    parts: list[Any] = []
    for series, rows in groupby(projected, key=lambda each: each.series_id):
        here = list(rows)
        table = plain_table(visible(series) if series else "measured, and ~ projected, with 80 % intervals")
        for header in ("workers", WORDS[here[0].unit], "80 % interval", "of perfect\nscaling"):
            table.add_column(header, justify="right")
        table.add_column("", justify="left", overflow="fold")
        base = min((each for each in here if each.measured), key=lambda each: each.workers, default=here[0])
        for each in here:
            share = each.samples_per_s / base.samples_per_s * base.workers / each.workers
            table.add_row(
                f"{each.workers}" if each.measured else f"~{each.workers}",
                number(each.value),
                f"{number(each.value_low)}–{number(each.value_high)}",
                f"{share * 100:.0f} %",
                "; ".join(each.notes),
                style="" if each.measured else "italic",
            )
        parts += [Text(""), table]
    return Group(*parts)
