"""Reads tables of measurements from CSV into series. Errors name the line and suggest the nearest known column.

workers,samples_per_s
1,410
2,801
"""

from __future__ import annotations

import csv
import io
import math
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, Protocol, cast, get_args

from worldsize.analysis.projection.series_law import TableSeries, table_series
from worldsize.errors import InputError, Problem, did_you_mean, shorten

Unit = Literal["samples_per_s", "tokens_per_s", "step_s", "epoch_s", "train_s"]
Mode = Literal["weak", "strong", "unknown"]
UNITS: tuple[Unit, ...] = get_args(Unit)
MODES: tuple[Mode, ...] = get_args(Mode)
STACK = ("hardware", "interconnect", "framework")
"""Columns that together name the stack a series ran on."""
ABOUT = ("model", "params_m", *STACK, "source")
"""Columns that describe a series and are kept as text."""
MOST_WORKERS = 10_000_000
MIN_VALUE, MAX_VALUE = 1e-30, 1e30
"""Range of possible measurements. Products of larger values could overflow."""
MAX_PROBLEMS = 20
"""Maximum number of problems in one message. In a file of another kind, every line is a problem."""


@dataclass(frozen=True, kw_only=True)
class TableRow:
    where: str
    """`table.csv, line 7`, or `points[3]`."""
    cells: Mapping[str, object]


@dataclass(frozen=True, kw_only=True)
class GivenSeries:
    """A series of the table: its rates, and the conversion back into its own unit.

    Rates are computed from times: batch x n / step_s for weak scaling, global batch / step_s for strong scaling, and
    1 / time for epoch_s and train_s, because the work is the same for every count. Without a batch, rates count steps,
    because projections need relative rates only.
    """

    series: TableSeries
    unit: Unit
    mode: Mode
    batch: float | None
    """Samples per step: per worker (weak) or in total (strong). None if not given or not needed."""
    about: Mapping[str, str]

    def value(self, workers: int, rate: float) -> float:
        """Convert a rate of the series back into the unit of the table."""
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
    """Return the work that is done in the time that the table gives: rate = work / time."""
    if unit != "step_s":
        return 1.0
    return (batch or 1.0) * (workers if mode == "weak" else 1)


def all_series(rows: Iterable[TableRow], unit: Unit | None) -> tuple[GivenSeries, ...]:
    """Return the series in the order of their first rows.

    `unit`: the column with the measurements; None if the columns `value` and `unit` hold them.
    """
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
    return tuple(given for given in series if given is not None)


def table_error(problems: Sequence[Problem]) -> InputError:
    shown = list(problems[:MAX_PROBLEMS])
    if len(problems) > MAX_PROBLEMS:
        shown.append(Problem(f"and {len(problems) - MAX_PROBLEMS} more problems; fix these first"))
    return InputError(shown)


def whole(value: object) -> int | None:
    """Return 4 for 4, '4' and '4.0' (as spreadsheets write it); None if it is not a whole number of at least 1."""
    number = positive(value)
    if number is None or number != int(number) or number > MOST_WORKERS:
        return None
    return int(number)


def positive(value: object) -> float | None:
    """Return the number if it is in the range of possible measurements, else None."""
    if isinstance(value, bool) or (isinstance(value, str) and "_" in value):
        return None
    try:
        number = float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError):
        return None
    return number if MIN_VALUE <= number <= MAX_VALUE else None


def _text(value: object) -> str:
    """Return a cell as text. pandas turns an empty cell into NaN."""
    return "" if value is None or (isinstance(value, float) and math.isnan(value)) else str(value).strip()


