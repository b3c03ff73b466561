"""Building blocks of tables, and the document that the page, figures and tables are made from."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from worldsize.analysis.estimate import Estimate
from worldsize.report.words.numbers import Value, integer, number

Document = dict[str, Any]


Fields = Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class Cell:
    value: Value
    low: float | None = None
    high: float | None = None

    @property
    def has_interval(self) -> bool:
        """False if all runs gave the same, too."""
        return self.low is not None and self.low != self.high


@dataclass(frozen=True, kw_only=True)
class Column:
    key: str
    """Name in the CSV file, with the document's unit: step_s."""
    title: str
    unit: str = ""
    """Unit shown to the reader: ms."""
    factor: float = 1.0
    """Converts the document's unit to the unit shown."""
    format: Callable[[float], str] = number

    def words(self, cell: Cell) -> str:
        return self._text(cell.value)

    def range(self, cell: Cell) -> str:
        """From low to high; "to" instead of a dash before a negative number."""
        if not cell.has_interval:
            return ""
        assert cell.low is not None
        return f"{self._text(cell.low)}{'–' if cell.low >= 0 else ' to '}{self._text(cell.high)}"

    def _text(self, value: Value) -> str:
        if value is None or value == 0:
            return "" if value is None else "0"
        return value if isinstance(value, str) else self.format(value * self.factor)


@dataclass(frozen=True, kw_only=True)
class Sheet:
    key: str
    section: str
    title: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[Cell, ...], ...]
    note: str = ""
    marked: int | None = None
    """Index of the row that the answer recommends."""

    def is_text(self, index: int) -> bool:
        return any(isinstance(row[index].value, str) for row in self.rows)


COUNTS = (
    Column(key="workers", title="workers", format=integer),
    Column(key="batch_per_worker", title="batch a worker", format=integer),
    Column(key="global_batch", title="global batch", format=integer),
)
REPEATS = Column(key="repeats", title="n", format=integer)


def how_columns(entries: Sequence[Fields]) -> tuple[Column, ...]:
    """Columns for strategy, precision, accumulation and place, where the study varies them."""
    every = ("strategy", "precision", "accumulation", "place")
    names = [name for name in every if len({entry.get(name) for entry in entries}) > 1]
    return tuple(Column(key=name, title=name, format=integer) for name in names)


def plain_cells(entry: Fields, columns: Sequence[Column]) -> list[Cell]:
    return [Cell(value=entry[column.key]) for column in columns]


def interval(value: Mapping[str, Any] | None) -> Cell:
    return Cell(value=None) if value is None else Cell(value=value["value"], low=value["low"], high=value["high"])


def estimate(value: Mapping[str, Any]) -> Estimate:
    """An estimate from its entry in the document."""
    return Estimate(value=value["value"], low=value["low"], high=value["high"])
