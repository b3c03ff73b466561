"""Medians of correlated steps over repeats, with intervals: bootstrap inside a repeat, Student's t between them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
from scipy.special import stdtrit

Floats = npt.NDArray[np.float64]

LEVEL = 0.90
REPLICATES = 1_000
MOST_LOG = 700.0
"""exp() of more overflows; an interval that reaches there says that nothing is known."""
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


@dataclass(frozen=True)
class Sampled:
    """A positive quantity measured in repeats. All in logarithms, so that ratios are differences."""

    log_value: float
    of_repeats: Floats
    """One a repeat; a ratio of two pairs them, so that what both saw (drift of the machine) cancels."""
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

    def over(self, other: Sampled) -> Sampled:
        """The ratio. Repeats are paired where both have as many: they were run side by side."""
        log_value, within = self.log_value - other.log_value, self.within - other.within
        if len(self.of_repeats) == len(other.of_repeats):
            of_repeats = self.of_repeats - other.of_repeats
            return Sampled(log_value, of_repeats, *_standard_error(of_repeats), within)
        variances = (self.error**2, other.error**2)
        error, freedom = math.sqrt(sum(variances)), min(self.freedom, other.freedom)
        return Sampled(log_value, np.array([log_value]), error, freedom, within)

    def times(self, factor: float) -> Sampled:
        shift = math.log(factor)
        return replace(
            self, log_value=self.log_value + shift, of_repeats=self.of_repeats + shift, within=self.within + shift
        )

    def inverse(self) -> Sampled:
        return replace(self, log_value=-self.log_value, of_repeats=-self.of_repeats, within=-self.within)


def median_step(repeats: Sequence[Floats], seed: int = 0) -> Sampled:
    """Geometric mean over repeats of the median over steps."""
    logs = np.log([float(np.median(steps)) for steps in repeats])
    rng = np.random.default_rng([seed, *(len(steps) for steps in repeats)])
    within = np.stack([np.log(bootstrap_medians(steps, rng)) for steps in repeats]).mean(axis=0)
    return Sampled(float(logs.mean()), logs, *_standard_error(logs), within)


def _standard_error(of_repeats: Floats) -> tuple[float, float]:
    """s / sqrt(n), and its degrees of freedom."""
    n = len(of_repeats)
    return (float(of_repeats.std(ddof=1)) / math.sqrt(n), float(n - 1)) if n > 1 else (0.0, 0.0)
