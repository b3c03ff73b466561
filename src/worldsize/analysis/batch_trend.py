"""A quantity against batch: v(B) = v_0 + d * log2(B / B_0), d what each doubling brings.

For epochs until stable and for the metric after equal epochs, under the rate rule that was used. Batches are weighted
by their errors; where they lie further from the line than these say, all errors are widened by sqrt(chi^2 / (k - 2)).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from scipy.special import stdtrit

from worldsize.analysis.batch_model import PREDICTED_LEVEL
from worldsize.analysis.stats import Interval

MOST_DOUBLINGS = 2.0
"""Beyond the batches that were trained: a straight line is a guess that wears off."""

Unknown = Literal["too-far", "failed-there"]


@dataclass(frozen=True, kw_only=True)
class TrendPoint:
    global_batch: int
    value: float
    error: float | None
    """Standard error. None: a single run, of which nobody knows how it would differ from another."""


@dataclass(frozen=True, kw_only=True)
class TrendPrediction:
    global_batch: int
    value: Interval | None
    """80 %. None: not known."""
    unknown: Unknown | None = None
    """Why."""


@dataclass(frozen=True, kw_only=True)
class Trend:
    points: tuple[TrendPoint, ...]
    """In the order of their batches."""
    per_doubling: Interval
    """80 %, by Student's t."""
    fails_from: int | None
    """From this batch on it was trained, and the quantity does not exist: diverged, or never stable."""
    least: float
    most: float
    middle: float
    """Weighted mean of log2 B, where the line is known best."""
    at_middle: float
    variance_at_middle: float
    variance_of_slope: float
    scatter: float
    """Of what is measured at one batch about the line."""
    freedom: float

    def predict(self, global_batch: int) -> TrendPrediction:
        """What the same measurement would find at this batch."""
        sizes = [point.global_batch for point in self.points]
        if self.fails_from is not None and global_batch >= self.fails_from:
            return TrendPrediction(global_batch=global_batch, value=None, unknown="failed-there")
        if max(math.log2(global_batch / sizes[-1]), math.log2(sizes[0] / global_batch)) > MOST_DOUBLINGS:
            return TrendPrediction(global_batch=global_batch, value=None, unknown="too-far")
        away = math.log2(global_batch) - self.middle
        error = math.sqrt(self.variance_at_middle + self.variance_of_slope * away**2 + self.scatter**2)
        value = self.at_middle + self.per_doubling.value * away
        reach = _reach(self.freedom) * error
        ends = (min(max(end, self.least), self.most) for end in (value, value - reach, value + reach))
        return TrendPrediction(global_batch=global_batch, value=Interval(*ends))


def fit_trend(
    points: Sequence[TrendPoint],
    *,
    freedom: float,
    fails_from: int | None = None,
    least: float = -math.inf,
    most: float = math.inf,
) -> Trend | None:
    """d = sum w (x - x_mean) v / sum w (x - x_mean)^2, x = log2 B, w = 1 / error^2.

    `freedom`: degrees of freedom behind the errors. None: one batch, or two without errors: any line fits these.
    """
    points = sorted(points, key=lambda point: point.global_batch)
    known = [point.error for point in points if point.error is not None]
    all_known = len(known) == len(points)
    errors = np.array(known) if all_known else np.ones(len(points))
    freedom = freedom if all_known else 0.0
    over = len(points) - 2
    if len({point.global_batch for point in points}) < 2 or freedom + over < 1:
        return None
    sizes, values = np.log2([point.global_batch for point in points]), np.array([point.value for point in points])
    weights = 1 / np.square(np.maximum(errors, 1e-12))
    middle, at_middle = float(np.average(sizes, weights=weights)), float(np.average(values, weights=weights))
    total = float((weights * np.square(sizes - middle)).sum())
    slope = float((weights * (sizes - middle) * values).sum()) / total
    left = values - at_middle - slope * (sizes - middle)
    chi = float((weights * np.square(left)).sum())
    # Where no error is known, what the line leaves is all that tells; else it can only add to them.
    widen = max(chi / over if over else 1.0, 1.0 if all_known else 0.0)
    reach = _reach(freedom + over) * math.sqrt(widen / total)
    return Trend(
        points=tuple(points),
        per_doubling=Interval(slope, slope - reach, slope + reach),
        fails_from=fails_from,
        least=least,
        most=most,
        middle=middle,
        at_middle=at_middle,
        variance_at_middle=widen / float(weights.sum()),
        variance_of_slope=widen / total,
        scatter=math.sqrt(widen * float(np.mean(np.square(errors)))),
        freedom=freedom + over,
    )


def _reach(freedom: float) -> float:
    return float(stdtrit(freedom, (1 + PREDICTED_LEVEL) / 2))
