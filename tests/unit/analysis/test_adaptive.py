"""The adaptive study reaches what the full grid would, with a part of its worker-seconds."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest

from worldsize.analysis.estimate import Estimate, Sample
from worldsize.analysis.projection.step_model import Node, StepTiming
from worldsize.analysis.speed.adaptive import Probe, next_probes, pooled
from worldsize.analysis.speed.recommend import recommend
from worldsize.analysis.speed.scaling import LaunchFit, Pace, ScalingRow, Series
from worldsize.spec.setting import Setting
from worldsize.spec.training import StrategySpec
from worldsize.study.adaptive_rounds import predicted

COUNTS, BATCHES = (1, 2, 4, 8, 16), (16, 32, 64, 128)
Law = Callable[[int, int], tuple[float, float]]
"""Seconds that a worker computes in a step, and seconds of the exchange after it."""


def saturating(n: int, b: int) -> tuple[float, float]:
    """16 cores: computing slows, and at 16 it falls off a cliff."""
    return (1e-3 + 1e-4 * b) * (1 + 0.03 * (n - 1)) + (4e-3 if n == 16 else 0), 8e-4 * math.log2(n)


def communicating(n: int, b: int) -> tuple[float, float]:
    return 5e-4 + 2e-5 * b, 3e-3 * (n > 1) + 1e-3 * (n - 1)


def perfect(n: int, b: int) -> tuple[float, float]:
    return 1e-3 + 1e-4 * b, 2e-5 * math.log2(n)


def hopeless(n: int, b: int) -> tuple[float, float]:
    """Two workers are slower than one."""
    return 1e-3 + 1e-5 * b, 0.05 * n * (n > 1)


def around(value: float, factor: float) -> Estimate:
    return Estimate(value=value, low=value / factor, high=value * factor)


def measured(law: Law, probe: Probe, noise: float, rng: np.random.Generator) -> Estimate:
    n, b = probe
    rate = n * b / sum(law(n, b)) * math.exp(rng.normal(0, noise))
    return around(rate, math.exp(2 * noise))


def full_grid(rates: dict[Probe, Estimate]) -> Probe:
    series = []
    for batch in BATCHES:
        base = rates[COUNTS[0], batch].value
        rows = []
        for n in COUNTS:
            if (n, batch) not in rates:
                break
            rate = rates[n, batch]
            speedup = rate.scaled(1 / base)
            setting = Setting(
                workers=n, batch_per_worker=batch, scaling="weak", strategy=StrategySpec(), precision="fp32"
            )
            reach = math.log(rate.ends[1] / rate.value) / 1.645
            step = Sample(value=-math.log(rate.value / setting.global_batch), floor=reach)
            alone = LaunchFit({setting: step}, {})
            pace = Pace(setting=setting, baseline=setting, step=step, speedup=step, fit=alone, side_by_side=True)
            rows.append(
                ScalingRow(
                    setting=setting,
                    baseline_workers=1,
                    step_s=rate,
                    samples_per_s=rate,
                    speedup=speedup,
                    efficiency=speedup,
                    repeats=3,
                    pace=pace,
                )
            )
        series.append(Series(rows=tuple(rows)))
    row = recommend(series).row
    assert row is not None
    return row.setting.workers, row.setting.batch_per_worker


def adaptive(law: Law, rates: dict[Probe, Estimate]) -> dict[Probe, Estimate]:
    seen: dict[Probe, Estimate] = {}
    node = Node(workers_per_node=max(COUNTS), cores=max(COUNTS))
    while True:
        steps = [_timing(law, probe, rate.value) for probe, rate in seen.items()]
        wanted = next_probes(list(rates), seen, expected=predicted(steps, node, rates, 1, strong=False))
        if not wanted:
            return seen
        assert not set(wanted) & seen.keys()
        seen |= {probe: rates[probe] for probe in wanted}


def _timing(law: Law, probe: Probe, rate: float) -> StepTiming:
    n, b = probe
    step_s, (local_s, exchange_s) = n * b / rate, law(n, b)
    share = local_s / (local_s + exchange_s)
    return StepTiming(workers=n, batch_per_worker=b, step_s=step_s, local_s=share * step_s)


@pytest.mark.parametrize("law", [saturating, communicating, perfect, hopeless])
@pytest.mark.parametrize("seed", range(5))
def test_the_same_answer_for_a_part_of_the_cost(law: Law, seed: int) -> None:
    rng = np.random.default_rng(seed)
    rates = {(n, b): measured(law, (n, b), 0.01, rng) for n in COUNTS for b in BATCHES}
    seen = adaptive(law, rates)
    assert full_grid(seen) == full_grid(rates)
    spent, whole = sum(n for n, _ in seen), sum(n for n, _ in rates)
    assert spent <= 0.4 * whole


def test_it_stops_where_nothing_pays() -> None:
    rng = np.random.default_rng(0)
    rates = {(n, b): measured(hopeless, (n, b), 0.01, rng) for n in COUNTS for b in BATCHES}
    assert {n for n, _ in adaptive(hopeless, rates)} == {1, 2}


def test_one_count_is_one_round() -> None:
    assert next_probes([(1, 32)], {}) == [(1, 32)]
    assert next_probes([(1, 32)], {(1, 32): Estimate(value=1.0)}) == []


def test_a_batch_without_a_rate_does_not_stop_the_others() -> None:
    """Out of memory at its first count, failed at its second, left out of the study: the rest climbs on."""
    rng = np.random.default_rng(0)
    rates = {(n, b): measured(perfect, (n, b), 0.01, rng) for n in COUNTS for b in BATCHES}
    for broken in ({(1, 128)}, {(2, 128)}, {(4, 128)}):
        seen: dict[Probe, Estimate] = {}
        tried: set[Probe] = set()
        while wanted := next_probes(list(rates), seen, tried):
            tried |= set(wanted)
            seen |= {probe: rates[probe] for probe in wanted if probe not in broken}
        assert max(n for n, _ in seen) == 16
        assert max(n for n, b in tried if b == 128) <= max(2, *(n for n, _ in broken))
    skipped = [probe for probe in rates if probe != (1, 128)]
    assert (2, 128) in next_probes(skipped, {})
    assert (4, 128) in next_probes(skipped, {})


def test_repeats_of_all_probes_tell_the_noise_together() -> None:
    rng = np.random.default_rng(1)
    probes = [(n, b) for n in (1, 2) for b in BATCHES]
    inside = 0
    for _ in range(200):
        found = pooled({probe: 100 * np.exp(rng.normal(0, 0.1, 2)) for probe in probes})
        inside += sum(rate.ends[0] <= 100 <= rate.ends[1] for rate in found.values())
        widths = {round(math.log(rate.ends[1] / rate.ends[0]), 9) for rate in found.values()}
        assert len(widths) == 1
    assert inside / (200 * len(probes)) == pytest.approx(0.9, abs=0.04)
    assert pooled({(1, 16): [50.0]})[1, 16].high == pytest.approx(50.0)


@pytest.mark.parametrize("law", [saturating, communicating, perfect, hopeless])
def test_what_is_predicted_decides_which_batch_is_followed(law: Law) -> None:
    """Noise of 15 % at the first counts points to any batch; what is known of steps points to the right one."""
    rng = np.random.default_rng(3)
    truth = {(n, b): n * b / sum(law(n, b)) for n in COUNTS for b in BATCHES}
    noisy = {probe: rate * math.exp(rng.normal(0, 0.15 if probe[0] < 4 else 0.01)) for probe, rate in truth.items()}
    rates = {probe: around(rate, 1.15) for probe, rate in noisy.items()}
    seen: dict[Probe, Estimate] = {}
    while wanted := next_probes(list(rates), seen, (), truth):
        seen |= {probe: rates[probe] for probe in wanted}
    best = max(BATCHES, key=lambda batch: truth[8, batch])
    assert {batch for n, batch in seen if n > 2} <= {best}


def test_a_batch_left_behind_comes_back_when_it_promises_more() -> None:
    flat = {(n, b): around(n * b, 1.1) for n in COUNTS for b in (16, 32)}
    seen = {probe: flat[probe] for probe in flat if probe[0] <= 2} | {(4, 16): flat[4, 16]}
    told = {probe: rate.value for probe, rate in flat.items()}
    assert next_probes(list(flat), seen, (), told) == [(4, 32)]


def dipping(n: int, b: int) -> tuple[float, float]:
    """The first exchange costs as much as it saves, and is paid once."""
    return 2e-3 + 1e-5 * b, 0 if n == 1 else 2e-3 + 1e-4 * math.log2(n)


def test_a_first_step_that_does_not_pay_is_no_end() -> None:
    rng = np.random.default_rng(0)
    rates = {(n, b): measured(dipping, (n, b), 0.01, rng) for n in COUNTS for b in BATCHES}
    assert full_grid(rates) == (16, 128)
    # What a model would say that has seen one step up, and takes the exchange to grow.
    told = {(n, b): n * b / (2e-3 + 1e-5 * b + (2e-3 * n if n > 1 else 0)) for n, b in rates}
    for expected in ({}, told):
        seen: dict[Probe, Estimate] = {}
        while wanted := next_probes(list(rates), seen, (), expected):
            seen |= {probe: rates[probe] for probe in wanted}
        assert full_grid(seen) == (16, 128)
        assert sum(n for n, _ in seen) <= 0.4 * sum(n for n, _ in rates)


def test_a_batch_is_known_better_by_what_it_measured() -> None:
    """The model takes the largest batch to be the fastest; alone, it was measured to be much slower than another."""
    truth = {
        (n, b): n * b / (1e-3 + 1e-4 * b * (2 if b == 128 else 1) + 1e-4 * math.log2(n))
        for n in COUNTS
        for b in BATCHES
    }
    rates = {probe: around(rate, 1.02) for probe, rate in truth.items()}
    told = {(n, b): n * b / (1e-3 + 1e-4 * b + 1e-4 * math.log2(n)) for n, b in rates}
    seen: dict[Probe, Estimate] = {}
    while wanted := next_probes(list(rates), seen, (), told):
        seen |= {probe: rates[probe] for probe in wanted}
    assert {b for n, b in seen if n > 2} == {64}


def test_what_is_best_alone_is_tried_with_more() -> None:
    """Nothing pays, and a batch in between is the fastest alone: an answer needs to know what 2 of it do."""
    alone = {16: 98.0, 32: 110.0, 64: 99.0, 128: 97.0}
    rates = {(n, b): around(alone[b], 1.001) for n in COUNTS for b in BATCHES}
    told = {probe: rate.value for probe, rate in rates.items()}
    seen: dict[Probe, Estimate] = {}
    while wanted := next_probes(list(rates), seen, (), told if len(seen) > 4 else {}):
        assert not set(wanted) & seen.keys()
        seen |= {probe: rates[probe] for probe in wanted}
    assert (2, 32) in seen
    assert max(n for n, _ in seen) <= 4


def test_counts_listed_densely_are_looked_beyond_as_far() -> None:
    """Level from 2 to 4, then rising again: by doublings, one step up that did not pay."""
    rates = {1: 1.0, 2: 2.0, 3: 2.0, 4: 2.0, 5: 2.5, 6: 3.0, 7: 3.5, 8: 4.0}
    measured = {(n, 32): around(rate, 1.001) for n, rate in rates.items()}
    seen: dict[Probe, Estimate] = {}
    while wanted := next_probes(list(measured), seen):
        seen |= {probe: measured[probe] for probe in wanted}
    assert (8, 32) in seen
