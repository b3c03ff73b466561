"""What pays: a doubling that saves at least half of what perfect scaling would."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from worldsize.analysis.speed.recommend import LEAST_MARGINAL_EFFICIENCY, marginal_efficiency, paying_counts


def test_of_a_doubling_it_is_the_time_saved_over_a_half() -> None:
    assert marginal_efficiency(2.0, 2) == pytest.approx(1.0)
    assert marginal_efficiency(4 / 3, 2) == pytest.approx(LEAST_MARGINAL_EFFICIENCY)
    assert marginal_efficiency(1.0, 2) == 0.0
    assert marginal_efficiency(0.5, 2) < 0


def test_of_other_steps_it_is_that_of_their_doublings() -> None:
    assert marginal_efficiency(1.5**3, 8) == pytest.approx(marginal_efficiency(1.5, 2))
    assert marginal_efficiency(3.0, 3) == pytest.approx(1.0)
    # Twice as fast as one worker is no reason for 64.
    assert marginal_efficiency(2.0, 64) < LEAST_MARGINAL_EFFICIENCY


def test_a_dip_is_passed_over() -> None:
    assert paying_counts((1, 2, 4, 8, 16), (1.0, 1.18, 2.09, 3.12, 2.32)) == [0, 2, 3]
    assert paying_counts((1, 2, 3, 4), (1.0, 1.9, 1.8, 3.4)) == [0, 1, 3]
    assert paying_counts((1,), (5.0,)) == [0]


@given(st.lists(st.floats(0.3, 1.0), min_size=1, max_size=8))
def test_where_doublings_gain_less_and_less_it_ends_at_the_first_that_does_not_pay(exponents: list[float]) -> None:
    gains = [2**each for each in sorted(exponents, reverse=True)]
    counts, speeds = [1], [1.0]
    for gain in gains:
        counts.append(2 * counts[-1])
        speeds.append(gain * speeds[-1])
    paying = sum(marginal_efficiency(gain, 2) >= LEAST_MARGINAL_EFFICIENCY for gain in gains)
    assert paying_counts(counts, speeds)[-1] == paying


def test_neighboring_counts_far_apart_in_speed_do_not_overflow() -> None:
    assert marginal_efficiency(0.3, 1.001) < -1e300
    assert paying_counts([63, 64], [1.0, 0.1]) == [0]
