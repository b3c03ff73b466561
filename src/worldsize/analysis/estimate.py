"""Estimates and their intervals; fits with coefficients that are not negative.

An `Estimate` is a value with its interval; a `Sample`, a mean over repeats with its error, gives one.
Medians of correlated steps over repeats: bootstrap inside a repeat, Student's t between them.
A single repeat gives a value without an interval, because it does not show how repeats differ.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt
from scipy.optimize import lsq_linear, nnls
from scipy.special import ndtri, stdtrit

Floats = npt.NDArray[np.float64]

LEVEL = 0.90
"""Of intervals of what was measured."""
PROJECTED_LEVEL = 0.80
"""Of intervals of what was not measured."""
REPLICATES = 1_000
MOST_LOG = 700.0
"""exp() of more overflows; an interval that reaches this far means that nothing is known."""
LEAST_FOR_CHANGE = 12
"""Fewer steps are too few to detect a change of pace."""
CHANGE_GAIN = 6.0
"""Times log(n): steps are correlated, so more than the usual penalty of a change point."""
ROUNDING = 1e-12
"""A term of a fit with less than this share of the values is what rounding left, and is 0."""
MOST_REPEATS = 1_000
MOST_STEPS = 2_000
"""A longer series is thinned: its median is already known far better than its repeats agree."""


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """A value and the interval that it lies in."""

    value: float
    low: float | None = None
    high: float | None = None
    """Both are None if there is no interval: a single run, or exact by definition (the baseline of a speedup)."""
    level: float = LEVEL
    """Share of such intervals that contain the true value."""
    n: int = 0
    """Runs behind it; 0 if it does not come from runs."""

    @property
    def has_interval(self) -> bool:
        return self.low is not None

    @property
    def is_single_run(self) -> bool:
        return self.n == 1 and not self.has_interval

    @property
    def ends(self) -> tuple[float, float]:
        """The ends of the interval; without one, the value is both."""
        return (self.value, self.value) if self.low is None or self.high is None else (self.low, self.high)

    @property
    def relative_width(self) -> float:
        """(high - low) / value; 0 without an interval."""
        low, high = self.ends
        return (high - low) / self.value

    def with_ends(self, low: float, high: float) -> Estimate:
        return replace(self, low=low, high=high)

    def map(self, function: Callable[[float], float]) -> Estimate:
        """The same for a quantity that rises or falls with this one."""
        value = function(self.value)
        if not self.has_interval:
            return replace(self, value=value)
        low, high = sorted(map(function, self.ends))
        return replace(self, value=value, low=low, high=high)

    def scaled(self, factor: float) -> Estimate:
        return self.map(lambda value: value * factor)

    def into(self, amount: float) -> Estimate:
        """amount / value, such as the time that an amount takes at this rate."""
        return self.map(lambda value: amount / value if value else math.inf)

    def clipped(self, least: float, most: float) -> Estimate:
        """The same with its interval inside the possible values."""
        if not self.has_interval:
            return self
        low, high = (min(max(end, least), most) for end in self.ends)
        return replace(self, low=low, high=high)

    def plus(self, other: Estimate) -> Estimate:
        """The sum; independent errors add in quadrature. None of a single run is known, so the sum has no interval."""
        value, parts = self.value + other.value, (self, other)
        known = [part for part in parts if part.has_interval]
        if not known or any(part.is_single_run for part in parts):
            return Estimate(value=value, level=self.level, n=max(self.n, other.n) and 1)
        down, up = (math.hypot(*(part.ends[end] - part.value for part in known)) for end in (0, 1))
        return replace(known[0], value=value, low=value - down, high=value + up)

    def times(self, other: Estimate) -> Estimate:
        """The product of positive quantities: the sum of their logarithms."""
        return from_logs(self.map(math.log).plus(other.map(math.log)))


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

    @property
    def squares(self) -> float:
        """Sum of the squared distances of the repeats from their mean."""
        return self.freedom * len(self.repeats) * self.error**2

    def steadied(self, variance: float) -> Sample:
        """The same, its noise pooled with that of one more run: s^2 = (f s^2 + variance) / (f + 1), f = n - 1.

        `variance` is what other settings show about single runs. A few repeats may agree by chance, and two or three
        hardly show their own spread; with the weight of a single run, settings may still differ in their noise.
        """
        n = len(self.repeats)
        if not n or not self.freedom:
            return self
        freedom = self.freedom + 1
        error = math.sqrt((self.squares + variance) / freedom / n)
        return replace(self, error=error, freedom=freedom)

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
        n = len(self.repeats) or (round(self.freedom) + 1 if self.freedom else 0)
        estimate = Estimate(value=self.value, level=level, n=n)
        reach = self.reach(level)
        return estimate.with_ends(self.value - reach, self.value + reach) if self.freedom else estimate

    def exp(self, level: float = LEVEL) -> Estimate:
        """The quantity itself, of a sample in logarithms."""
        return from_logs(self.estimate(level))


def median_step(repeats: Mapping[int, Floats], seed: int = 0) -> Sample:
    """Mean over repeats of the log of the median over steps: exp of it is their geometric mean."""
    rng = np.random.default_rng(seed)
    spreads = [float(np.log(bootstrap_medians(steps, rng)).std()) for steps in repeats.values()]
    medians = {repeat: math.log(float(np.median(steps))) for repeat, steps in repeats.items()}
    return Sample.of(medians, floor=math.hypot(*spreads) / len(spreads))


def from_logs(logged: Estimate) -> Estimate:
    return logged.map(lambda log: math.exp(min(log, MOST_LOG)))


def mean_interval(values: Sequence[float]) -> Estimate:
    """mean +- t(n - 1) * s / sqrt(n)."""
    return Sample.of(dict(enumerate(values))).estimate()


def log_interval(values: Sequence[float]) -> Estimate:
    """Geometric mean with its interval, for positive quantities that vary by factors."""
    return from_logs(mean_interval([math.log(value) for value in values]))


@dataclass(frozen=True, kw_only=True)
class Fit:
    coefficients: Floats
    converged: bool
    """False: the exact solver gave up; the coefficients are those of an iterative one."""


def fit_nonnegative(
    terms: Floats, values: Floats, *, weights: Floats, pull: Floats | None = None, towards: Floats | None = None
) -> Fit:
    """The c >= 0 with the least sum (weights (terms c - values))^2 + sum (pull (c - towards))^2.

    Columns are scaled to length 1, because one may be thousands of times another. A column of zeros gets a 0.
    """
    rows, targets = terms * weights[:, None], values * weights
    if pull is not None:
        rows = np.vstack([rows, np.diag(pull)])
        targets = np.concatenate([targets, np.zeros_like(pull) if towards is None else pull * towards])
    lengths = np.linalg.norm(rows, axis=0)
    lengths[lengths == 0] = np.inf
    converged = True
    try:
        scaled, _ = nnls(rows / lengths, targets)
    except RuntimeError:  # scipy's word for too many iterations
        scaled, converged = lsq_linear(rows / lengths, targets, (0.0, np.inf)).x, False
    scaled[scaled < ROUNDING * np.linalg.norm(targets)] = 0.0
    return Fit(coefficients=scaled / lengths, converged=converged)
