"""Estimates and their intervals.

Medians of correlated steps over repeats, with intervals: bootstrap inside a repeat, Student's t between them.
Means over repeats with Student's t, and what one repeat says: a value without an interval.
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
"""exp() of more overflows; an interval that reaches there says that nothing is known."""
LEAST_FOR_CHANGE = 12
"""Fewer steps show no change of pace."""
CHANGE_GAIN = 6.0
"""Times log(n): steps are correlated, so more than the usual penalty of a change point."""
MOST_STEPS = 2_000
"""A longer series is thinned: its median is known far better than its repeats agree."""


@dataclass(frozen=True)
class Interval:
    value: float
    low: float
    high: float

    @property
    def relative_width(self) -> float:
        return (self.high - self.low) / self.value


def block_length(steps: int) -> int:
    """Steps are correlated, so whole blocks are drawn; n^(1/3) is the usual length."""
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
    """The change point behind which a series is itself: 0 where its beginning is like the rest.

    One split of log(t) into a slower beginning and the rest, gain = n1 n2 / n * (difference of means)^2 / variance,
    taken where it is more than chance would find among all places. Hiccups are cut to 5 deviations first; the variance
    is of neighbours' differences, which the change itself does not enter. Looked for in the first half only.
    """
    n = len(step_s)
    if n < LEAST_FOR_CHANGE:
        return 0
    logs = np.log(step_s)
    middle, scale = np.median(logs), _deviation(logs)
    logs = np.clip(logs, middle - 5 * scale, middle + 5 * scale)
    variance = max(float(np.mean(np.diff(logs) ** 2)) / 2, 1e-12)
    places = np.arange(1, n // 2 + 1)
    sums = np.cumsum(logs)
    before, after = sums[places - 1] / places, (sums[-1] - sums[places - 1]) / (n - places)
    gain = np.where(before > after, places * (n - places) / n * (before - after) ** 2 / variance, 0.0)
    best = int(np.argmax(gain))
    return int(places[best]) if gain[best] > CHANGE_GAIN * math.log(n) else 0


def outliers(step_s: Floats) -> npt.NDArray[np.bool_]:
    """Steps further from the median than 5 deviations, in logarithms: kept, and marked."""
    if len(step_s) < LEAST_FOR_CHANGE:
        return np.zeros(len(step_s), dtype=bool)
    logs = np.log(step_s)
    return np.asarray(np.abs(logs - np.median(logs)) > 5 * _deviation(logs))


def _deviation(values: Floats) -> float:
    """1.4826 * median |x - median|: what the standard deviation is of normal values, blind to outliers."""
    return max(1.4826 * float(np.median(np.abs(values - np.median(values)))), 1e-9)


@dataclass(frozen=True)
class Sampled:
    """A positive quantity measured in repeats. All in logarithms, so that ratios are differences."""

    log_value: float
    of_repeats: dict[int, float]
    """By the number of the repeat; a ratio pairs them, so that what both saw (drift of the machine) cancels."""
    error: float
    """Standard error of `log_value`, from how the repeats differ. 0 for one repeat."""
    freedom: float
    within: Floats
    """Bootstrap replicates of `log_value` from the steps inside the repeats."""

    @property
    def value(self) -> float:
        return math.exp(self.log_value)

    def interval(self) -> Interval:
        """Student's t over repeats (few repeats know little of their own spread), never narrower than the steps say."""
        low, high = np.quantile(self.within, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
        reach = float(stdtrit(self.freedom, (1 + LEVEL) / 2)) * self.error if self.freedom else 0.0
        bounds = (min(low, self.log_value - reach), max(high, self.log_value + reach))
        return Interval(self.value, math.exp(min(bounds[0], MOST_LOG)), math.exp(min(bounds[1], MOST_LOG)))

    def over(self, other: Sampled, *, repeated_alone: bool = False) -> Sampled:
        """The ratio. Repeats of one number were run side by side: they are paired, and those whose partner failed are
        left out. `repeated_alone`: one of the two may have been repeated on without the other; where it was, all count
        and none is paired."""
        within = self.within - other.within
        common = self.of_repeats.keys() & other.of_repeats.keys()
        some_alone = self.of_repeats.keys() != other.of_repeats.keys()
        if len(common) > 1 and not (repeated_alone and some_alone):
            of_repeats = {key: self.of_repeats[key] - other.of_repeats[key] for key in sorted(common)}
            logs = np.array(list(of_repeats.values()))
            shift = float(logs.mean()) - (self.log_value - other.log_value)  # of the repeats that have no partner
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


def _joint_error(one: Sampled, other: Sampled) -> tuple[float, float]:
    """Of their difference, with its degrees of freedom by Welch and Satterthwaite: those of the noisier one mostly.

    A single repeat knows no noise of its own, and is taken to be as noisy as each of the other's.
    """
    if not (one.freedom and other.freedom):
        known = max(one, other, key=lambda each: each.freedom)
        return known.error * math.sqrt(1 + len(known.of_repeats)), known.freedom
    parts = one.error**4 / one.freedom + other.error**4 / other.freedom
    joint = math.hypot(one.error, other.error)
    return joint, joint**4 / parts if parts else min(one.freedom, other.freedom)


def _standard_error(of_repeats: Floats) -> tuple[float, float]:
    """s / sqrt(n), and its degrees of freedom."""
    n = len(of_repeats)
    return (float(of_repeats.std(ddof=1)) / math.sqrt(n), float(n - 1)) if n > 1 else (0.0, 0.0)


@dataclass(frozen=True, kw_only=True)
class Estimate:
    value: float
    low: float | None
    high: float | None
    """None, both: a single repeat says nothing about how repeats differ."""

    def within(self, least: float, most: float) -> Estimate:
        """No end lies where no value can."""
        low, high = (None if end is None else min(max(end, least), most) for end in (self.low, self.high))
        return Estimate(value=self.value, low=low, high=high)


def student(value: float, error: float, freedom: int, least: float = 0.0) -> Estimate:
    """value +- t(freedom) * error, or +- `least` where that is more."""
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
    """The same of logarithms, for positive quantities that vary by factors: a geometric mean."""
    return from_logs(mean_interval([math.log(value) for value in values]))


NARROWER = 0.78
"""An 80 % interval over a 90 % one, in logarithms: rows of a study carry the wider, projections the narrower."""


def narrower(interval: Interval) -> Interval:
    """90 % -> 80 %."""
    down, up = interval.value / interval.low, interval.high / interval.value
    return Interval(interval.value, interval.value / down**NARROWER, interval.value * up**NARROWER)


def over(factor: float, interval: Interval) -> Interval:
    return Interval(factor / interval.value, factor / interval.high, factor / interval.low)


def times(interval: Interval, factor: float) -> Interval:
    return Interval(interval.value * factor, interval.low * factor, interval.high * factor)


def plus(one: Interval, other: Interval) -> Interval:
    """Errors that know nothing of each other add up as squares."""
    value = one.value + other.value
    down = math.hypot(one.value - one.low, other.value - other.low)
    up = math.hypot(one.high - one.value, other.high - other.value)
    return Interval(value, value - down, value + up)


def product(one: Interval, other: Interval) -> Interval:
    """Errors that know nothing of each other add up as squares, in logarithms."""
    value = one.value * other.value
    down = math.hypot(math.log(one.value / one.low), math.log(other.value / other.low))
    up = math.hypot(math.log(one.high / one.value), math.log(other.high / other.value))
    return Interval(value, value * math.exp(-down), value * math.exp(up))
