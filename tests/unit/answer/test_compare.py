"""Studies side by side: intervals that cover, false alarms that stay rare, differences that are found and worded."""

from __future__ import annotations

import html
import json
import math
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from tests.made import Made, hostile, write_study
from worldsize.analysis.estimate import Estimate, Sample, mean_of_blocks
from worldsize.analysis.speed.compare import (
    ALPHA,
    EFFICIENCY,
    METRIC,
    STEPS,
    THROUGHPUT,
    Difference,
    Side,
    compare,
    difference,
    holm,
    of_parts,
    of_values,
)
from worldsize.analysis.speed.hardware import foreign_cores, usage
from worldsize.answer.comparison import StudyComparison, compare_studies, to_dict
from worldsize.answer.results import load
from worldsize.cli.main import app
from worldsize.errors import InputError
from worldsize.report.blocks import Listing, Prose, Report, Table
from worldsize.report.sections.comparison import answer_sentence, comparison_report, count_sentence
from worldsize.report.write.page import to_page
from worldsize.spec.setting import Setting
from worldsize.spec.study import TrialSpec
from worldsize.spec.training import StrategySpec

ONE = Setting(workers=1, batch_per_worker=32, scaling="weak", strategy=StrategySpec(), precision="fp32")
STUDY = """\
name: compared
workload: digits
axes: {{workers: {workers}, batch_per_worker: [100], optimizer: [{{name: sgd, lr: {rate}}}]}}
train: {train}
repeats: 4
oversubscribe: true
"""
EPOCHS = "{epochs: 2}"
UNTIL = "{until: {metric: accuracy, at_least: 0.8, max_epochs: 20}}"


def made(step_ms: float = 10.0, *, exchange_ms: float = 2.0, accuracy: float = 0.9, **more: object) -> Made:
    """Computing and an exchange that one worker does not need; repeats that differ in what they learn."""
    return Made(
        times=lambda trial: {
            "forward": step_ms * 4e-4,
            "backward": step_ms * 6e-4,
            "communication": exchange_ms * 1e-3 if trial.workers > 1 else 0.0,
        },
        accuracy=lambda trial, _: accuracy + 0.002 * math.sin(7 * trial.repeat + trial.workers),
        **more,  # type: ignore[arg-type]
    )


def studies(home: Path, *sides: Made, texts: Mapping[int, str] | None = None) -> StudyComparison:
    text = STUDY.format(workers="[1, 2]", rate=0.05, train=EPOCHS)
    found = [write_study(home / f"s{place}", (texts or {}).get(place, text), side) for place, side in enumerate(sides)]
    return compare_studies(*found)


def found_of(comparison: StudyComparison, quantity: str, workers: int) -> Difference:
    return next(
        each
        for each in comparison.compared.differences
        if each.quantity == quantity and each.setting.workers == workers
    )


@pytest.mark.parametrize(("n", "m", "spread"), [(3, 3, 1.0), (3, 8, 3.0), (5, 4, 0.3)])
def test_ninety_percent_of_intervals_hold_the_true_difference(n: int, m: int, spread: float) -> None:
    rng = np.random.default_rng([n, m])
    held = 0
    for _ in range(2000):
        estimate, _ = difference(
            of_values(rng.normal(1.0, 1.0, n).tolist()), of_values(rng.normal(1.5, spread, m).tolist())
        )
        assert estimate.low is not None
        assert estimate.high is not None
        held += estimate.low <= 0.5 <= estimate.high
    assert 0.87 <= held / 2000 <= 0.95


def test_holm_as_worked_by_hand() -> None:
    blank = Difference(
        side="B",
        setting=ONE,
        quantity=THROUGHPUT,
        first=1.0,
        other=1.0,
        estimate=Estimate(value=1.0, low=None, high=None),
        p=None,
    )
    given = [0.01, 0.04, None, 0.03, 0.005]
    corrected = [each.p_holm for each in holm([replace(blank, p=p) for p in given])]
    assert corrected == [pytest.approx(0.03), pytest.approx(0.06), None, pytest.approx(0.06), pytest.approx(0.02)]


