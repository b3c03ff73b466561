"""Tables: read back strictly, the document's own numbers in all of them, hostile text harmless."""

from __future__ import annotations

import csv
import io
import re
from pathlib import Path
from typing import Any

import pytest

from tests.made import STUDY, made_study
from worldsize.answer.evidence import Evidence
from worldsize.answer.results import load
from worldsize.report.document import document
from worldsize.report.pages import tables
from worldsize.report.words.numbers import decimals
from worldsize.report.write.tables import to_csv

MANY = STUDY.replace("[64]", "[32, 64]").replace("lr: 0.05}", "lr: [0.05, 3.0]}, {name: adam, lr: 0.001}")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Evidence:
    return Evidence(load(made_study(tmp_path_factory.mktemp("study") / "made", MANY).path))


def numbers(value: Any) -> set[float]:
    if isinstance(value, dict):
        return set().union(*map(numbers, value.values())) if value else set()
    if isinstance(value, list):
        return set().union(*map(numbers, value)) if value else set()
    return {float(value)} if isinstance(value, int | float) and not isinstance(value, bool) else set()


def test_the_tables_of_a_study_with_everything(made: Evidence) -> None:
    keys = ["scaling", "projection", "laws", "steps", "batch", "optimizers", "large-batch", "hardware"]
    assert [sheet.key for sheet in tables(made)] == keys


def test_a_study_of_one_point_has_only_what_it_has(tmp_path: Path) -> None:
    text = STUDY.replace("[1, 2, 4]", "[1]").replace("train: {epochs: 30}\n", "")
    found = tables(Evidence(load(made_study(tmp_path / "one", text).path)))
    assert [table.key for table in found] == ["scaling", "steps", "hardware"]
    assert "test accuracy" not in [quantity.title for quantity in found[0].quantities]


def test_times_of_a_table_have_one_resolution() -> None:
    say = decimals(8.11)
    assert [say(value) for value in (8.11, 12.549, 0.0136, -0.0005)] == ["8.11", "12.55", "0.01", "0.00"]
    assert decimals(0.53)(0.0698) == "0.070"
    assert decimals(964.0)(964.123) == "964.12"


def test_csv_has_the_documents_own_numbers(made: Evidence) -> None:
    known = numbers(document(made))
    for sheet in tables(made):
        rows = list(csv.DictReader(io.StringIO(to_csv(sheet)), strict=True))
        assert len(rows) == len(sheet.rows)
        for row in rows:
            for name, cell in row.items():
                if re.fullmatch(r"-?[\d.]+(e-?\d+)?", cell):
                    assert float(cell) in known, (sheet.key, name, cell)
        if sheet.key != "projection":
            assert {"repeats", "counts", "runs", "repetitions"} & set(rows[0])  # n of every table
