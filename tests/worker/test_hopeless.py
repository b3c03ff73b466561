"""The median stopping rule: who is stopped, when, and who never is."""

from __future__ import annotations

import math
import subprocess
import sys

import pytest

from worldsize.worker.median_stopping import hopeless

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


def test_it_loads_nothing_heavy() -> None:
    check = (
        "import worldsize.worker.median_stopping, sys; sys.exit(bool({'numpy', 'scipy', 'torch'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", check], check=False).returncode == 0
