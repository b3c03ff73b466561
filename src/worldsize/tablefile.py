"""Tables of measurements: CSV in, series out; every problem names its line, an unknown column its nearest neighbour.

workers,samples_per_s
1,410
2,801
"""

from __future__ import annotations

import csv
import difflib
import io
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from worldsize.errors import Problem, TableError
from worldsize.tablerows import ABOUT, UNITS, GivenSeries, Row, Unit, all_series, shown, table_error

OPTIONAL = ("series_id", "mode", "batch_per_worker", "workers_per_node", "repeat")
COLUMNS = ("workers", *UNITS, *OPTIONAL, "value", "unit", *ABOUT)
OFTEN_CALLED = {
    "workers": ("gpus", "gpu", "num_gpus", "ngpus", "devices", "ranks", "processes", "world_size", "cores", "n"),
    "samples_per_s": ("throughput", "images_per_s", "images/s", "img/s", "samples/s", "samples_per_sec"),
    "tokens_per_s": ("tokens/s", "tok/s"),
    "workers_per_node": ("gpus_per_node", "ntasks_per_node", "tasks_per_node"),
}


@dataclass(frozen=True, kw_only=True)
class Table:
    label: str
    """The file's path, or `points`."""
    series: tuple[GivenSeries, ...]


def read_table(path: Path, *, workers_per_node: int | None = None) -> Table:
    """`workers_per_node`: of series that do not state it; another than stated is an error."""
    if not path.exists():
        raise TableError(f"{path}: there is neither a study folder nor a table of that name; give one of the two")
    try:
        text = path.read_bytes().decode("utf-8-sig")
    except OSError as error:
        raise TableError(f"{path}: cannot be read ({error}); give a CSV file in UTF-8") from error
    except UnicodeDecodeError as error:
        raise TableError(f"{path} is no text in UTF-8; save it as CSV in UTF-8") from error
    if "\x00" in text or text.startswith("PK\x03\x04"):
        raise TableError(f"{path} is no text; save the table as CSV in UTF-8")
    table = parse_table(text, str(path))
    if workers_per_node is None:
        return table
    return replace(table, series=tuple(_with_nodes(each, workers_per_node) for each in table.series))


def _with_nodes(given: GivenSeries, workers_per_node: int) -> GivenSeries:
    stated = given.series.workers_per_node
    if stated not in (None, workers_per_node):
        of = f" of {given.series.name}" if given.series.name else ""
        raise TableError(
            f"workers_per_node={workers_per_node} was asked for, and the table{of} says {stated}; leave one of them out"
        )
    return replace(given, series=replace(given.series, workers_per_node=workers_per_node))


def parse_table(text: str, label: str) -> Table:
    header, rows = _rows(text, label)
    return Table(label=label, series=all_series(rows, _unit(header, label)))


def table_of(points: Iterable[Mapping[str, object]], label: str = "points") -> Table:
    """The same from Python: mappings with the names of the columns."""
    if isinstance(points, str | bytes | Mapping):
        raise TableError(
            f"points={shown(points)} is no list of measurements; write [{{'workers': 4, 'samples_per_s': 390}}, ...], "
            "or give a file to `worldsize predict`"
        )
    rows, problems = [], []
    columns: dict[str, None] = {}
    for index, point in enumerate(points):
        where = f"{label}[{index}]"
        if not isinstance(point, Mapping):
            problems.append(
                Problem(f"{shown(point)} is no mapping of columns to values; write {{'workers': 4, ...}}", where)
            )
            continue
        problems += [Problem(_unknown(str(name)), where) for name in point if name not in COLUMNS]
        columns |= dict.fromkeys(str(name) for name in point if point[name] is not None)
        rows.append(Row(where=where, cells=point))
    if problems:
        raise table_error(problems)
    if not rows:
        raise TableError([Problem("there is no measurement; give at least one", label)])
    return Table(label=label, series=all_series(rows, _unit(list(columns), label)))


def _rows(text: str, label: str) -> tuple[list[str], list[Row]]:
    """Blank lines are passed over; cells and names lose the spaces around them."""
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=_delimiter(text), strict=True)
    header: list[str] = []
    rows: list[Row] = []
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
                text_ = f"{len(cells)} cells under {len(header)} columns; a comma inside a value wants quotes around it"
                problems.append(Problem(text_, where))
            else:
                rows.append(Row(where=where, cells=dict(zip(header, cells, strict=True))))
    except csv.Error as error:
        where = f"{label}, line {reader.line_num}"
        raise TableError([Problem(f"not valid CSV: {error}; mend the quotes", where)]) from error
    if problems:
        raise table_error(problems)
    if not rows:
        raise TableError([Problem("the table has no measurement; write a line of columns and a line a count", label)])
    return header, rows


def _delimiter(text: str) -> str:
    """By the first line; spreadsheets of half the world write semicolons."""
    first = next((line for line in text.splitlines() if line.strip()), "")
    return max(",;\t", key=first.count)


def _check_header(header: Sequence[str], where: str) -> None:
    twice = sorted({name for name in header if header.count(name) > 1})
    problems = [Problem(f"column {shown(name)} stands there more than once; leave one", where) for name in twice]
    problems += [Problem(_unknown(name), where) for name in header if name not in COLUMNS]
    if problems:
        raise table_error([*problems, Problem(ALL_COLUMNS)])


def _unit(columns: Sequence[str], where: str) -> Unit | None:
    """The one column with the measurement; None for `value` with `unit` beside it."""
    if "workers" not in columns:
        raise TableError([Problem("column 'workers' is missing; add it", where)])
    found = [name for name in columns if name in UNITS]
    given_beside = "value" in columns or "unit" in columns
    if given_beside and not found and {"value", "unit"} <= set(columns):
        return None
    if given_beside or len(found) != 1:
        listed = ", ".join([*found, *(name for name in ("value", "unit") if name in columns)]) or "none"
        text = f"one column with a measurement is wanted, found {listed}; keep one of {', '.join(UNITS)}"
        raise TableError([Problem(text, where)])
    return found[0]


def _unknown(name: str) -> str:
    called = next((right for right, others in OFTEN_CALLED.items() if name.lower() in others), None)
    near = [called] if called else difflib.get_close_matches(name.lower(), COLUMNS, n=1, cutoff=0.7)
    return f"unknown column {shown(name)}; " + (f"did you mean {near[0]!r}?" if near else "leave it out")


ALL_COLUMNS = f"the columns are workers, one of {', '.join(UNITS)}, and {', '.join((*OPTIONAL, *ABOUT))}"
