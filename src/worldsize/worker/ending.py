"""Rules that end training early: divergence, a target, a plateau, or no chance of winning a search."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from worldsize.folder.record import Epoch, Outcome, curve
from worldsize.spec.training import PlateauSpec, TrainSpec

EXPLODED = 1e4
"""The loss has exploded if it exceeds this multiple of the initial loss."""
EXPLODED_STEPS = 10
"""Training has diverged after this many exploded steps in a row. The initial loss is a median over as many steps."""
PATIENCE = 4
"""No trial is stopped in the first 1/4 of its epochs: a small learning rate starts slowly and may still win."""
MIN_RIVALS = 3
"""Minimum number of rivals for a median. With fewer, one rival's luck would decide."""
OUTCOMES: tuple[Outcome | None, ...] = (None, "finished", "plateaued", "stopped")
"""Possible results of `Ending.after`. Ranks exchange the index."""


def diverged_at(losses: npt.NDArray[np.float32]) -> int | None:
    """Return the first step with a non-finite loss, or the first of ten steps at 10,000 times the initial loss.

    The initial loss is the median of the first ten, since one lucky batch says little. The second rule distinguishes
    slow divergence from slow convergence: before float32 overflows, a hundred more steps could pass.
    """
    bad = ~np.isfinite(losses)
    if bad.any():
        return int(np.flatnonzero(bad)[0])
    initial = float(np.median(losses[:EXPLODED_STEPS]))
    exploded = losses > EXPLODED * initial if initial > 0 else np.zeros(len(losses), dtype=bool)
    consecutive = 0
    for step in np.flatnonzero(exploded):
        consecutive = consecutive + 1 if step and exploded[step - 1] else 1
        if consecutive == EXPLODED_STEPS:
            return int(step) - EXPLODED_STEPS + 1
    return None


@dataclass(kw_only=True)
class Ending:
    """The conditions that end one trial early, checked after each evaluation."""

    train: TrainSpec | None
    metric: str = "loss"
    """The workload's main metric. A target names its own."""
    higher_is_better: bool = False
    planned_epochs: int = 1
    search_curves: Sequence[Sequence[float]] | None = None
    """The metric of the search's other trials, per epoch. None: they never stop this trial."""

    def after(self, epochs: Sequence[Epoch]) -> Outcome | None:
        """Return the outcome if training ends after these epochs, or None to continue."""
        assert self.train is not None
        until = self.train.until
        if until is not None and until.metric in epochs[-1].test and until.reached(epochs[-1].test[until.metric]):
            return "finished"
        values = curve(epochs, self.metric)
        if self.train.plateau is not None and on_plateau(values, self.train.plateau, self.higher_is_better):
            return "plateaued"
        if self.search_curves is not None and hopeless(
            values, self.search_curves, self.planned_epochs, self.higher_is_better
        ):
            return "stopped"
        return None


def on_plateau(values: Sequence[float], plateau: PlateauSpec, higher_is_better: bool) -> bool:
    """Whether the last `patience` values gain at most the fraction `min_gain` over the best one before them."""
    before, recent = values[: -plateau.patience], values[-plateau.patience :]
    if not before:
        return False
    best, recent_best = (max(before), max(recent)) if higher_is_better else (min(before), min(recent))
    gain = recent_best - best if higher_is_better else best - recent_best
    return gain <= plateau.min_gain * abs(best)


def hopeless(
    metrics_so_far: Sequence[float],
    rivals: Sequence[Sequence[float]],
    planned_epochs: int,
    higher_is_better: bool,
) -> bool:
    """Whether best(m_1..m_e) is strictly worse than the median over rivals of mean(r_1..r_e), after e epochs.

    This is the median stopping rule (Golovin et al., Google Vizier, 2017, section 3.2.2).

    At least three rivals must have reached epoch e. A rival that has not (it ended sooner, or its metric is not finite)
    diverged or was stopped, and counts as the worst. Otherwise the median would creep up with every stopped trial. The
    caller leaves out rivals that are still running.
    """
    done = len(metrics_so_far)
    if done < max(1, math.ceil(planned_epochs / PATIENCE)):
        return False
    sign = 1 if higher_is_better else -1
    averages = sorted(_average(rival, done, sign) for rival in rivals)
    if sum(map(math.isfinite, averages)) < MIN_RIVALS:
        return False
    best = max((sign * metric for metric in metrics_so_far if math.isfinite(metric)), default=-math.inf)
    middle = averages[(len(averages) - 1) // 2] + averages[len(averages) // 2]
    return best < middle / 2


def _average(metrics: Sequence[float], done: int, sign: int) -> float:
    reached = len(metrics) >= done and all(map(math.isfinite, metrics[:done]))
    return sign * math.fsum(metrics[:done]) / done if reached else -math.inf
