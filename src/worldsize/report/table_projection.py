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
from worldsize.tablefile import Table
from worldsize.tableprojection import Projection

WORDS = {
    "samples_per_s": "samples/s",
    "tokens_per_s": "tokens/s",
    "step_s": "seconds a step",
    "epoch_s": "seconds an epoch",
    "train_s": "seconds of training",
}


def table_view(projected: Sequence[Projection], given: Table) -> Group:
    parts: list[Any] = []
    smallest = {
        each.series.name: (each.series.workers[0], float(each.series.samples_per_s[0])) for each in given.series
    }
    for series, rows in groupby(projected, key=lambda each: each.series_id):
        here, (base, rate) = list(rows), smallest[series]
        legend = "measured, and ~ projected, with 80 % intervals"
        table = plain_table(f"{visible(series)}: {legend}" if series else legend)
        for header in ("workers", WORDS[here[0].unit], "80 % interval", f"of perfect scaling\nfrom {base}"):
            table.add_column(header, justify="right")
        table.add_column("", justify="left", overflow="fold")
        for each in here:
            share = each.samples_per_s / rate * base / each.workers
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
