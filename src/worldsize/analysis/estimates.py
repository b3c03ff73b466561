"""Means over repeats with Student's t, and what one repeat says: a value without an interval."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.special import stdtrit

from worldsize.analysis.stats import LEVEL, MOST_LOG


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
