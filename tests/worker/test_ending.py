"""When training ends early: divergence (not slow convergence), plateaus, targets, and the median stopping rule."""

from __future__ import annotations

import math

import numpy as np
import pytest

from worldsize.folder.record import Epoch, curve, search_curve
from worldsize.spec.training import PlateauSpec, TrainSpec, UntilSpec
from worldsize.worker.ending import Ending, diverged_at, hopeless, on_plateau


def losses(*values: float) -> np.ndarray:
    return np.array(values, dtype=np.float32)


def epochs(*values: float | None) -> list[Epoch]:
    return [
        Epoch(
            epoch=number,
            steps=10,
            samples=100,
            train_loss=1.0,
            test={} if value is None else {"accuracy": value, "loss": 1 - value},
            train_s=1.0,
            evaluation_s=0.1,
        )
        for number, value in enumerate(values)
    ]


def test_a_loss_that_is_no_number_is_named_by_its_step() -> None:
    assert diverged_at(losses(1, 2, np.nan, 1)) == 2
    assert diverged_at(losses(1, np.inf)) == 1
    assert diverged_at(losses(1, 2, 3)) is None


def test_slow_divergence_is_divergence_and_a_spike_is_not() -> None:
    growing = 2.0 * 1.05 ** (2 * np.arange(200, dtype=np.float32))
    step = diverged_at(growing)
    assert step is not None
    assert growing[step] > 1e4 * np.median(growing[:10]) > growing[step - 1]
    spikes = np.ones(100, dtype=np.float32)
    spikes[20:29] = 1e5  # nine steps
    spikes[40:49] = 1e5
    assert diverged_at(spikes) is None
    spikes[49] = 1e5
    assert diverged_at(spikes) == 40


@pytest.mark.parametrize("first", [0.0, 1e-6])
def test_one_lucky_batch_at_the_start_is_no_scale(first: float) -> None:
    assert diverged_at(losses(first, *[1.0] * 20)) is None


@pytest.mark.parametrize(
    ("values", "plateaued"),
    [
        ([0.5, 0.6, 0.7, 0.8], False),
        ([0.5, 0.9, 0.9, 0.9], True),
        ([0.5, 0.9, 0.89, 0.9004], True),  # a gain of less than 0.1 %
        ([0.9, 0.8, 0.7], False),  # too few epochs to know
    ],
)
def test_plateaus(values: list[float], plateaued: bool) -> None:
    assert on_plateau(values, PlateauSpec(patience=2) if len(values) == 4 else PlateauSpec(), True) is plateaued
    assert (
        on_plateau([-value for value in values], PlateauSpec(patience=2 if len(values) == 4 else 5), False) is plateaued
    )


def test_a_target_comes_before_a_plateau() -> None:
    until = UntilSpec(metric="loss", at_most=0.1)
    ending = Ending(
        train=TrainSpec(until=until, plateau=PlateauSpec(patience=1)), metric="accuracy", higher_is_better=True
    )
    assert ending.after(epochs(0.5)) is None
    assert ending.after(epochs(0.5, 0.9)) == "finished"
    assert ending.after(epochs(0.5, 0.5)) == "plateaued"


def test_an_evaluation_without_a_finite_value_ends_the_curve() -> None:
    assert curve(epochs(0.1, 0.2, None, 0.3), "accuracy") == [0.1, 0.2]


def test_a_rival_that_was_good_enough_early_stays_so() -> None:
    assert search_curve(epochs(0.1, 0.9), "finished", "accuracy", 4) == [0.1, 0.9, 0.9, 0.9]
    assert search_curve(epochs(0.1, 0.2), "stopped", "accuracy", 4) == [0.1, 0.2]
    assert search_curve(epochs(None), "finished", "accuracy", 4) == []


RIVALS = [[0.5, 0.6, 0.7, 0.8], [0.4, 0.5, 0.6, 0.7], [0.1, 0.1, 0.1, 0.1]]
"""Running averages after two epochs: 0.55, 0.45, 0.1."""


def test_worse_than_the_median_is_hopeless() -> None:
    assert hopeless([0.2, 0.44], RIVALS, 8, True)
    assert not hopeless([0.2, 0.46], RIVALS, 8, True)


def test_as_good_as_the_median_goes_on() -> None:
    assert not hopeless([0.25, 0.5], [[0.5, 0.5]] * 3, 8, True)


def test_the_best_so_far_counts_not_the_latest() -> None:
    assert not hopeless([0.9, 0.1], RIVALS, 8, True)


def test_of_an_even_number_the_median_lies_between_the_two_in_the_middle() -> None:
    rivals = [[0.2], [0.4], [0.6], [0.8]]
    assert hopeless([0.49], rivals, 4, True)
    assert not hopeless([0.51], rivals, 4, True)


def test_a_loss_falls() -> None:
    losses = [[-metric for metric in rival] for rival in RIVALS]
    assert hopeless([-0.2, -0.44], losses, 8, False)
    assert not hopeless([-0.2, -0.46], losses, 8, False)


@pytest.mark.parametrize(("planned", "stopped"), [(4, True), (8, True), (9, False), (100, False)])
def test_the_first_quarter_is_safe(planned: int, stopped: bool) -> None:
    assert hopeless([0.0, 0.0], RIVALS, planned, True) is stopped


def test_before_the_first_epoch_nothing_is_known() -> None:
    assert not hopeless([], RIVALS, 1, True)


def test_two_rivals_are_too_few() -> None:
    assert not hopeless([0.0, 0.0], RIVALS[:2], 8, True)
    assert not hopeless([0.0, 0.0], [*RIVALS[:2], [0.9]], 8, True)


@pytest.mark.parametrize("ended", [[0.9], [0.9, math.nan, 0.9], [math.inf, 0.9], []])
def test_a_rival_that_ended_early_counts_as_the_worst(ended: list[float]) -> None:
    rivals = [[0.5, 0.5], [0.6, 0.6], [0.7, 0.7]]
    assert hopeless([0.55, 0.55], rivals, 4, True)
    assert not hopeless([0.55, 0.55], [*rivals, ended, ended], 4, True)
    assert not hopeless([0.0, 0.0], [*rivals, ended, ended, ended, ended], 4, True)


def test_a_trial_that_gives_no_number_is_worse_than_any() -> None:
    assert hopeless([math.nan, math.nan], RIVALS, 8, True)
    assert hopeless([math.nan, math.nan], RIVALS, 8, False)
