"""What was learned: tables of variants, curves, and the comparison of optimizers and learning rates."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.made import STUDY, Made, made_study, write_study
from worldsize.analysis.estimate import Estimate
from worldsize.analysis.learning.noise_scale import NoiseScale
from worldsize.analysis.learning.variants import DivergenceEdge
from worldsize.answer.curves import Curve, CurvePoint, NoiseOverTime
from worldsize.answer.evidence import Evidence
from worldsize.answer.results import load
from worldsize.report.blocks import Table
from worldsize.report.document import document
from worldsize.report.figures.model import Figure, Line, Panel
from worldsize.report.pages import figures
from worldsize.report.sections.curves import curves, noise, noise_scale
from worldsize.report.sections.learning import large_batch, optimizers, outcome, stable, trained
from worldsize.report.sections.optimizers import MAX_PANELS, THIN, convergence, steps_by_rate
from worldsize.spec.study import TrialSpec

MIXED = STUDY.replace("lr: 0.05}", "lr: [0.05, 3.0]}, {name: adam, lr: 0.001}")
STRONG = STUDY.replace("batch_per_worker: [64]", "global_batch: [64, 256]").replace("lr: 0.05}", "lr: [0.05, 3.0]}")
SEARCH = """\
name: search
workload: digits
axes:
  workers: [1]
  batch_per_worker: [64]
  optimizer:
  - {name: sgd, lr: [0.02, 0.1, 0.5, 3.0]}
  - {name: momentum, lr: [0.02, 0.1, 3.0]}
  - {name: adam, lr: [0.01]}
