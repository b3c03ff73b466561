"""Intervals that hold: coverage of known truths over many seeded experiments."""

from __future__ import annotations

import numpy as np
import pytest

from worldsize.analysis.estimate import Sample, block_length, bootstrap, mean_of_blocks, outliers, warmup_end


def correlated(rng: np.random.Generator, steps: int, median: float) -> np.ndarray:
    """Log-normal steps with autocorrelation 0.5."""
    noise = rng.normal(size=steps + 1)
    return median * np.exp(0.1 * (noise[1:] + noise[:-1]) / np.sqrt(2))


def test_the_interval_of_a_median_covers_the_truth() -> None:
    rng = np.random.default_rng(1)
    held = 0
    for seed in range(200):
        repeats = {n: correlated(rng, 60, 0.02 * np.exp(rng.normal(0, 0.05))) for n in range(5)}
        interval = mean_of_blocks(repeats, seed=seed).exp()
        held += interval.low <= 0.02 <= interval.high
    assert 0.80 <= held / 200 <= 0.97


@pytest.mark.long
def test_the_interval_of_a_ratio_covers_the_truth_and_drift_cancels() -> None:
    rng = np.random.default_rng(2)
    held, width_paired, width_apart = 0, 0.0, 0.0
    for seed in range(200):
        drift = np.exp(rng.normal(0, 0.15, 5))
        one = {n: correlated(rng, 60, 0.02 * factor) for n, factor in enumerate(drift)}
        two = {n: correlated(rng, 60, 0.025 * factor) for n, factor in enumerate(drift)}
        ratio = mean_of_blocks(one, seed=seed).minus(mean_of_blocks(two, seed=seed)).exp()
        held += ratio.low <= 0.8 <= ratio.high
        width_paired += ratio.high - ratio.low
        low, high = mean_of_blocks(one, seed=seed).exp(), mean_of_blocks(two, seed=seed).exp()
        width_apart += low.high / high.low - low.low / high.high
    assert 0.80 <= held / 200 <= 0.98
    assert width_paired < 0.5 * width_apart


def test_blocks_widen_the_interval_of_correlated_steps() -> None:
    rng = np.random.default_rng(3)
    steps = np.repeat(rng.normal(1.0, 0.1, 40), 25)
    apart = rng.permutation(steps)
    spread = [float(np.std(bootstrap(series, np.random.default_rng(0)))) for series in (steps, apart)]
    assert spread[0] > 1.5 * spread[1]


@pytest.mark.parametrize("steps", [1, 60])
def test_one_repeat_has_no_interval(steps: int) -> None:
    estimate = mean_of_blocks({0: correlated(np.random.default_rng(7), steps, 0.5)}).exp()
    assert estimate.value == pytest.approx(0.5, rel=0.3)
    assert (estimate.low, estimate.high, estimate.n) == (None, None, 1)


def test_the_same_data_give_the_same_interval() -> None:
    steps = {0: np.random.default_rng(4).lognormal(size=50)}
    assert mean_of_blocks(steps).exp() == mean_of_blocks(steps).exp()


def test_a_long_series_is_thinned() -> None:
    steps = np.random.default_rng(5).lognormal(size=100_000)
    assert mean_of_blocks({0: steps}).exp().value == pytest.approx(float(np.exp(np.log(steps).mean())))
    assert block_length(1_000) == 10


def test_repeats_are_paired_by_their_number_not_by_their_place() -> None:
    rng = np.random.default_rng(6)
    drift = {0: 1.0, 1: 3.0, 2: 0.5, 3: 2.0}
    one = {n: correlated(rng, 60, 0.02 * factor) for n, factor in drift.items() if n != 1}
    two = {n: correlated(rng, 60, 0.01 * factor) for n, factor in drift.items() if n != 2}
    ratio = mean_of_blocks(one).minus(mean_of_blocks(two)).exp()
    assert ratio.value == pytest.approx(2.0, rel=0.1)
    assert ratio.low <= 2.0 <= ratio.high
    assert ratio.relative_width < 1


def test_a_slow_beginning_is_found_and_a_steady_series_left_alone() -> None:
    rng = np.random.default_rng(0)
    found, alarms = [], 0
    for _ in range(100):
        steady = 0.01 * np.exp(rng.normal(0, 0.05, 200))
        alarms += warmup_end(steady) > 0
        slow = steady.copy()
        slow[:17] *= 1.5
        found.append(warmup_end(slow))
    assert alarms <= 2
    assert np.mean(np.abs(np.array(found) - 17) <= 1) > 0.95


