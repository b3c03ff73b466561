"""Every medium prints the same digits: terminal, page, CSV, Markdown, LaTeX and JSON of the same studies."""

from __future__ import annotations

import ast
import csv
import io
import math
import re
import shutil
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

import worldsize
from tests.golden import QUICKSTART, STUDIES
from tests.made import write_study
from tests.unit.report.test_sheets import numbers
from tests.unit.report.test_tables import parsed_latex, parsed_markdown
from tests.unit.report.test_terminal import shown
from worldsize.analysis.estimate import Estimate
from worldsize.analysis.speed.recommend import LEAST_GAIN
from worldsize.answer.evidence import Evidence
from worldsize.answer.results import load
from worldsize.machine import Machine
from worldsize.report.blocks import Cell, Report, Table
from worldsize.report.document import document
from worldsize.report.pages import study_report
from worldsize.report.words.headline import headline
from worldsize.report.words.quantities import SPEEDUP, Quantity
from worldsize.report.write.page import to_page
from worldsize.report.write.tables import cell_value, to_csv, to_latex, to_markdown

REPORT_ROOM = Path(worldsize.__file__).parent / "report"
FORMATTERS = {
    "words/numbers.py",
    "words/quantities.py",
    "figures/model.py",  # labels of axis ticks
    "figures/matplotlib.py",
    "figures/plotly.py",  # opacities
    "write/page.py",
}
"""The modules in which numbers become text."""


@pytest.fixture(scope="module", params=["scaling", "optimizers", "places", "quickstart"])
def evidence(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Evidence:
    """Three simulated studies and one that was really run."""
    folder = tmp_path_factory.mktemp("media") / request.param
    if request.param == "quickstart":
        shutil.copytree(QUICKSTART, folder)
        return Evidence(load(folder))
    text, made = STUDIES[request.param]
    return Evidence(write_study(folder, text, made, Machine(cores=16, gpus=0)))


@pytest.fixture(scope="module")
def report(evidence: Evidence) -> Report:
    return study_report(evidence, live=False)


class PageTables(HTMLParser):
    """The tables of a page by key: rows of cells, each as its words, its range and its exact numbers."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tables: dict[str, list[list[dict[str, Any]]]] = {}
        self._rows: list[list[dict[str, Any]]] = []
        self._part = ""
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = dict(attrs)
        if tag == "div" and (values.get("id") or "").startswith("table-"):
            self._rows = self.tables.setdefault(str(values["id"]).removeprefix("table-"), [])
        elif tag == "tr" and self._rows is not None:
            self._rows.append([])
        elif tag == "td":
            exact = {key.removeprefix("data-"): value for key, value in values.items() if key.startswith("data-")}
            self._rows[-1].append({"words": "", "range": "", **exact})
            self._part = "words"
        elif tag == "small" and self._part:
            self._part = "range"

    def handle_endtag(self, tag: str) -> None:
        self._part = "" if tag == "td" else "words" if tag == "small" and self._part else self._part

    def handle_data(self, data: str) -> None:
        if self._part:
            self._rows[-1][-1][self._part] += data


def printed(quantity: Quantity, cell: Cell) -> tuple[str, str]:
    """The words of a cell and of its interval."""
    return quantity.text(cell_value(cell)), quantity.range(cell) if isinstance(cell, Estimate) else ""


def cells(table: Table) -> Iterator[tuple[int, int, Quantity, Cell]]:
    for row, values in enumerate(table.rows):
        for column, (quantity, cell) in enumerate(zip(table.quantities, values, strict=True)):
            yield row, column, quantity, cell


def test_the_page_prints_the_digits_of_its_tables(report: Report) -> None:
    on_page = PageTables(to_page(report, print_files=False, live=False)).tables
    tables = report.all(Table)
    assert set(on_page) == {table.key for table in tables}
    for table in tables:
        rows = [row for row in on_page[table.key] if row]
        for row, column, quantity, cell in cells(table):
            drawn = rows[row][column]
            assert (drawn["words"], drawn["range"]) == printed(quantity, cell), (table.key, row, column)
            if not table.is_text(column) and cell is not None:
                assert drawn["value"] == repr(cell_value(cell))


def test_markdown_and_latex_print_the_same_digits(report: Report) -> None:
    for table in report.all(Table):
        expected = [[""] * len(table.quantities) for _ in table.rows]
        for row, column, quantity, cell in cells(table):
            words, reach = printed(quantity, cell)
            expected[row][column] = f"{words} ({reach})" if reach else words
        assert parsed_markdown(to_markdown(table))[2:] == expected, table.key
        if len(table.quantities) <= 14:  # of wider tables, LaTeX has some columns
            latex = [[cell.replace("--", "–") for cell in row] for row in parsed_latex(to_latex(table))[1:]]
            assert latex == expected, table.key


def test_csv_and_json_hold_the_numbers_that_are_printed(evidence: Evidence, report: Report) -> None:
    known = numbers(document(evidence))
    for table in report.all(Table):
        rows = list(csv.DictReader(io.StringIO(to_csv(table)), strict=True))
        for row, _, quantity, cell in cells(table):
            value, stored = cell_value(cell), rows[row][quantity.key]
            if isinstance(value, int | float):
                assert quantity.text(float(stored)) == quantity.text(value), (table.key, quantity.key)
                assert not math.isfinite(value) or float(stored) in known, (table.key, quantity.key)


@pytest.mark.parametrize("width", [80, 120, 400])
def test_a_terminal_prints_the_same_digits_and_splits_none(report: Report, width: int) -> None:
    for table in report.all(Table):
        lines = shown([table], width)
        if not lines:
            assert not any(table.terminal)  # a table for the page alone
            continue
        assert max(map(len, lines)) <= width, table.key
        text = "\n".join(lines)
        every = {word for _, _, quantity, cell in cells(table) for word in printed(quantity, cell) if word}
        if width == 400:
            terminal = table.terminal or (True,) * len(table.quantities)
            for _, column, quantity, cell in cells(table):
                if terminal[column]:
                    assert all(word in text for word in printed(quantity, cell)), (table.key, quantity.key)
        found = set(re.findall(r"\d[\d,]*\.\d+", text.replace(table.title, "").partition("\n")[2]))
        notes = set(re.findall(r"\d[\d,]*\.\d+", table.note))
        assert found <= {word for whole in every for word in re.findall(r"\d[\d,]*\.\d+", whole)} | notes, table.key


def test_sentences_print_the_digits_of_their_tables(evidence: Evidence) -> None:
    said = " ".join(prose.text for prose in headline(evidence.results, evidence.outlook))
    factors = re.findall(r"\b\d[\d,.]*x(?= as fast|\b)", said)
    worth_it = {SPEEDUP.said(LEAST_GAIN**doublings) for doublings in range(1, 4)}  # a rule, not a measurement
    assert set(factors) <= {SPEEDUP.said(value) for value in numbers(document(evidence))} | worth_it


def test_only_quantities_turn_numbers_into_text() -> None:
    """No other module of the report formats a number: no `.2f`, no `.0f`, no `%`. (`,` in whole numbers is exact.)"""
    found = []
    for path in sorted(REPORT_ROOM.rglob("*.py")):
        name = path.relative_to(REPORT_ROOM).as_posix()
        if name in FORMATTERS:
            continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.FormattedValue) and isinstance(node.format_spec, ast.JoinedStr):
                spec = "".join(part.value for part in node.format_spec.values if isinstance(part, ast.Constant))
                if re.search(r"[eEfFgGn%]$", spec):
                    found.append(f"{name}:{node.lineno} {spec}")
    assert found == []