def test_studies_that_do_not_differ_raise_a_false_alarm_once_in_twenty_at_most() -> None:
    rng = np.random.default_rng(5)
    alarms = 0
    for _ in range(400):
        sides = []
        for name in "ABC":
            means = {
                replace(ONE, workers=workers): {
                    THROUGHPUT: of_values(rng.normal(5, 0.02, 4).tolist()),
                    METRIC: of_values(rng.normal(0.9, 0.01, 4).tolist()),
                }
                for workers in (1, 2, 4)
            }
            sides.append(Side(name=name, means=means, step_s=dict.fromkeys(means, 0.01), baselines={}))
        alarms += bool(compare(sides).significant)
    assert alarms / 400 <= ALPHA + 2 * math.sqrt(ALPHA * (1 - ALPHA) / 400)


def test_repeats_that_agree_by_chance_are_no_surer_than_their_steps() -> None:
    rng = np.random.default_rng(0)
    noisy = [rng.lognormal(0, 0.5, 40) for _ in range(6)]
    # Shifted to one mean each: between repeats there is nothing to see any more.
    centered = [steps / np.exp(np.log(steps).mean()) for steps in noisy]
    sides = [mean_of_blocks(dict(enumerate(side))) for side in (centered[:3], centered[3:])]
    estimate, p = difference(sides[0], sides[1])
    assert p is not None
    assert p > 0.5
    assert estimate.high is not None
    assert estimate.high > 0.05


def test_repeats_of_two_studies_are_not_paired() -> None:
    """Drift that both saw in the same order would cancel in pairs; two studies never saw the same."""
    drift = {0: 0.0, 1: 0.2, 2: 0.4, 3: 0.6}
    rng = np.random.default_rng(1)

    def side(shift: float) -> Sample:
        steps = {key: np.exp(shift + drift[key] + rng.normal(0, 0.001, 50)) for key in drift}
        return mean_of_blocks(steps)

    estimate, p = difference(side(0.0), side(0.05))
    assert p is not None
    assert p > 0.5
    assert estimate.low is not None
    assert estimate.low < -0.2


def test_what_cannot_be_judged_is_not_judged() -> None:
    one, two, same = of_values([1.0]), of_values([2.0, 2.1]), of_values([1.0, 1.0])
    assert difference(one, two) == (Estimate(value=pytest.approx(1.05), low=None, high=None), None)
    assert difference(same, of_values([2.0, 2.0]))[1] is None
    assert difference(same, same)[1] == 1.0
    # Rounded to whole tenths, two equal values may be up to a tenth apart.
    grained = difference(of_values([1.0, 1.0], 0.1), of_values([1.1, 1.1], 0.1))
    assert grained[1] is not None
    assert 0.01 < grained[1] < 0.3


def test_parts_of_a_step_are_sums_of_spans() -> None:
    spans = {"data": 1.0, "copy": 0.5, "forward": 2.0, "backward": 3.0, "communication": 4.0, "optimizer": 0.25}
    parts = of_parts({0: {**spans, "rest": 0.25, "waiting": 5.0}, 1: {**spans, "rest": 0.75, "waiting": 7.0}})
    assert {name: mean.value for name, mean in parts.items()} == {
        "data": 1.0,
        "compute": 6.25,
        "communication": 4.0,
        "waiting": 6.0,
    }
    assert of_parts({0: {"step": 1.0}}) == {}


def test_a_faster_study_is_found_and_said_first(tmp_path: Path) -> None:
    found = studies(tmp_path, made(10), made(8, exchange_ms=2))
    for workers, ratio in ((1, 10 / 8), (2, 12 / 10)):
        speed = found_of(found, THROUGHPUT, workers)
        assert speed.estimate.low is not None
        assert speed.estimate.high is not None
        assert speed.estimate.low < ratio < speed.estimate.high
        assert speed.significant
    computing = found_of(found, "compute", 2)
    assert computing.significant
    assert computing.estimate.value == pytest.approx(-2e-3, rel=0.1)
    assert not found_of(found, METRIC, 2).significant
    efficiency = found_of(found, EFFICIENCY, 2)
    assert efficiency.estimate.value == pytest.approx(8 / 10 - 10 / 12, abs=0.02)
    sentence = answer_sentence(found)
    assert sentence.startswith("B is 1.20x as fast as A with 2 workers (1.1")
    assert count_sentence(found) == (
        f"{len(found.compared.significant)} of {found.compared.judged} differences are more than noise."
    )


