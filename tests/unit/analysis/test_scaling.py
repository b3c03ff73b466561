"""Speedup, efficiency and the recommendation: known laws in, known answers out."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import pytest

from worldsize.analysis.estimate import Estimate, Sample
from worldsize.analysis.learning.variants import TrainingRun, summaries, variant_rankings
from worldsize.analysis.speed.recommend import Answer, learns_less, recommend
from worldsize.analysis.speed.scaling import LaunchFit, Series, TimedTrial, period_means, scaling, setting_times
from worldsize.answer.as_dict import columns, flat
from worldsize.report.words.findings import sentence
from worldsize.report.words.numbers import duration, number
from worldsize.spec.setting import Setting
from worldsize.spec.training import StrategySpec

Scaling = Literal["weak", "strong"]


@dataclass(frozen=True)
class Run:
    measured: TimedTrial
    metric: float | None
    variant: str = "sgd"

    def trained(self) -> TrainingRun:
        """Three epochs that all end with the metric; without one, it diverged."""
        curve = np.full(3, np.nan if self.metric is None else self.metric)
        return TrainingRun(
            setting=self.measured.setting,
            variant=self.variant,
            family=self.variant,
            variant_without_lr=self.variant,
            lr=0.1,
            scaled=1.0,
            repeat=self.measured.repeat,
            outcome="diverged" if self.metric is None else "finished",
            steps=np.arange(1.0, 4),
            samples=np.arange(1.0, 4),
            seconds=np.arange(1.0, 4),
            metric=curve,
            train_metric=curve,
            final=self.metric,
        )


def said(answer: Answer) -> str:
    return " ".join(map(sentence, answer.findings))


def setting_of(workers: int, batch: int = 64, mode: Scaling = "weak") -> Setting:
    return Setting(workers=workers, batch_per_worker=batch, scaling=mode, strategy=StrategySpec(), precision="fp32")


def trial(
    workers: int,
    batch: int,
    step_s: float,
    *,
    repeat: int = 0,
    mode: Scaling = "weak",
    noise: float = 0.01,
    metric: float | None = None,
    kind: Literal["probe", "train"] = "probe",
    slow_rank: float = 1.0,
    launch: str = "0001",
) -> Run:
    rng = np.random.default_rng([workers, batch, repeat])
    steps = step_s * np.exp(rng.normal(0, noise, (50, workers)))
    steps[:, -1] *= slow_rank
    setting = setting_of(workers, batch, mode)
    return Run(TimedTrial(setting=setting, kind=kind, repeat=repeat, launch=launch, step_s=steps), metric)


def series_of(runs: Iterable[Run]) -> list[Series]:
    """Scaling of what was measured, with the best of what was trained."""
    runs = list(runs)
    learned = summaries([run.trained() for run in runs if run.measured.kind == "train"], higher_is_better=True)
    found = variant_rankings(learned, higher_is_better=True, by_target=False)
    best = {contest.setting: contest.variants[0] for contest in found}
    return scaling(setting_times(run.measured for run in runs), best)  # type: ignore[arg-type]


def study(step_of: dict[int, float], *, repeats: int = 3, noise: float = 0.01, batch: int = 64) -> Answer:
    return recommend(
        series_of(
            trial(workers, batch, step, repeat=repeat, noise=noise)
            for workers, step in step_of.items()
            for repeat in range(repeats)
        )
    )


def test_weak_scaling_against_one_worker() -> None:
    (series,) = series_of([trial(1, 64, 0.010), trial(2, 64, 0.0125), trial(4, 64, 0.020)])
    assert [row.efficiency.value for row in series.rows] == pytest.approx([1, 0.8, 0.5], rel=0.05)
    assert [row.speedup.value for row in series.rows] == pytest.approx([1, 1.6, 2.0], rel=0.05)
    assert series.rows[2].samples_per_s.value == pytest.approx(256 / 0.020, rel=0.05)


def test_strong_scaling_from_a_baseline_of_two() -> None:
    trials = [trial(2, 32, 0.040, mode="strong"), trial(4, 16, 0.025, mode="strong"), trial(8, 8, 0.02, mode="strong")]
    (series,) = series_of(trials)
    assert {row.baseline_workers for row in series.rows} == {2}
    assert [row.speedup.value for row in series.rows] == pytest.approx([1, 1.6, 2.0], rel=0.05)
    assert [row.efficiency.value for row in series.rows] == pytest.approx([1, 0.8, 0.5], rel=0.05)


def test_the_slowest_rank_makes_the_step() -> None:
    (point,) = setting_times([trial(4, 64, 0.01, slow_rank=2.0).measured])
    assert np.median(point.repeats[0]) == pytest.approx(0.02, rel=0.02)


def test_probes_and_training_are_one_body_of_evidence() -> None:
    probes = [trial(1, 64, 0.10, repeat=repeat) for repeat in range(2)]
    trained = trial(1, 64, 0.16, kind="train", metric=0.9)
    ((row,),) = (series.rows for series in series_of([*probes, trained]))
    assert row.step_s.value == pytest.approx((0.10 * 0.10 * 0.16) ** (1 / 3), rel=0.01)
    assert row.step_s.ends[1] > 0.16  # they disagree, so the interval covers both
    assert (row.repeats, row.pace.trained) == (3, {2})
    assert (row.variant, row.metric) == ("sgd", Estimate(value=0.9, n=1))


def test_training_that_is_short_or_does_more_does_not_count_beside_probes() -> None:
    probe = trial(1, 64, 0.10)
    short = trial(1, 64, 0.01, kind="train", metric=0.9)  # 50 steps: half a second
    other = trial(1, 64, 0.16, kind="train", metric=0.9)
    other = replace(other, measured=replace(other.measured, like_a_probe=False))
    for trained in (short, other):
        ((row,),) = (series.rows for series in series_of([probe, trained]))
        assert row.step_s.value == pytest.approx(0.10, rel=0.01)
        assert row.repeats == 1
    ((alone,),) = (series.rows for series in series_of([short]))
    assert alone.step_s.value == pytest.approx(0.01, rel=0.02)


def test_gains_of_probes_and_of_training_can_be_compared() -> None:
    runs = [
        trial(workers, 64, step_s, repeat=repeat, kind=kind, metric=0.9)
        for kind, times in (("probe", {1: 0.10, 2: 0.12}), ("train", {1: 0.10, 2: 0.15}))
        for workers, step_s in times.items()
        for repeat in range(3)
    ]
    (series,) = series_of(runs)
    base, larger = (row.pace for row in series.rows)
    gains = larger.training_gain_over(base)
    assert gains is not None
    probed, trained = (gain.exp().value for gain in gains)
    assert probed == pytest.approx(2 * 0.10 / 0.12, rel=0.01)
    assert trained == pytest.approx(2 * 0.10 / 0.15, rel=0.01)
    assert series.rows[1].speedup.value == pytest.approx((probed * trained) ** 0.5, rel=0.01)


def test_the_knee_is_the_last_count_that_pays() -> None:
    answer = study({1: 0.010, 2: 0.011, 4: 0.013, 8: 0.025})
    assert answer.verdict == "use"
    assert answer.row is not None
    assert answer.row.setting.workers == 4
    assert [finding.code for finding in answer.findings] == ["next-count-not-worth-it"]
    assert answer.row.speedup.value == pytest.approx(3.08, rel=0.02)


def test_a_count_that_does_not_pay_does_not_end_the_climb() -> None:
    """What two workers lose to their first exchange, eight have long won: 1.15, 2.1 and 3.8 times one."""
    answer = study({1: 0.010, 2: 0.0174, 4: 0.019, 8: 0.021, 16: 0.060})
    assert answer.row is not None
    assert answer.row.setting.workers == 8
    late = study({1: 0.010, 2: 0.025, 4: 0.05, 8: 0.04})  # 4 is slower than 1, and 8 twice as fast: not enough for 8
    assert late.row is not None
    assert late.row.setting.workers == 1


def test_slower_on_more_workers_means_one() -> None:
    answer = study({1: 0.010, 2: 0.030})
    assert answer.row is not None
    assert answer.row.setting.workers == 1
    pattern = r"2 workers would be only 0\.6\d+x%s as fast, which is 3\d %% efficient\."
    assert re.search(pattern % r" \(0\.6\d+x to 0\.6\d+x\)", said(answer))
    once = recommend(series_of([trial(1, 64, 0.010), trial(2, 64, 0.030)]))
    assert re.search(pattern % "", said(once))  # one run has no interval


def test_rows_as_columns_have_the_same_names_whether_trained_or_not() -> None:
    rows = [row for series in series_of([trial(1, 64, 0.01), trial(2, 64, 0.01)]) for row in series.rows]
    bare, trained = columns(flat(rows[0])), columns(flat(replace(rows[1], metric=Estimate(value=0.9, n=1))))
    assert bare.keys() == trained.keys()
    assert (bare["metric"], bare["metric_low"], bare["metric_high"], bare["metric_repeats"]) == (None, None, None, 0)
    assert (trained["metric"], trained["metric_low"], trained["metric_repeats"]) == (0.9, None, 1)
    assert (bare["speedup"], bare["speedup_low"], bare["speedup_high"]) == (1.0, None, None)


def test_two_noisy_points_are_not_enough_and_it_says_what_to_measure() -> None:
    rng = np.random.default_rng(0)
    trials = [
        trial(workers, 64, 0.01 * workers**0.9 * float(np.exp(rng.normal(0, 0.5))), repeat=repeat)
        for workers in (1, 2)
        for repeat in range(2)
    ]
    answer = recommend(series_of(trials))
    assert answer.verdict == "not enough evidence"
    assert re.search(
        r"^With 2 workers the speedup is 0\.\d+x \(0\.\d+x to 1\.\d+x\), measured in 2 runs\. About \d+ runs would "
        "decide: raise probe.repeats",
        said(answer),
    )


def test_one_count_is_not_enough() -> None:
    answer = study({2: 0.01})
    assert answer.verdict == "not enough evidence"
    assert said(answer).startswith("Only one worker count was measured. Add another one to axes.workers")


def test_nothing_measured_is_said() -> None:
    assert said(recommend([])) == "No trial has finished yet; run the study."


def test_speed_that_costs_accuracy_is_not_recommended() -> None:
    fast = [trial(n, 512, 0.02, metric=0.60, kind="train", repeat=r) for n in (1, 2) for r in range(2)]
    good = [trial(n, 64, 0.01, metric=0.97, kind="train", repeat=r) for n in (1, 2) for r in range(2)]
    answer = recommend(series_of(fast + good))
    assert answer.row is not None
    assert answer.row.setting.batch_per_worker == 64
    assert answer.row.metric == Estimate(value=0.97, low=0.97, high=0.97, n=2)


def test_as_fast_as_one_is_an_answer_not_a_doubt() -> None:
    answer = study({1: 0.010, 2: 0.020}, repeats=8)
    assert answer.verdict == "use"
    assert answer.row is not None
    assert answer.row.setting.workers == 1


def test_a_close_call_is_called_one() -> None:
    rng = np.random.default_rng(2)
    trials = [
        trial(n, 64, step * float(np.exp(rng.normal(0, 0.08))), repeat=r)
        for n, step in ((1, 0.010), (2, 0.0152))
        for r in range(6)
    ]
    answer = recommend(series_of(trials))
    assert answer.verdict == "use"
    assert "close-call" in [finding.code for finding in answer.findings]


def test_noise_at_a_count_that_is_not_in_question_does_not_matter() -> None:
    rng = np.random.default_rng(1)
    trials = [trial(n, 64, 0.01, repeat=r) for n in (1, 2) for r in range(3)]
    trials += [trial(4, 64, 0.04, repeat=r) for r in range(3)]
    trials += [trial(8, 64, 0.1 * float(np.exp(rng.normal(0, 1))), repeat=r) for r in range(3)]
    answer = recommend(series_of(trials))
    assert answer.verdict == "use"
    assert answer.row is not None
    assert answer.row.setting.workers == 2


def test_noise_further_up_matters_where_a_count_there_may_pay() -> None:
    """2 and 4 do not pay; whether 8 do, three runs from 0.8 to 6 times as fast do not say."""
    steps = {1: (0.01,) * 3, 2: (0.0171,) * 3, 4: (0.0238,) * 3, 8: (0.012, 0.0355, 0.105)}
    trials = [trial(n, 64, step, repeat=r) for n, each in steps.items() for r, step in enumerate(each)]
    answer = recommend(series_of(trials))
    assert answer.verdict == "not enough evidence"
    assert {setting.workers for setting in answer.noisy} == {8}


TRAINED = series_of([trial(16, 64, 0.01, metric=0.9, kind="train")])[0].rows[0]


def test_one_repeat_of_the_baseline_is_said() -> None:
    trials = [trial(1, 64, 0.01), *(trial(2, 64, step, repeat=r) for r, step in enumerate((0.0105, 0.011, 0.0101)))]
    answer = recommend(series_of(trials))
    assert "one-repeat" in [finding.code for finding in answer.findings]
    assert answer.row is not None
    assert answer.row.speedup.relative_width > 0.05


def test_a_count_at_which_one_repeat_diverged_does_not_learn() -> None:
    trials = [trial(n, 64, 0.01, metric=0.97, kind="train", repeat=r) for n in (1, 2, 4) for r in range(3)]
    trials[-1] = replace(trials[-1], metric=None)
    answer = recommend(series_of(trials), trained=True)
    assert answer.row is not None
    assert answer.row.setting.workers == 2


def test_nothing_is_recommended_when_all_training_diverged() -> None:
    trials = [trial(n, 64, 0.01, metric=None, kind="train", repeat=r) for n in (1, 2) for r in range(3)]
    answer = recommend(series_of(trials), trained=True)
    assert answer.verdict == "not enough evidence"
    assert "No setting finished all of its training runs with a finite loss." in said(answer)


def test_what_happens_every_eighth_step_is_in_the_mean_of_eight() -> None:
    steps = np.full((83, 2), 0.01)
    steps[7::8] = 0.21
    means = period_means(steps, 8)
    assert means.shape == (10, 2)
    assert means == pytest.approx(0.035)
    assert period_means(steps[:3], 8) == pytest.approx(np.array([[0.01, 0.01]]))
    assert period_means(steps, 1) is steps


def test_optimisers_do_not_count_as_repeats() -> None:
    one = trial(1, 64, 0.01, metric=0.9, kind="train")
    (point,) = setting_times([one.measured, replace(one, variant="adam").measured])
    assert list(point.repeats) == [0]
    assert len(point.repeats[0]) == 10  # two runs of 50 steps of 10 ms, in blocks of a tenth of a second


def test_counts_that_no_longer_learn_are_not_recommended_and_it_says_why() -> None:
    metrics = {1: 0.979, 2: 0.973, 4: 0.862, 8: 0.1}
    trials = [
        trial(workers, 64, 0.01, metric=metric, kind="train", repeat=repeat)
        for workers, metric in metrics.items()
        for repeat in range(3)
    ]
    answer = recommend(series_of(trials))
    assert answer.row is not None
    assert answer.row.setting.workers == 2
    (lost,) = answer.findings
    assert sentence(lost).startswith(
        "With 4 workers (global batch 256) the model learns less: 0.8620 instead of 0.9790."
    )


def test_learning_less_within_the_noise_is_told_as_that() -> None:
    trials = [trial(1, 64, 0.01, metric=metric, kind="train", repeat=r) for r, metric in enumerate((0.974, 0.975))]
    trials += [trial(2, 64, 0.011, metric=metric, kind="train", repeat=r) for r, metric in enumerate((0.95, 0.961))]
    answer = recommend(series_of(trials))
    assert answer.verdict == "use"
    assert answer.row is not None
    assert answer.row.setting.workers == 2
    (unclear,) = (finding for finding in answer.findings if finding.code == "learning-unclear")
    assert sentence(unclear) == (
        "With a global batch of 128 the model may learn less: 0.9555 (0.9208 to 0.9902) instead of 0.9745, in 2 runs. "
        "About 4 runs would decide."
    )


def test_a_single_run_is_given_the_benefit_of_the_doubt() -> None:
    for metric, workers, code in ((0.95, 2, "learning-unclear-once"), (0.90, 1, "learning-lost")):
        trials = [trial(1, 64, 0.01, metric=0.98, kind="train"), trial(2, 64, 0.011, metric=metric, kind="train")]
        answer = recommend(series_of(trials))
        assert answer.row is not None
        assert answer.row.setting.workers == workers
        assert code in [finding.code for finding in answer.findings]


@pytest.mark.parametrize(("behind", "least", "most"), [(0.0, 0.0, 0.06), (0.04, 0.95, 1.0)])
def test_only_what_certainly_learns_less_is_excluded(behind: float, least: float, most: float) -> None:
    """Five settings, three runs each, seeds that differ by 1 %: the largest learns the same, or 4 points less."""
    rng = np.random.default_rng(4)
    lost = 0
    for _ in range(300):
        metrics = {n: 0.9 - (behind if n == 16 else 0) + rng.normal(0, 0.009, 3) for n in (1, 2, 4, 8, 16)}
        samples = {n: Sample.of(dict(enumerate(values))) for n, values in metrics.items()}
        best = max(sample.value for sample in samples.values())
        row = replace(TRAINED, metric=samples[16].estimate(), metric_sample=samples[16])
        lost += learns_less(row, best) is True
    assert least <= lost / 300 <= most


@pytest.mark.parametrize(("step_s", "verdict"), [(0.023, "not enough evidence"), (0.011, "use")])
def test_more_workers_that_are_no_faster_are_not_recommended_for_what_they_learned(step_s: float, verdict: str) -> None:
    """As where both train for the same number of steps, and two workers see twice the samples."""
    trials = [trial(1, 64, 0.01, metric=0.81, kind="train", repeat=r) for r in range(3)]
    trials += [trial(2, 64, step_s, metric=0.93, kind="train", repeat=r) for r in range(3)]
    answer = recommend(series_of(trials), trained=True)
    assert answer.verdict == verdict
    if verdict == "use":
        assert answer.row is not None
        assert answer.row.setting.workers == 2
    else:
        assert "2 workers are only 0.86" in said(answer)
        assert "with 1 the model learned less: 0.8100 instead of 0.9300." in said(answer)


def test_learning_and_speed_may_disagree_in_other_ways() -> None:
    def learned(metrics: dict[int, tuple[float | None, ...]], steps: dict[int, float]) -> Answer:
        trials = [
            trial(workers, 64, steps[workers], metric=metric, kind="train", repeat=repeat)
            for workers, each in metrics.items()
            for repeat, metric in enumerate(each)
        ]
        return recommend(series_of(trials), trained=True)

    def used(answer: Answer) -> int:
        assert answer.verdict == "use"
        assert answer.row is not None
        return answer.row.setting.workers

    slower = {1: 0.01, 2: 0.021, 4: 0.03}
    assert used(learned({1: (0.88, 0.93, 0.98), 2: (0.95, 0.95, 0.95)}, slower)) == 1
    failed = learned({1: (None, None, None), 2: (0.95, 0.95, 0.95)}, slower)
    assert "training with 1 diverged or missed the target" in said(failed)
    # A count between learned less; one worker learned as well as four, and four pay against it.
    assert used(learned({1: (0.95,) * 3, 2: (0.9,) * 3, 4: (0.95,) * 3}, {1: 0.01, 2: 0.0103, 4: 0.017})) == 4


def test_a_smaller_count_that_learned_less_still_says_how_noisy_the_speedup_is() -> None:
    steps = {1: (0.01, 0.01, 0.01), 2: (0.008, 0.012, 0.03)}
    trials = [
        trial(workers, 64, step, metric=0.8 + workers / 10, kind="train", repeat=repeat)
        for workers, each in steps.items()
        for repeat, step in enumerate(each)
    ]
    answer = recommend(series_of(trials), trained=True)
    assert (answer.verdict, answer.findings[0].code) == ("not enough evidence", "too-noisy")


def test_a_larger_count_that_cannot_pay_is_no_doubt_however_wide_its_interval() -> None:
    trials = [trial(1, 64, 0.01, repeat=repeat) for repeat in range(3)]
    trials += [trial(2, 64, step, repeat=repeat) for repeat, step in enumerate((0.03, 0.06, 0.1))]
    answer = recommend(series_of(trials))
    assert answer.row is not None
    assert (answer.verdict, answer.row.setting.workers) == ("use", 1)


def test_every_finding_has_its_words() -> None:
    answer = study({1: 0.01, 2: 0.011}, repeats=1)
    assert [finding.code for finding in answer.findings] == ["largest-count-measured", "one-repeat"]
    assert all(sentence(finding) for finding in answer.findings)


@pytest.mark.parametrize(
    ("value", "text"),
    [(1.234, "1.23"), (12.34, "12.3"), (123.4, "123"), (12345.6, "12,346"), (0.001234, "0.00123"), (0, "0")],
)
def test_numbers(value: float, text: str) -> None:
    assert number(value) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.5, "500 ms"),
        (1.0, "1 s"),
        (1.85, "1.9 s"),
        (9.96, "10.0 s"),
        (45.4, "45 s"),
        (59.7, "1 min 00 s"),
        (200, "3 min 20 s"),
        (7500, "2 h 05 min"),
    ],
)
def test_durations(seconds: float, text: str) -> None:
    assert duration(seconds) == text


def test_drift_that_repeats_share_does_not_blur_the_gain_of_a_step_up() -> None:
    """Three repeats that drift by 6 %: 16 workers gain 44 % of the ideal over 8, which is no close call."""
    drift = (0.94, 1.0, 1.06)
    steps = {1: 0.010, 8: 0.0295, 16: 0.046}
    answer = recommend(
        series_of(
            trial(workers, 64, step * drift[repeat], repeat=repeat)
            for workers, step in steps.items()
            for repeat in range(3)
        )
    )
    assert answer.row is not None
    assert answer.row.setting.workers == 8
    assert [finding.code for finding in answer.findings] == ["next-count-not-worth-it"]


ROUNDS = ([[1, 2], [1, 2], [1, 2]], [[4, 2], [4]], [[8, 4], [8], [8]])
"""Counts of each pass of each launch, as an adaptive study probes them."""


@pytest.mark.parametrize("drift", [0.0, 0.02, 0.05])
def test_speedups_across_launches_cover_the_truth(drift: float) -> None:
    """Noise of 1 %; without effects of launches, 45 and 19 % of studies that drift would cover 8 workers."""
    rng, inside = np.random.default_rng(0), []
    for _ in range(500):
        repeats: dict[Setting, dict[int, float]] = defaultdict(dict)
        launches: dict[Setting, dict[int, str]] = defaultdict(dict)
        for launch, passes in enumerate(ROUNDS):
            slow = rng.normal(0, drift)
            for counts in passes:
                for key in (setting_of(workers) for workers in counts):
                    number = 10 * launch + len(repeats[key])
                    repeats[key][number] = slow + rng.normal(0, 0.01)
                    launches[key][number] = str(launch)
        fit = LaunchFit({key: Sample.of(values) for key, values in repeats.items()}, launches)
        slower = fit.difference(setting_of(8), setting_of(1))
        inside.append(abs(slower.value) <= slower.half_width())
    assert np.mean(inside) == pytest.approx(0.9, abs=0.03)


def test_settings_that_share_no_launch_are_compared_by_their_means() -> None:
    few, many = setting_of(1), setting_of(2)
    steps = {few: Sample.of({0: 1.0, 1: 1.1}), many: Sample.of({2: 2.0, 3: 2.1})}
    fit = LaunchFit(steps, {few: {0: "a", 1: "a"}, many: {2: "b", 3: "b"}})
    assert fit.difference(many, few) == steps[many].minus_unpaired(steps[few])