def test_hiccups_and_a_slow_end_are_no_warm_up() -> None:
    rng = np.random.default_rng(1)
    steps = 0.01 * np.exp(rng.normal(0, 0.05, 200))
    steps[[3, 90, 150]] *= 30
    assert warmup_end(steps) == 0
    steps[150:] *= 1.5
    assert warmup_end(steps) == 0
    assert warmup_end(np.full(50, 0.01)) == 0
    assert warmup_end(np.array([1.0, 0.1, 0.1])) == 0


def test_outliers_are_marked() -> None:
    rng = np.random.default_rng(2)
    steps = 0.01 * np.exp(rng.normal(0, 0.05, 500))
    steps[[10, 20]] *= 3
    assert np.flatnonzero(outliers(steps)).tolist() == [10, 20]


def test_what_was_repeated_alone_counts_too() -> None:
    """Two repeats side by side that disagree, then six more of one: the pairs alone would leave these out."""
    steady = {n: np.full(20, 0.01) for n in range(2)}
    noisy = {n: np.full(20, 0.02 * factor) for n, factor in enumerate((1.3, 0.8, 1.0, 1.01, 0.99, 1.0, 1.02, 0.98))}
    ratio = mean_of_blocks(noisy).minus_unpaired(mean_of_blocks(steady)).exp()
    assert ratio.value == pytest.approx(2.0, rel=0.03)
    assert ratio.relative_width < 0.3
    pairs = mean_of_blocks(noisy).minus(mean_of_blocks(steady)).exp()  # as if the partners of the others had failed
    assert pairs.relative_width > 2


def test_repeats_that_failed_on_both_sides_leave_the_others_paired() -> None:
    """A machine that became slower: pairs cancel that, means of different repeats do not."""
    pace = {0: 1.0, 1: 1.0, 2: 1.3, 3: 1.3}
    one = {n: np.full(20, 0.01 * pace[n]) for n in (0, 1, 3)}
    two = {n: np.full(20, 0.01 * pace[n]) for n in (0, 1, 2)}
    assert mean_of_blocks(one).minus(mean_of_blocks(two)).exp().relative_width < 1e-6


def test_a_single_repeat_is_as_noisy_as_those_of_the_other() -> None:
    several = mean_of_blocks({n: np.full(20, value) for n, value in enumerate((0.8, 1.0, 1.25))})
    alone = mean_of_blocks({9: np.full(20, 0.5)})
    for ratio in (several.minus(alone), alone.minus(several)):
        assert ratio.error == pytest.approx(several.error * 2)
        assert ratio.freedom == 2
        assert ratio.exp().relative_width > 0.8
    assert alone.minus(alone).error == 0


def test_intervals_of_few_repeats_cover_what_they_claim_at_any_level() -> None:
    """A 90 % interval narrowed by a fixed factor to 80 % would cover 87 % with two repeats, and be too wide."""
    rng = np.random.default_rng(8)
    for repeats in (2, 3, 5):
        samples = [Sample.of(dict(enumerate(rng.normal(0, 1, repeats)))) for _ in range(2_000)]
        for level in (0.8, 0.9):
            covered = np.mean([abs(sample.value) <= sample.half_width(level) for sample in samples])
            assert covered == pytest.approx(level, abs=0.025)


def test_settings_with_equally_many_steps_are_not_resampled_alike() -> None:
    """The same slow trend in both is noise to each: one step less must not double the interval of their ratio.

    The two repeats agree, so that the interval is the one of the steps. A single repeat would have none.
    """
    trend = 0.01 * np.exp(np.linspace(0, 0.05, 200))
    noise = np.random.default_rng(9).normal(0, 0.002, (2, 200))
    first, second = trend * np.exp(noise[0]), trend * np.exp(noise[1])

    def width(other: np.ndarray) -> float:
        ratio = mean_of_blocks({0: first, 1: first}).minus(mean_of_blocks({0: other, 1: other}))
        return ratio.exp().relative_width

    assert width(second) > 0.005
    assert width(second) == pytest.approx(width(second[:-1]), rel=0.15)