def test_a_difference_that_is_known_comes_before_one_that_is_not(tmp_path: Path) -> None:
    """B is faster with one worker; with two its repeats say nothing."""

    def shaky(trial: TrialSpec) -> dict[str, float]:
        shake = math.exp((-0.6, 0.0, 0.7)[trial.repeat % 3]) if trial.workers > 1 else 1.0
        return {"forward": 4e-3 * shake, "backward": 3e-3 * shake}

    found = studies(tmp_path, made(10), Made(times=shaky))
    assert not found_of(found, THROUGHPUT, 2).significant
    assert answer_sentence(found).startswith("B is 1.43x as fast as A with 1 worker (1.4")


def test_the_baseline_and_what_takes_no_time_are_not_counted(tmp_path: Path) -> None:
    found = studies(tmp_path, made(), made())
    told = {(each.setting.workers, each.quantity) for each in found.compared.differences}
    assert told == {
        *((workers, quantity) for workers in (1, 2) for quantity in (THROUGHPUT, METRIC, "compute")),
        (2, EFFICIENCY),
        (2, "communication"),
    }
    assert found.compared.judged == 8
    assert answer_sentence(found).startswith("B is not known to be faster or slower than A: ")
    assert answer_sentence(found).endswith("within the noise.")
    assert count_sentence(found) == "0 of 8 differences are more than noise."


def listing(report: Report, section: str) -> list[str]:
    """Lines of a list."""
    (block,) = next(each.blocks for each in report.sections if each.key == section)
    assert isinstance(block, Listing)
    return [f"{name}: {text}" if name else text for name, text in block.pairs]


def cautions(found: StudyComparison) -> list[str]:
    return [block.text for block in comparison_report(found).all(Prose) if block.role == "caution"]


def test_a_better_metric_is_found(tmp_path: Path) -> None:
    found = studies(tmp_path, made(), made(accuracy=0.95))
    metric = found_of(found, METRIC, 2)
    assert metric.significant
    assert metric.estimate.value == pytest.approx(0.05)
    speed, others = comparison_report(found).all(Table)
    assert ("2 workers", "test accuracy") in [row[:2] for row in others.rows]
    pace = found_of(found, THROUGHPUT, 2)
    assert speed.rows[1][3] == pace.estimate
    assert speed.rows[1][1] == pytest.approx(2 * 100 / pace.first)


def test_steps_to_the_target_are_compared_by_their_ratio(tmp_path: Path) -> None:
    def curve(pace: float) -> Made:
        rises = made()
        return replace(rises, accuracy=lambda trial, steps: 1 - math.exp(-steps * pace * (1 + 0.02 * trial.repeat)))

    text = STUDY.format(workers="[1]", rate=0.05, train=UNTIL)
    found = studies(tmp_path, curve(0.001), curve(0.004), texts={0: text, 1: text})
    steps = found_of(found, STEPS, 1)
    assert steps.estimate.value == pytest.approx(0.25, rel=0.2)
    assert steps.significant
    other = STUDY.format(workers="[1]", rate=0.05, train=UNTIL.replace("0.8", "0.7"))
    write_study(tmp_path / "other", other, curve(0.004))
    apart = compare_studies(load(tmp_path / "s0"), load(tmp_path / "other"))
    assert STEPS not in {each.quantity for each in apart.compared.differences}
    assert "B: train.until.at_least: 0.8 -> 0.7" in listing(comparison_report(apart), "configuration")


def test_what_was_asked_for_where_it_ran_and_what_one_alone_has(tmp_path: Path) -> None:
    other = STUDY.format(workers="[2, 4]", rate=0.1, train=EPOCHS)
    here, there = ({"device": "cpu", "torch": torch, "host": "n"} for torch in ("2.13.0", "2.14.0"))
    found = studies(tmp_path, made(environment=here), made(environment=there), texts={1: other})
    report = comparison_report(found)
    assert listing(report, "only") == ["A: 1 worker", "B: 4 workers"]
    assert "B: axes.optimizer.0.lr: [0.05] -> [0.1]" in listing(report, "configuration")
    assert "B: axes.workers: [1, 2] -> [2, 4]" in listing(report, "configuration")
    assert listing(report, "environment") == ["torch: 2.13.0 | 2.14.0"]


def test_efficiencies_against_other_baselines_are_not_compared(tmp_path: Path) -> None:
    texts = {
        place: STUDY.format(workers=counts, rate=0.05, train=EPOCHS)
        for place, counts in ((0, "[1, 2, 4]"), (1, "[2, 4]"))
    }
    found = studies(tmp_path, made(), made(), texts=texts)
    assert EFFICIENCY not in {each.quantity for each in found.compared.differences}
    assert {each.setting.workers for each in found.compared.differences} == {2, 4}


