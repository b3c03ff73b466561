"""Chooses which workers x batches to probe next, as long as the answer can still change.

The search climbs from one worker count to the next, with the most promising batches: those with the highest predicted
rate at the count where they stop paying. Predictions come from the step model, fitted to all probes so far. A batch is
done when its last step up did not pay, even at the upper end of its interval, and no larger count is predicted to pay.
The search is done when no batch is predicted to beat the best known rate clearly. One count that did not pay does not
end the climb if perfect scaling from there would pay, because a first exchange or a full socket is paid for only once.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np
from scipy.stats import t as student

from worldsize.analysis.estimate import Estimate
from worldsize.analysis.speed.recommend import LEAST_MARGINAL_EFFICIENCY, marginal_efficiency, paying_counts

CLOSE = 0.98
"""A batch that promises less than this share of the best is not climbed, because large counts are expensive."""
BETTER = 1.15
"""Once a batch is done, others are climbed only if they promise more than this times its rate, for the same reason."""
FIRST = 2
"""Number of counts that first show how a batch scales: the smallest one and one step up."""
Probe = tuple[int, int]
"""Workers and batch."""


def pooled(repeats: Mapping[Probe, Sequence[float]]) -> dict[Probe, Estimate]:
    """Return samples per second of each probe, with noise pooled over the repeats of all probes.

    Two repeats show almost nothing of their own spread, and with wide intervals a study would probe everything. The
    noise is assumed equal at all counts. If it grows with the count, the interval of the largest count is too narrow,
    but these intervals only steer the climb and are never reported.
    """
    logs = {probe: np.log(values) for probe, values in repeats.items()}
    freedom = sum(len(values) - 1 for values in logs.values())
    squares = sum(float(((values - values.mean()) ** 2).sum()) for values in logs.values())
    # Without any repeats the noise is unknown, and assumed to be 0.
    noise = float(student.ppf(0.95, freedom)) * math.sqrt(squares / freedom) if freedom else 0.0
    intervals = {}
    for probe, values in logs.items():
        value, factor = math.exp(values.mean()), math.exp(noise / math.sqrt(len(values)))
        intervals[probe] = Estimate(value=value, low=value / factor, high=value * factor, n=len(values))
    return intervals


def next_probes(
    possible: Collection[Probe],
    rates: Mapping[Probe, Estimate],
    tried: Collection[Probe] = (),
    expected: Mapping[Probe, float] = MappingProxyType({}),
) -> list[Probe]:
    """Return what to probe next, given the samples per second so far; empty if the answer will not change.

    `possible`: the probes of the study, with the batch per worker (weak scaling) or the global batch (strong scaling).
    `tried`: the probes that ran. If one of them has no rate (failed, out of memory), its batch is not climbed further.
    `expected`: the rates that the model predicts. Without them, each doubling is assumed to gain as much as the last.
    """
    batches = sorted({batch for _, batch in possible})
    counts = {batch: sorted(workers for workers, other in possible if other == batch) for batch in batches}
    done = {*rates, *tried}
    if missing := _missing(batches, counts, rates, done, predicted=bool(expected)):
        return missing
    climbs = [climb for batch in batches if (climb := BatchClimb.of(batch, counts[batch], rates, expected))]
    climbing = [climb for climb in climbs if climb.may_climb(done)]
    best_done = max((climb.knee_rate for climb in climbs if climb not in climbing), default=0.0)
    best = max((climb.promise for climb in climbing), default=0.0)
    if best <= BETTER * best_done:
        # The answer says what the next count would bring, so the fastest batch needs a probe with more workers.
        fastest = max(climbs, key=lambda climb: climb.knee_rate, default=None)
        return [(fastest.next_count, fastest.batch)] if fastest and fastest.is_alone(done) else []
    return [(climb.next_count, climb.batch) for climb in climbing if climb.promise >= CLOSE * best]


def ends_the_climb(probe: Probe, counts: Collection[int], expected: Mapping[Probe, float]) -> bool:
    """Whether a probe is at the largest count of its batch, unless that count is predicted not to pay: then fewer
    repeats are enough."""
    workers, batch = probe
    smaller = [n for n in counts if n < workers]
    if workers < max(counts) or not (expected and smaller):
        return workers == max(counts)
    below = max(smaller)
    return marginal_efficiency(expected[probe] / expected[below, batch], workers / below) >= LEAST_MARGINAL_EFFICIENCY


def _missing(
    batches: Sequence[int],
    counts: Mapping[int, Sequence[int]],
    rates: Mapping[Probe, Estimate],
    done: Collection[Probe],
    *,
    predicted: bool,
) -> list[Probe]:
    """Return what must be known first: every batch at its smallest count, and one step up.

    For the step up, the smallest and the largest batch are enough if the model predicts the others.
    """
    smallest_counts = [(counts[batch][0], batch) for batch in batches]
    up = [(counts[batch][1], batch) for batch in batches if len(counts[batch]) > 1]
    up = [probe for probe in up if _alive(probe, counts, rates, done) and (probe not in done or probe in rates)]
    wanted = {*smallest_counts, *(up if rates and not predicted else (*up[:1], *up[-1:]))}
    return sorted(wanted.difference(done), key=lambda probe: (probe[1], probe[0]))


def _alive(
    probe: Probe, counts: Mapping[int, Sequence[int]], rates: Mapping[Probe, Estimate], done: Collection[Probe]
) -> bool:
    """Whether every smaller count of its batch that ran has a rate."""
    workers, batch = probe
    return not any((n, batch) in done and (n, batch) not in rates for n in counts[batch] if n < workers)


@dataclass(frozen=True, kw_only=True)
class BatchClimb:
    """The rates of one batch, from its smallest count up to the first that has no rate."""

    batch: int
    counts: tuple[int, ...]
    rates: tuple[Estimate, ...]
    expected: tuple[float, ...]
    """Predicted rate at every count, scaled to match the last of `rates`. Empty: no prediction."""

    @classmethod
    def of(
        cls, batch: int, counts: Sequence[int], rates: Mapping[Probe, Estimate], expected: Mapping[Probe, float]
    ) -> BatchClimb | None:
        """Return the climb of a batch; None if its smallest count has no rate."""
        measured = []
        for workers in counts:
            if (workers, batch) not in rates:
                break
            measured.append(rates[workers, batch])
        if not measured:
            return None
        predicted = tuple(expected[n, batch] for n in counts) if all((n, batch) in expected for n in counts) else ()
        if predicted:
            correction = measured[-1].value / predicted[len(measured) - 1]
            predicted = tuple(rate * correction for rate in predicted)
        return cls(batch=batch, counts=tuple(counts), rates=tuple(measured), expected=predicted)

    @property
    def next_count(self) -> int:
        return self.counts[len(self.rates)]

    def failed(self, done: Collection[Probe]) -> bool:
        """Whether its next count ran, but has no rate."""
        return len(self.rates) < len(self.counts) and (self.next_count, self.batch) in done

    def is_alone(self, done: Collection[Probe]) -> bool:
        """Whether it was probed at its smallest count only, and can be probed with more workers."""
        return len(self.rates) < min(FIRST, len(self.counts)) and not self.failed(done)

    def may_climb(self, done: Collection[Probe]) -> bool:
        """Whether there is a next count that has not run, and it or a larger one may pay.

        That is so if the last step up may have paid, at the favorable ends of the intervals, if a larger count is
        predicted to pay, or if perfect scaling would pay and the last count that paid is near.
        """
        reached = len(self.rates)
        if reached == len(self.counts) or self.failed(done):
            return False
        if reached < FIRST:
            return bool(self.expected)
        before, after = self.rates[-2], self.rates[-1]
        growth = self.counts[reached - 1] / self.counts[reached - 2]
        if marginal_efficiency(
            after.ends[1] / before.ends[0], growth
        ) >= LEAST_MARGINAL_EFFICIENCY or self._pays_further_up(self.expected):
            return True
        paid = paying_counts(self.counts[:reached], [rate.value for rate in self.rates])[-1]
        near = paid == reached - 2 or self.counts[reached - 1] <= 2 * self.counts[paid]
        return near and self._pays_further_up(self.counts)

    def _pays_further_up(self, ahead: Sequence[float]) -> bool:
        """Whether a count that has not run would pay if rates grew from here on in proportion to `ahead`."""
        if not ahead:
            return False
        reached, known = len(self.rates), [rate.value for rate in self.rates]
        rates = [*known, *(known[-1] * rate / ahead[reached - 1] for rate in ahead[reached:])]
        return paying_counts(self.counts, rates)[-1] >= reached

    @property
    def promise(self) -> float:
        """Expected rate at the count where it stops paying or, without a prediction, at the largest count."""
        if not self.expected:
            return self.rates[-1].value * self._gain()
        last = len(self.rates) - 1
        return _knee(self.expected[last:], self.counts[last:])

    def _gain(self) -> float:
        """Return the gain per doubling of the last step up, at most 2, to the power of the remaining doublings."""
        reached, last = len(self.rates), self.rates[-1].value / self.rates[-2].value
        per_doubling = min(last ** (1 / math.log2(self.counts[reached - 1] / self.counts[reached - 2])), 2.0)
        return float(per_doubling ** math.log2(self.counts[-1] / self.counts[reached - 1]))

    @property
    def knee_rate(self) -> float:
        """Samples per second at the largest count that pays."""
        return _knee([rate.value for rate in self.rates], self.counts)


def _knee(rates: Sequence[float], counts: Sequence[int]) -> float:
    """Return the rate of the largest count that pays."""
    return rates[paying_counts(counts[: len(rates)], rates)[-1]]
