"""Rows of a table of measurements, from a file or from Python: checked, and put together into series."""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, Protocol, cast, get_args

from worldsize.analysis.table import TableSeries, table_series
from worldsize.errors import Problem, TableError, visible

Unit = Literal["samples_per_s", "tokens_per_s", "step_s", "epoch_s", "train_s"]
Mode = Literal["weak", "strong", "unknown"]
UNITS: tuple[Unit, ...] = get_args(Unit)
MODES: tuple[Mode, ...] = get_args(Mode)
STACK = ("hardware", "interconnect", "framework")
"""Columns that, taken together, name the stack a series ran on."""
ABOUT = ("model", "params_m", *STACK, "source")
"""Columns that describe a series and are kept as text."""
MOST_WORKERS = 10_000_000
LEAST_VALUE, MOST_VALUE = 1e-30, 1e30
"""Beyond these no measurement lies, and products of them would overflow."""
MOST_TOLD = 20
"""Problems in one message: a file of another kind would name every line."""


@dataclass(frozen=True, kw_only=True)
class Row:
    where: str
    """`table.csv, line 7`, or `points[3]`."""
    cells: Mapping[str, object]


@dataclass(frozen=True, kw_only=True)
class GivenSeries:
    """A series as the table gives it: rates for the laws, and the way back into its own unit.

    A rate follows from a time as: weak step, batch x n / step_s; strong step, global batch / step_s; epoch_s and
    train_s, 1 / time (the work is the same for every count). Without a batch the same in steps: relative, which is all
    the laws need.
    """

    series: TableSeries
    unit: Unit
    mode: Mode
    batch: float | None
    """Samples of a step: of one worker (weak), of all together (strong). None: not given, or not needed."""
    about: Mapping[str, str]

    def value(self, workers: int, rate: float) -> float:
        """A rate of the series, back in the unit of the table."""
        if self.unit in ("samples_per_s", "tokens_per_s"):
            return rate
        return step_samples(self.unit, self.mode, workers, self.batch) / rate


@dataclass(frozen=True, kw_only=True)
class _Measured:
    where: str
    workers: int
    value: float
    unit: Unit
    mode: Mode
    batch: float | None
    workers_per_node: int | None
    repeat: str | None
    about: Mapping[str, str]


def step_samples(unit: Unit, mode: Mode, workers: int, batch: float | None) -> float:
    """What is done in the time that the table gives: rate = this / time."""
    if unit != "step_s":
        return 1.0
    return (batch or 1.0) * (workers if mode == "weak" else 1)


def all_series(rows: Iterable[Row], unit: Unit | None) -> tuple[GivenSeries, ...]:
    """In the order of their first rows. `unit` is the column with the measurement; None: `value` and `unit`."""
    problems: list[Problem] = []
    by_name: dict[str, list[_Measured]] = defaultdict(list)
    for row in rows:
        reader = _Reader(row, problems)
        measured = reader.measured(unit)
        if measured is not None:
            by_name[_text(row.cells.get("series_id"))].append(measured)
    series = [_series(name, measured, problems) for name, measured in by_name.items()]
    if problems:
        raise table_error(problems)
    return tuple(found for found in series if found is not None)


def table_error(problems: Sequence[Problem]) -> TableError:
    told = list(problems[:MOST_TOLD])
    if len(problems) > MOST_TOLD:
        told.append(Problem(f"and {len(problems) - MOST_TOLD} problems more; mend these first"))
    return TableError(told)


def shown(value: object) -> str:
    text = visible(repr(value))
    return text if len(text) <= 60 else text[:57] + "..."


def whole(value: object) -> int | None:
    """4, '4' and '4.0' (as spreadsheets write it) are whole numbers of at least 1; None: it is none."""
    number = positive(value)
    if number is None or number != int(number) or number > MOST_WORKERS:
        return None
    return int(number)


def positive(value: object) -> float | None:
    if isinstance(value, bool) or (isinstance(value, str) and "_" in value):
        return None
    try:
        number = float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError):
        return None
    return number if LEAST_VALUE <= number <= MOST_VALUE else None


def _text(value: object) -> str:
    """NaN is what pandas makes of an empty cell."""
    return "" if value is None or (isinstance(value, float) and math.isnan(value)) else str(value).strip()


