"""Epochs until stable: the epoch that is true by construction lies in the interval, and the interval says something."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator

import numpy as np
import pytest

from worldsize.analysis.estimate import Floats
from worldsize.analysis.learning.stable import Stable, stable

NOISES = (0.003, 0.01, 0.03)
"""Of curves that change by 0.5 (rising) or 1.0 (falling)."""


def true_epoch(curve: Floats, noise: float) -> int:
    """First from which |m(e) - m(end)| <= 2 noise for good."""
    outside = np.flatnonzero(np.abs(curve - curve[-1]) > 2 * noise)
    return int(outside[-1]) + 2 if len(outside) else 1


def shapes(epochs: int) -> Iterator[tuple[str, Floats]]:
    """What is left to learn, as a share of all of it."""
    e = np.arange(1, epochs + 1)
    for tau in (0.04, 0.08, 0.13):
        yield "exponential", -0.5 * np.exp(-e / (tau * epochs))
    for corner in (0.2, 0.4, 0.6):
        yield "linear then flat", -0.5 * np.clip(1 - e / (corner * epochs), 0, None)
    for power, tau in ((1, 0.01), (1.5, 0.03), (2, 0.06), (3, 0.1)):
        yield "power law", -0.5 * (1 + e / (tau * epochs)) ** -power
    for tau in (0.05, 0.1):
        yield "falling", np.exp(-e / (tau * epochs))


def repeated(rng: np.random.Generator, curve: Floats, noise: float, repeats: int, spread: float = 0.0) -> list[Floats]:
    plateaus = 0.9 + spread * rng.normal(size=repeats)
    return [plateau + curve + noise * rng.normal(size=len(curve)) for plateau in plateaus]


def covers(found: Stable, epoch: int) -> bool:
    if found.epoch is None:
        return False
    low, high = found.epoch.ends
    return low <= epoch <= high


def width(found: Stable) -> float:
    """Not a number where it was not reached: `nanmedian` passes over it."""
    if found.epoch is None:
        return math.nan
    low, high = found.epoch.ends
    return high - low


@pytest.mark.long
@pytest.mark.parametrize("repeats", [3, 5])
@pytest.mark.parametrize("spread", [0.0, 0.01], ids=["same-plateau", "plateaus-differ"])
def test_the_interval_covers_the_true_epoch(repeats: int, spread: float) -> None:
    rng = np.random.default_rng([1, repeats, round(1000 * spread)])
    held: dict[str, list[bool]] = defaultdict(list)
    widths, relative, missing = [], [], 0
    for _ in range(5):
        for epochs in (12, 24, 60, 100):
            for noise in NOISES:
                for shape, curve in shapes(epochs):
                    epoch = true_epoch(curve, noise)
                    if epoch > 0.7 * epochs:  # its plateau is too short to be one
                        continue
                    found = stable(repeated(rng, curve, noise, repeats, spread))
                    held[shape].append(covers(found, epoch))
                    if found.epoch is None:
                        missing += 1
                        continue
                    widths.append(width(found))
                    relative.append(width(found) / epochs)
    everything = [one for of_shape in held.values() for one in of_shape]
    assert len(everything) > 500
    assert np.mean(everything) >= 0.88
    assert all(np.mean(of_shape) >= 0.85 for of_shape in held.values()), held
    assert missing / len(everything) < 0.03
    assert np.median(widths) <= 4
    assert np.median(relative) <= 0.12
    assert np.mean(relative) <= 0.16


def test_runs_that_learn_at_different_speeds_widen_the_interval() -> None:
    rng = np.random.default_rng(2)
    e = np.arange(1, 61)
    held: list[bool] = []
    widths: dict[float, list[float]] = {0.0: [], 0.15: []}
    for _ in range(100):
        for spread, found_widths in widths.items():
            taus = 6 * np.exp(spread * rng.normal(size=4))
            found = stable([0.9 - 0.5 * np.exp(-e / tau) + 0.005 * rng.normal(size=60) for tau in taus])
            found_widths.append(width(found))
            if spread:
                held.append(covers(found, true_epoch(-0.5 * np.exp(-e / 6), 0.005)))
    assert np.mean(held) >= 0.85
    assert np.nanmedian(widths[0.15]) > 1.5 * np.nanmedian(widths[0.0])


def test_one_repeat_has_an_interval_too_and_a_wider_one() -> None:
    rng = np.random.default_rng(3)
    curve = -0.5 * np.exp(-np.arange(1, 61) / 6)
    held, one, five = [], [], []
    for _ in range(100):
        alone = stable(repeated(rng, curve, 0.01, 1))
        held.append(covers(alone, true_epoch(curve, 0.01)))
        one.append(width(alone))
        five.append(width(stable(repeated(rng, curve, 0.01, 5))))
    assert np.mean(held) >= 0.85
    assert np.nanmedian(one) >= 1.5 * np.nanmedian(five)


@pytest.mark.parametrize("repeats", [1, 3])
@pytest.mark.parametrize("epochs", [12, 24, 60])
def test_a_curve_still_rising_has_not_reached_its_plateau(repeats: int, epochs: int) -> None:
    rng = np.random.default_rng([4, repeats, epochs])
    curve = -0.5 * np.exp(-np.arange(1, epochs + 1) / (0.5 * epochs))
    found = [stable(repeated(rng, curve, 0.005, repeats)) for _ in range(20)]
    assert all(one.epoch is None for one in found)
    assert all(one.reached < repeats and one.plateau is not None for one in found)


def test_a_slow_rise_is_seen_although_it_stays_inside_the_band() -> None:
    rng = np.random.default_rng(11)
    creeping = 0.2 * np.arange(60)  # 12 times the noise in all, +- 1.4 in the last quarter
    assert all(stable(repeated(rng, creeping, 1.0, 5)).epoch is None for _ in range(20))


@pytest.mark.parametrize("repeats", [1, 3, 5])
def test_pure_noise_is_stable_from_the_first_epoch(repeats: int) -> None:
    rng = np.random.default_rng([5, repeats])
    found = [stable(repeated(rng, np.zeros(30), 0.01, repeats)) for _ in range(100)]
    reached = [one.epoch for one in found if one.epoch is not None]
    assert len(reached) >= 95
    assert np.mean([one.low == 1 for one in reached]) >= 0.95
    assert np.median([one.value for one in reached]) == 1
    assert np.mean([one.noise for one in found if one.epoch and one.noise]) == pytest.approx(0.01, rel=0.1)


def test_rising_and_falling_are_alike() -> None:
    curves = repeated(np.random.default_rng(6), -0.5 * np.exp(-np.arange(1, 41) / 4), 0.01, 3)
    rising, falling = stable(curves), stable([-curve for curve in curves])
    # To the epoch: the curves that are drawn for the interval have the same noise, not its mirror image.
    assert rising.epoch is not None
    assert falling.epoch is not None
    ends = [[epoch.value, *epoch.ends] for epoch in (rising.epoch, falling.epoch)]
    assert ends[0] == pytest.approx(ends[1], abs=1)
    assert falling.plateau == pytest.approx(-0.9, abs=0.01)


def test_a_metric_that_gets_worse_again_is_not_stable_before_it_has() -> None:
    e = np.arange(1, 61)
    overfitted = np.exp(-e / 2) + 0.2 * np.clip((e - 20) / 10, 0, 1)
    found = stable(repeated(np.random.default_rng(7), overfitted, 0.005, 3))
    assert found.epoch is not None
    assert 29 <= found.epoch.value <= 32


def test_a_plateau_without_noise_is_found_to_the_epoch() -> None:
    found = stable([np.array([0.1, 0.5, 0.8, *[0.9] * 12])] * 3)
    assert covers(found, 4)
    assert width(found) <= 3
    alone = stable([np.full(10, 0.5)]).epoch
    assert alone is not None
    assert alone.value == 1


def test_too_few_epochs_know_no_plateau() -> None:
    found = stable([np.full(7, 0.5) for _ in range(3)])
    assert (found.epoch, found.plateau, found.noise, found.epochs, found.repeats) == (None, None, None, 7, 3)
    assert stable([]).epoch is None


def test_repeats_that_failed_are_left_out_and_counted() -> None:
    curves = repeated(np.random.default_rng(8), -0.5 * np.exp(-np.arange(1, 41) / 4), 0.01, 3)
    broken = np.where(np.arange(40) > 10, np.nan, curves[0])
    found = stable([*curves, broken, curves[0][:6]])
    assert found.epoch == stable(curves).epoch
    assert (found.repeats, found.reached, found.epochs) == (5, 3, 40)
    assert stable([curves[0], broken, curves[1][:6]]).epoch is None


def test_unequal_repeats_are_cut_to_the_shortest() -> None:
    curves = repeated(np.random.default_rng(9), -0.5 * np.exp(-np.arange(1, 41) / 4), 0.01, 3)
    uneven = [curve[:length] for curve, length in zip(curves, (40, 33, 36), strict=True)]
    assert stable(uneven) == stable([curve[:33] for curve in curves])


def test_the_same_curves_give_the_same_interval() -> None:
    curves = repeated(np.random.default_rng(10), -0.5 * np.exp(-np.arange(1, 41) / 4), 0.01, 3)
    assert stable(curves) == stable(curves)
    assert math.isfinite(stable(curves).noise or math.nan)
