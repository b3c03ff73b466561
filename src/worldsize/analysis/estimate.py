"""Estimates and their intervals.

Medians of correlated steps over repeats, with intervals: bootstrap inside a repeat, Student's t between them.
Means over repeats with Student's t; a single repeat gives a value without an interval.
Arithmetic of positive quantities with intervals, in logarithms.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt
from scipy.special import ndtri, stdtrit

Floats = npt.NDArray[np.float64]

LEVEL = 0.90
REPLICATES = 1_000
MOST_LOG = 700.0
"""exp() of more overflows; an interval that reaches this far means that nothing is known."""
LEAST_FOR_CHANGE = 12
"""Fewer steps are too few to detect a change of pace."""
CHANGE_GAIN = 6.0
"""Times log(n): steps are correlated, so more than the usual penalty of a change point."""
MOST_REPEATS = 1_000
MOST_STEPS = 2_000
"""A longer series is thinned: its median is already known far better than its repeats agree."""


@dataclass(frozen=True)
class Interval:
    value: float
    low: float
    high: float

    @property
    def relative_width(self) -> float:
        return (self.high - self.low) / self.value


def block_length(steps: int) -> int:
    """n^(1/3), the usual length: steps are correlated, so the bootstrap draws whole blocks."""
    return max(1, int(steps ** (1 / 3) + 0.5))


def bootstrap_medians(step_s: Floats, rng: np.random.Generator) -> Floats:
    """Medians of circular-block resamples of one series."""
    step_s = step_s[:: -(-len(step_s) // MOST_STEPS)]
    length = block_length(len(step_s))
    blocks = -(-len(step_s) // length)
    starts = rng.integers(0, len(step_s), (REPLICATES, blocks, 1))
    indices = (starts + np.arange(length)) % len(step_s)
    return np.asarray(np.median(step_s[indices.reshape(REPLICATES, -1)[:, : len(step_s)]], axis=1))


def warmup_end(step_s: Floats) -> int:
    """The index of the first step after warm-up; 0 if the beginning is like the rest.

    One split of log(t) into a slower beginning and the rest, gain = n1 n2 / n * (difference of means)^2 / variance,
    accepted if the gain is larger than chance would produce over all splits. Outliers are clipped to 5 deviations
    first. The variance comes from differences of neighboring steps, which the change itself does not affect. Only the
    first half is searched.
    """
    n = len(step_s)
    if n < LEAST_FOR_CHANGE:
        return 0
    logs = np.log(step_s)
    middle, scale = np.median(logs), _deviation(logs)
    logs = np.clip(logs, middle - 5 * scale, middle + 5 * scale)
    variance = max(float(np.mean(np.diff(logs) ** 2)) / 2, 1e-12)
    splits = np.arange(1, n // 2 + 1)
    sums = np.cumsum(logs)
    before, after = sums[splits - 1] / splits, (sums[-1] - sums[splits - 1]) / (n - splits)
    gain = np.where(before > after, splits * (n - splits) / n * (before - after) ** 2 / variance, 0.0)
    best = int(np.argmax(gain))
    return int(splits[best]) if gain[best] > CHANGE_GAIN * math.log(n) else 0


def outliers(step_s: Floats) -> npt.NDArray[np.bool_]:
    """A mask of the steps further from the median than 5 deviations, in logarithms. They are kept, not removed."""
    if len(step_s) < LEAST_FOR_CHANGE:
        return np.zeros(len(step_s), dtype=bool)
    logs = np.log(step_s)
    return np.asarray(np.abs(logs - np.median(logs)) > 5 * _deviation(logs))


def _deviation(values: Floats) -> float:
    """1.4826 * median |x - median|: the standard deviation for normal values, robust to outliers."""
    return max(1.4826 * float(np.median(np.abs(values - np.median(values)))), 1e-9)


@dataclass(frozen=True, kw_only=True)
class Sample:
    """A mean over repeats with its error. Quantities that are compared by their ratio are sampled in logarithms, where
    ratios are differences."""

    value: float
    error: float = 0.0
    """Standard error, from the spread of the repeats. 0 for one repeat."""
    freedom: float = 0.0
    """Degrees of freedom of `error`. 0 for one repeat, whose spread is unknown."""
    floor: float = 0.0
    """Standard error from inside the repeats (their steps, the rounding of their values): a lower bound, since repeats
    may agree by chance."""
    repeats: Mapping[int, float] = field(default_factory=dict)
    """Value by repeat number. A difference pairs them, so that what both saw (drift, the seed) cancels."""

    @classmethod
    def of(cls, repeats: Mapping[int, float], floor: float = 0.0) -> Sample:
        """The mean, with error s / sqrt(n) and n - 1 degrees of freedom."""
        values = np.array(list(repeats.values()))
        n = len(values)
        error = float(values.std(ddof=1)) / math.sqrt(n) if n > 1 else 0.0
        return cls(value=float(values.mean()), error=error, freedom=n - 1.0, floor=floor, repeats=repeats)

    def minus(self, other: Sample) -> Sample:
        """The difference. Repeats with the same number ran side by side, so they are paired, and those whose partner is
        missing are left out; without two pairs, the two means are compared."""
        floor = math.hypot(self.floor, other.floor)
        common = sorted(self.repeats.keys() & other.repeats.keys())
        if len(common) > 1:
            return Sample.of({key: self.repeats[key] - other.repeats[key] for key in common}, floor)
        return self.apart(other)

    def apart(self, other: Sample) -> Sample:
        """The difference of two samples that share nothing: error^2 = e1^2 + e2^2, with degrees of freedom by Welch and
        Satterthwaite, error^4 / (e1^4/f1 + e2^4/f2), mostly those of the noisier side.

        A single repeat does not show its own noise, and is assumed to be as noisy as one repeat of the other side.
        """
        value, floor = self.value - other.value, math.hypot(self.floor, other.floor)
        if not (self.freedom and other.freedom):
            known = max(self, other, key=lambda sample: sample.freedom)
            error = known.error * math.sqrt(known.freedom + 2)
            return Sample(value=value, error=error, freedom=known.freedom, floor=floor)
        error = math.hypot(self.error, other.error)
        parts = self.error**4 / self.freedom + other.error**4 / other.freedom
        freedom = error**4 / parts if parts else min(self.freedom, other.freedom)
        return Sample(value=value, error=error, freedom=freedom, floor=floor)

    def plus(self, shift: float) -> Sample:
        return replace(
            self, value=self.value + shift, repeats={key: value + shift for key, value in self.repeats.items()}
        )

    def negated(self) -> Sample:
        return replace(self, value=-self.value, repeats={key: -value for key, value in self.repeats.items()})

    def reach(self, level: float = LEVEL) -> float:
        """Half of the interval: Student's t over repeats, because few repeats show little of their spread; at least
        what the floor says."""
        share = (1 + level) / 2
        between = float(stdtrit(self.freedom, share)) * self.error if self.freedom else 0.0
        return max(between, float(ndtri(share)) * self.floor)

    def repeats_for(self, reach: float) -> int:
        """Repeats after which it would reach less far than this, with the same noise; at most MOST_REPEATS."""
        noise = self.error * math.sqrt(self.freedom + 1)
        more = (replace(self, error=noise / math.sqrt(n), freedom=n - 1.0, floor=0.0) for n in range(2, MOST_REPEATS))
        return next((n for n, sample in enumerate(more, 2) if sample.reach() < reach), MOST_REPEATS)

    def estimate(self, level: float = LEVEL) -> Estimate:
        """value +- reach; a single repeat has no interval."""
        if not self.freedom:
            return Estimate(value=self.value, low=None, high=None)
        reach = self.reach(level)
        return Estimate(value=self.value, low=self.value - reach, high=self.value + reach)

    def exp(self, level: float = LEVEL) -> Interval:
        """The quantity itself, of a sample in logarithms."""
        reach = self.reach(level)
        low, high = (math.exp(min(end, MOST_LOG)) for end in (self.value - reach, self.value + reach))
        return Interval(math.exp(self.value), low, high)


def median_step(repeats: Mapping[int, Floats], seed: int = 0) -> Sample:
    """Mean over repeats of the log of the median over steps: exp of it is their geometric mean."""
    rng = np.random.default_rng(seed)
    spreads = [float(np.log(bootstrap_medians(steps, rng)).std()) for steps in repeats.values()]
    medians = {repeat: math.log(float(np.median(steps))) for repeat, steps in repeats.items()}
    return Sample.of(medians, floor=math.hypot(*spreads) / len(spreads))


@dataclass(frozen=True, kw_only=True)
class Estimate:
    value: float
    low: float | None
    high: float | None
    """Both are None for a single repeat, which says nothing about how repeats differ."""

    def within(self, least: float, most: float) -> Estimate:
        """The same estimate with its interval clipped to the possible values."""
        low, high = (None if end is None else min(max(end, least), most) for end in (self.low, self.high))
        return Estimate(value=self.value, low=low, high=high)


def from_logs(logged: Estimate) -> Estimate:
    low, high = (None if end is None else math.exp(min(end, MOST_LOG)) for end in (logged.low, logged.high))
    return Estimate(value=math.exp(logged.value), low=low, high=high)


def mean_interval(values: Sequence[float]) -> Estimate:
    """mean +- t(n - 1) * s / sqrt(n)."""
    return Sample.of(dict(enumerate(values))).estimate()


def log_interval(values: Sequence[float]) -> Estimate:
    """Geometric mean with its interval, for positive quantities that vary by factors."""
    return from_logs(mean_interval([math.log(value) for value in values]))


def over(factor: float, interval: Interval) -> Interval:
    return Interval(factor / interval.value, factor / interval.high, factor / interval.low)


def times(interval: Interval, factor: float) -> Interval:
    return Interval(interval.value * factor, interval.low * factor, interval.high * factor)


def plus(first: Interval, other: Interval) -> Interval:
    """The sum; independent errors add in quadrature."""
    value = first.value + other.value
    down = math.hypot(first.value - first.low, other.value - other.low)
    up = math.hypot(first.high - first.value, other.high - other.value)
    return Interval(value, value - down, value + up)


def product(first: Interval, other: Interval) -> Interval:
    """The product; independent errors add in quadrature, in logarithms."""
    value = first.value * other.value
    down = math.hypot(math.log(first.value / first.low), math.log(other.value / other.low))
    up = math.hypot(math.log(first.high / first.value), math.log(other.high / other.value))
    return Interval(value, value * math.exp(-down), value * math.exp(up))