class _Reader:
    """One row; what is wrong with it is added to `problems`."""

    def __init__(self, row: Row, problems: list[Problem]) -> None:
        self.row = row
        self.problems = problems

    def measured(self, unit: Unit | None) -> _Measured | None:
        before = len(self.problems)
        own_layout = unit is not None
        found = unit or self._one_of("unit", UNITS, None)
        workers = self._number("workers", whole, f"a whole number from 1 to {MOST_WORKERS:,}", "write 4, say")
        value = self._number(
            unit or "value", positive, "a positive, finite number (1e-30 to 1e30)", "leave the row out if it failed"
        )
        node = self._number("workers_per_node", whole, "a whole number of at least 1", "leave it empty", optional=True)
        mode = cast(Mode, self._one_of("mode", MODES, "unknown"))
        if not own_layout and positive(self.row.cells.get("batch_per_worker")) is None:
            batch = None  # published tables describe batches in words ('varies')
        else:
            batch = self._number("batch_per_worker", positive, "a positive number", "leave it empty", optional=True)
        if found == "step_s" and mode == "unknown":
            self._wrong(
                "step_s needs a mode: 'weak' (one batch a worker) or 'strong' (one global batch); add the column"
            )
        if len(self.problems) > before or workers is None or value is None:
            return None
        if found != "step_s":
            batch = None
        elif batch is not None and mode == "strong":
            batch *= workers
        return _Measured(
            where=self.row.where,
            workers=int(workers),
            value=value,
            unit=cast(Unit, found),
            mode=mode,
            batch=batch,
            workers_per_node=None if node is None else int(node),
            repeat=_text(self.row.cells.get("repeat")) or None,
            about={name: _text(self.row.cells.get(name)) for name in ABOUT if _text(self.row.cells.get(name))},
        )

    def _number(self, name: str, read: Converter, rule: str, remedy: str, *, optional: bool = False) -> float | None:
        value = self.row.cells.get(name)
        if _text(value) == "" and (optional or value is None or value == ""):
            if not optional:
                self._wrong(f"{name} is empty; it wants {rule}")
            return None
        number = read(value)
        if number is None:
            self._wrong(f"{name}={shown(value)} is not {rule}; {_plain_number(_text(value), read) or remedy}")
        return number

    def _one_of(self, name: str, choices: Sequence[str], default: str | None) -> str | None:
        text = _text(self.row.cells.get(name))
        if not text and default is not None:
            return default
        if text.lower() not in choices:
            self._wrong(f"{name}={shown(text)} is not known; use {' or '.join(choices)}")
            return default
        return text.lower()

    def _wrong(self, text: str) -> None:
        self.problems.append(Problem(text, self.row.where))


class Converter(Protocol):
    def __call__(self, value: object, /) -> float | None: ...


def _plain_number(text: str, read: Converter) -> str | None:
    """`write 410` for 410 img/s, 410.5 for 410,5, both readings of 1,570; None where no number is to be seen in it."""
    with_unit = re.fullmatch(r"(\d+(?:\.\d+)?)\s*[^\d.,:\s][^\d]*", text)
    thousands = re.fullmatch(r"[1-9]\d{0,2}([,_' ]\d{3})+(\.\d+)?", text)
    candidates = [with_unit[1]] if with_unit else []
    candidates += [re.sub(r"[,_' ]", "", text)] if thousands else []
    candidates += [text.replace(",", ".")] if re.fullmatch(r"\d+,\d+", text) else []
    plain = [each for each in candidates if read(each) is not None]
    return f"write {' or '.join(plain)}" if plain else None


def _series(name: str, measured: list[_Measured], problems: list[Problem]) -> GivenSeries | None:
    before = len(problems)
    measured = _whole_nodes(measured)
    first = measured[0]
    label = f"series {shown(name)}" if name else "the table"
    _check_alike(label, measured, problems)
    _check_repeats(label, measured, problems)
    if len(problems) > before:
        return None
    rates = []
    for one in measured:
        done = step_samples(one.unit, one.mode, one.workers, first.batch)
        is_rate = one.unit in ("samples_per_s", "tokens_per_s")
        rates.append((one.workers, one.value if is_rate else done / one.value))
    stack = " / ".join(first.about[column] for column in STACK if column in first.about)
    series = table_series(rates, workers_per_node=first.workers_per_node, name=name, stack=stack)
    return GivenSeries(series=series, unit=first.unit, mode=first.mode, batch=first.batch, about=first.about)


def _whole_nodes(measured: list[_Measured]) -> list[_Measured]:
    """A run inside a node may tell how many it had there, 2 of 2, where all others tell one size and no smaller one."""
    partial = [one for one in measured if one.workers_per_node == one.workers]
    sizes = {one.workers_per_node for one in measured if one not in partial} or {max(one.workers for one in partial)}
    node = next(iter(sizes))
    if len(sizes) > 1 or node is None or any(one.workers > node for one in partial):
        return measured
    return [replace(one, workers_per_node=node) if one in partial else one for one in measured]


def _check_alike(label: str, measured: list[_Measured], problems: list[Problem]) -> None:
    """One series is one setting: what may not change inside it."""
    first = measured[0]
    for one in measured[1:]:
        pairs = {
            "unit": (first.unit, one.unit),
            "mode": (first.mode, one.mode),
            "workers_per_node": (first.workers_per_node, one.workers_per_node),
            "workers x batch_per_worker" if one.mode == "strong" else "batch_per_worker": (first.batch, one.batch),
        }
        if first.batch and one.batch and math.isclose(first.batch, one.batch, rel_tol=0.01):
            pairs.popitem()  # a global batch that does not divide evenly is written rounded
        for what, (there, here) in pairs.items():
            if there != here:
                text = f"{what} is {here} here and {there} at {first.where}, but {label} is one setting"
                problems.append(Problem(f"{text}; give each setting a series_id of its own", one.where))


def _check_repeats(label: str, measured: list[_Measured], problems: list[Problem]) -> None:
    seen: dict[tuple[int, str | None], str] = {}
    for one in measured:
        key = (one.workers, one.repeat)
        if key in seen:
            which = "" if one.repeat is None else f" with repeat {shown(one.repeat)}"
            text = f"workers={one.workers}{which} stands in {label} already, at {seen[key]}"
            problems.append(Problem(f"{text}; number runs of one count in a column `repeat`", one.where))
        seen.setdefault(key, one.where)