def test_three_studies_one_correction_and_strict_json(tmp_path: Path) -> None:
    found = studies(tmp_path, made(10), made(10), made(5))
    told = json.loads(json.dumps(to_dict(found), allow_nan=False))
    assert [each["name"] for each in told["studies"]] == ["A", "B", "C"]
    assert told["judged"] == 16
    assert {each["side"] for each in told["differences"] if each["significant"]} == {"C"}
    assert all(each["p_holm"] >= each["p"] for each in told["differences"])
    assert "; C is 1." in answer_sentence(found)


def test_a_busier_machine_is_said_below_the_answer(tmp_path: Path) -> None:
    found = studies(tmp_path, made(), made())
    assert found.foreign_cores == (None, None)
    assert cautions(found) == []
    (busier,) = cautions(replace(found, foreign_cores=(0.5, 1.4), gap_s=1080.0))
    assert busier.startswith("Other processes kept cores busy: 0.500 while A ran, 1.40 while B ran.")
    assert "ran up to 18 min 00 s apart" in busier
    assert cautions(replace(found, foreign_cores=(0.5, 0.6))) == []


def test_cores_of_others_are_what_the_host_does_beside_the_ranks() -> None:
    columns = ("at_s", "samples", "process_cpu_s", "host_cpu_s", "host_stolen_s")
    at_s = np.arange(6.0)
    ranks = [
        usage(columns, np.stack([at_s, 100 * at_s, own * at_s, 2.5 * at_s, 0.25 * at_s], axis=1)) for own in (0.9, 0.6)
    ]
    assert foreign_cores(ranks) == pytest.approx(2.5 + 0.25 - 0.9 - 0.6)
    assert foreign_cores([replace(ranks[0], process_cores=None), ranks[1]]) is None
    assert foreign_cores([]) is None


def test_nothing_in_common_is_said(tmp_path: Path) -> None:
    other = STUDY.format(workers="[4]", rate=0.05, train=EPOCHS)
    found = studies(tmp_path, made(), made(), texts={1: other})
    assert answer_sentence(found) == "Nothing to compare: the studies have no measured setting in common."


def test_the_same_folder_twice_is_no_comparison(tmp_path: Path) -> None:
    results = write_study(tmp_path / "s", STUDY.format(workers="[1]", rate=0.05, train=EPOCHS), made())
    with pytest.raises(InputError, match="is given twice"):
        compare_studies(results, load(tmp_path / "s" / ".." / "s"))


def test_the_command(tmp_path: Path) -> None:
    hostile = tmp_path / "b\x1b[2J"
    text = STUDY.format(workers="[1, 2]", rate=0.05, train=EPOCHS)
    write_study(tmp_path / "a", text, made(10))
    write_study(hostile, text, made(5))
    answer = CliRunner().invoke(app, ["compare", str(tmp_path / "a"), str(hostile)])
    assert answer.exit_code == 0, answer.output
    assert "\x1b[2J" not in answer.output
    assert answer.output.strip().startswith("B is 1.71x as fast as A with 2 workers")
    told = json.loads(CliRunner().invoke(app, ["compare", str(tmp_path / "a"), str(hostile), "--json"]).output)
    assert told["correction"] == "holm"


def test_the_page_says_everything_and_escapes_it(tmp_path: Path) -> None:
    found = studies(tmp_path, made(), made(8.0))
    report = comparison_report(found)
    shown = to_page(report, print_files=False, live=False)
    assert html.escape(answer_sentence(found)) in re.sub(r"</?a\b[^>]*>", "", shown)  # terms link to the glossary
    for table in report.all(Table):
        for row in table.rows:
            for quantity, cell in zip(table.quantities, row, strict=True):
                words = quantity.text(cell.value if isinstance(cell, Estimate) else cell)
                assert html.escape(words) in shown
    bad = to_page(hostile(report), print_files=False, live=False)
    assert "<script" not in shown + bad
    assert "<img" not in bad
    assert "<a href=" not in shown.partition("<main>")[2]  # no file lies beside it
    path = tmp_path / "page.html"
    folders = [str(each) for each in sorted(tmp_path.iterdir())[:2]]
    answer = CliRunner().invoke(app, ["compare", *folders, "--page", str(path)])
    assert answer.exit_code == 0, answer.output
    assert path.read_text(encoding="utf-8").startswith("<!doctype html>")
