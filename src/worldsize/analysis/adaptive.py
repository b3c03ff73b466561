"""Which workers x batches to probe next: only while the answer can still change.

Counts are climbed one by one, by the batches that promise most at the largest count. A batch is done when its last step
up did not pay, even at the upper end of its interval; all is done when no batch can beat what is known any more.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from worldsize.analysis.recommend import MARGIN
from worldsize.analysis.stats import Interval

CLOSE = 0.98
"""A batch that promises less than this share of the best is not followed: large counts are what a study costs."""
FIRST = 2
"""Counts that every batch is probed at: one step up shows how each of them scales."""
Probe = tuple[int, int]
"""Workers, batch."""


def next_probes(
    possible: Collection[Probe], rates: Mapping[Probe, Interval], tried: Collection[Probe] = ()
) -> list[Probe]:
    """What to probe next, given the samples a second so far; nothing: the answer will not change.

    `possible`: what the study has, with batches of a worker in weak scaling, global ones in strong scaling. `tried`:
    what was run already; where that gave no rate (failed, out of memory) its batch goes no further.
    """
    batches = sorted({batch for _, batch in possible})
    counts = {batch: sorted(workers for workers, other in possible if other == batch) for batch in batches}
    done = {*rates, *tried}
    first = [(workers, batch) for batch in batches for workers in counts[batch][:FIRST]]
    missing = [probe for probe in first if probe not in done and _alive(probe, counts, rates, done)]
    if missing:
        return missing
    lines = {batch: line for batch in batches if (line := _Line.of(batch, counts[batch], rates))}
    # A batch that others overtook stays behind, unless these failed further up.
    leaders = [line for line in lines.values() if len(line.rates) > FIRST and not line.failed(done)]
    front = max((line.counts[len(line.rates) - 1] for line in leaders), default=0)
    climbing = [line for line in lines.values() if line.may_climb(done) and line.next_count > front]
    known = max((line.knee_rate for line in lines.values() if line not in climbing), default=0.0)
    if not any(line.most > known for line in climbing):
        return []
    best = max(line.promise for line in climbing)
    return [(line.next_count, line.batch) for line in climbing if line.promise >= CLOSE * best]


def _alive(
    probe: Probe, counts: Mapping[int, Sequence[int]], rates: Mapping[Probe, Interval], done: Collection[Probe]
) -> bool:
    """Whether no smaller count of its batch was run without a rate."""
    workers, batch = probe
    return not any((n, batch) in done and (n, batch) not in rates for n in counts[batch] if n < workers)


@dataclass(frozen=True, kw_only=True)
class _Line:
    """One batch, count by count, as far as it was probed."""

    batch: int
    counts: tuple[int, ...]
    rates: tuple[Interval, ...]

    @classmethod
    def of(cls, batch: int, counts: Sequence[int], rates: Mapping[Probe, Interval]) -> _Line | None:
        found = []
        for workers in counts:
            if (workers, batch) not in rates:
                break
            found.append(rates[workers, batch])
        return cls(batch=batch, counts=tuple(counts), rates=tuple(found)) if found else None

    @property
    def next_count(self) -> int:
        return self.counts[len(self.rates)]

    def failed(self, done: Collection[Probe]) -> bool:
        """Whether its next count was run and gave no rate."""
        return len(self.rates) < len(self.counts) and (self.next_count, self.batch) in done

    def may_climb(self, done: Collection[Probe]) -> bool:
        """Whether there is a next count, not run yet, and the last step up may have paid, at the best ends."""
        reached = len(self.rates)
        if reached < FIRST or reached == len(self.counts) or self.failed(done):
            return False
        before, after = self.rates[-2], self.rates[-1]
        return _marginal(after.high / before.low, self.counts[reached - 2], self.counts[reached - 1]) >= MARGIN

    @property
    def promise(self) -> float:
        """Its rate at the largest count if every doubling gained what the last one did."""
        return self.rates[-1].value * self._gain(self.rates[-1].value / self.rates[-2].value)

    @property
    def most(self) -> float:
        """The same at the ends of its intervals that promise most."""
        return self.rates[-1].high * self._gain(self.rates[-1].high / self.rates[-2].low)

    def _gain(self, last: float) -> float:
        """What the last step up gained, a doubling, to the power of the doublings that are left; at best 2 each."""
        reached = len(self.rates)
        of_doubling = min(last ** (1 / math.log2(self.counts[reached - 1] / self.counts[reached - 2])), 2.0)
        return float(of_doubling ** math.log2(self.counts[-1] / self.counts[reached - 1]))

    @property
    def knee_rate(self) -> float:
        """Samples a second where this batch stops paying."""
        chosen = self.rates[0].value
        for place in range(1, len(self.rates)):
            gain = self.rates[place].value / self.rates[place - 1].value
            if _marginal(gain, self.counts[place - 1], self.counts[place]) < MARGIN:
                break
            chosen = self.rates[place].value
        return chosen


def _marginal(gain: float, smaller: int, larger: int) -> float:
    """(1 - 1 / gain) / (1 - n / n'): time saved by the last step up over what perfect scaling would save."""
    return (1 - 1 / gain) / (1 - smaller / larger)
