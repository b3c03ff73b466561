"""What a training run takes besides its steps, by worker count: start, preparation, evaluations, gaps, saving, end.

wall = start + preparation + steps * step + evaluations * (evaluation + gap) + saving + end
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.optimize import nnls

from worldsize.analysis.stats import Floats

PULL = 0.3
"""How hard a part that grows or falls with the workers is pulled towards staying as it is."""


@dataclass(frozen=True, kw_only=True)
class Above:
    """Of one training trial: seconds above the step."""

    workers: int
    on_node: int
    start_s: float
    """Of the processes, until the first trial; and their end."""
    preparation_s: float
    """Loading data, building the model, the first steps' warm-up."""
    evaluation_s: float
    """Of one evaluation, and of the gap until training goes on."""
    saving_s: float


@dataclass(frozen=True, kw_only=True)
class AboveModel:
    """Each part as a + b/n + c m: evaluations are shared out among n workers, the m on one node start side by side."""

    coefficients: dict[str, tuple[float, float, float]]
    counts: tuple[int, ...]

    def at(self, workers: int, on_node: int, evaluations: float) -> float:
        """Seconds above the step of a run with so many evaluations."""
        terms = _terms(workers, on_node)
        seconds = {name: float(terms @ np.array(each)) for name, each in self.coefficients.items()}
        return (
            seconds["start_s"] + seconds["preparation_s"] + evaluations * seconds["evaluation_s"] + seconds["saving_s"]
        )


def fit_above(trials: Sequence[Above]) -> AboveModel | None:
    """None: nothing was trained, so nothing is known above the step."""
    if not trials:
        return None
    rows = np.stack([_terms(each.workers, each.on_node) for each in trials])
    found = {}
    for name in ("start_s", "preparation_s", "evaluation_s", "saving_s"):
        values = np.array([getattr(each, name) for each in trials])
        found[name] = _fit(rows, values)
    return AboveModel(coefficients=found, counts=tuple(sorted({each.workers for each in trials})))


def _terms(workers: int, on_node: int) -> Floats:
    return np.array([1.0, 1 / workers, float(on_node)])


def _fit(rows: Floats, values: Floats) -> tuple[float, float, float]:
    scale = float(np.median(values))
    if scale <= 0:
        return (float(values.mean()), 0.0, 0.0)
    largest = rows.max(axis=0)
    design = np.vstack([rows / largest, np.diag([0.0, PULL, PULL])[1:]])
    solution, _ = nnls(design, np.concatenate([values / scale, np.zeros(2)]))
    fitted = solution / largest * scale
    return (float(fitted[0]), float(fitted[1]), float(fitted[2]))