class _Reader:
    """Reads one row and adds its errors to `problems`."""

    def __init__(self, row: TableRow, problems: list[Problem]) -> None:
        self.row = row
        self.problems = problems

    def measured(self, unit: Unit | None) -> _Measured | None:
        before = len(self.problems)
        is_published_layout = unit is None
        row_unit = unit or self._one_of("unit", UNITS, None)
        workers = self._number("workers", whole, f"a whole number from 1 to {MOST_WORKERS:,}", "write 4, for example")
        value = self._number(
            unit or "value", positive, "a positive, finite number (1e-30 to 1e30)", "leave the row out if it failed"
        )
        node = self._number("workers_per_node", whole, "a whole number of at least 1", "leave it empty", optional=True)
        mode = cast(Mode, self._one_of("mode", MODES, "unknown"))
        if is_published_layout and positive(self.row.cells.get("batch_per_worker")) is None:
            batch = None  # published tables may describe batches in words ('varies')
        else:
            batch = self._number("batch_per_worker", positive, "a positive number", "leave it empty", optional=True)
        if row_unit == "step_s" and mode == "unknown":
            self._wrong(
                "step_s requires a column `mode`; use 'weak' (one batch per worker) or 'strong' (one global batch)"
            )
        if len(self.problems) > before or workers is None or value is None:
            return None
        if row_unit != "step_s":
            batch = None
        elif batch is not None and mode == "strong":
            batch *= workers
        return _Measured(
            where=self.row.where,
            workers=int(workers),
            value=value,
            unit=cast(Unit, row_unit),
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
                self._wrong(f"{name} is empty; it must be {rule}")
            return None
        number = read(value)
        if number is None:
            self._wrong(f"{name}={shorten(value)} is not {rule}; {_plain_number(_text(value), read) or remedy}")
        return number

    def _one_of(self, name: str, choices: Sequence[str], default: str | None) -> str | None:
        text = _text(self.row.cells.get(name))
        if not text and default is not None:
            return default
        if text.lower() not in choices:
            self._wrong(f"{name}={shorten(text)} is not known; use {' or '.join(choices)}")
            return default
        return text.lower()

    def _wrong(self, text: str) -> None:
        self.problems.append(Problem(text, self.row.where))


class Converter(Protocol):
    def __call__(self, value: object, /) -> float | None: ...


def _plain_number(text: str, read: Converter) -> str | None:
    """Suggest 410 for `410 img/s`, 410.5 for `410,5`, and both readings of `1,570`; None if the text has no number."""
    with_unit = re.fullmatch(r"(\d+(?:\.\d+)?)\s*[^\d.,:\s][^\d]*", text)
    thousands = re.fullmatch(r"[1-9]\d{0,2}([,_' ]\d{3})+(\.\d+)?", text)
    candidates = [with_unit[1]] if with_unit else []
    candidates += [re.sub(r"[,_' ]", "", text)] if thousands else []
    candidates += [text.replace(",", ".")] if re.fullmatch(r"\d+,\d+", text) else []
    plain = [candidate for candidate in candidates if read(candidate) is not None]
    return f"write {' or '.join(plain)}" if plain else None


def _series(name: str, measured: list[_Measured], problems: list[Problem]) -> GivenSeries | None:
    before = len(problems)
    measured = _whole_nodes(measured)
    first = measured[0]
    label = f"series {shorten(name)}" if name else "the table"
    _check_alike(label, measured, problems)
    _check_repeats(label, measured, problems)
    if len(problems) > before:
        return None
    rates = []
    for point in measured:
        work = step_samples(point.unit, point.mode, point.workers, first.batch)
        is_rate = point.unit in ("samples_per_s", "tokens_per_s")
        rates.append((point.workers, point.value if is_rate else work / point.value))
    stack = " / ".join(first.about[column] for column in STACK if column in first.about)
    series = table_series(rates, workers_per_node=first.workers_per_node, name=name, stack=stack)
    return GivenSeries(series=series, unit=first.unit, mode=first.mode, batch=first.batch, about=first.about)


def _whole_nodes(measured: list[_Measured]) -> list[_Measured]:
    """Fill in the node size of runs that did not use all of a node.

    Such a run may give its own worker count as workers_per_node, such as 2 for 2 workers, if all other runs agree on
    one larger size.
    """
    partial = [point for point in measured if point.workers_per_node == point.workers]
    sizes = {point.workers_per_node for point in measured if point not in partial}
    sizes = sizes or {max(point.workers for point in partial)}
    node = next(iter(sizes))
    if len(sizes) > 1 or node is None or any(point.workers > node for point in partial):
        return measured
    return [replace(point, workers_per_node=node) if point in partial else point for point in measured]


def _check_alike(label: str, measured: list[_Measured], problems: list[Problem]) -> None:
    """Check the fields that must not change within a series, which is one setting."""
    first = measured[0]
    for point in measured[1:]:
        pairs = {
            "unit": (first.unit, point.unit),
            "mode": (first.mode, point.mode),
            "workers_per_node": (first.workers_per_node, point.workers_per_node),
            "workers x batch_per_worker" if point.mode == "strong" else "batch_per_worker": (first.batch, point.batch),
        }
        if first.batch and point.batch and math.isclose(first.batch, point.batch, rel_tol=0.01):
            pairs.popitem()  # a global batch that does not divide evenly is written rounded
        for what, (first_value, value) in pairs.items():
            if first_value != value:
                text = f"{what} is {value} here and {first_value} at {first.where}, but {label} is one setting"
                problems.append(Problem(f"{text}; give each setting a series_id of its own", point.where))


def _check_repeats(label: str, measured: list[_Measured], problems: list[Problem]) -> None:
    seen: dict[tuple[int, str | None], str] = {}
    for point in measured:
        key = (point.workers, point.repeat)
        if key in seen:
            repeat = "" if point.repeat is None else f" with repeat {shorten(point.repeat)}"
            text = f"workers={point.workers}{repeat} already occurs in {label}, at {seen[key]}"
            problems.append(Problem(f"{text}; number the runs of one count in a column `repeat`", point.where))
        seen.setdefault(key, point.where)


OPTIONAL = ("series_id", "mode", "batch_per_worker", "workers_per_node", "repeat")
COLUMNS = ("workers", *UNITS, *OPTIONAL, "value", "unit", *ABOUT)
OFTEN_CALLED = {
    "workers": ("gpus", "gpu", "num_gpus", "ngpus", "devices", "ranks", "processes", "world_size", "cores", "n"),
    "samples_per_s": ("throughput", "images_per_s", "images/s", "img/s", "samples/s", "samples_per_sec"),
    "tokens_per_s": ("tokens/s", "tok/s"),
    "workers_per_node": ("gpus_per_node", "ntasks_per_node", "tasks_per_node"),
}


@dataclass(frozen=True, kw_only=True)
class MeasurementTable:
    series: tuple[GivenSeries, ...]


def read_table(path: Path, *, workers_per_node: int | None = None) -> MeasurementTable:
    """Read a table. `workers_per_node` applies to series that do not state it, and must not contradict the others."""
    if not path.exists():
        raise InputError(f"{path} does not exist; give a study folder or a table")
    try:
        text = path.read_bytes().decode("utf-8-sig")
    except OSError as error:
        raise InputError(f"{path} cannot be read ({error}); give a CSV file in UTF-8") from error
    except UnicodeDecodeError as error:
        raise InputError(f"{path} is not text in UTF-8; save it as CSV in UTF-8") from error
    if "\x00" in text or text.startswith("PK\x03\x04"):
        raise InputError(f"{path} is not text; save the table as CSV in UTF-8")
    table = parse_table(text, str(path))
    if workers_per_node is None:
        return table
    return replace(table, series=tuple(_with_nodes(given, workers_per_node) for given in table.series))


def _with_nodes(given: GivenSeries, workers_per_node: int) -> GivenSeries:
    stated = given.series.workers_per_node
    if stated not in (None, workers_per_node):
        source = f"series {shorten(given.series.name)}" if given.series.name else "the table"
        raise InputError(f"workers_per_node={workers_per_node} contradicts {source}, which says {stated}; remove one")
    return replace(given, series=replace(given.series, workers_per_node=workers_per_node))


def parse_table(text: str, label: str) -> MeasurementTable:
    header, rows = _rows(text, label)
    return MeasurementTable(series=all_series(rows, _unit(header, label)))


def table_of(points: Iterable[Mapping[str, object]], label: str = "points") -> MeasurementTable:
    """Build a table from Python: mappings from column names to values."""
    if isinstance(points, str | bytes | Mapping):
        raise InputError(
            f"points={shorten(points)} is not a list of measurements; write [{{'workers': 4, 'samples_per_s': 390}}, "
            "...], or use `worldsize predict` for a file"
        )
    rows, problems = [], []
    columns: dict[str, None] = {}
    for index, point in enumerate(points):
        where = f"{label}[{index}]"
        if not isinstance(point, Mapping):
            problems.append(
                Problem(f"{shorten(point)} is not a mapping of columns to values; write {{'workers': 4, ...}}", where)
            )
            continue
        problems += [Problem(_unknown(str(name)), where) for name in point if name not in COLUMNS]
        columns |= dict.fromkeys(str(name) for name in point if point[name] is not None)
        rows.append(TableRow(where=where, cells=point))
    if problems:
        raise table_error(problems)
    if not rows:
        raise InputError([Problem("there are no measurements; give at least one", label)])
    return MeasurementTable(series=all_series(rows, _unit(list(columns), label)))


def _rows(text: str, label: str) -> tuple[list[str], list[TableRow]]:
    """Return the header and the rows, without blank lines and without spaces around cells."""
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=_delimiter(text), strict=True)
    header: list[str] = []
    rows: list[TableRow] = []
    problems: list[Problem] = []
    try:
        for raw in reader:
            cells = [cell.strip() for cell in raw]
            where = f"{label}, line {reader.line_num}"
            if not any(cells):
                continue
            if not header:
                header = [cell.lower() for cell in cells]
                _check_header(header, where)
            elif len(cells) != len(header):
                rule = f"{len(cells)} cells for {len(header)} columns; put quotes around a value that contains a comma"
                problems.append(Problem(rule, where))
            else:
                rows.append(TableRow(where=where, cells=dict(zip(header, cells, strict=True))))
    except csv.Error as error:
        where = f"{label}, line {reader.line_num}"
        raise InputError([Problem(f"not valid CSV: {error}; fix the quotes", where)]) from error
    if problems:
        raise table_error(problems)
    if not rows:
        raise InputError([Problem("the table has no measurements; write a header and one line per count", label)])
    return header, rows