train: {until: {metric: accuracy, at_least: 0.9, max_epochs: 20}}
repeats: 2
"""


def made_search(folder: Path, text: str = SEARCH) -> Evidence:
    """Sgd at 0.5 needs the fewest steps; above 1, training diverges."""

    def accuracy(trial: TrialSpec, steps: int) -> float:
        return 0.97 - 0.6 / (1 + steps * min(trial.peak_lr * 8, 3) / 150)

    return Evidence(
        write_study(folder / "search", text, Made(times=lambda _: {"forward": 0.01}, accuracy=accuracy, largest_rate=1))
    )


@pytest.fixture(scope="module")
def search(tmp_path_factory: pytest.TempPathFactory) -> Evidence:
    return made_search(tmp_path_factory.mktemp("search"))


@pytest.fixture(scope="module")
def mixed(tmp_path_factory: pytest.TempPathFactory) -> Evidence:
    return Evidence(load(made_study(tmp_path_factory.mktemp("mixed") / "made", MIXED).path))


@pytest.fixture(scope="module")
def strong(tmp_path_factory: pytest.TempPathFactory) -> Evidence:
    return Evidence(load(made_study(tmp_path_factory.mktemp("strong") / "made", STRONG).path))


def lines(panel: Panel) -> list[Line]:
    return [mark for mark in panel.marks if isinstance(mark, Line)]


def drawn(figure: Figure | None) -> Figure:
    assert figure is not None
    assert figure.title
    assert all(panel.x.title and panel.y.title for panel in figure.panels)
    return figure


def column(table: Table | None, key: str) -> list[Any]:
    assert table is not None
    index = [quantity.key for quantity in table.quantities].index(key)
    return [row[index] for row in table.rows]


def changed(evidence: Evidence, **properties: Any) -> Evidence:
    """The same evidence with other data."""
    other = Evidence(evidence.results)
    other.__dict__.update(properties)
    return other


def test_figures_of_a_study_that_trains(mixed: Evidence) -> None:
    assert [drawn(make(mixed)).key for make in (outcome, curves, steps_by_rate, stable, convergence)] == [
        *("outcome", "curves", "steps-by-rate", "stable", "convergence")
    ]


def test_a_study_of_one_optimizer_has_curves_of_its_settings(tmp_path: Path) -> None:
    evidence = Evidence(load(made_study(tmp_path / "made").path))
    panels = drawn(curves(evidence)).panels
    assert [panel.y.title for panel in panels] == [
        f"{name} (test solid, training dotted)" for name in ("accuracy", "loss")
    ]
    assert {line.name for line in lines(panels[0])} == {"1 worker", "2 workers", "4 workers"}
    assert all(bool(line.low) != line.dotted for line in lines(panels[0]))  # bands of the test curves
    assert steps_by_rate(evidence) is None
    assert convergence(evidence) is None


def test_each_optimizer_has_a_panel_with_its_best_rate_strong(search: Evidence) -> None:
    figure = drawn(curves(search))
    assert [panel.y.title for panel in figure.panels] == [
        f"{name}: test accuracy" for name in ("sgd", "momentum 0.9", "adam")
    ]
    assert len({(panel.x, replace(panel.y, title="")) for panel in figure.panels}) == 1
    assert list(figure.legend) == ["target", "sgd rate 0.5", "momentum 0.9 rate 0.1", "adam rate 0.01"]
    for panel in figure.panels:
        strong, *thin = [line for line in reversed(lines(panel)) if line.connected and line.kind == "measured"]
        assert strong.opacity == 1.0
        assert all(line.opacity == THIN and not line.in_legend for line in thin)
    crosses = [line.name for panel in figure.panels for line in lines(panel) if line.symbol == "cross"]
    assert sorted(crosses) == ["momentum 0.9 rate 3", "sgd rate 3"]
    assert figure.title.endswith("8 variants; 2 diverged")


def test_many_optimizers_share_panels_by_family(tmp_path: Path) -> None:
    momenta = ", ".join(f"0.{digit}" for digit in range(1, MAX_PANELS + 2))
    text = SEARCH.replace("name: momentum, lr: [0.02, 0.1, 3.0]", f"name: momentum, lr: 0.02, momentum: [{momenta}]")
    figure = drawn(curves(made_search(tmp_path, text)))
    assert sorted(panel.y.title for panel in figure.panels) == [
        f"{name}: test accuracy" for name in ("adam", "momentum", "sgd")
    ]


def test_steps_against_the_learning_rate(search: Evidence) -> None:
    figure = drawn(steps_by_rate(search))
    (panel,) = figure.panels
    assert panel.x.log
    by_name = {line.name: line for line in lines(panel) if line.in_legend}
    table = {summary.variant: summary for summary in search.results.variant_rankings[0].variants}
    for line in by_name.values():
        for rate, steps in zip(line.x, line.y, strict=True):
            target = table[f"{line.name} rate {rate:g}"].target
            assert target is not None
            assert target.steps is not None
            assert steps == target.steps.value
    assert by_name["sgd"].x == (0.1, 0.5)  # 0.02 did not reach the target
    assert by_name["sgd"].low
    crosses = [line for line in lines(panel) if line.symbol == "cross"]
    assert [(line.name, line.x) for line in crosses] == [("sgd", (3.0,)), ("momentum 0.9", (3.0,))]
    assert crosses[0].y != crosses[1].y  # the same rate, and both can be seen
    assert max(line.y[0] or 0 for line in crosses) == panel.y.most
    (edge,) = [line for line in lines(panel) if line.kind == "reference" and line.name == "sgd"]
    assert edge.x[0] == edge.x[1] == pytest.approx((0.5 * 3.0) ** 0.5)
    assert "0.5 was stable, 3 diverged" in edge.hover[0]
    assert "sgd rate 0.5 reaches the target in the fewest steps" in figure.title


def test_without_a_target_it_is_the_final_metric(mixed: Evidence, tmp_path: Path) -> None:
    figure = drawn(steps_by_rate(mixed))
    assert figure.panels[0].y.title == "test accuracy"
    assert figure.title == "Test accuracy by learning rate"  # several may be the best
    one_rate_each = STUDY.replace("lr: 0.05}", "lr: 0.05}, {name: adam, lr: 0.001}")
    assert steps_by_rate(Evidence(load(made_study(tmp_path / "made", one_rate_each).path))) is None


def test_edges_of_the_results_are_marked(mixed: Evidence) -> None:
    (edge,) = {edge for (setting, _, _), edge in mixed.results.edges.items() if setting.workers == 1}
    assert isinstance(edge, DivergenceEdge)
    marked = [line for line in lines(drawn(steps_by_rate(mixed)).panels[0]) if line.kind == "reference"]
    assert [line.x for line in marked] == [(edge.estimate,) * 2]


def test_diverged_curves_end_in_a_cross_inside_the_picture(mixed: Evidence) -> None:
    figure = drawn(convergence(mixed))
    crosses = [line for line in lines(figure.panels[0]) if line.symbol == "cross"]
    assert len(crosses) == 1
    assert "diverged" in figure.title
    highest = max(value for line in lines(figure.panels[0]) for value in line.y if value is not None)
    assert highest < 1000


def test_losses_beyond_the_picture_are_gaps_unless_they_end_there(strong: Evidence) -> None:
    def point(epoch: int, loss: float) -> CurvePoint:
        value = Estimate(value=loss, low=loss, high=loss)
        return CurvePoint(epoch=epoch, step=1.0, train_loss=value, test_loss=None, train_metric=None, test_metric=None)

    points = tuple(point(epoch, loss) for epoch, loss in enumerate((1.0, 1e9, 0.5), start=1))
    first = strong.curves[0]
    curve: Curve = replace(first, diverged=0, epochs=3, repeats=1, points=points)
    others = [other for other in strong.curves if other.variant != curve.variant]
    figure = drawn(convergence(changed(strong, curves=[curve, *others])))
    line = next(line for line in lines(figure.panels[0]) if line.name == curve.variant)
    assert line.y == (1.0, None, 0.5)
    assert line.hover[1] == ""


def test_outcomes_join_what_differs_in_workers_only(strong: Evidence) -> None:
    """Two global batches are two lines, in every panel with the same color, as in the other figures."""
    panels = drawn(outcome(strong)).panels
    for panel in panels:
        assert sorted(line.name for line in lines(panel)) == ["global batch 256", "global batch 64"]
        assert all(line.x == (1, 2, 4) for line in lines(panel))
    hues = {line.name: line.color for line in lines(panels[0])}
    assert all(hues[line.name] == line.color for panel in panels for line in lines(panel))
    speedup = next(figure for figure in figures(strong) if figure.key == "speedup")
    assert {line.name: line.color for line in lines(speedup.panels[0]) if line.name in hues} == hues


def test_tables_have_what_the_study_varied(mixed: Evidence, tmp_path: Path) -> None:
    assert column(optimizers(mixed), "diverged").count(2) == 3
    assert column(large_batch(mixed), "global_batch") == [64, 128, 256]
    assert trained(mixed) is None
    plain = Evidence(load(made_study(tmp_path / "made", STUDY.replace("[1, 2, 4]", "[2]")).path))
    assert (optimizers(plain), large_batch(plain)) == (None, None)
    assert column(trained(plain), "workers") == [2]


def test_a_table_says_how_many_runs_reached_the_target(search: Evidence) -> None:
    table = optimizers(search)
    assert table is not None
    assert table.marked == 0
    by_variant = dict(zip(column(table, "variant"), column(table, "reached"), strict=True))
    assert (by_variant["sgd rate 0.5"], by_variant["sgd rate 0.02"], by_variant["sgd rate 3"]) == (2, 0, 0)
    steps = dict(zip(column(table, "variant"), column(table, "steps_to_target"), strict=True))
    assert steps["sgd rate 0.02"] is None
    assert "those of the runs that reached it" in table.note


def test_report_json_has_curves_as_columns(mixed: Evidence) -> None:
    found = document(mixed)
    for curve, entry in zip(mixed.curves, found["curves"], strict=True):
        assert entry["epoch"] == [point.epoch for point in curve.points]
        values = [point.test_metric and point.test_metric.value for point in curve.points]
        assert entry["test_metric"]["value"] == values
    assert found["training"][0]["train_s"]["value"] == mixed.training[0].train_s.value  # type: ignore[union-attr]


def test_noise_over_time_and_its_scale(mixed: Evidence) -> None:
    setting = mixed.results.rows[-1].setting
    over_time = NoiseOverTime(setting=setting, variant="momentum", step=(1, 2, 3), samples=(50.0, None, 60.0))
    common = {"steps": 99, "gradient_sq": 1.0, "variance": 1.0, "small_batch": 64.0, "big_batch": 256.0}
    known = NoiseScale(value=400.0, low=300.0, high=520.0, **common)  # type: ignore[arg-type]
    bound = NoiseScale(value=None, low=90.0, high=None, **common)  # type: ignore[arg-type]
    results = replace(mixed.results)
    results.__dict__["noise_scales"] = [(setting, "momentum", known), (setting, "adam", bound)]
    evidence = changed(Evidence(results), noise_over_time=[over_time])
    figure = drawn(noise(evidence))
    assert figure.title == "A global batch of more than about 400 samples hardly improves a step"
    assert lines(figure.panels[0])[0].y == (50.0, None, 60.0)
    assert lines(figure.panels[0])[0].hover[1] == ""
    table = noise_scale(evidence)
    assert column(table, "noise_scale") == [Estimate(value=400.0, low=300.0, high=520.0), None]
    assert column(table, "noise_scale_at_least") == [None, 90.0]
    assert noise(mixed) is None
    assert noise_scale(mixed) is None
