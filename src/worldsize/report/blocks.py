"""What a report is made of: frozen blocks without any medium in them. The writers draw them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
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
    """A column of a table while it is made: what it shows, and where it comes from."""

    quantity: Quantity
    of: Callable[[T], Cell]
    terminal: bool = True
    """False: left out in a terminal, where room is scarce."""


@dataclass(frozen=True, kw_only=True)
class Table:
    key: str
    """File name without its suffix."""
    title: str
    quantities: tuple[Quantity, ...]
    rows: tuple[tuple[Cell, ...], ...]
    note: str = ""
    marked: int | None = None
    """Index of the row that the answer recommends."""
    projected: tuple[int, ...] = ()
    """Indices of the rows that were not measured: a terminal puts ~ before their first cell."""
    terminal: tuple[bool, ...] = ()
    """Which columns a terminal shows; empty: all."""

    def is_text(self, index: int) -> bool:
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
    """The table of these rows, without its empty columns; None without rows."""
    cells = [[column.of(row) for row in rows] for column in columns]
    kept = [index for index, values in enumerate(cells) if any(value is not None for value in values)]
    if not rows:
        return None
    return Table(
        key=key,
        title=title,
        quantities=tuple(columns[index].quantity for index in kept),
        rows=tuple(zip(*(cells[index] for index in kept), strict=True)),
        note=note,
        marked=next((index for index, row in enumerate(rows) if marked is not None and row is marked), None),
        projected=tuple(index for index, row in enumerate(rows) if projected(row)),
        terminal=tuple(columns[index].terminal for index in kept),
    )


def setting_columns(rows: Sequence[P], *, global_batch: bool = True) -> list[Column[P]]:
    """Workers and batches, then strategy, precision, accumulation and place where the rows differ in them."""
    columns: list[Column[P]] = [
        Column(quantity=WORKERS, of=lambda row: row.setting.workers),
        Column(quantity=BATCH_PER_WORKER, of=lambda row: row.setting.batch_per_worker),
    ]
    if global_batch:
        columns.append(Column(quantity=GLOBAL_BATCH, of=lambda row: row.setting.global_batch))
    return [*columns, *how_columns(rows)]


HOW: dict[str, Callable[[Setting], Cell]] = {
    "strategy": lambda setting: setting.strategy.label,
    "precision": lambda setting: setting.precision,
    "accumulation": lambda setting: setting.accumulation,
    "place": lambda setting: setting.place,
}


def how_columns(rows: Sequence[P]) -> list[Column[P]]:
    """Columns for strategy, precision, accumulation and place, where the rows differ in them."""
    return [
        Column(quantity=Quantity(key=name, title=name), of=_of_setting(value))
        for name, value in HOW.items()
        if len({value(row.setting) for row in rows}) > 1
    ]


def _of_setting(value: Callable[[Setting], Cell]) -> Callable[[Any], Cell]:
    return lambda row: value(row.setting)


@dataclass(frozen=True, kw_only=True)
class Prose:
    role: Literal["answer", "doubt", "evidence", "why", "next", "caution", "outlook", "note"]
    text: str
    command: str = ""
    """A command that can be copied, for what should be done next."""


@dataclass(frozen=True, kw_only=True)
class Tile:
    """One number of the answer, in large type."""

    quantity: Quantity
    value: Cell
    note: str = ""


@dataclass(frozen=True, kw_only=True)
class Tiles:
    tiles: tuple[Tile, ...]


@dataclass(frozen=True, kw_only=True)
class FindingText:
    """A finding in words."""

    code: str
    text: str
    is_bad: bool = False
    """Something is wrong; the others are worth knowing."""


@dataclass(frozen=True, kw_only=True)
class Findings:
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
    """One trial of the list of all: it opens to its configuration and the command that runs it again."""

    title: str
    outcome: str
    """Empty if it finished as it should."""
    summary: str = ""
    """Why it failed, in one line."""
    details: tuple[tuple[str, str], ...] = ()
    command: str
    log: str = ""
    """The end of what it printed, if it failed."""
    is_open: bool = False


@dataclass(frozen=True, kw_only=True)
class TrialGroup:
    title: str
    """Empty: the trials are listed without a heading of their own."""
    trials: tuple[Trial, ...]


@dataclass(frozen=True, kw_only=True)
class Trials:
    lead: str
    groups: tuple[TrialGroup, ...]


Block = Prose | Tiles | Findings | Table | Figure | Code | Listing | Trials
B = TypeVar("B", bound=Block)


@dataclass(frozen=True, kw_only=True)
class Section:
    """The first section of a report is its opening, and has no heading of its own."""

    key: str
    title: str
    """Not repeated above a table or a listing that has the same title."""
    blocks: tuple[Block, ...]


@dataclass(frozen=True, kw_only=True)
class Report:
    title: str
    subtitle: str
    sections: tuple[Section, ...]
    footer: tuple[str, ...] = ()
    progress: str = ""
    """How much is done, while the study runs."""
    command: Literal["report", "compare", "predict"] = "report"
    """What makes it."""

    def all(self, kind: type[B]) -> list[B]:
        """Its blocks of one kind, in order."""
        return [block for section in self.sections for block in section.blocks if isinstance(block, kind)]
