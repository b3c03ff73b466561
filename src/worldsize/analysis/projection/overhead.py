"""Models the time of a training run outside its steps: start, preparation, evaluations, gaps, saving, end.

wall = start + preparation + steps * step + evaluations * (evaluation + gap) + saving + end
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt
from scipy.special import stdtrit

from worldsize.analysis.estimate import PROJECTED_LEVEL, Estimate, Floats, fit_nonnegative

USUAL_SPREAD, USUAL_RUNS = 0.1, 2.0
"""Usual relative spread of the runs of one count, and the number of runs that this prior counts for. A few trained runs
show little of their own spread, and three runs at three counts show none of it."""
PER_DOUBLING = 0.15
"""Spread added by each doubling away from the trained counts."""
PULL = 0.3
"""How strongly each part is shrunk toward being independent of the worker count."""


@dataclass(frozen=True, kw_only=True)
class Overhead:
    """Seconds that one training trial spends outside steps."""

    workers: int
    workers_on_node: int
    start_s: float
    """Start of the processes until the first trial, and their end."""
    preparation_s: float
    """Loading data, building the model, and warm-up steps."""
    evaluation_s: float
    """One evaluation and the gap until training continues."""
    saving_s: float


@dataclass(frozen=True, kw_only=True)
class OverheadModel:
    """Each part as a + b/n + c m: the n workers share evaluations, and the m workers of one node start side by side."""

    coefficients: dict[str, tuple[float, float, float]]
    counts: tuple[int, ...]
    """Worker counts that were trained."""
    spread: float
    """Standard deviation of log(measured / model) for the total of one run, pooled with the usual spread."""
    freedom: float
    """Degrees of freedom of `spread`."""
    covariance: Floats = field(repr=False, compare=False)
    """Covariance of the coefficients, in units of spread^2: the uncertainty of the model itself."""

    def at(self, workers: int, workers_on_node: int, evaluations: float) -> Estimate:
        """Return the seconds outside steps of a run with this number of evaluations, with an 80 % interval."""
        terms = _terms(workers, workers_on_node)
        seconds = {name: float(terms @ np.array(values)) for name, values in self.coefficients.items()}
        value = (
            seconds["start_s"] + seconds["preparation_s"] + evaluations * seconds["evaluation_s"] + seconds["saving_s"]
        )
        doublings = min(abs(math.log2(workers / count)) for count in self.counts)
        model_variance = float(terms @ self.covariance @ terms)
        error = math.hypot(self.spread * math.sqrt(1 + model_variance), PER_DOUBLING * doublings)
        factor = math.exp(float(stdtrit(self.freedom, (1 + PROJECTED_LEVEL) / 2)) * error)
        return Estimate(value=value, low=value / factor, high=value * factor, level=PROJECTED_LEVEL)


def fit_overhead(trials: Sequence[Overhead]) -> OverheadModel | None:
    """Fit the model. Return None if nothing was trained, so that the overhead is unknown."""
    if not trials:
        return None
    rows = np.stack([_terms(trial.workers, trial.workers_on_node) for trial in trials])
    coefficients = {}
    for name in ("start_s", "preparation_s", "evaluation_s", "saving_s"):
        values = np.array([getattr(trial, name) for trial in trials])
        coefficients[name] = _fit(rows, values)
    used = np.asarray(np.array(list(coefficients.values())).any(axis=0), dtype=np.bool_)
    covariance = _covariance(rows, used)
    freedom = USUAL_RUNS + len(trials) - float(np.trace(rows @ covariance @ rows.T))
    model = OverheadModel(
        coefficients=coefficients,
        counts=tuple(sorted({trial.workers for trial in trials})),
        spread=USUAL_SPREAD,
        freedom=freedom,
        covariance=covariance,
    )
    logs = [
        math.log(max(_sum(trial), 1e-9) / max(model.at(trial.workers, trial.workers_on_node, 1).value, 1e-9))
        for trial in trials
    ]
    squares = USUAL_RUNS * USUAL_SPREAD**2 + float(np.square(logs).sum())
    return replace(model, spread=math.sqrt(squares / freedom))


def _covariance(rows: Floats, used: npt.NDArray[np.bool_]) -> Floats:
    """Return the covariance of the used coefficients of the penalized fit, in units of the variance of one run."""
    largest = rows.max(axis=0)
    scaled = (rows / largest)[:, used]
    penalty = np.diag((np.array([0.0, PULL, PULL]) ** 2)[used])
    covariance = np.zeros((3, 3))
    covariance[np.ix_(used, used)] = np.linalg.pinv(scaled.T @ scaled + penalty)
    return covariance / np.outer(largest, largest)


def _sum(trial: Overhead) -> float:
    return trial.start_s + trial.preparation_s + trial.evaluation_s + trial.saving_s


def _terms(workers: int, workers_on_node: int) -> Floats:
    return np.array([1.0, 1 / workers, float(workers_on_node)])


def _fit(rows: Floats, values: Floats) -> tuple[float, float, float]:
    scale = float(np.median(values))
    if scale <= 0:
        return (float(values.mean()), 0.0, 0.0)
    pull = np.array([0.0, PULL, PULL]) * rows.max(axis=0) / scale
    a, b, c = fit_nonnegative(rows, values, weights=np.full(len(values), 1 / scale), pull=pull).coefficients.tolist()
    return a, b, c