def _delimiter(text: str) -> str:
    """Return the delimiter of the first line. Spreadsheets in many countries write semicolons."""
    first = next((line for line in text.splitlines() if line.strip()), "")
    return max(",;\t", key=first.count)


def _check_header(header: Sequence[str], where: str) -> None:
    duplicates = sorted({name for name in header if header.count(name) > 1})
    problems = [Problem(f"column {shorten(name)} occurs more than once; keep one", where) for name in duplicates]
    problems += [Problem(_unknown(name), where) for name in header if name not in COLUMNS]
    if problems:
        raise table_error([*problems, Problem(ALL_COLUMNS)])


def _unit(columns: Sequence[str], where: str) -> Unit | None:
    """Return the column with the measurements, or None if they are in the columns `value` and `unit`."""
    if "workers" not in columns:
        raise InputError([Problem('column "workers" is missing; add it', where)])
    units = [name for name in columns if name in UNITS]
    has_value_or_unit = "value" in columns or "unit" in columns
    if has_value_or_unit and not units and {"value", "unit"} <= set(columns):
        return None
    if has_value_or_unit or len(units) != 1:
        listed = ", ".join([*units, *(name for name in ("value", "unit") if name in columns)]) or "none"
        text = f"there must be one column with measurements, found {listed}; keep one of {', '.join(UNITS)}"
        raise InputError([Problem(text, where)])
    return units[0]


def _unknown(name: str) -> str:
    meant = next((column for column, synonyms in OFTEN_CALLED.items() if name.lower() in synonyms), None)
    hint = did_you_mean(meant or name.lower(), COLUMNS, cutoff=0.7, otherwise="Leave it out.")
    return f"unknown column {shorten(name)}. {hint}"


ALL_COLUMNS = f"the columns are workers, one of {', '.join(UNITS)}, and {', '.join((*OPTIONAL, *ABOUT))}"
