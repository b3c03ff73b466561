"""Estimates and their intervals.

Medians of correlated steps over repeats, with intervals: bootstrap inside a repeat, Student's t between them.
Means over repeats with Student's t; a single repeat gives a value without an interval.
Arithmetic of positive quantities with intervals, in logarithms.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
from scipy.special import stdtrit

Floats = npt.NDArray[np.float64]

LEVEL = 0.90
REPLICATES = 1_000
MOST_LOG = 700.0
"""exp() of more overflows; an interval that reaches this far means that nothing is known."""
LEAST_FOR_CHANGE = 12
"""Fewer steps are too few to detect a change of pace."""
CHANGE_GAIN = 6.0
"""Times log(n): steps are correlated, so more than the usual penalty of a change point."""
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


@dataclass(frozen=True)
class Sampled:
    """A positive quantity measured in repeats. Everything is in logarithms, so that ratios are differences."""

    log_value: float
    of_repeats: dict[int, float]
    """Log value by repeat number. A ratio pairs them, so that what both saw (drift of the machine) cancels."""
    error: float
    """Standard error of `log_value`, from the spread of the repeats. 0 for one repeat."""
    freedom: float
    within: Floats
    """Bootstrap replicates of `log_value` from the steps inside the repeats."""

    @property
    def value(self) -> float:
        return math.exp(self.log_value)

    def interval(self) -> Interval:
        """Student's t over repeats, because few repeats show little of their spread; at least as wide as the interval
        from the steps."""
        low, high = np.quantile(self.within, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
        reach = float(stdtrit(self.freedom, (1 + LEVEL) / 2)) * self.error if self.freedom else 0.0
        bounds = (min(low, self.log_value - reach), max(high, self.log_value + reach))
        return Interval(self.value, math.exp(min(bounds[0], MOST_LOG)), math.exp(min(bounds[1], MOST_LOG)))

    def over(self, other: Sampled, *, repeated_alone: bool = False) -> Sampled:
        """The ratio self / other.

        Repeats with the same number ran side by side, so they are paired, and those whose partner failed are left out.
        `repeated_alone`: one of the two may have extra repeats without a partner; if so, all repeats count and none are
        paired.
        """
        within = self.within - other.within
        common = self.of_repeats.keys() & other.of_repeats.keys()
        some_alone = self.of_repeats.keys() != other.of_repeats.keys()
        if len(common) > 1 and not (repeated_alone and some_alone):
            of_repeats = {key: self.of_repeats[key] - other.of_repeats[key] for key in sorted(common)}
            logs = np.array(list(of_repeats.values()))
            shift = float(logs.mean()) - (self.log_value - other.log_value)  # from the repeats that have no partner
            return Sampled(float(logs.mean()), of_repeats, *_standard_error(logs), within + shift)
        log_value = self.log_value - other.log_value
        return Sampled(log_value, {}, *_joint_error(self, other), within)

    def times(self, factor: float) -> Sampled:
        shift = math.log(factor)
        moved = {key: value + shift for key, value in self.of_repeats.items()}
        return replace(self, log_value=self.log_value + shift, of_repeats=moved, within=self.within + shift)

    def inverse(self) -> Sampled:
        turned = {key: -value for key, value in self.of_repeats.items()}
        return replace(self, log_value=-self.log_value, of_repeats=turned, within=-self.within)


def median_step(repeats: Mapping[int, Floats], seed: int = 0) -> Sampled:
    """Geometric mean over repeats of the median over steps."""
    logs = np.log([float(np.median(steps)) for steps in repeats.values()])
    rng = np.random.default_rng([seed, *(len(steps) for steps in repeats.values())])
    within = np.stack([np.log(bootstrap_medians(steps, rng)) for steps in repeats.values()]).mean(axis=0)
    of_repeats = dict(zip(repeats, logs.tolist(), strict=True))
    return Sampled(float(logs.mean()), of_repeats, *_standard_error(logs), within)


def _joint_error(first: Sampled, other: Sampled) -> tuple[float, float]:
    """Standard error of the difference, and its degrees of freedom by Welch and Satterthwaite: mostly those of the
    noisier side.

    A single repeat has no measure of its own noise, and is assumed to be as noisy as one repeat of the other side.
    """
    if not (first.freedom and other.freedom):
        known = max(first, other, key=lambda sampled: sampled.freedom)
        return known.error * math.sqrt(1 + len(known.of_repeats)), known.freedom
    parts = first.error**4 / first.freedom + other.error**4 / other.freedom
    joint = math.hypot(first.error, other.error)
    return joint, joint**4 / parts if parts else min(first.freedom, other.freedom)


def _standard_error(of_repeats: Floats) -> tuple[float, float]:
    """s / sqrt(n), and its degrees of freedom."""
    n = len(of_repeats)
    return (float(of_repeats.std(ddof=1)) / math.sqrt(n), float(n - 1)) if n > 1 else (0.0, 0.0)


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


def student(value: float, error: float, freedom: int, least: float = 0.0) -> Estimate:
    """value +- t(freedom) * error, or +- `least` if that is more."""
    reach = max(float(stdtrit(freedom, (1 + LEVEL) / 2)) * error, least)
    return Estimate(value=value, low=value - reach, high=value + reach)


def from_logs(logged: Estimate) -> Estimate:
    low, high = (None if end is None else math.exp(min(end, MOST_LOG)) for end in (logged.low, logged.high))
    return Estimate(value=math.exp(logged.value), low=low, high=high)


def mean_interval(values: Sequence[float]) -> Estimate:
    """mean +- t(n - 1) * s / sqrt(n)."""
    n, mean = len(values), float(np.mean(values))
    if n == 1:
        return Estimate(value=mean, low=None, high=None)
    return student(mean, float(np.std(values, ddof=1)) / math.sqrt(n), n - 1)


def log_interval(values: Sequence[float]) -> Estimate:
    """Geometric mean with its interval, for positive quantities that vary by factors."""
    return from_logs(mean_interval([math.log(value) for value in values]))


NARROWER = 0.78
"""Width of an 80 % interval over a 90 % one, in logarithms: study rows use 90 %, projections 80 %."""


def narrower(interval: Interval) -> Interval:
    """A 90 % interval as an 80 % interval."""
    down, up = interval.value / interval.low, interval.high / interval.value
    return Interval(interval.value, interval.value / down**NARROWER, interval.value * up**NARROWER)


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
