"""Which workers x batches to probe next: only while the answer can still change.

Counts are climbed one by one, by the batches that promise most at the largest count. A batch is done when its last step
up did not pay, even at the upper end of its interval; all is done when no batch can beat what is known any more.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from worldsize.analysis.recommend import MARGIN
from worldsize.analysis.stats import Interval

CLOSE = 0.98
"""A batch that promises less than this share of the best is not followed: large counts are what a study costs."""
FIRST = 2
"""Counts that every batch is probed at: one step up shows how each of them scales."""
Probe = tuple[int, int]
"""Workers, batch."""


def next_probes(counts: Sequence[int], batches: Sequence[int], rates: Mapping[Probe, Interval]) -> list[Probe]:
    """What to probe next, given the samples a second so far; nothing: the answer will not change.

    `batches` are those of a worker in weak scaling, the global ones in strong scaling.
    """
    counts = sorted(counts)
    first = [(n, b) for n in counts[:FIRST] for b in batches]
    missing = [probe for probe in first if probe not in rates]
    if missing:
        return missing
    lines = {batch: _climbed(counts, batch, rates) for batch in batches}
    reached = max(len(line) for line in lines.values())
    if reached == len(counts):
        return []
    climbing = [batch for batch in batches if len(lines[batch]) == reached and _pays(counts, batch, rates, reached)]
    done = max((_knee_rate(counts, batch, rates) for batch in batches if batch not in climbing), default=0.0)
    if not any(_most(counts, batch, rates, reached) > done for batch in climbing):
        return []
    promises = {batch: _promise(counts, batch, rates, reached) for batch in climbing}
    best = max(promises.values())
    return [(counts[reached], batch) for batch in climbing if promises[batch] >= CLOSE * best]


def _climbed(counts: Sequence[int], batch: int, rates: Mapping[Probe, Interval]) -> list[Interval]:
    """Of one batch, count by count, as far as it was probed."""
    found = []
    for workers in counts:
        if (workers, batch) not in rates:
            break
        found.append(rates[workers, batch])
    return found


def _marginal(gain: float, smaller: int, larger: int) -> float:
    """(1 - 1 / gain) / (1 - n / n'): time saved by the last step up over what perfect scaling would save."""
    return (1 - 1 / gain) / (1 - smaller / larger)


def _pays(counts: Sequence[int], batch: int, rates: Mapping[Probe, Interval], reached: int) -> bool:
    """Whether the last step up may have paid: its upper end against the lower end before."""
    before, after = rates[counts[reached - 2], batch], rates[counts[reached - 1], batch]
    return _marginal(after.high / before.low, counts[reached - 2], counts[reached - 1]) >= MARGIN


def _promise(counts: Sequence[int], batch: int, rates: Mapping[Probe, Interval], reached: int) -> float:
    """Its rate at the largest count if every doubling gained what the last one did."""
    before, after = rates[counts[reached - 2], batch], rates[counts[reached - 1], batch]
    return after.value * _gain(after.value / before.value, counts, reached)


def _most(counts: Sequence[int], batch: int, rates: Mapping[Probe, Interval], reached: int) -> float:
    """The same at the ends of its intervals that promise most."""
    before, after = rates[counts[reached - 2], batch], rates[counts[reached - 1], batch]
    return after.high * _gain(after.high / before.low, counts, reached)


def _gain(last: float, counts: Sequence[int], reached: int) -> float:
    """What the last step up gained, a doubling, to the power of the doublings that are left; at best 2 each."""
    of_doubling = min(last ** (1 / math.log2(counts[reached - 1] / counts[reached - 2])), 2.0)
    return float(of_doubling ** math.log2(counts[-1] / counts[reached - 1]))


def _knee_rate(counts: Sequence[int], batch: int, rates: Mapping[Probe, Interval]) -> float:
    """Samples a second where this batch stops paying."""
    line = _climbed(counts, batch, rates)
    chosen = line[0].value
    for place in range(1, len(line)):
        gain = line[place].value / line[place - 1].value
        if _marginal(gain, counts[place - 1], counts[place]) < MARGIN:
            break
        chosen = line[place].value
    return chosen
