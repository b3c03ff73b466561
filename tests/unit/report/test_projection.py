"""Projected counts: a table on the page, and what `worldsize predict` says about a study and about a bare table."""

from __future__ import annotations

import csv
import io
import re

import pytest

from tests.made import STUDY, made_study
from worldsize.answer.evidence import Evidence
from worldsize.answer.predict.predict import predict_study
from worldsize.answer.predict.table import parse_table
from worldsize.answer.predict.table_projection import project_table
from worldsize.answer.results import load
from worldsize.report.blocks import Block, Prose, Table
from worldsize.report.pages import tables
from worldsize.report.sections.projection import prediction_blocks, projection_table, table_projection_blocks
from worldsize.report.write.tables import to_csv


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Evidence:
    return Evidence(load(made_study(tmp_path_factory.mktemp("study") / "made", STUDY).path))


def of_table(text: str, *workers: int) -> list[Block]:
    return table_projection_blocks(project_table(parse_table(text, "t.csv"), workers, measured_too=True))


def said(blocks: list[Block], role: str) -> list[str]:
    return [block.text for block in blocks if isinstance(block, Prose) and block.role == role]


def the_table(blocks: list[Block]) -> Table:
    (found,) = (block for block in blocks if isinstance(block, Table))
    return found


def rows_of(table: Table) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(to_csv(table)), strict=True))


def test_projected_counts_are_a_table_of_the_page(made: Evidence) -> None:
    keys = [table.key for table in tables(made)]
    assert keys[:2] == ["scaling", "projection"]
    table = projection_table(made)
    assert table is not None
    assert made.prediction is not None
    rows = rows_of(table)
    assert [row["workers"] for row in rows] == ["1", "2", "4", "8", "16", "32"]
    assert [row["basis"] for row in rows] == ["measured"] * 3 + ["projected"] * 3
    assert table.projected == (3, 4, 5)
    for row, option in zip(rows, made.prediction.options, strict=True):
        assert float(row["samples_per_s"]) == option.samples_per_s.value
        assert float(row["samples_per_s_low"]) == option.samples_per_s.low
        assert float(row["efficiency"]) == pytest.approx(float(row["speedup"]) / option.workers)
        assert option.wall_s is None or float(row["wall_s"]) == option.wall_s.value
    answer = made.results.answer.row
    assert answer is not None
    assert table.marked is not None
    assert rows[table.marked]["workers"] == str(answer.setting.workers)


def test_a_prediction_says_all_of_its_numbers(made: Evidence) -> None:
    (prediction,) = predict_study(made.results, [8], price=2.5)
    blocks = prediction_blocks(prediction, made.results.facts, "30 epochs")
    assert any("Training for 30 epochs takes" in text for text in said(blocks, "evidence"))
    table = the_table(blocks)
    keys = {quantity.key for quantity in table.quantities}
    assert keys >= {"workers", "basis", "global_batch", "samples_per_s", "speedup", "efficiency", "step_s", "epoch_s"}
    assert keys >= {"wall_s", "cost", "test_accuracy", "test_accuracy_basis"}
    assert "nodes" not in keys or any(option.nodes > 1 for option in prediction.options)
    costs = [float(row["cost"]) for row in rows_of(table) if row["cost"]]
    assert costs == [option.cost.value for option in prediction.options if option.cost]
    for option in prediction.options:
        for note in option.notes:
            assert note.lower() in table.note.lower()


def test_a_bare_table_is_answered_before_it_is_shown() -> None:
    blocks = of_table("workers,samples_per_s\n1,100\n2,196\n4,380\n8,400\n", 16)
    assert said(blocks, "answer") == ["Use 4 workers: 3.80x as fast as 1, 95 % efficient."]
    assert said(blocks, "evidence") == ["8 workers: only 4.00x as fast as 1, 50 % efficient."]
    assert isinstance(blocks[-1], Table)
    table = blocks[-1]
    rows = rows_of(table)
    assert [(row["workers"], row["basis"]) for row in rows] == [
        *((count, "measured") for count in "1248"),
        ("16", "projected"),
    ]
    assert [row["samples_per_s"] for row in rows[:4]] == ["100.0", "196.0", "380.0", "400.0"]
    assert [bool(row["samples_per_s_low"]) for row in rows] == [False] * 4 + [True]
    assert float(rows[1]["efficiency"]) == pytest.approx(0.98)
    assert "One run: no interval (1, 2, 4, 8 workers)." in table.note
    assert (table.marked, table.projected) == (2, (4,))


def test_a_projected_count_is_said_to_be_projected() -> None:
    blocks = of_table("workers,samples_per_s\n1,100\n2,196\n4,380\n", 8, 512)
    (answer,) = said(blocks, "answer")
    assert re.fullmatch(r"Use 8 workers: 7\.\d+x as fast as 1 \(.*x to .*x, projected\), 9\d % efficient\.", answer)
    (vague,) = said(blocks, "evidence")
    assert vague.startswith("512 workers: ")
    assert vague.endswith("too uncertain to rely on.")
    assert said(blocks, "next") == ["Measure 8 workers: that would narrow the ranges most."]


def test_doubts_and_limits_of_a_bare_table_are_said() -> None:
    blocks = of_table("workers,samples_per_s,workers_per_node\n1,100,8\n2,120,8\n4,140,8\n8,150,8\n", 16, 64)
    assert said(blocks, "answer") == ["Use 1 worker."]
    assert said(blocks, "evidence")[0].startswith("64 workers: ")
    single = of_table("workers,samples_per_s\n4,100\n", 8)
    assert said(single, "doubt") == ["Not enough evidence: only one worker count was measured."]
    assert said(single, "answer")[0].startswith("Best guess: ")
    assert the_table(single).title.endswith("relative to 4 workers")
    largest = of_table("workers,samples_per_s\n1,100\n2,196\n", 2)
    assert said(largest, "evidence") == ["It is the largest count asked for; more workers may still pay off."]


@pytest.mark.parametrize(
    ("unit", "shown"), [("train_s", "7 min 36 s"), ("epoch_s", "7 min 36 s"), ("samples_per_s", "456")]
)
def test_a_bare_table_is_shown_in_its_own_unit(unit: str, shown: str) -> None:
    table = the_table(of_table(f"workers,{unit}\n1,456\n2,380\n4,204\n", 8))
    index = [quantity.key for quantity in table.quantities].index(unit)
    cell = table.rows[0][index]
    assert not isinstance(cell, str | int | float | None)
    assert table.quantities[index].text(cell.value) == shown


def test_each_series_has_its_own_answer() -> None:
    text = "series_id,workers,samples_per_s\na,1,100\na,2,196\nb,2,50\nb,4,60\n"
    blocks = of_table(text, 8)
    assert [block.title for block in blocks if isinstance(block, Table)] == [
        "a, relative to 1 worker",
        "b, relative to 2 workers",
    ]
    assert len(said(blocks, "answer")) == 2
