"""What trials learned: known curves in, known answers out."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from worldsize.analysis.estimate import Estimate, log_interval, mean_interval
from worldsize.analysis.learning.larger_batches import Recovered, recovered
from worldsize.analysis.learning.variants import (
    Goal,
    TrainingRun,
    VariantSummary,
    best_of_each_family,
    compare_best_variants,
    divergence_edge,
    divergence_edges,
    summaries,
    target_summary,
    to_target,
    variant_rankings,
)
from worldsize.spec.setting import Setting
from worldsize.spec.training import StrategySpec


def trained(metric: Sequence[float], *, steps_per_epoch: int = 100, **given: Any) -> TrainingRun:
    epochs = np.arange(1.0, len(metric) + 1)
    values: dict[str, Any] = {
        "setting": (4, 64),
        "variant": "sgd 0.1",
        "family": "sgd",
        "lr": 0.1,
        "variant_without_lr": "sgd",
        "scaled": 1.0,
        "repeat": 0,
        "outcome": "finished",
        "steps": steps_per_epoch * epochs,
        "samples": 64 * steps_per_epoch * epochs,
        "seconds": 2 * epochs,
        "metric": np.array(metric),
        "train_metric": np.array([]),
        "final": metric[-1],
    }
    return TrainingRun(**{**values, **given})


def repeats(finals: Sequence[float], variant: str = "sgd 0.1", **given: Any) -> list[TrainingRun]:
    return [trained([0.1, final], variant=variant, repeat=number, **given) for number, final in enumerate(finals)]


def bests(
    curves: Sequence[TrainingRun], *, higher_is_better: bool = True, target: float | None = None
) -> list[VariantSummary]:
    goal = None if target is None else Goal(value=target, at_least=higher_is_better)
    found = summaries(curves, higher_is_better=higher_is_better, target=goal)
    return best_of_each_family(found, higher_is_better=higher_is_better, by_target=target is not None)


def test_a_target_is_met_between_evaluations_and_in_a_whole_epoch() -> None:
    reached = to_target(trained([0.5, 0.7, 0.9, 0.8, 0.95]), Goal(value=0.9, at_least=True))
    assert reached is not None
    assert (reached.epoch, reached.steps, reached.samples, reached.seconds) == pytest.approx((3, 300, 19200, 6))
    sooner = to_target(trained([0.5, 0.7, 0.9, 0.8, 0.95]), Goal(value=0.8, at_least=True))
    assert sooner is not None
    assert sooner.epoch == 3
    assert sooner.steps == pytest.approx(math.sqrt(200 * 300))
    assert (sooner.samples, sooner.seconds) == pytest.approx((64 * sooner.steps, sooner.steps / 50))
    falling = to_target(trained([1.0, 0.4, 0.6]), Goal(value=0.5, at_least=False))
    assert falling is not None
    assert falling.epoch == 2


def test_repeats_that_agree_by_chance_know_the_steps_no_better_than_their_evaluations() -> None:
    curves = [trained([0.5, 0.9], repeat=number) for number in range(4)]
    summary = target_summary(curves, Goal(value=0.7, at_least=True))
    doubt = summary.of_repeats[0].doubt
    assert summary.log_steps.floor == pytest.approx(doubt / 2)
    for estimate in (summary.steps, summary.samples, summary.seconds):
        assert estimate is not None
        low, high = estimate.ends
        assert math.log(high / low) == pytest.approx(2 * 1.645 * doubt / 2, rel=1e-3)


def test_a_target_that_is_never_met() -> None:
    assert to_target(trained([0.5, math.nan, 0.7]), Goal(value=0.9, at_least=True)) is None
    summary = target_summary([trained([0.5])], Goal(value=0.9, at_least=True))
    assert (summary.reached, summary.repeats, summary.steps, summary.always) == (0, 1, None, False)


def test_the_target_over_repeats_speaks_for_those_that_reached_it() -> None:
    curves = [trained([0.5] * (number + 1) + [0.9], repeat=number) for number in range(3)]
    summary = target_summary([*curves, trained([0.5] * 5, repeat=3)], Goal(value=0.9, at_least=True))
    assert (summary.reached, summary.repeats, summary.always) == (3, 4, False)
    assert sorted(summary.of_repeats) == [0, 1, 2]
    assert summary.steps is not None
    assert summary.steps.value == pytest.approx(100 * 24 ** (1 / 3))
    assert summary.steps.ends == pytest.approx(log_interval([200, 300, 400]).ends)
    assert summary.epochs == log_interval([2, 3, 4])


def test_the_interval_of_a_mean_is_students() -> None:
    found = mean_interval([1.0, 2.0, 3.0])
    assert (found.low, found.value, found.high) == pytest.approx((2 - 2.9199856 / 3**0.5, 2, 2 + 2.9199856 / 3**0.5))


def test_one_repeat_knows_nothing_of_its_noise() -> None:
    for found in (mean_interval([4.0]), log_interval([4.0])):
        assert found.value == pytest.approx(4)
        assert (found.low, found.high) == (None, None)


def test_the_interval_of_a_mean_covers_the_truth() -> None:
    rng = np.random.default_rng(1)
    found = [mean_interval(list(rng.normal(5, 1, 3))) for _ in range(1000)]
    held = [one.low is not None and one.high is not None and one.low <= 5 <= one.high for one in found]
    assert 0.87 <= np.mean(held) <= 0.93


@pytest.mark.parametrize(("higher_is_better", "train", "test"), [(True, 0.99, 0.90), (False, 0.21, 0.30)])
def test_overfitting_is_positive_for_both_directions(higher_is_better: bool, train: float, test: float) -> None:
    curves = [
        trained([0.5, test + shift], train_metric=np.array([0.5, train]), repeat=number)
        for number, shift in enumerate((-0.01, 0.01))
    ]
    (summary,) = summaries(curves, higher_is_better=higher_is_better, target=None)
    assert summary.gap is not None
    assert summary.gap.value == pytest.approx(0.09)
    assert summary.gap.low is not None
    assert summary.gap.low < 0.09


def test_a_summary_counts_how_repeats_ended() -> None:
    outcomes = ("finished", "plateaued", "diverged", "stopped")
    curves = [
        trained([0.2, 0.8], repeat=number, outcome=outcome, final=None if outcome == "diverged" else 0.8)
        for number, outcome in enumerate(outcomes)
    ]
    (summary,) = summaries(curves, higher_is_better=True, target=None)
    assert (summary.repeats, summary.diverged, summary.stopped, summary.plateaued) == (4, 1, 1, 1)
    assert summary.metrics == {0: 0.8, 1: 0.8}
    assert summary.metric == mean_interval([0.8, 0.8])
    assert summary.stable is not None
    assert (summary.target, summary.gap, summary.stable.epoch) == (None, None, None)


def test_settings_and_variants_are_kept_apart() -> None:
    curves = [*repeats([0.8, 0.9]), *repeats([0.7], "sgd 0.2"), *repeats([0.6], setting=(8, 64))]
    found = summaries(curves, higher_is_better=True, target=None)
    assert [(one.setting, one.variant, one.repeats) for one in found] == [
        ((4, 64), "sgd 0.1", 2),
        ((4, 64), "sgd 0.2", 1),
        ((8, 64), "sgd 0.1", 1),
    ]


def test_the_stable_epoch_comes_from_the_curves() -> None:
    rng = np.random.default_rng(2)
    curve = 0.9 - 0.5 * np.exp(-np.arange(1, 41) / 4)
    curves = [trained(list(curve + 0.005 * rng.normal(size=40)), repeat=number) for number in range(3)]
    (summary,) = summaries(curves, higher_is_better=True, target=None)
    assert summary.stable is not None
    assert summary.stable.epoch is not None
    assert summary.stable.epoch.value == pytest.approx(4 * math.log(0.5 / 0.01), abs=3)


def test_the_best_of_each_family_by_the_metric() -> None:
    curves = [
        *repeats([0.80, 0.82], "sgd 0.1"),
        *repeats([0.85, 0.87], "sgd 0.2"),
        *repeats([0.90, 0.91], "adam 0.001", family="adam"),
    ]
    assert [one.variant for one in bests(curves)] == ["adam 0.001", "sgd 0.2"]
    assert [one.variant for one in bests(curves, higher_is_better=False)] == ["sgd 0.1", "adam 0.001"]


def test_a_variant_that_failed_once_is_best_only_where_nothing_else_is() -> None:
    curves = [
        *repeats([0.99, 0.99], "sgd 9"),
        trained([0.1], variant="sgd 9", repeat=2, outcome="diverged", final=None),
        *repeats([0.5, 0.5, 0.5], "sgd 0.1"),
        trained([0.1], variant="adam 1", family="adam", outcome="diverged", final=None),
    ]
    assert [one.variant for one in bests(curves)] == ["sgd 0.1", "adam 1"]
    stopped = [*repeats([0.99], "sgd 9", outcome="stopped"), *repeats([0.5], "sgd 0.1")]
    assert [one.variant for one in bests(stopped)] == ["sgd 0.1"]


def test_with_a_target_the_fewest_steps_win_among_those_that_always_reach_it() -> None:
    curves = [
        *(trained([0.1, 0.2, 0.3, 0.9], variant="sgd", repeat=number) for number in range(2)),
        *(trained([0.1, 0.9, 0.95, 0.99], variant="adam", family="adam", repeat=number) for number in range(2)),
        trained([0.99, 0.99, 0.99], variant="lamb", family="lamb", repeat=0),
        trained([0.1, 0.1, 0.89], variant="lamb", family="lamb", repeat=1),
    ]
    found = bests(curves, target=0.9)
    assert [one.variant for one in found] == ["adam", "sgd", "lamb"]
    slower, missed = compare_best_variants(found, by_target=True)
    assert (slower.kind, missed.kind) == ("steps", "metric")
    assert slower.estimate is not None
    assert slower.estimate.value == pytest.approx(2)
    assert compare_best_variants(found)[0].kind == "metric"


def test_repeats_that_agree_are_not_exact_where_evaluations_are_an_epoch_apart() -> None:
    late = [trained([0.1] * 10 + [0.9], variant="sgd", repeat=number) for number in range(3)]
    sooner = [trained([0.1] * 9 + [0.9] * 2, variant="adam", family="adam", repeat=number) for number in range(3)]
    (close,) = compare_best_variants(bests([*late, *sooner], target=0.9), by_target=True)
    assert close.estimate is not None
    assert close.estimate.value == pytest.approx(1.1)
    # 90 % of a difference of two means of three values, each known to within half an epoch.
    reach = 1.645 * 0.5 / math.sqrt(12) * math.hypot(1 / 10, 1 / 11) / math.sqrt(3)
    assert close.estimate.ends == pytest.approx((1.1 * math.exp(-reach), 1.1 * math.exp(reach)), rel=1e-4)


def test_pairing_by_seed_sees_what_the_means_cannot() -> None:
    seeds = [0.80, 0.90, 0.85]
    adam = repeats([seed + 0.02 + 0.001 * number for number, seed in enumerate(seeds)], "adam", family="adam")
    (paired,) = compare_best_variants(bests([*repeats(seeds), *adam]))
    assert (paired.variant, paired.against, paired.paired, paired.within_noise) == ("sgd 0.1", "adam", 3, False)
    assert paired.estimate is not None
    assert paired.estimate.value == pytest.approx(-0.021)
    others = [trained([0.1, seed], repeat=number + 10) for number, seed in enumerate(seeds)]
    (apart,) = compare_best_variants(bests([*others, *adam]))
    assert (apart.paired, apart.within_noise) == (0, True)


def test_one_repeat_each_leaves_the_noise_unknown() -> None:
    (found,) = compare_best_variants(bests([*repeats([0.8]), *repeats([0.9], "adam", family="adam")]))
    assert found.within_noise is None
    assert found.estimate is not None
    assert (found.estimate.value, found.estimate.low) == (pytest.approx(-0.1), None)


def test_what_never_learned_cannot_be_compared() -> None:
    broken = trained([0.1], variant="adam", family="adam", outcome="diverged", final=None)
    (found,) = compare_best_variants(bests([*repeats([0.8, 0.9]), broken]))
    assert (found.variant, found.estimate, found.within_noise) == ("adam", None, None)
    assert compare_best_variants([]) == []


@pytest.mark.parametrize("paired", [True, False])
def test_variants_that_are_alike_are_within_noise_nine_times_in_ten(paired: bool) -> None:
    rng = np.random.default_rng(3)
    within = []
    for _ in range(300):
        one = repeats(list(rng.normal(0.8, 0.01, 4)))
        two = [
            trained([0.1, final], variant="adam", family="adam", repeat=number + (0 if paired else 9))
            for number, final in enumerate(rng.normal(0.8, 0.01, 4))
        ]
        (found,) = compare_best_variants(bests([*one, *two]))
        within.append(found.within_noise)
    assert 0.86 <= np.mean(within) <= 0.94


def test_the_edge_lies_between_the_last_that_held_and_the_first_that_diverged() -> None:
    edge = divergence_edge({0.1: False, 0.4: True, 0.2: False, 0.8: True})
    assert edge is not None
    assert (edge.stable_lr, edge.diverged, edge.highest_stable_lr, edge.monotone) == (0.2, 0.4, 0.2, True)
    assert edge.estimate == pytest.approx(0.08**0.5)


def test_a_rate_that_diverged_below_one_that_held_is_said() -> None:
    edge = divergence_edge({0.1: False, 0.2: True, 0.4: False})
    assert edge is not None
    assert (edge.stable_lr, edge.diverged, edge.highest_stable_lr, edge.monotone) == (0.1, 0.2, 0.4, False)


@pytest.mark.parametrize("diverged", [{}, {0.1: False}, {0.1: True}, {0.1: True, 0.2: False}])
def test_without_both_sides_there_is_no_edge(diverged: dict[float, bool]) -> None:
    assert divergence_edge(diverged) is None


def test_a_rate_that_diverged_in_one_repeat_diverged() -> None:
    curves = [trained([0.5], lr=rate, outcome=outcome) for rate, outcome in ((0.1, "stopped"), (0.2, "finished"))]
    edges = divergence_edges([*curves, trained([0.5], lr=0.2, outcome="diverged")])
    assert {key: (edge.stable_lr, edge.diverged) for key, edge in edges.items()} == {
        ((4, 64), "sgd", "sgd"): (0.1, 0.2)
    }


def test_a_target_may_name_another_metric_than_the_workload() -> None:
    curve = trained([0.5, 0.6, 0.7], goal=np.array([2.0, 0.9, 0.4]))
    reached = to_target(curve, Goal(value=1.0, at_least=False))
    assert reached is not None
    assert reached.epoch == 2


def test_variants_of_one_setting_meet_in_one_contest() -> None:
    adam = repeats([0.95, 0.96, 0.94], "adam rate 0.001", family="adam")
    sgd = [*repeats([0.90, 0.91, 0.89]), *repeats([0.80, 0.81, 0.80], "sgd rate 9")]
    elsewhere = repeats([0.5, 0.5], setting=(8, 64))
    first, second = variant_rankings(
        summaries([*sgd, *adam, *elsewhere], higher_is_better=True), higher_is_better=True, by_target=False
    )
    assert [variant.variant for variant in first.variants] == ["adam rate 0.001", "sgd 0.1", "sgd rate 9"]
    assert [variant.family for variant in first.best_variants] == ["adam", "sgd"]
    (comparison,) = first.differences
    assert comparison.within_noise is False
    assert comparison.estimate is not None
    assert comparison.estimate.value == pytest.approx(-0.05)
    assert (second.setting, second.differences) == ((8, 64), ())


def test_what_missed_the_target_is_not_compared_by_what_it_ended_with() -> None:
    reached = [trained([0.5, 0.976], repeat=r) for r in range(3)]
    missed = [trained([0.9, 0.9748], repeat=r, variant="adam rate 1", family="adam") for r in range(3)]
    (comparison,) = compare_best_variants(bests([*reached, *missed], target=0.975), by_target=True)
    assert (comparison.estimate, comparison.within_noise, comparison.reached) == (None, None, 0)


def test_what_diverged_in_part_is_not_compared_by_the_rest() -> None:
    good = repeats([0.90, 0.91, 0.92])
    bad = [
        trained([0.1], repeat=r, variant="lamb rate 9", family="lamb", outcome="diverged", final=None) for r in (0, 1)
    ]
    lucky = trained([0.5, 0.99], repeat=2, variant="lamb rate 9", family="lamb")
    (comparison,) = compare_best_variants(bests([*good, *bad, lucky]))
    assert (comparison.variant, comparison.estimate, comparison.diverged) == ("lamb rate 9", None, 2)


def batch(metric: Sequence[float], workers: int, variant: str, scaled: float = 1.0) -> list[TrainingRun]:
    setting = Setting(workers=workers, batch_per_worker=128, scaling="weak", strategy=StrategySpec(), precision="fp32")
    return repeats(metric, variant, setting=setting, scaled=scaled, family=variant.split()[0])


def won_back(curves: Sequence[TrainingRun], *, higher_is_better: bool = True) -> list[Recovered]:
    found = summaries(curves, higher_is_better=higher_is_better)
    return recovered(
        variant_rankings(found, higher_is_better=higher_is_better, by_target=False), higher_is_better=higher_is_better
    )


def test_what_a_rule_wins_back_of_a_large_batch() -> None:
    curves = [
        *batch([0.90, 0.91, 0.92], 1, "sgd unscaled"),
        *batch([0.50, 0.51, 0.53], 16, "sgd unscaled"),
        *batch([0.80, 0.82, 0.82], 16, "sgd linear", 16.0),
        *batch([0.85, 0.86, 0.87], 16, "lars linear", 16.0),
    ]
    (found,) = won_back(curves)
    assert (found.base_batch, found.global_batch, found.variant) == (128, 2048, "lars linear")
    assert found.lost.value == pytest.approx(0.3967, abs=1e-3)
    assert found.share.value == pytest.approx((0.35 + 0.35 + 0.34) / (0.4 + 0.4 + 0.39))


def test_no_clear_loss_means_no_share_of_it() -> None:
    curves = [
        *batch([0.90, 0.91, 0.92], 1, "sgd unscaled"),
        *batch([0.89, 0.92, 0.91], 16, "sgd unscaled"),
        *batch([0.90, 0.92, 0.92], 16, "sgd linear", 16.0),
    ]
    assert won_back(curves) == []
    assert won_back([*batch([0.9], 1, "sgd"), *batch([0.5], 16, "sgd"), *batch([0.8], 16, "lars", 16.0)]) == []


def test_a_loss_that_rises_is_a_loss() -> None:
    curves = [*batch([1.0, 1.1], 1, "sgd"), *batch([2.0, 2.1], 16, "sgd"), *batch([1.2, 1.3], 16, "lars", 16.0)]
    (found,) = won_back(curves, higher_is_better=False)
    assert found.share.value == pytest.approx(0.8)


def test_no_end_of_an_interval_lies_where_no_metric_can() -> None:
    assert Estimate(value=0.9, low=0.7, high=1.1).clipped(0.0, 1.0) == Estimate(value=0.9, low=0.7, high=1.0)
    assert Estimate(value=0.9).clipped(0.0, 1.0) == Estimate(value=0.9)
