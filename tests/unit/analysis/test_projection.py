"""Bare series projected: what must hold for any series, and known laws found again."""

from __future__ import annotations

import dataclasses
import itertools
import math
import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from worldsize.analysis.projection import bare
from worldsize.analysis.projection.bare import (
    CROSSING_SHARE,
    Projected,
    blended_crossing,
    crossing_cost,
    margin,
    project_series,
    series_unpredictability,
    unpredictability,
)
from worldsize.analysis.projection.series_law import TableSeries, fit_series_law, table_series

GOOD = [(1, 100.0), (2, 196.0), (4, 382.0), (8, 750.0)]
FAR = [16, 32, 64, 128, 1024, 8192]

points = st.dictionaries(
    st.sampled_from([1, 2, 3, 4, 6, 8, 12, 16, 32, 64]), st.floats(1e-3, 1e6), min_size=1, max_size=7
).map(lambda found: list(found.items()))
nodes = st.sampled_from([None, 1, 4, 8, 16])


def relative(one: Projected) -> tuple[float, float]:
    low, high = one.samples_per_s.scaled(1 / one.samples_per_s.value).ends
    return low, high


def spread(one: Projected) -> float:
    low, high = one.samples_per_s.ends
    return high / low


@settings(max_examples=150, deadline=None, derandomize=True)
@given(points, nodes)
def test_any_series_gives_finite_positive_ordered_answers(rows: list[tuple[int, float]], node: int | None) -> None:
    largest = max(count for count, _ in rows)
    asked = [largest * 1024, largest * 2, largest * 4, 5, 1]
    found = project_series(table_series(rows, workers_per_node=node), asked)
    assert [one.workers for one in found] == asked
    for one in found:
        low, high = one.samples_per_s.ends
        assert 0 < low <= one.samples_per_s.value <= high < math.inf
        assert one.samples_per_s.has_interval != one.measured  # each count ran once
        assert one.measured == (one.workers in dict(rows))


@settings(max_examples=80, deadline=None, derandomize=True)
@given(points, nodes)
def test_intervals_widen_with_distance(rows: list[tuple[int, float]], node: int | None) -> None:
    largest = max(count for count, _ in rows)
    found = [
        relative(one)
        for one in project_series(table_series(rows, workers_per_node=node), [largest * 2**i for i in range(1, 11)])
    ]
    lows, highs = [low for low, _ in found], [high for _, high in found]
    assert all(after <= before * (1 + 1e-9) for before, after in itertools.pairwise(lows))
    assert all(after >= before * (1 - 1e-9) for before, after in itertools.pairwise(highs))
    assert lows[-1] < lows[0]
    assert highs[-1] > highs[0]


@settings(max_examples=50, deadline=None, derandomize=True)
@given(points, nodes, st.randoms(use_true_random=False), st.floats(1e-4, 1e4))
def test_order_does_not_matter_and_the_unit_only_scales(
    rows: list[tuple[int, float]], node: int | None, shuffler: random.Random, factor: float
) -> None:
    largest = max(count for count, _ in rows)
    asked = [largest * 2, largest * 16]
    plain = project_series(table_series(rows, workers_per_node=node), asked)
    mixed = rows[:]
    shuffler.shuffle(mixed)
    assert project_series(table_series(mixed, workers_per_node=node), asked[::-1]) == plain[::-1]
    scaled = project_series(table_series([(n, rate * factor) for n, rate in rows], workers_per_node=node), asked)
    for one, other in zip(plain, scaled, strict=True):
        for name in ("value", "low", "high"):
            now, before = getattr(other.samples_per_s, name), getattr(one.samples_per_s, name)
            assert now == pytest.approx(factor * before, rel=1e-6)


def test_a_measured_count_is_its_own_answer() -> None:
    series = table_series([*GOOD, (8, 770.0), (8, 760.0)])
    two, eight = project_series(series, [2, 8])
    assert two.samples_per_s.value == pytest.approx(196)
    assert (two.samples_per_s.has_interval, two.measured) == (False, True)
    assert two.notes == (bare.NOTE_ONE_RUN,)
    assert eight.samples_per_s.value == pytest.approx(760)
    assert 740 < eight.samples_per_s.low < 760 < eight.samples_per_s.high < 780
    assert eight.notes == ()


