"""The knee: the largest count that still pays. One rule for what was measured, what is projected, what to probe."""

from __future__ import annotations

import math
from collections.abc import Sequence

from worldsize.analysis.stats import MOST_LOG

MARGIN = 0.5
"""More workers are worth it while a doubling saves at least this share of what perfect scaling would save."""


def marginal_efficiency(gain: float, growth: float) -> float:
    """Time that a doubling saves over the half that perfect scaling would: workers grew by `growth`, speed by `gain`.

    Of a step that is no doubling, what each of its doublings saves. (1 - 1/gain) / (1 - 1/growth) is the same for one
    doubling, but by it any number of workers would pay once they are twice as fast as one.
    """
    return 2 * (1 - math.exp(min(-math.log(gain) / math.log2(growth), MOST_LOG)))


def climb(counts: Sequence[int], speeds: Sequence[float], margin: float = MARGIN) -> list[int]:
    """Places of the counts that pay, each against the one before it here; the last is the knee.

    A count that does not pay is passed over, and does not end the climb: the first exchange between workers may cost
    what further workers then gain.
    """
    places = [0]
    for place in range(1, len(counts)):
        here = places[-1]
        if marginal_efficiency(speeds[place] / speeds[here], counts[place] / counts[here]) >= margin:
            places.append(place)
    return places
