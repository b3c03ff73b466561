"""What a training run takes besides its steps, by worker count: start, preparation, evaluations, gaps, saving, end.

wall = start + preparation + steps * step + evaluations * (evaluation + gap) + saving + end
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from scipy.optimize import nnls

from worldsize.analysis.estimate import Floats, Interval

NORMAL_80 = 1.28
LEAST_SPREAD = 0.05
"""Starting processes never takes the same time twice."""
PER_DOUBLING = 0.15
"""What each doubling away from the counts that were trained with adds."""
PULL = 0.3
"""How hard a part that grows or falls with the workers is pulled towards staying as it is."""


@dataclass(frozen=True, kw_only=True)
class Overhead:
    """Of one training trial: seconds above the step."""

    workers: int
    workers_on_node: int
    start_s: float
    """Of the processes, until the first trial; and their end."""
    preparation_s: float
    """Loading data, building the model, the first steps' warm-up."""
    evaluation_s: float
    """Of one evaluation, and of the gap until training goes on."""
    saving_s: float


@dataclass(frozen=True, kw_only=True)
class OverheadModel:
    """Each part as a + b/n + c m: evaluations are shared out among n workers, the m on one node start side by side."""

    coefficients: dict[str, tuple[float, float, float]]
    counts: tuple[int, ...]
    """That were trained with."""
    spread: float
    """Root mean square of log(measured / model) of a run's sum."""

    def at(self, workers: int, workers_on_node: int, evaluations: float) -> Interval:
        """Seconds above the step of a run with so many evaluations, 80 %."""
        terms = _terms(workers, workers_on_node)
        seconds = {name: float(terms @ np.array(each)) for name, each in self.coefficients.items()}
        value = (
            seconds["start_s"] + seconds["preparation_s"] + evaluations * seconds["evaluation_s"] + seconds["saving_s"]
        )
        away = min(abs(math.log2(workers / count)) for count in self.counts)
        factor = math.exp(NORMAL_80 * (self.spread + PER_DOUBLING * away))
        return Interval(value, value / factor, value * factor)


def fit_overhead(trials: Sequence[Overhead]) -> OverheadModel | None:
    """None: nothing was trained, so nothing is known above the step."""
    if not trials:
        return None
    rows = np.stack([_terms(each.workers, each.workers_on_node) for each in trials])
    found = {}
    for name in ("start_s", "preparation_s", "evaluation_s", "saving_s"):
        values = np.array([getattr(each, name) for each in trials])
        found[name] = _fit(rows, values)
    model = OverheadModel(coefficients=found, counts=tuple(sorted({each.workers for each in trials})), spread=0.0)
    logs = [
        math.log(max(_sum(each), 1e-9) / max(model.at(each.workers, each.workers_on_node, 1).value, 1e-9))
        for each in trials
    ]
    return replace(model, spread=max(float(np.sqrt(np.mean(np.square(logs)))), LEAST_SPREAD))


def _sum(each: Overhead) -> float:
    return each.start_s + each.preparation_s + each.evaluation_s + each.saving_s


def _terms(workers: int, workers_on_node: int) -> Floats:
    return np.array([1.0, 1 / workers, float(workers_on_node)])


def _fit(rows: Floats, values: Floats) -> tuple[float, float, float]:
    scale = float(np.median(values))
    if scale <= 0:
        return (float(values.mean()), 0.0, 0.0)
    largest = rows.max(axis=0)
    design = np.vstack([rows / largest, np.diag([0.0, PULL, PULL])[1:]])
    solution, _ = nnls(design, np.concatenate([values / scale, np.zeros(2)]))
    fitted = solution / largest * scale
    return (float(fitted[0]), float(fitted[1]), float(fitted[2]))
