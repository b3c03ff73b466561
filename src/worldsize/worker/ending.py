"""When training ends before its last step: a loss that explodes, a target, a plateau, no hope of winning a search."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from worldsize.folder.record import Epoch, Outcome, curve
from worldsize.spec.training import PlateauSpec, TrainSpec

EXPLODED = 1e4
EXPLODED_STEPS = 10
PATIENCE = 4
"""No trial is stopped in the first 1/4 of its epochs: a small learning rate starts slowly and may still win."""
FEWEST_RIVALS = 3
"""The median of fewer would be one rival's luck."""
OUTCOMES: tuple[Outcome | None, ...] = (None, "finished", "plateaued", "stopped")
"""What `Ending.after` may return; ranks exchange the index."""


def diverged_at(losses: npt.NDArray[np.float32]) -> int | None:
    """The step at which the loss stops being finite, or the first of ten steps at 10,000 times its initial value.

    The initial value is the median of the first ten losses, since one lucky batch says little. The second rule
    separates slow divergence from slow convergence: float32 has room for a hundred more steps of it.
    """
    bad = ~np.isfinite(losses)
    if bad.any():
        return int(np.flatnonzero(bad)[0])
    first = float(np.median(losses[:EXPLODED_STEPS]))
    exploded = losses > EXPLODED * first if first > 0 else np.zeros(len(losses), dtype=bool)
    in_a_row = 0
    for step in np.flatnonzero(exploded):
        in_a_row = in_a_row + 1 if step and exploded[step - 1] else 1
        if in_a_row == EXPLODED_STEPS:
            return int(step) - EXPLODED_STEPS + 1
    return None


@dataclass(kw_only=True)
class Ending:
    """What the evaluations of one trial are compared with."""

    train: TrainSpec | None
    metric: str = "loss"
    """The workload's main metric. A target names its own."""
    higher_is_better: bool = False
    planned_epochs: int = 1
    search_curves: Sequence[Sequence[float]] | None = None
    """The metric of other trials of the search, epoch by epoch. None: this trial is never stopped because of them."""

    def after(self, epochs: Sequence[Epoch]) -> Outcome | None:
        """None: go on."""
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
    """Whether the last `epochs` values brought no gain over the best one before them."""
    before, recent = values[: -plateau.patience], values[-plateau.patience :]
    if not before:
        return False
    best, latest = (max(before), max(recent)) if higher_is_better else (min(before), min(recent))
    gained = latest - best if higher_is_better else best - latest
    return gained <= plateau.min_gain * abs(best)


def hopeless(
    metrics_so_far: Sequence[float],
    rivals: Sequence[Sequence[float]],
    planned_epochs: int,
    higher_is_better: bool,
) -> bool:
    """best(m_1..m_e) strictly worse than the median over rivals of mean(r_1..r_e), e the epochs done so far.

    This is the median stopping rule (Golovin et al., Google Vizier, 2017, section 3.2.2).

    At least three rivals must have reached epoch e. One that has not (it ended sooner, or its metric is not finite)
    diverged or was stopped, and counts as the worst: without it, the median would creep up with every trial that is
    stopped. The caller leaves out rivals that are still running.
    """
    done = len(metrics_so_far)
    if done < max(1, math.ceil(planned_epochs / PATIENCE)):
        return False
    sign = 1 if higher_is_better else -1
    averages = sorted(_average(rival, done, sign) for rival in rivals)
    if sum(map(math.isfinite, averages)) < FEWEST_RIVALS:
        return False
    best = max((sign * metric for metric in metrics_so_far if math.isfinite(metric)), default=-math.inf)
    middle = averages[(len(averages) - 1) // 2] + averages[len(averages) // 2]
    return best < middle / 2


def _average(metrics: Sequence[float], done: int, sign: int) -> float:
    reached = len(metrics) >= done and all(map(math.isfinite, metrics[:done]))
    return sign * math.fsum(metrics[:done]) / done if reached else -math.inf
