"""Estimates, their intervals, and non-negative least squares.

An `Estimate` is a value with an interval. A `Sample` is a mean over repeats with its standard error, and yields an
`Estimate`. Blocks of steps are correlated: the error of their mean comes from a block bootstrap within a repeat, and
from Student's t between repeats. A single repeat has no interval, because it does not show how repeats differ.
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
"""Confidence level of intervals of measured values."""
PROJECTED_LEVEL = 0.80
"""Confidence level of intervals of projected values."""
REPLICATES = 1_000
"""Bootstrap resamples."""
MAX_LOG = 700.0
"""exp() of a larger value overflows. An interval that reaches this far means that nothing is known."""
MIN_STEPS_FOR_CHANGE = 12
"""Fewest steps in which a change of pace can be detected."""
CHANGE_GAIN = 6.0
"""Penalty of a change point, in units of log(n). Higher than usual, because steps are correlated."""
ROUNDING = 1e-12
"""A fitted term below this share of the values is a rounding error and is set to 0."""
MAX_REPEATS = 1_000
MAX_STEPS = 2_000
"""A longer series is thinned: the error of its median is already far below the spread of the repeats."""


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """A value and its confidence interval."""

    value: float
    low: float | None = None
    high: float | None = None
    """`low` and `high` are None if there is no interval: a single run, or a value that is exact by definition (the
    baseline of a speedup)."""
    level: float = LEVEL
    """Share of such intervals that contain the true value."""
    n: int = 0
    """Number of runs that the value comes from; 0 if it does not come from runs."""

    @property
    def has_interval(self) -> bool:
        return self.low is not None

    @property
    def is_single_run(self) -> bool:
        return self.n == 1 and not self.has_interval

    @property
    def ends(self) -> tuple[float, float]:
        """The ends of the interval; without an interval, the value twice."""
        return (self.value, self.value) if self.low is None or self.high is None else (self.low, self.high)

    @property
    def relative_width(self) -> float:
        """(high - low) / value; 0 without an interval."""
        low, high = self.ends
        return (high - low) / self.value

    def with_ends(self, low: float, high: float) -> Estimate:
        return replace(self, low=low, high=high)

    def map(self, function: Callable[[float], float]) -> Estimate:
        """Apply a monotone function to the value and to both ends of the interval."""
        value = function(self.value)
        if not self.has_interval:
            return replace(self, value=value)
        low, high = sorted(map(function, self.ends))
        return replace(self, value=value, low=low, high=high)

    def scaled(self, factor: float) -> Estimate:
        return self.map(lambda value: value * factor)

    def time_for(self, amount: float) -> Estimate:
        """Return amount / value: the time to process an amount at this rate."""
        return self.map(lambda value: amount / value if value else math.inf)

    def clipped(self, lowest: float, highest: float) -> Estimate:
        """Clip the interval to the range of possible values."""
        if not self.has_interval:
            return self
        low, high = (min(max(end, lowest), highest) for end in self.ends)
        return replace(self, low=low, high=high)

    def plus(self, other: Estimate) -> Estimate:
        """Return the sum; independent errors add in quadrature. The error of a single run is unknown, so a sum with a
        single run has no interval."""
        value, terms = self.value + other.value, (self, other)
        with_interval = [term for term in terms if term.has_interval]
        if not with_interval or any(term.is_single_run for term in terms):
            return Estimate(value=value, level=self.level, n=max(self.n, other.n) and 1)
        down, up = (math.hypot(*(term.ends[end] - term.value for term in with_interval)) for end in (0, 1))
        return replace(with_interval[0], value=value, low=value - down, high=value + up)

    def times(self, other: Estimate) -> Estimate:
        """Return the product of two positive quantities, computed as the sum of their logarithms."""
        return from_logs(self.map(math.log).plus(other.map(math.log)))


def block_length(steps: int) -> int:
    """Return n^(1/3), the usual block length. The bootstrap draws whole blocks, because steps are correlated."""
    return max(1, int(steps ** (1 / 3) + 0.5))


def bootstrap(series: Floats, rng: np.random.Generator, statistic: Callable[..., Floats] = np.median) -> Floats:
    """Return a statistic of each circular block bootstrap resample of one series."""
    series = series[:: -(-len(series) // MAX_STEPS)]
    length = block_length(len(series))
    blocks = -(-len(series) // length)
    starts = rng.integers(0, len(series), (REPLICATES, blocks, 1))
    indices = (starts + np.arange(length)) % len(series)
    return np.asarray(statistic(series[indices.reshape(REPLICATES, -1)[:, : len(series)]], axis=1))


def warmup_end(step_s: Floats) -> int:
    """Return the index of the first step after warm-up; 0 if the beginning does not differ from the rest.

    log(t) is split once, into a slower beginning and the rest, at the step where gain = n1 n2 / n * (difference of
    means)^2 / variance is largest. The split is accepted if the gain is larger than chance alone would produce.
    Outliers are first clipped to 5 deviations. The variance is estimated from differences of neighboring steps, which
    the change point does not affect. Only the first half is searched.
    """
    n = len(step_s)
    if n < MIN_STEPS_FOR_CHANGE:
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
    """Return a mask of the steps more than 5 deviations from the median, in logarithms. Outliers are not removed."""
    if len(step_s) < MIN_STEPS_FOR_CHANGE:
        return np.zeros(len(step_s), dtype=bool)
    logs = np.log(step_s)
    return np.asarray(np.abs(logs - np.median(logs)) > 5 * _deviation(logs))


def _deviation(values: Floats) -> float:
    """Return 1.4826 * median |x - median|, a robust estimate of the standard deviation of normal values."""
    return max(1.4826 * float(np.median(np.abs(values - np.median(values)))), 1e-9)


@dataclass(frozen=True, kw_only=True)
class Sample:
    """A mean over repeats with its standard error. Quantities that are compared by their ratio are sampled in
    logarithms, so that ratios become differences."""

    value: float
    error: float = 0.0
    """Standard error, from the spread of the repeats. 0 for a single repeat."""
    freedom: float = 0.0
    """Degrees of freedom of `error`. 0 for a single repeat, whose spread is unknown."""
    floor: float = 0.0
    """Standard error from within the repeats (their steps, the rounding of their values). A lower bound of the total
    error, since repeats can agree by chance."""
    repeats: Mapping[int, float] = field(default_factory=dict)
    """Value by repeat number. A difference pairs equal numbers, so that common effects (drift, the seed) cancel."""

    @classmethod
    def of(cls, repeats: Mapping[int, float], floor: float = 0.0) -> Sample:
        """Return the mean, with error s / sqrt(n) and n - 1 degrees of freedom."""
        values = np.array(list(repeats.values()))
        n = len(values)
        error = float(values.std(ddof=1)) / math.sqrt(n) if n > 1 else 0.0
        return cls(value=float(values.mean()), error=error, freedom=n - 1.0, floor=floor, repeats=repeats)

    def minus(self, other: Sample) -> Sample:
        """Return the difference. Repeats with the same number ran side by side, so they are paired; a repeat without a
        partner is left out. With fewer than two pairs, the two means are compared."""
        floor = math.hypot(self.floor, other.floor)
        common = sorted(self.repeats.keys() & other.repeats.keys())
        if len(common) > 1:
            return Sample.of({key: self.repeats[key] - other.repeats[key] for key in common}, floor)
        return self.minus_unpaired(other)

    def minus_unpaired(self, other: Sample) -> Sample:
        """Return the difference of two independent samples: error^2 = e1^2 + e2^2, with Welch-Satterthwaite degrees of
        freedom, error^4 / (e1^4/f1 + e2^4/f2), which the noisier sample dominates.

        A single repeat does not show its noise and is assumed to be as noisy as one repeat of the other sample.
        """
        value, floor = self.value - other.value, math.hypot(self.floor, other.floor)
        if not (self.freedom and other.freedom):
            repeated = max(self, other, key=lambda sample: sample.freedom)
            error = repeated.error * math.sqrt(repeated.freedom + 2)
            return Sample(value=value, error=error, freedom=repeated.freedom, floor=floor)
        error = math.hypot(self.error, other.error)
        denominator = self.error**4 / self.freedom + other.error**4 / other.freedom
        freedom = error**4 / denominator if denominator else min(self.freedom, other.freedom)
        return Sample(value=value, error=error, freedom=freedom, floor=floor)

    def plus(self, shift: float) -> Sample:
        return replace(
            self, value=self.value + shift, repeats={key: value + shift for key, value in self.repeats.items()}
        )

    def negated(self) -> Sample:
        return replace(self, value=-self.value, repeats={key: -value for key, value in self.repeats.items()})

    @property
    def squares(self) -> float:
        """Sum of squared deviations of the repeats from their mean."""
        return self.freedom * len(self.repeats) * self.error**2

    def with_prior(self, variance: float) -> Sample:
        """Pool the variance with a prior that counts as one more run: s^2 = (f s^2 + variance) / (f + 1), f = n - 1.

        `variance` is the variance of a single run, estimated from other settings. Two or three repeats hardly show
        their own spread and can agree by chance. The prior has the weight of only one run, so noise can still differ
        between settings.
        """
        n = len(self.repeats)
        if not n or not self.freedom:
            return self
        freedom = self.freedom + 1
        error = math.sqrt((self.squares + variance) / freedom / n)
        return replace(self, error=error, freedom=freedom)

    def half_width(self, level: float = LEVEL) -> float:
        """Return the half-width of the interval: from Student's t over repeats, because few repeats show little of
        their spread, and at least the half-width that `floor` implies."""
        share = (1 + level) / 2
        between = float(stdtrit(self.freedom, share)) * self.error if self.freedom else 0.0
        return max(between, float(ndtri(share)) * self.floor)

    def repeats_for(self, half_width: float) -> int:
        """Return the number of repeats at which the interval would be narrower than this; at most MAX_REPEATS."""
        noise = self.error * math.sqrt(self.freedom + 1)
        samples = (replace(self, error=noise / math.sqrt(n), freedom=n - 1.0, floor=0.0) for n in range(2, MAX_REPEATS))
        return next((n for n, sample in enumerate(samples, 2) if sample.half_width() < half_width), MAX_REPEATS)

    def estimate(self, level: float = LEVEL) -> Estimate:
        """Return value +- half-width; a single repeat has no interval."""
        n = len(self.repeats) or (round(self.freedom) + 1 if self.freedom else 0)
        estimate = Estimate(value=self.value, level=level, n=n)
        half_width = self.half_width(level)
        return estimate.with_ends(self.value - half_width, self.value + half_width) if self.freedom else estimate

    def exp(self, level: float = LEVEL) -> Estimate:
        """Return the estimate of the quantity whose logarithms were sampled."""
        return from_logs(self.estimate(level))


def mean_of_blocks(repeats: Mapping[int, Floats], seed: int = 0) -> Sample:
    """Return the mean over repeats of the mean over blocks of log(step time). Its exp is a geometric mean."""
    rng = np.random.default_rng(seed)
    logs = {repeat: np.log(blocks) for repeat, blocks in repeats.items()}
    spreads = [float(bootstrap(blocks, rng, np.mean).std()) for blocks in logs.values()]
    means = {repeat: float(blocks.mean()) for repeat, blocks in logs.items()}
    return Sample.of(means, floor=math.hypot(*spreads) / len(spreads))


def from_logs(logged: Estimate) -> Estimate:
    return logged.map(lambda log: math.exp(min(log, MAX_LOG)))


def mean_interval(values: Sequence[float]) -> Estimate:
    """Return mean +- t(n - 1) * s / sqrt(n)."""
    return Sample.of(dict(enumerate(values))).estimate()


def log_interval(values: Sequence[float]) -> Estimate:
    """Return the geometric mean with its interval, for positive quantities that vary by factors."""
    return from_logs(mean_interval([math.log(value) for value in values]))


@dataclass(frozen=True, kw_only=True)
class Fit:
    coefficients: Floats
    converged: bool
    """False if the exact solver gave up; the coefficients then come from an iterative solver."""


def fit_nonnegative(
    terms: Floats, values: Floats, *, weights: Floats, pull: Floats | None = None, towards: Floats | None = None
) -> Fit:
    """Minimize sum (weights (terms c - values))^2 + sum (pull (c - towards))^2 over c >= 0.

    Columns are scaled to length 1, because their sizes can differ by a factor of thousands. The coefficient of a column
    of zeros is 0.
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
    except RuntimeError:  # scipy raises this after too many iterations
        scaled, converged = lsq_linear(rows / lengths, targets, (0.0, np.inf)).x, False
    scaled[scaled < ROUNDING * np.linalg.norm(targets)] = 0.0
    return Fit(coefficients=scaled / lengths, converged=converged)