def test_a_linear_series_goes_on_nearly_linearly_and_an_even_loss_as_evenly() -> None:
    linear = project_series(table_series([(n, 100.0 * n) for n in (1, 2, 4, 8)]), [16])[0]
    assert linear.samples_per_s.value == pytest.approx(1600, rel=0.02)
    steady = [(2**i, 100 * 2**i * 0.95**i) for i in range(5)]
    found = project_series(table_series(steady), [32, 64])
    for one in found:
        doublings = math.log2(one.workers)
        assert one.samples_per_s.value == pytest.approx(100 * one.workers * 0.95**doublings, rel=0.03)


def test_a_two_level_law_is_recovered_with_noise() -> None:
    """8 workers per node: leaving it costs 20 % once; nothing more after. A cost per doubling would go on losing."""
    rng = np.random.default_rng(3)
    misses = []
    for _ in range(20):
        rows = []
        for n in (1, 2, 4, 8, 16, 32):
            step = 1 + 0.03 * (1 - 1 / min(n, 8)) + 0.2 * (1 - 1 / max(n / 8, 1))
            rows.append((n, n / step * math.exp(0.01 * rng.normal())))
        truth = 64 / (1 + 0.03 * 7 / 8 + 0.2 * 7 / 8)
        one = project_series(table_series(rows, workers_per_node=8), [64])[0]
        misses.append(abs(one.samples_per_s.value / truth - 1))
    assert np.median(misses) < 0.02
    assert max(misses) < 0.06


def test_superlinear_series_do_not_stay_superlinear() -> None:
    rows = [(1, 100.0), (2, 215.0), (4, 450.0), (8, 920.0)]
    found = project_series(table_series(rows), [16, 8192])
    assert 1600 < found[0].samples_per_s.value < 2 * 920 * 1.05
    assert found[1].samples_per_s.value < 8192 * 920 / 8


def test_a_turning_series_is_not_projected_upwards_as_if_it_were_linear() -> None:
    rows = [(1, 100.0), (2, 180.0), (4, 260.0), (8, 250.0)]
    one = project_series(table_series(rows), [16])[0]
    assert one.samples_per_s.value == pytest.approx(250)
    assert one.samples_per_s.low < 230
    assert bare.NOTE_SATURATING in one.notes


@pytest.mark.parametrize("node", [None, 8, 64])
@pytest.mark.parametrize("counts", [(1, 2, 4, 8), (2, 4, 8, 16), (1, 2, 3, 4), (1, 2, 4, 8, 16, 32, 64)])
def test_a_level_series_stays_level(counts: tuple[int, ...], node: int | None) -> None:
    largest = counts[-1]
    one = project_series(table_series([(n, 100.0) for n in counts], workers_per_node=node), [2 * largest])[0]
    if node == largest:  # another node may bring more
        assert one.samples_per_s.value > 100
    else:
        assert one.samples_per_s.value == pytest.approx(100)
        assert one.samples_per_s.high < 125
        assert bare.NOTE_SATURATING in one.notes


@pytest.mark.parametrize("power", [0.3, 0.5, 0.7])
def test_a_series_that_gains_ever_as_little_goes_on_so(power: float) -> None:
    """A bend that is steady is not one bad point."""
    one = project_series(table_series([(n, 100.0 * n**power) for n in (1, 2, 4, 8)], workers_per_node=64), [16])[0]
    assert one.samples_per_s.value == pytest.approx(100 * 16**power, rel=0.12)
    assert one.samples_per_s.high < 1.35 * one.samples_per_s.value


@pytest.mark.parametrize(
    "rates",
    [
        {1: 100.0, 2: 123.1, 4: 151.6},  # constant exponents: a hair decides whether the last one fell
        {1: 100.0, 8: 780.0, 63: 5900.0, 64: 5990.0},  # two counts side by side
        {1000: 1000.0, 1001: 1001.0, 1002: 1002.0},
        {8: 100.0, 16: 190.0, 32: 350.0, 64: 610.0},
        {1: 10.0, 2: 19.0, 4: 36.0, 8: 61.0, 16: 78.0},
    ],
    ids=str,
)
def test_a_small_change_is_a_small_change(rates: dict[int, float]) -> None:
    asked = [2 * max(rates), 4 * max(rates)]
    plain = project_series(table_series(list(rates.items())), asked)
    for changed, factor in itertools.product(rates, (0.998, 1.002)):
        rows = [(n, rate * (factor if n == changed else 1.0)) for n, rate in rates.items()]
        for one, other in zip(plain, project_series(table_series(rows), asked), strict=True):
            assert other.samples_per_s.value == pytest.approx(one.samples_per_s.value, rel=0.03)
            assert other.samples_per_s.low == pytest.approx(one.samples_per_s.low, rel=0.08)


