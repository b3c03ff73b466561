"""The adaptive study reaches what the full grid would, with a part of its worker-seconds."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest

from worldsize.analysis.adaptive import Probe, next_probes
from worldsize.analysis.points import Setting
from worldsize.analysis.recommend import recommend
from worldsize.analysis.scaling import Row, Series
from worldsize.analysis.stats import Interval

COUNTS, BATCHES = (1, 2, 4, 8, 16), (16, 32, 64, 128)
Law = Callable[[int, int], float]
"""Seconds of a step."""


def saturating(n: int, b: int) -> float:
    """16 cores: computing slows, and at 16 it falls off a cliff."""
    return (1e-3 + 1e-4 * b) * (1 + 0.03 * (n - 1)) + 8e-4 * math.log2(n) + (4e-3 if n == 16 else 0)


def communicating(n: int, b: int) -> float:
    return 5e-4 + 2e-5 * b + 3e-3 * (n > 1) + 1e-3 * (n - 1)


def perfect(n: int, b: int) -> float:
    return 1e-3 + 1e-4 * b + 2e-5 * math.log2(n)


def hopeless(n: int, b: int) -> float:
    """Two workers are slower than one."""
    return 1e-3 + 1e-5 * b if n == 1 else 0.05 * n


def measured(law: Law, probe: Probe, noise: float, rng: np.random.Generator) -> Interval:
    n, b = probe
    rate = n * b / law(n, b) * math.exp(rng.normal(0, noise))
    return Interval(rate, rate * math.exp(-2 * noise), rate * math.exp(2 * noise))


def full_grid(rates: dict[Probe, Interval]) -> Probe:
    series = []
    for batch in BATCHES:
        base = rates[COUNTS[0], batch].value
        rows = []
        for n in COUNTS:
            if (n, batch) not in rates:
                break
            rate = rates[n, batch]
            speedup = Interval(*(end / base for end in (rate.value, rate.low, rate.high)))
            setting = Setting(workers=n, batch_per_worker=batch, scaling="weak", strategy="ddp", precision="fp32")
            rows.append(
                Row(
                    setting=setting,
                    baseline_workers=1,
                    step_s=rate,
                    samples_per_s=rate,
                    speedup=speedup,
                    efficiency=speedup,
                    repeats=3,
                )
            )
        series.append(Series(rows=tuple(rows)))
    row = recommend(series).row
    assert row is not None
    return row.setting.workers, row.setting.batch_per_worker


def adaptive(rates: dict[Probe, Interval]) -> dict[Probe, Interval]:
    seen: dict[Probe, Interval] = {}
    while wanted := next_probes(list(rates), seen):
        assert not set(wanted) & seen.keys()
        seen |= {probe: rates[probe] for probe in wanted}
    return seen


@pytest.mark.parametrize("law", [saturating, communicating, perfect, hopeless])
@pytest.mark.parametrize("seed", range(5))
def test_the_same_answer_for_a_part_of_the_cost(law: Law, seed: int) -> None:
    rng = np.random.default_rng(seed)
    rates = {(n, b): measured(law, (n, b), 0.01, rng) for n in COUNTS for b in BATCHES}
    seen = adaptive(rates)
    assert full_grid(seen) == full_grid(rates)
    spent, whole = sum(n for n, _ in seen), sum(n for n, _ in rates)
    assert spent <= 0.4 * whole


def test_it_stops_where_nothing_pays() -> None:
    rng = np.random.default_rng(0)
    rates = {(n, b): measured(hopeless, (n, b), 0.01, rng) for n in COUNTS for b in BATCHES}
    assert {n for n, _ in adaptive(rates)} == {1, 2}


def test_one_count_is_one_round() -> None:
    assert next_probes([(1, 32)], {}) == [(1, 32)]
    assert next_probes([(1, 32)], {(1, 32): Interval(1, 1, 1)}) == []


def test_a_batch_without_a_rate_does_not_stop_the_others() -> None:
    """Out of memory at its first count, failed at its second, left out of the study: the rest climbs on."""
    rng = np.random.default_rng(0)
    rates = {(n, b): measured(perfect, (n, b), 0.01, rng) for n in COUNTS for b in BATCHES}
    for broken in ({(1, 128)}, {(2, 128)}, {(4, 128)}):
        seen: dict[Probe, Interval] = {}
        tried: set[Probe] = set()
        while wanted := next_probes(list(rates), seen, tried):
            tried |= set(wanted)
            seen |= {probe: rates[probe] for probe in wanted if probe not in broken}
        assert max(n for n, _ in seen) == 16
        assert max(n for n, b in tried if b == 128) <= max(2, *(n for n, _ in broken))
    skipped = [probe for probe in rates if probe != (1, 128)]
    assert (2, 128) in next_probes(skipped, {})
    assert (4, 128) in next_probes(skipped, {})
