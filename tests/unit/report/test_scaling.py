"""Scaling: its table, classical laws, speedups with their projection, and time against cost."""

from __future__ import annotations

import csv
import io
from dataclasses import replace
from pathlib import Path

import pytest

from tests.made import STUDY, Made, made_study, write_study
from worldsize.analysis.estimate import Estimate
from worldsize.answer.evidence import Evidence
from worldsize.answer.predict.prices import PricePoint
from worldsize.answer.results import load
from worldsize.report.blocks import Cell, Table
from worldsize.report.figures.matplotlib import draw
from worldsize.report.figures.model import Figure, Line, Panel
from worldsize.report.figures.plotly import chart
from worldsize.report.pages import figures
from worldsize.report.sections.projection import projection_table
from worldsize.report.sections.scaling import PARETO_FRONT, laws, pareto, scaling_table, speedup
from worldsize.report.write.tables import to_csv
from worldsize.spec.study import TrialSpec

STRONG = STUDY.replace("batch_per_worker: [64]", "global_batch: [64, 256]").replace("lr: 0.05}", "lr: [0.05, 3.0]}")
UNTRAINED = STUDY.replace("train: {epochs: 30}\n", "")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Evidence:
    return Evidence(load(made_study(tmp_path_factory.mktemp("study") / "made").path))


@pytest.fixture(scope="module")
def strong(tmp_path_factory: pytest.TempPathFactory) -> Evidence:
    return Evidence(load(made_study(tmp_path_factory.mktemp("strong") / "made", STRONG).path))


def again(evidence: Evidence, **planted: object) -> Evidence:
    """The same results with other data derived from them."""
    other = Evidence(evidence.results)
    other.__dict__.update(planted)
    return other


def some(made: Table | None) -> Table:
    assert made is not None
    return made


def drawn(made: Figure | None) -> Figure:
    assert made is not None
    return made


def keys(table: Table) -> list[str]:
    return [quantity.key for quantity in table.quantities]


def column(table: Table, key: str) -> list[Cell]:
    index = keys(table).index(key)
    return [row[index] for row in table.rows]


def lines(panel: Panel) -> list[Line]:
    return [mark for mark in panel.marks if isinstance(mark, Line)]


def test_the_table_has_the_numbers_of_the_results(made: Evidence) -> None:
    results = made.results
    table = some(scaling_table(made))
    rows = list(csv.DictReader(io.StringIO(to_csv(table)), strict=True))
    assert len(rows) == len(results.rows) == 3
    for key in ("speedup", "efficiency", "step_s", "samples_per_s"):
        estimates = [getattr(row, key) for row in results.rows]
        assert column(table, key) == estimates
        assert [row[key] for row in rows] == [repr(estimate.value) for estimate in estimates]
    assert [row["speedup_low"] for row in rows] == [
        "" if row.speedup.low is None else repr(row.speedup.low) for row in results.rows
    ]
    assert any(row["speedup_low"] for row in rows)
    epochs = [results.facts.train_samples / row.samples_per_s.value for row in results.rows]
    assert [float(row["epoch_s"]) for row in rows] == pytest.approx(epochs)
    assert [row["repeats"] for row in rows] == [str(row.repeats) for row in results.rows]


def test_a_terminal_shows_what_differs(made: Evidence) -> None:
    table = some(scaling_table(made))
    hidden = {key for key, shown in zip(keys(table), table.terminal, strict=True) if not shown}
    assert hidden == {"batch_per_worker", "epoch_s", "repeats"}  # weak scaling: the batch per worker is the same


def test_the_recommended_row_is_marked(made: Evidence) -> None:
    row = made.results.answer.row
    assert row is not None
    assert made.results.answer.verdict == "use"
    marked = some(scaling_table(made)).marked
    assert marked is not None
    assert made.results.rows[marked].setting == row.setting


def test_one_count_has_no_speedup(tmp_path: Path) -> None:
    evidence = Evidence(load(made_study(tmp_path / "one", STUDY.replace("[1, 2, 4]", "[2]")).path))
    table = some(scaling_table(evidence))
    assert table.title == "Throughput with 2 workers"
    assert not {"speedup", "efficiency"} & set(keys(table))
    assert [speedup(evidence), pareto(evidence), projection_table(evidence), laws(evidence)] == [None] * 4


def test_without_training_there_is_no_metric(tmp_path: Path) -> None:
    evidence = Evidence(load(made_study(tmp_path / "untrained", UNTRAINED).path))
    assert "test_accuracy" not in keys(some(scaling_table(evidence)))


def test_a_folder_with_nothing_measured_has_no_table(tmp_path: Path) -> None:
    home = made_study(tmp_path / "empty")
    for record in home.path.glob("trials/*/record.json"):
        record.unlink()
    evidence = Evidence(load(home.path))
    assert [make(evidence) for make in (scaling_table, projection_table, laws, speedup, pareto)] == [None] * 5


def test_classical_laws_describe_a_scaling_of_known_law(tmp_path: Path) -> None:
    """USL with a contention of 10 %: t(n) = n / rate grows by a tenth of t(1) for every worker more."""

    def times(trial: TrialSpec) -> dict[str, float]:
        return {"forward": 0.005, "backward": 0.005 * (1 + 0.2 * (trial.workers - 1))}

    text = UNTRAINED.replace("[1, 2, 4]", "[1, 2, 4, 8]")
    evidence = Evidence(write_study(tmp_path / "usl", text, Made(times=times, noise=0.0)))
    table = some(laws(evidence))
    assert column(table, "law")[:3] == ["Amdahl (curve only)", "Gustafson", "USL"]
    assert column(table, "contention")[2] == pytest.approx(0.1, abs=1e-3)
    assert column(table, "residual")[2] == pytest.approx(0, abs=1e-3)
    assert column(table, "workers")[3:] == [2, 4, 8]
    # e = (1/S - 1/n) / (1 - 1/n) with S = n / (1 + 0.1 (n - 1)) is 0.1 at every count.
    assert column(table, "serial_fraction")[3:] == pytest.approx([0.1] * 3, abs=1e-3)
    assert set(column(table, "counts")) == {4}


