"""The parts of a report, independent of the medium. The writers draw them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Generic, Literal, TypeVar

from worldsize.analysis.estimate import Estimate
from worldsize.report.figures.model import Figure
from worldsize.report.words.quantities import BATCH_PER_WORKER, GLOBAL_BATCH, WORKERS, Quantity
from worldsize.report.words.settings import P
from worldsize.spec.setting import Setting

Cell = Estimate | float | int | str | None

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class Column(Generic[T]):
    """Definition of a table column: its quantity, and how its cells are computed from rows."""

    quantity: Quantity
    of: Callable[[T], Cell]
    """Returns the cell of a row."""
    terminal: bool = True
    """Whether a terminal, where space is scarce, shows the column."""


@dataclass(frozen=True, kw_only=True)
class Table:
    key: str
    """File name of the table, without suffix."""
    title: str
    quantities: tuple[Quantity, ...]
    """One per column."""
    rows: tuple[tuple[Cell, ...], ...]
    note: str = ""
    """Text below the table."""
    marked: int | None = None
    """Index of the row that the answer recommends."""
    projected: tuple[int, ...] = ()
    """Indices of the rows that were not measured. A terminal puts ~ before their first cell."""
    terminal: tuple[bool, ...] = ()
    """Whether a terminal shows each column. Empty: it shows all of them."""

    def is_text(self, index: int) -> bool:
        """Whether a column contains text instead of numbers."""
        return any(isinstance(row[index], str) for row in self.rows)


def table(
    key: str,
    title: str,
    rows: Sequence[T],
    columns: Sequence[Column[T]],
    *,
    note: str = "",
    marked: T | None = None,
    projected: Callable[[T], bool] = lambda _: False,
) -> Table | None:
    """Make a table of rows, without columns that are empty. Return None if there are no rows."""
    cells = [[column.of(row) for row in rows] for column in columns]
    filled = [index for index, values in enumerate(cells) if any(value is not None for value in values)]
    if not rows:
        return None
    return Table(
        key=key,
        title=title,
        quantities=tuple(columns[index].quantity for index in filled),
        rows=tuple(zip(*(cells[index] for index in filled), strict=True)),
        note=note,
        marked=next((index for index, row in enumerate(rows) if marked is not None and row is marked), None),
        projected=tuple(index for index, row in enumerate(rows) if projected(row)),
        terminal=tuple(columns[index].terminal for index in filled),
    )


def setting_columns(rows: Sequence[P], *, global_batch: bool = True) -> list[Column[P]]:
    """Return columns for workers and batches, then those of `how_columns`."""
    columns: list[Column[P]] = [
        Column(quantity=WORKERS, of=lambda row: row.setting.workers),
        Column(quantity=BATCH_PER_WORKER, of=lambda row: row.setting.batch_per_worker),
    ]
    if global_batch:
        columns.append(Column(quantity=GLOBAL_BATCH, of=lambda row: row.setting.global_batch))
    return [*columns, *how_columns(rows)]


def if_it_varies(column: Column[T], rows: Sequence[T]) -> Column[T]:
    """Return the column, hidden in a terminal if all rows have the same value."""
    return replace(column, terminal=len(set(map(column.of, rows))) > 1)


HOW: dict[str, Callable[[Setting], Cell]] = {
    "strategy": lambda setting: setting.strategy.label,
    "precision": lambda setting: setting.precision,
    "accumulation": lambda setting: setting.accumulation,
    "place": lambda setting: setting.place,
}
"""Columns that tables have only if their rows differ in them."""


def how_columns(rows: Sequence[P]) -> list[Column[P]]:
    """Return columns for strategy, precision, accumulation and place, as far as the rows differ in them."""
    return [
        Column(quantity=Quantity(key=name, title=name), of=_of_setting(value))
        for name, value in HOW.items()
        if len({value(row.setting) for row in rows}) > 1
    ]


def _of_setting(value: Callable[[Setting], Cell]) -> Callable[[Any], Cell]:
    return lambda row: value(row.setting)


@dataclass(frozen=True, kw_only=True)
class Prose:
    """A paragraph."""

    role: Literal["answer", "doubt", "evidence", "why", "next", "caution", "outlook", "note"]
    text: str
    command: str = ""
    """A command to copy, which does what `text` says. Only for what to do next."""


@dataclass(frozen=True, kw_only=True)
class Tile:
    """One number of the answer, shown in large type."""

    quantity: Quantity
    value: Cell
    note: str = ""


@dataclass(frozen=True, kw_only=True)
class Tiles:
    """A row of tiles."""

    tiles: tuple[Tile, ...]


@dataclass(frozen=True, kw_only=True)
class FindingText:
    """A finding as a sentence."""

    code: str
    text: str
    is_bad: bool = False
    """Whether something is wrong. Other findings are merely worth knowing."""


@dataclass(frozen=True, kw_only=True)
class Findings:
    """A list of findings."""

    findings: tuple[FindingText, ...]


@dataclass(frozen=True, kw_only=True)
class Code:
    """Text to copy, such as a study file."""

    title: str
    text: str


@dataclass(frozen=True, kw_only=True)
class Listing:
    """Names and values, or plain lines if the names are empty."""

    title: str
    pairs: tuple[tuple[str, str], ...]
    is_open: bool = False


@dataclass(frozen=True, kw_only=True)
class Trial:
    """An entry in the list of trials. It opens to its configuration and the command that runs it again."""

    title: str
    outcome: str
    """Empty if the trial finished normally."""
    summary: str = ""
    """Why the trial failed, in one line."""
    details: tuple[tuple[str, str], ...] = ()
    """Names and values of its configuration and results."""
    command: str
    """The command that runs only this trial again."""
    log: str = ""
    """The end of its log, if it failed."""
    is_open: bool = False
    """Whether the entry is shown open."""


@dataclass(frozen=True, kw_only=True)
class TrialGroup:
    """Trials under a common heading."""

    title: str
    """Empty: the trials are listed without a heading."""
    trials: tuple[Trial, ...]


@dataclass(frozen=True, kw_only=True)
class Trials:
    """A list of trials."""

    lead: str
    """Text above the list."""
    groups: tuple[TrialGroup, ...]


Block = Prose | Tiles | Findings | Table | Figure | Code | Listing | Trials
B = TypeVar("B", bound=Block)


@dataclass(frozen=True, kw_only=True)
class Section:
    """A section of a report. The first section is the opening, which the page shows without a heading."""

    key: str
    """Anchor for links."""
    title: str
    """A table or a listing with the same title is shown without its own."""
    blocks: tuple[Block, ...]


@dataclass(frozen=True, kw_only=True)
class Report:
    """A whole report."""

    title: str
    subtitle: str
    sections: tuple[Section, ...]
    footer: tuple[str, ...] = ()
    progress: str = ""
    """How many trials have ended, while the study runs."""
    command: Literal["report", "compare", "predict"] = "report"
    """The command that makes this kind of report."""

    def all(self, kind: type[B]) -> list[B]:
        """Return the blocks of one kind, in order."""
        return [block for section in self.sections for block in section.blocks if isinstance(block, kind)]
