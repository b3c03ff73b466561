"""What tables are made of, whoever writes them, and the document that page, figures and tables are made from."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

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
        """The baseline of a ratio is 1 by definition: no interval to show."""
        return self.low is not None and self.high is not None and not (self.low == self.value == self.high)


@dataclass(frozen=True, kw_only=True)
class Column:
    key: str
    """In the CSV file, with the unit that the document has: step_s."""
    title: str
    unit: str = ""
    """As read: ms."""
    factor: float = 1.0
    """From the document's unit to the one that is read."""
    format: Callable[[float], str] = number

    def words(self, cell: Cell) -> str:
        return self._say(cell.value)

    def range(self, cell: Cell) -> str:
        """From low to high; a minus and a dash beside one another would be misread."""
        if not cell.has_interval:
            return ""
        assert cell.low is not None
        return f"{self._say(cell.low)}{'–' if cell.low >= 0 else ' to '}{self._say(cell.high)}"

    def _say(self, value: Value) -> str:
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
    """The row that the answer names."""

    def is_text(self, place: int) -> bool:
        return any(isinstance(row[place].value, str) for row in self.rows)


COUNTS = (
    Column(key="workers", title="workers", format=integer),
    Column(key="batch_per_worker", title="batch a worker", format=integer),
    Column(key="global_batch", title="global batch", format=integer),
)
REPEATS = Column(key="repeats", title="n", format=integer)


def how_columns(entries: Sequence[Fields]) -> tuple[Column, ...]:
    """Strategy, precision, accumulation and place, where the study varies them."""
    every = ("strategy", "precision", "accumulation", "place")
    names = [name for name in every if len({entry.get(name) for entry in entries}) > 1]
    return tuple(Column(key=name, title=name, format=integer) for name in names)


def plain_cells(entry: Fields, columns: Sequence[Column]) -> list[Cell]:
    return [Cell(value=entry[column.key]) for column in columns]


def interval(value: Mapping[str, Any] | None) -> Cell:
    return Cell(value=None) if value is None else Cell(value=value["value"], low=value["low"], high=value["high"])
