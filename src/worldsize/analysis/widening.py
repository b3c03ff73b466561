"""How far a projection may be off: one rule for any model of the point, held against published series.

In logarithms of the rate, with d the doublings beyond the largest measured count (at least half a one):

    up   = d (0.02 + 0.15 doubt)      + 0.09 where a node boundary is crossed for the first time
    down = 2.5 d (0.02 + 0.15 doubt)  + 0.23 there

Rival readings of the series are reached as well, by what they lie lower or higher.

Down is further: what is not seen yet (another switch, a straggler, a smaller batch) costs time far more often than
it saves any. The bounds are meant to hold 80 % of what is measured later.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

LEVEL = 0.80
BASE = 0.02
PER_DOUBT = 0.15
DOWN_OVER_UP = 2.5
CROSSING_UP = 0.09
"""Of what leaving a node usually costs at two nodes, log(1 + 0.18 / 2), all: on a fast network it may cost nothing."""
CROSSING_DOWN = 0.23
LEAST_DOUBLINGS = 0.5
"""The next count is no surer for being near: the noise of a single run is in it."""
FEW_POINTS_DOUBT = 0.1
"""Fewer than three counts cannot show how well they foretell the next."""
MOST_MISS = 0.3
MOST_LOSS = 1.0

Crossing = Literal["none", "possible", "new", "as siblings"]
"""Whether a node boundary lies between what was measured and what is projected: `possible` where the size of a node is
not known, `as siblings` where other series of the stack crossed it."""

CROSSING_SHARE: dict[Crossing, float] = {"none": 0.0, "possible": 0.5, "new": 1.0, "as siblings": 0.5}


@dataclass(frozen=True, kw_only=True)
class Reach:
    """In logarithms, both positive."""

    down: float
    up: float

    def with_noise(self, noise: float) -> Reach:
        """Noise knows nothing of the rest, and adds up with it as squares."""
        return Reach(down=math.hypot(self.down, noise), up=math.hypot(self.up, noise))

    def around(self, value: float) -> tuple[float, float]:
        return value * math.exp(-self.down), value * math.exp(self.up)


def doubt(*, miss: float | None, loss_per_doubling: float, spread: float = 0.0, counts: int) -> float:
    """What a series says about its own predictability: the largest of its signs.

    `miss`: |log error| of its largest count when that is projected from the smaller ones, a doubling.
    `loss_per_doubling`: log of how much longer a step became with each doubling; who loses much, loses unevenly.
    `spread`: standard deviation of log rates over repeats of one count.
    """
    signs = [min(miss or 0.0, MOST_MISS), min(max(loss_per_doubling, 0.0), MOST_LOSS), min(spread, MOST_LOSS)]
    return max(*signs, FEW_POINTS_DOUBT if counts < 3 else 0.0)


def joint_noise(reaches: Sequence[float]) -> float:
    """How far the noise of what was measured reaches in what is projected, from how far each count's own 80 % interval
    does, in the order of workers: usual noise twice, that of the measurement and of what is asked about, and no less
    than that of the largest count, on which the projection hangs."""
    return max(math.sqrt(2) * float(np.median(reaches)), reaches[-1]) if reaches else 0.0


def reach(
    *, doublings: float, doubt: float, crossing: Crossing = "none", rivals: tuple[float, float] = (0.0, 0.0)
) -> Reach:
    """Never shrinks with `doublings` or `doubt`. `rivals`: what rival readings lie lower and higher."""
    distance = max(doublings, LEAST_DOUBLINGS)
    rough = distance * (BASE + PER_DOUBT * doubt)
    share = CROSSING_SHARE[crossing]
    lower, higher = rivals
    return Reach(
        down=DOWN_OVER_UP * rough + lower + CROSSING_DOWN * share,
        up=rough + higher + CROSSING_UP * share,
    )
