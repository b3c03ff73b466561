"""Which workers x batches to probe next: only while the answer can still change.

Counts are climbed one by one, by the batches that promise most: what the model of the step, fitted to all probes so
far, foretells for the count where they stop paying. A batch is done when its last step up did not pay, even at the
upper end of its interval, and none further up is foretold to; all is done when no batch can beat what is known. One
count that did not pay is no end yet, if perfect scaling from there would: a first exchange, a full socket cost once.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np
from scipy.stats import t as student

from worldsize.analysis.estimate import Interval
from worldsize.analysis.speed.recommend import LEAST_MARGINAL_EFFICIENCY, marginal_efficiency, paying_counts

CLOSE = 0.98
"""A batch that promises less than this share of the best is not followed: large counts are what a study costs."""
FIRST = 2
"""Counts that show how a batch scales: one step up."""
ONE_SIDED = 1.645
"""Standard errors from a value to the end of its 90 % interval."""
MISFIT = 0.05
"""What the model is usually off by at a batch, in logarithms: a measurement noisier than that moves it little."""
Probe = tuple[int, int]
"""Workers, batch."""


def pooled(repeats: Mapping[Probe, Sequence[float]]) -> dict[Probe, Interval]:
    """Samples a second of each probe, with the noise that repeats of all of them show together.

    Two repeats say next to nothing of their own spread, and a study that doubts everything climbs everywhere.
    """
    logs = {probe: np.log(values) for probe, values in repeats.items()}
    freedom = sum(len(values) - 1 for values in logs.values())
    squares = sum(float(((values - values.mean()) ** 2).sum()) for values in logs.values())
    # Without any repeats nothing is known of the noise: each value is taken as it is.
    noise = float(student.ppf(0.95, freedom)) * math.sqrt(squares / freedom) if freedom else 0.0
    found = {}
    for probe, values in logs.items():
        value, reach = math.exp(values.mean()), math.exp(noise / math.sqrt(len(values)))
        found[probe] = Interval(value, value / reach, value * reach)
    return found


def next_probes(
    possible: Collection[Probe],
    rates: Mapping[Probe, Interval],
    tried: Collection[Probe] = (),
    expected: Mapping[Probe, float] = MappingProxyType({}),
) -> list[Probe]:
    """What to probe next, given the samples a second so far; nothing: the answer will not change.

    `possible`: what the study has, with batches of a worker in weak scaling, global ones in strong scaling. `tried`:
    what was run already; where that gave no rate (failed, out of memory) its batch goes no further. `expected`: what
    the model foretells; without it, every doubling is taken to gain what the last one did.
    """
    batches = sorted({batch for _, batch in possible})
    counts = {batch: sorted(workers for workers, other in possible if other == batch) for batch in batches}
    done = {*rates, *tried}
    if missing := _missing(batches, counts, rates, done, foretold=bool(expected)):
        return missing
    lines = {batch: line for batch in batches if (line := BatchClimb.of(batch, counts[batch], rates, expected))}
    # A batch that others overtook stays behind, unless these failed further up, or it promises more after all. One that
    # was followed and fell behind is not taken up again: two at the largest counts cost more than the choice is worth.
    leaders = [line for line in lines.values() if len(line.rates) > FIRST and not line.failed(done)]
    front = max((line.counts[len(line.rates) - 1] for line in leaders), default=0)
    ahead = max((line.promise for line in leaders), default=0.0)
    climbing = [
        line
        for line in lines.values()
        if line.may_climb(done) and (line.next_count > front or CLOSE * line.promise > ahead)
    ]
    known = max((line.knee_rate for line in lines.values() if line not in climbing), default=0.0)
    if not any(line.most > known for line in climbing):
        # The answer names a count and what the next one would bring: what is best alone must have been tried with more.
        fastest = max(lines.values(), key=lambda line: line.knee_rate, default=None)
        return [(fastest.next_count, fastest.batch)] if fastest and fastest.is_alone(done) else []
    best = max(line.promise for line in climbing)
    return [(line.next_count, line.batch) for line in climbing if line.promise >= CLOSE * best]


def ends_the_climb(probe: Probe, counts: Collection[int], expected: Mapping[Probe, float]) -> bool:
    """Whether it is the largest of its batch's counts, and not foretold to be one too many: that, fewer repeats show as
    well."""
    workers, batch = probe
    smaller = [n for n in counts if n < workers]
    if workers < max(counts) or not (expected and smaller):
        return workers == max(counts)
    below = max(smaller)
    return marginal_efficiency(expected[probe] / expected[below, batch], workers / below) >= LEAST_MARGINAL_EFFICIENCY


def _missing(
    batches: Sequence[int],
    counts: Mapping[int, Sequence[int]],
    rates: Mapping[Probe, Interval],
    done: Collection[Probe],
    *,
    foretold: bool,
) -> list[Probe]:
    """What has to be known first: every batch alone, and a step up of the smallest and the largest, between which the
    model foretells the others; of all of them, where it foretells nothing."""
    alone = [(counts[batch][0], batch) for batch in batches]
    up = [(counts[batch][1], batch) for batch in batches if len(counts[batch]) > 1]
    up = [probe for probe in up if _alive(probe, counts, rates, done) and (probe not in done or probe in rates)]
    wanted = {*alone, *(up if rates and not foretold else (*up[:1], *up[-1:]))}
    return sorted(wanted.difference(done), key=lambda probe: (probe[1], probe[0]))


def _alive(
    probe: Probe, counts: Mapping[int, Sequence[int]], rates: Mapping[Probe, Interval], done: Collection[Probe]
) -> bool:
    """Whether no smaller count of its batch was run without a rate."""
    workers, batch = probe
    return not any((n, batch) in done and (n, batch) not in rates for n in counts[batch] if n < workers)


@dataclass(frozen=True, kw_only=True)
class BatchClimb:
    """One batch, count by count, as far as it was probed."""

    batch: int
    counts: tuple[int, ...]
    rates: tuple[Interval, ...]
    expected: tuple[float, ...]
    """At every count; empty: nothing is foretold."""

    @classmethod
    def of(
        cls, batch: int, counts: Sequence[int], rates: Mapping[Probe, Interval], expected: Mapping[Probe, float]
    ) -> BatchClimb | None:
        found = []
        for workers in counts:
            if (workers, batch) not in rates:
                break
            found.append(rates[workers, batch])
        if not found:
            return None
        told = tuple(expected[n, batch] for n in counts) if all((n, batch) in expected for n in counts) else ()
        if told:
            off = _believed(found[-1]) * math.log(found[-1].value / told[len(found) - 1])
            told = tuple(rate * math.exp(off) for rate in told)
        return cls(batch=batch, counts=tuple(counts), rates=tuple(found), expected=told)

    @property
    def next_count(self) -> int:
        return self.counts[len(self.rates)]

    def failed(self, done: Collection[Probe]) -> bool:
        """Whether its next count was run and gave no rate."""
        return len(self.rates) < len(self.counts) and (self.next_count, self.batch) in done

    def is_alone(self, done: Collection[Probe]) -> bool:
        """Whether it shows nothing yet of how it scales, and could."""
        return len(self.rates) < min(FIRST, len(self.counts)) and not self.failed(done)

    def may_climb(self, done: Collection[Probe]) -> bool:
        """Whether there is a next count, not run yet, and the last step up may have paid, at the best ends, or one
        further up is foretold to pay."""
        reached = len(self.rates)
        if reached == len(self.counts) or self.failed(done):
            return False
        if reached < FIRST:
            return bool(self.expected)
        before, after = self.rates[-2], self.rates[-1]
        growth = self.counts[reached - 1] / self.counts[reached - 2]
        if marginal_efficiency(after.high / before.low, growth) >= LEAST_MARGINAL_EFFICIENCY or self._pays_further_up(
            self.expected
        ):
            return True
        paid = paying_counts(self.counts[:reached], [rate.value for rate in self.rates])[-1]
        near = paid == reached - 2 or self.counts[reached - 1] <= 2 * self.counts[paid]
        return near and self._pays_further_up(self.counts)

    def _pays_further_up(self, ahead: Sequence[float]) -> bool:
        """Whether a count not run yet would, if rates grew from here on as `ahead` does."""
        if not ahead:
            return False
        here, known = len(self.rates), [rate.value for rate in self.rates]
        rates = [*known, *(known[-1] * rate / ahead[here - 1] for rate in ahead[here:])]
        return paying_counts(self.counts, rates)[-1] >= here

    @property
    def promise(self) -> float:
        """Its rate where it stops paying, or at the largest count."""
        if not self.expected:
            return self.rates[-1].value * self._gain(self.rates[-1].value / self.rates[-2].value)
        here = len(self.rates) - 1
        return _knee(self.expected[here:], self.counts[here:])

    @property
    def most(self) -> float:
        """The same at the ends of its intervals that promise most."""
        last = self.rates[-1]
        if self.expected:
            return self.promise * last.high / last.value
        return last.high * self._gain(last.high / self.rates[-2].low)

    def _gain(self, last: float) -> float:
        """What the last step up gained, a doubling, to the power of the doublings that are left; at best 2 each."""
        reached = len(self.rates)
        of_doubling = min(last ** (1 / math.log2(self.counts[reached - 1] / self.counts[reached - 2])), 2.0)
        return float(of_doubling ** math.log2(self.counts[-1] / self.counts[reached - 1]))

    @property
    def knee_rate(self) -> float:
        """Samples a second where this batch stops paying."""
        return _knee([rate.value for rate in self.rates], self.counts)


def _believed(rate: Interval) -> float:
    """How far a measured rate moves what is foretold for its batch: not at all, 0, to wholly, 1."""
    noise = math.log(rate.high / rate.low) / (2 * ONE_SIDED)
    return MISFIT**2 / (MISFIT**2 + noise**2)


def _knee(rates: Sequence[float], counts: Sequence[int]) -> float:
    """The rate of the largest count that pays."""
    return rates[paying_counts(counts[: len(rates)], rates)[-1]]
