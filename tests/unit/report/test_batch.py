"""Batches: throughput and memory against them, those that do not fit, and steps to a target."""

from __future__ import annotations

import csv
import io
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.made import STUDY, Made, made_study, write_study
from worldsize.analysis.estimate import Estimate
from worldsize.analysis.speed.largest_batch import BatchRow, LargestBatch
from worldsize.answer.evidence import Evidence
from worldsize.answer.results import Results, load
from worldsize.report.blocks import Table
from worldsize.report.figures.model import Figure
from worldsize.report.sections.batch import batch, batch_model, batch_sheet
from worldsize.report.write.tables import to_csv
from worldsize.spec.study import TrialSpec


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Results:
    return load(made_study(tmp_path_factory.mktemp("study") / "made", STUDY.replace("[64]", "[32, 64]")).path)


def changed(results: Results, **changes: Any) -> Evidence:
    """Fields replaced, and computed values put in place of the real ones."""
    fields = {name: value for name, value in changes.items() if name in Results.__dataclass_fields__}
    other = replace(results, **fields)
    other.__dict__.update({name: value for name, value in changes.items() if name not in fields})
    return Evidence(other)


def search(results: Results, *, memory_bytes: float | None = None) -> list[LargestBatch]:
    """The batches of the study fit; 8,192 does not."""
    settings = [row.setting for row in results.rows if row.setting.workers == 1]
    common: dict[str, Any] = {"samples_per_s": None, "epoch_s": None, "tries": 1}
    rows = [
        BatchRow(batch_per_worker=setting.batch_per_worker, fits=True, memory_bytes=memory_bytes, **common)
        for setting in settings
    ]
    rows.append(BatchRow(batch_per_worker=8192, fits=False, memory_bytes=None, **common))
    return [
        LargestBatch(
            setting=settings[-1],
            rows=tuple(rows),
            fits=64,
            too_large=8192,
            enough=settings[0].batch_per_worker,
            ended="memory",
        )
    ]


def drawn(figure: Figure | None) -> Figure:
    assert figure is not None
    return figure


def made_table(table: Table | None) -> Table:
    assert table is not None
    return table


def column(table: Table, key: str) -> list[Any]:
    index = [quantity.key for quantity in table.quantities].index(key)
    return [row[index] for row in table.rows]


def test_batches_that_do_not_fit_are_crosses_and_a_row(made: Results) -> None:
    evidence = changed(made, largest=search(made))
    figure = drawn(batch(evidence))
    assert "8,192 runs out of memory" in figure.title
    assert any(mark.name == "out of memory" for mark in figure.panels[0].marks)
    table = made_table(batch_sheet(evidence))
    by_batch = list(
        zip(column(table, "workers"), column(table, "batch_per_worker"), column(table, "outcome"), strict=True)
    )
    assert by_batch[:3] == [(1, 32, "fits"), (1, 64, "fits"), (1, 8192, "out of memory")]
    assert made_table(batch_sheet(Evidence(made))).terminal[-2] is False  # all fit: no need to say so in a terminal


def test_a_trial_out_of_memory_is_a_row_too(made: Results) -> None:
    name, trial = next((name, trial) for name, trial in made.trials.items() if trial.workers == 4)
    gone = {name: made.records[name].model_copy(update={"outcome": "out_of_memory"}) for name in made.records}
    others = {key: record for key, record in made.records.items() if made.trials[key].setting != trial.setting}
    table = made_table(batch_sheet(changed(made, records={**others, name: gone[name]})))
    assert column(table, "outcome").count("out of memory") == 1


@pytest.mark.parametrize(
    ("device", "title"), [("cpu", "memory of the largest process, GB"), ("cuda", "peak GPU memory, GB")]
)
def test_a_search_for_the_largest_batch_shows_what_each_try_held(made: Results, device: str, title: str) -> None:
    records = {
        name: record.model_copy(update={"environment": {"device": device}}) for name, record in made.records.items()
    }
    evidence = changed(made, records=records, hardware=[], largest=search(made, memory_bytes=2e9))
    (panel,) = [panel for panel in drawn(batch(evidence)).panels if panel.y.title == title]
    assert all(value == 2.0 for mark in panel.marks for value in mark.y)  # type: ignore[union-attr]


def test_a_batch_whose_steps_were_lost_has_what_the_search_reported(made: Results) -> None:
    (found,) = search(made)
    pace = Estimate(value=1000.0)
    lost = BatchRow(
        batch_per_worker=128, fits=True, samples_per_s=pace, epoch_s=pace.time_for(12_000), memory_bytes=3e9, tries=1
    )
    rows = (*found.rows[:-1], lost, found.rows[-1])
    table = made_table(batch_sheet(changed(made, largest=[replace(found, rows=rows)])))
    place = column(table, "batch_per_worker").index(128)
    assert column(table, "samples_per_s")[place] == pace
    assert column(table, "process_memory_bytes")[place] == 3e9


def test_utilization_stands_beside_its_batch(made: Results) -> None:
    share = Estimate(value=0.4, low=0.35, high=0.45)
    table = made_table(batch_sheet(changed(made, mfus={made.rows[0].setting: share})))
    rows = list(csv.DictReader(io.StringIO(to_csv(table))))
    assert [(row["workers"], row["mfu"], row["mfu_low"]) for row in rows if row["mfu"]] == [("1", "0.4", "0.35")]


def test_steps_to_a_target_against_batch_have_their_model(tmp_path: Path) -> None:
    def accuracy(trial: TrialSpec, steps: int) -> float:
        """Linear in steps: 0.9 after S_min (1 + B_crit / B) of them, with S_min = 300 and B_crit = 400."""
        return min(0.99, 0.9 * steps / (300 * (1 + 400 / trial.global_batch)))

    text = STUDY.replace("batch_per_worker: [64]", "batch_per_worker: [32, 128, 512]").replace("[1, 2, 4]", "[1, 2]")
    target = "{until: {metric: accuracy, at_least: 0.9, max_epochs: 40}, lr_rule: linear}"
    results = write_study(
        tmp_path / "batches",
        text.replace("{epochs: 30}", target).replace("lr: 0.05", "lr: 0.0001"),
        Made(times=lambda _: {"forward": 0.01, "backward": 0.01}, accuracy=accuracy),
    )
    table = made_table(batch_model(Evidence(results)))
    assert (column(table, "smallest_batch"), column(table, "largest_batch")) == ([32], [1024])
    for key, truth in (("least_steps", 300), ("critical_batch", 400)):
        (estimate,) = column(table, key)
        assert estimate.low is not None
        assert estimate.value == pytest.approx(truth, rel=0.2)
        assert estimate.low <= estimate.value <= estimate.high
    assert column(table, "law") == ["yes"]
