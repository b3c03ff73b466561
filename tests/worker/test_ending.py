"""When training ends early: divergence told from slow convergence, plateaus, targets."""

from __future__ import annotations

import numpy as np
import pytest

from worldsize.folder.record import Epoch, curve, rival_curve
from worldsize.spec.training import PlateauSpec, TrainSpec, UntilSpec
from worldsize.worker.ending import Ending, diverged_at, on_plateau


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
    assert on_plateau(values, PlateauSpec(epochs=2) if len(values) == 4 else PlateauSpec(), True) is plateaued
    assert (
        on_plateau([-value for value in values], PlateauSpec(epochs=2 if len(values) == 4 else 5), False) is plateaued
    )


def test_a_target_comes_before_a_plateau() -> None:
    until = UntilSpec(metric="loss", at_most=0.1)
    ending = Ending(
        train=TrainSpec(until=until, plateau=PlateauSpec(epochs=1)), metric="accuracy", higher_is_better=True
    )
    assert ending.after(epochs(0.5)) is None
    assert ending.after(epochs(0.5, 0.9)) == "finished"
    assert ending.after(epochs(0.5, 0.5)) == "plateaued"


def test_an_evaluation_without_a_finite_value_ends_the_curve() -> None:
    assert curve(epochs(0.1, 0.2, None, 0.3), "accuracy") == [0.1, 0.2]


def test_a_rival_that_was_good_enough_early_stays_so() -> None:
    assert rival_curve(epochs(0.1, 0.9), "finished", "accuracy", 4) == [0.1, 0.9, 0.9, 0.9]
    assert rival_curve(epochs(0.1, 0.2), "stopped", "accuracy", 4) == [0.1, 0.2]
    assert rival_curve(epochs(None), "finished", "accuracy", 4) == []