def test_laws_are_those_of_the_recommended_series(strong: Evidence) -> None:
    best = strong.results.answer.row
    assert best is not None
    table = some(laws(strong))
    assert table.title.endswith(f" of global batch {best.setting.global_batch} (other series: report.json)")
    of_best = [row for row in strong.laws if row.setting.series == best.setting.series]
    assert column(table, "residual") == [row.residual for row in of_best]
    assert len(strong.laws) > len(of_best)


def test_lines_join_what_differs_in_workers_only(strong: Evidence) -> None:
    """Two global batches are two lines, in every figure with the same hue."""
    outcome, ratios = (
        next(figure for figure in figures(strong) if figure.key == key) for key in ("outcome", "speedup")
    )
    for panel in outcome.panels:
        assert sorted(line.name for line in lines(panel)) == ["global batch 256", "global batch 64"]
        assert all(line.x == (1, 2, 4) for line in lines(panel))
    hues = {line.name: line.color for line in lines(outcome.panels[0])}
    assert {line.name: line.color for line in lines(ratios.panels[0]) if line.name in hues} == hues


def test_projection_is_dashed_and_hatched_beyond_what_was_measured(made: Evidence) -> None:
    prediction = made.prediction
    assert prediction is not None
    first, *_, last = made.results.rows
    pace = last.samples_per_s.value
    rate = Estimate(value=pace * 3, low=pace * 2, high=pace * 4)
    beyond = replace(prediction.options[-1], workers=16, samples_per_s=rate, measured=False)
    measured = tuple(option for option in prediction.options if option.measured)
    planted = again(made, prediction=replace(prediction, options=(*measured, beyond)))
    figure = drawn(speedup(planted))
    for panel, share in zip(figure.panels, (1.0, 100 / 16), strict=True):
        line = next(mark for mark in lines(panel) if mark.name == "projected")
        assert line.x == (4, 16)
        assert line.y[-1] == pytest.approx(pace * 3 / first.samples_per_s.value * share)
        assert [
            text.startswith(f"{count} workers, projected\n") for count, text in zip(line.x, line.hover, strict=True)
        ] == [
            False,
            True,
        ]
    plotted = chart(figure.panels[0], list(figure.legend))["data"]
    assert any(trace.get("line", {}).get("dash") == "dash" for trace in plotted)
    assert any("fillpattern" in trace for trace in plotted)
    assert "80 % intervals" in figure.note
    for nothing in (None, replace(prediction, options=measured)):
        assert "80 % intervals" not in drawn(speedup(again(made, prediction=nothing))).note


def test_time_against_worker_hours(made: Evidence) -> None:
    def about(value: float) -> Estimate:
        return Estimate(value=value, low=0.9 * value, high=1.2 * value)

    setting = made.results.rows[0].setting
    points = [
        PricePoint(
            setting=setting.with_workers(n),
            is_whole_training=False,
            time=about(100 / n**0.8),
            worker_hours=about(n**0.2),
            basis="measured" if n < 4 else "projected",
            is_best=True,
        )
        for n in (1, 2, 4)
    ]
    points[0] = replace(points[0], time=Estimate(value=100.0))  # one run: no interval
    figure = drawn(pareto(again(made, prices=points)))
    assert figure.title == "Fastest with 4 workers (projected), cheapest with 1 worker"
    marks = lines(figure.panels[0])
    bars = [mark for mark in marks if not mark.in_legend]
    assert [(bar.kind, bar.x, bar.y) for bar in bars] == [
        (
            kind,
            tuple(pytest.approx(end * 100 / n**0.8) for end in (0.9, 1.2)),
            pytest.approx((0.9 * n**0.2, 1.2 * n**0.2)),
        )
        for kind, n in (("measured", 2), ("projected", 4))
    ]
    assert marks[-1].hover == (
        "4 workers, projected\n33 s (30 s to 40 s)\n1.32 worker-hours (1.19 to 1.58 worker-hours)",
    )
    assert figure.note.endswith("together. Dashed, blue: projected.")
    estimated = [replace(point, basis="estimated") if point.basis == "measured" else point for point in points]
    other = drawn(pareto(again(made, prices=estimated)))
    assert other.title == figure.title
    assert "Estimated: measured steps plus the overhead outside them." in other.note
    assert [name for name in other.legend if name != PARETO_FRONT] == ["estimated", "projected"]
    assert not [mark for mark in lines(other.panels[0]) if mark.kind == "measured"]
    assert figure.panels[0].x.least == pytest.approx(90 / 4**0.8)
    assert figure.panels[0].x.most == 100.0
    assert pareto(again(made, prices=points[:1])) is None


def test_points_of_time_against_cost_are_labeled_with_their_workers(strong: Evidence) -> None:
    figure = drawn(pareto(strong))
    labels = [label for line in lines(figure.panels[0]) for label in line.labels]
    assert labels[:3] == ["1", "2", "4"]
    trace = next(trace for trace in chart(figure.panels[0], [])["data"] if "text" in trace["mode"])
    assert trace["text"][0] == "1"
    written = [text.get_text() for axes in draw(figure).axes for text in axes.texts]
    assert written[:3] == ["1", "2", "4"]
