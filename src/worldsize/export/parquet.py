"""Parquet: the same tables with their types."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from worldsize.errors import visible
from worldsize.export.tables import Cell, Table, span_tables, tables
from worldsize.results import Results


def write_parquet(results: Results, stage: Path, target: Path, steps: bool) -> None:
    del target
    for table in tables(results):
        _write(stage / f"{table.name}.parquet", table)
    for table in span_tables(results) if steps else ():
        _write(stage / "spans" / f"{table.name}.parquet", table)


def _write(path: Path, table: Table) -> None:
    path.parent.mkdir(exist_ok=True)
    values = zip(*table.rows, strict=True) if table.rows else ((),) * len(table.columns)
    columns = {name: _column(list(each)) for name, each in zip(table.columns, values, strict=True)}
    pq.write_table(pa.table(columns), path)


def _column(cells: list[Cell]) -> pa.Array:
    """The type of all its values, so that 1 among 1.5 is no surprise to whoever reads it; null where it has none."""
    values = [visible(cell) if isinstance(cell, str) else cell for cell in cells]
    kinds = {type(value) for value in values if value is not None}
    if kinds == {int, float}:
        kinds = {float}
    if len(kinds) > 1:
        return pa.array([None if value is None else str(value) for value in values], pa.string())
    types = {str: pa.string(), bool: pa.bool_(), int: pa.int64(), float: pa.float64()}
    return pa.array(values, types[kinds.pop()] if kinds else pa.null())
