"""When training ends before its last step: a loss that explodes, a target, a plateau, a hopeless place in a search."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from worldsize.folder.record import Epoch, Outcome, curve
from worldsize.spec.training import PlateauSpec, TrainSpec
from worldsize.worker.median_stopping import hopeless

EXPLODED = 1e4
EXPLODED_STEPS = 10
OUTCOMES: tuple[Outcome | None, ...] = (None, "finished", "plateaued", "stopped")
"""What `Ending.after` may say, by the number that ranks tell one another."""


def diverged_at(losses: npt.NDArray[np.float32]) -> int | None:
    """The step at which the loss is no longer a number, or from which on it is 10,000 times what it was, for ten steps.

    What it was: the median of the first ten, since one lucky batch is no measure.

    The second is what tells slow divergence from slow convergence: float32 has room for a hundred more steps of it.
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
    """What one trial's evaluations are held against."""

    train: TrainSpec | None
    metric: str = "loss"
    """The workload's own: a target names its metric itself."""
    higher_is_better: bool = False
    planned_epochs: int = 1
    rivals: Sequence[Sequence[float]] | None = None
    """The metric of trials of the same search, epoch by epoch; None: this trial is never stopped for theirs."""

    def after(self, epochs: Sequence[Epoch]) -> Outcome | None:
        """None: go on."""
        assert self.train is not None
        until = self.train.until
        if until is not None and until.metric in epochs[-1].test and until.reached(epochs[-1].test[until.metric]):
            return "finished"
        values = curve(epochs, self.metric)
        if self.train.plateau is not None and on_plateau(values, self.train.plateau, self.higher_is_better):
            return "plateaued"
        if self.rivals is not None and hopeless(values, self.rivals, self.planned_epochs, self.higher_is_better):
            return "stopped"
        return None


def on_plateau(values: Sequence[float], plateau: PlateauSpec, higher_is_better: bool) -> bool:
    """Whether the last `epochs` values brought no gain over the best one before them."""
    before, recent = values[: -plateau.epochs], values[-plateau.epochs :]
    if not before:
        return False
    best, latest = (max(before), max(recent)) if higher_is_better else (min(before), min(recent))
    gained = latest - best if higher_is_better else best - latest
    return gained <= plateau.gain * abs(best)