def test_few_nodes_become_many_by_and_by() -> None:
    found = []
    for largest in range(16, 44, 4):
        rows = [(n, 100 * n / (1 + 0.6 * n / largest)) for n in (largest // 4, largest // 2, largest)]
        one = project_series(table_series(rows, workers_per_node=4), [2 * largest])[0]
        found.append(one.samples_per_s.value / rows[-1][1])
    assert max(np.diff(found)) < 1e-9
    assert found[0] > 1.15 * found[-1]
    assert max(-np.diff(found)) < 0.15


def test_shared_cores_stay_used_up_and_another_node_brings_its_own() -> None:
    rows = [(1, 100.0), (2, 190.0), (4, 195.0)]
    inside, across = project_series(table_series(rows, workers_per_node=8), [8, 16])
    assert inside.samples_per_s.value == pytest.approx(195, rel=0.05)
    assert across.samples_per_s.value > 1.3 * inside.samples_per_s.value
    assert bare.NOTE_SATURATING not in across.notes
    # The same fall where a node was left is paid once.
    left = project_series(table_series([(4, 380.0), (8, 750.0), (16, 900.0)], workers_per_node=8), [32])[0]
    assert left.samples_per_s.value > 1.5 * 900


def test_a_flat_end_behind_a_guessed_node_is_in_the_interval() -> None:
    """8 to 16 gained nothing: a node left, if it holds 8, which costs once; or all used up."""
    rows = [(1, 100.0), (2, 180.0), (4, 300.0), (8, 330.0), (16, 330.0)]
    guessed = project_series(table_series(rows), [32])[0]
    assert guessed.samples_per_s.low < 330 < guessed.samples_per_s.high
    known = project_series(table_series(rows, workers_per_node=8), [32])[0]
    assert known.samples_per_s.low > 330


def test_a_worker_more_does_not_wake_a_full_node() -> None:
    rows = [(1, 100.0), (2, 180.0), (4, 300.0), (8, 330.0)]
    full, more, two = project_series(table_series(rows, workers_per_node=16), [16, 17, 32])
    assert more.samples_per_s.value <= full.samples_per_s.value * 17 / 16 * 1.001
    assert two.samples_per_s.value <= full.samples_per_s.value * 2 * 1.001


def test_beyond_a_saturated_node_nothing_is_hoped_for_that_perfect_scaling_would_not_give() -> None:
    rows = [(1, 100.0), (2, 198.0), (4, 390.0), (8, 420.0)]
    for one in project_series(table_series(rows, workers_per_node=16), [16, 32, 64, 128]):
        assert one.samples_per_s.value < one.samples_per_s.high < 110 * one.workers


def test_just_beyond_the_largest_count_a_rival_reading_lies_just_below() -> None:
    rows = [(1, 100.0), (2, 198.0), (4, 390.0), (8, 770.0), (16, 850.0)]
    near = project_series(table_series(rows), [17])[0]
    assert near.samples_per_s.low > 780


@pytest.mark.parametrize("share", [0.01, 1 / 15, 0.2])
@pytest.mark.parametrize("counts", [(1, 2, 4), (1, 2, 3, 4), (1, 2, 4, 8), (2, 4, 8), (1, 4, 8), (1, 2, 4, 8, 16)])
def test_a_serial_share_that_goes_on_is_in_the_interval(share: float, counts: tuple[int, ...]) -> None:
    """Amdahl: every doubling loses twice what the one before did. Few published series go on so; a doubling may."""

    def rate(workers: int) -> float:
        return 100 / (share + (1 - share) / workers)

    series = table_series([(n, rate(n)) for n in counts])
    one = project_series(series, [2 * counts[-1]])[0]
    assert one.samples_per_s.low < rate(one.workers) < one.samples_per_s.high
    assert {bare.NOTE_RISING, bare.NOTE_SATURATING} & set(one.notes)


def test_losses_that_do_not_rise_leave_the_interval_as_it_is() -> None:
    """The same share a doubling; and a node that was left, which costs once."""
    steady = table_series([(n, 100 * n / (1 + 0.1 * math.log2(n))) for n in (1, 2, 4, 8)])
    left = table_series([(1, 100.0), (2, 198.0), (4, 390.0), (8, 600.0)], workers_per_node=4)
    for series in (steady, left):
        law = fit_series_law(series)
        assert law.rising_loss(16) == pytest.approx(0, abs=1e-9)
        assert bare.NOTE_RISING not in project_series(series, [16])[0].notes


def test_an_outlier_inside_the_series_moves_the_answer_little_and_widens_it() -> None:
    steady = project_series(table_series(GOOD), [16])[0]
    for factor in (0.3, 3.0):
        bent = project_series(table_series([(n, rate * (factor if n == 2 else 1)) for n, rate in GOOD]), [16])[0]
        assert bent.samples_per_s.value == pytest.approx(steady.samples_per_s.value, rel=0.15)
        assert spread(bent) >= spread(steady)


def test_a_bad_last_point_leaves_room_for_what_its_elders_say() -> None:
    """A series that stops gaining, or a bad run: the point says the first, the interval reaches the second."""
    last = project_series(table_series([*GOOD[:3], (8, 400.0)], workers_per_node=16), [16])[0]
    assert last.samples_per_s.value < 440
    assert last.samples_per_s.high > 1.8 * 400
    steady = project_series(table_series(GOOD, workers_per_node=16), [16])[0]
    assert spread(last) > 1.5 * spread(steady)


def test_a_bad_repeat_is_outvoted() -> None:
    repeated = [(n, rate * (1 + shift)) for n, rate in GOOD for shift in (-0.001, 0.0, 0.001)]
    clean = project_series(table_series(repeated), [16])[0]
    spoilt = project_series(table_series([*repeated[:-1], (8, 75.0)]), [16])[0]
    assert spoilt.samples_per_s.value == pytest.approx(clean.samples_per_s.value, rel=0.01)
    assert spread(spoilt) > spread(clean)


@pytest.mark.parametrize("noise", [0.03, 0.08, 0.15])
def test_noisy_machines_without_repeats_are_covered_as_claimed(noise: float) -> None:
    """Truth is a two-level law; every count ran once. An interval that takes the noise to be 0 covers 32 to 59 %."""
    rng = np.random.default_rng(29)
    covered = []
    for _ in range(200):
        inside, leaving, log = rng.uniform(0, 0.15), rng.uniform(0, 0.3), rng.uniform(0, 0.03)
        rows = []
        for n in (1, 2, 4, 8, 16, 32, 64, 128):
            step = 1 + inside * (1 - 1 / min(n, 4)) + leaving * (1 - 1 / max(n / 4, 1)) + log * math.log2(n)
            rows.append((n, n / step * math.exp(noise * rng.normal())))
        workers, rate = rows.pop()
        one = project_series(table_series(rows, workers_per_node=4), [workers])[0]
        covered.append(one.samples_per_s.low <= rate <= one.samples_per_s.high)
    assert 0.7 < np.mean(covered) < 0.92


def test_a_quiet_machine_that_bends_is_not_taken_for_a_noisy_one() -> None:
    bent = [(1, 100.0), (2, 200.0), (4, 400.0), (8, 500.0), (16, 1000.0), (32, 2000.0), (64, 4000.0)]
    assert bare.series_noise(table_series(bent)) == bare.NOISE_FLOOR
    repeated = [(n, rate * factor) for n, rate in bent for factor in (0.999, 1.001)]
    assert bare.series_noise(table_series(repeated)) < bare.NOISE_FLOOR  # measured: nothing needs to be assumed


def test_few_points_are_said_and_make_it_wider() -> None:
    asked = [16]
    one = project_series(table_series(GOOD[-1:]), asked)[0]
    two = project_series(table_series(GOOD[-2:]), asked)[0]
    four = project_series(table_series(GOOD), asked)[0]
    assert bare.NOTE_ONE_POINT in one.notes
    assert bare.NOTE_TWO_POINTS in two.notes
    assert four.notes == (bare.NOTE_MAYBE_NEW_NODE,)
    assert spread(one) == pytest.approx(spread(two))
    assert spread(two) > spread(four)
    assert 1.8 * 750 < one.samples_per_s.value < 2 * 750


def test_a_node_boundary_never_crossed_is_said_costs_and_widens() -> None:
    inside = project_series(table_series(GOOD, workers_per_node=16), [16])[0]
    unknown = project_series(table_series(GOOD), [16])[0]
    across = project_series(table_series(GOOD, workers_per_node=8), [16])[0]
    assert inside.notes == ()
    assert across.notes == (bare.NOTE_NEW_NODE,)
    assert across.samples_per_s.value < 0.95 * inside.samples_per_s.value
    assert across.samples_per_s.high > inside.samples_per_s.value  # on a fast network leaving a node costs nothing
    assert relative(across)[0] < relative(unknown)[0] < relative(inside)[0]
    crossed = project_series(table_series([*GOOD, (16, 1400.0)], workers_per_node=8), [32])[0]
    assert crossed.notes == ()


def test_siblings_of_the_same_stack_say_what_leaving_a_node_costs() -> None:
    dear = table_series([*GOOD, (16, 750.0)], workers_per_node=8)
    cost = crossing_cost(dear)
    assert cost == pytest.approx(2.0)
    assert crossing_cost(table_series(GOOD, workers_per_node=8)) is None
    assert crossing_cost(table_series([(16, 750.0), (32, 1400.0)], workers_per_node=8)) is None
    assert math.log1p(blended_crossing([2.0] * 3) / 2) == pytest.approx((3 * math.log(2) + 2 * math.log(1.09)) / 5)
    series = table_series(GOOD, workers_per_node=8)
    alone, informed = (project_series(series, [16], crossings)[0] for crossings in ((), [2.0] * 8))
    assert informed.samples_per_s.value < 0.8 * alone.samples_per_s.value
    assert bare.NOTE_SIBLINGS.format(count=8) in informed.notes
    assert relative(informed)[0] > relative(alone)[0]
    # A series that crossed the boundary itself needs no siblings.
    own = table_series([*GOOD, (16, 1400.0)], workers_per_node=8)
    assert project_series(own, [32], [2.0] * 8) == project_series(own, [32])


@pytest.mark.parametrize("cost", [12.0, 1e6])
def test_one_sibling_that_fell_apart_does_not_rule_the_answer(cost: float) -> None:
    series = table_series(GOOD, workers_per_node=8)
    alone, informed = (project_series(series, [16], crossings)[0] for crossings in ((), [cost]))
    assert 0.4 * alone.samples_per_s.value < informed.samples_per_s.value < 0.7 * alone.samples_per_s.value
    assert informed.samples_per_s.high > 0.85 * alone.samples_per_s.value


def test_a_node_does_no_better_for_having_others_beside_it() -> None:
    """16 workers on 16 cores are slower than 8: two such nodes are at best twice one, whatever smaller counts say."""
    fallen = table_series([(1, 64.0), (2, 88.0), (4, 153.0), (8, 240.0), (16, 166.0)], workers_per_node=16)
    for one in project_series(fallen, [32, 64, 128]):
        assert one.samples_per_s.value <= 166.0 * one.workers / 16 * 1.001
        assert one.samples_per_s.high < 2 * 166.0 * one.workers / 16


def test_counts_between_and_below_are_told_apart() -> None:
    series = table_series([(4, 380.0), (16, 1400.0)])
    below, between = project_series(series, [2, 8])
    assert bare.NOTE_BELOW in below.notes
    assert bare.NOTE_BETWEEN in between.notes
    assert between.samples_per_s.value == pytest.approx(math.sqrt(380 * 1400), rel=1e-6)
    assert 190 <= below.samples_per_s.value < 220
    far = project_series(series, [1024])[0]
    assert bare.NOTE_FAR in far.notes


def test_doubt_takes_the_worst_sign() -> None:
    assert unpredictability(miss=0.02, loss_per_doubling=0.01, counts=4) == 0.02
    assert unpredictability(miss=0.02, loss_per_doubling=0.3, counts=4) == 0.3
    assert unpredictability(miss=5.0, loss_per_doubling=-1.0, counts=4) == 0.3
    assert unpredictability(miss=None, loss_per_doubling=0.0, counts=1) == 0.1
    assert unpredictability(miss=0.0, loss_per_doubling=0.0, spread=0.2, counts=5) == 0.2
    smooth, rough = table_series(GOOD), table_series([*GOOD[:3], (8, 600.0)])
    assert series_unpredictability(rough) > 2 * series_unpredictability(smooth)


@pytest.mark.parametrize("crossing", CROSSING_SHARE)
def test_reach_never_shrinks(crossing: str) -> None:
    found = [margin(doublings=d, unpredictability=0.05, crossing=crossing) for d in (0.1, 0.5, 1, 2, 10)]  # type: ignore[arg-type]
    assert [one.down for one in found] == sorted(one.down for one in found)
    assert all(one.down > one.up > 0 for one in found)
    assert margin(doublings=1, unpredictability=0.2).up > margin(doublings=1, unpredictability=0.1).up
    assert (
        margin(doublings=1, unpredictability=0.1, crossing="new").down > margin(doublings=1, unpredictability=0.1).down
    )


def test_everything_is_immutable() -> None:
    series: TableSeries = table_series(GOOD)
    for thing in (series, fit_series_law(series), project_series(series, [16])[0]):
        with pytest.raises(dataclasses.FrozenInstanceError):
            thing.workers = 3  # type: ignore[misc, union-attr]
