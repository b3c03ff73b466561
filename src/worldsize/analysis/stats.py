"""Medians of correlated steps over repeats, with intervals, by bootstrap."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

LEVEL = 0.90
REPLICATES = 1_000
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
    """A quantity with its bootstrap replicates; ratios of two keep them paired."""

    value: float
    replicates: Floats

    def interval(self) -> Interval:
        low, high = np.quantile(self.replicates, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
        return Interval(self.value, float(min(low, self.value)), float(max(high, self.value)))

    def over(self, other: Sampled) -> Sampled:
        return Sampled(self.value / other.value, self.replicates / other.replicates)

    def times(self, factor: float) -> Sampled:
        return Sampled(self.value * factor, self.replicates * factor)


def median_step(repeats: Sequence[Floats], seed: int = 0) -> Sampled:
    """Geometric mean over repeats of the median over steps.

    Replicates draw repeats and, inside each, blocks of steps. Which repeats are drawn depends on their number alone: a
    ratio of two counts with the same repeats compares runs made side by side, so drift of the machine cancels.
    """
    medians = np.log([float(np.median(steps)) for steps in repeats])
    value, n = float(medians.mean()), len(repeats)
    rng = np.random.default_rng([seed, *(len(steps) for steps in repeats)])
    within = np.stack([np.log(bootstrap_medians(steps, rng)) for steps in repeats])
    drawn = np.random.default_rng([seed, n]).integers(0, n, (REPLICATES, n))
    means = within[drawn, np.arange(REPLICATES)[:, None]].mean(axis=1)
    # Few repeats spread less around their own mean than around the truth: n - 1 degrees of freedom, not n.
    if n > 1:
        means = value + (means - value) * np.sqrt(n / (n - 1))
    return Sampled(float(np.exp(value)), np.asarray(np.exp(means)))
