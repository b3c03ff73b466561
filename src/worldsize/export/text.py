"""CSV: RFC 4180, UTF-8, no value as an empty cell. Text that a spreadsheet would run is told to be text."""

from __future__ import annotations

import csv
from pathlib import Path

from worldsize.errors import visible
from worldsize.export.tables import Cell, Table, span_tables, tables
from worldsize.results import Results

FORMULA = ("=", "+", "-", "@", "\t", "\n")
"""With these a spreadsheet takes a text for a formula, and runs it."""


def write_csv(results: Results, stage: Path, target: Path, steps: bool) -> None:
    del target
    for table in tables(results):
        _write(stage / f"{table.name}.csv", table)
    for table in span_tables(results) if steps else ():
        _write(stage / "spans" / f"{table.name}.csv", table)


def cell(value: Cell) -> Cell:
    """Numbers as they are, -0.1 too; a text that begins like a formula gets a quote mark before it, and what would
    steer a terminal is written out."""
    if not isinstance(value, str):
        return value
    words = visible(value)
    return f"'{words}" if words.startswith(FORMULA) else words


def _write(path: Path, table: Table) -> None:
    path.parent.mkdir(exist_ok=True)
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(map(cell, table.columns))
        writer.writerows(map(cell, row) for row in table.rows)
