"""The median stopping rule: whether a trial learns so much worse than its rivals that the rest of it is a waste.

Golovin et al., Google Vizier (2017), section 3.2.2. Plain Python and light: it is asked after every epoch of training.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

PATIENCE = 4
"""No trial is stopped in the first 1/4 of its epochs: a small rate starts slowly and may still win."""
FEWEST_RIVALS = 3
"""The median of fewer is one rival's luck."""


def hopeless(
    metrics_so_far: Sequence[float],
    rivals: Sequence[Sequence[float]],
    planned_epochs: int,
    higher_is_better: bool,
) -> bool:
    """best(m_1..m_e) strictly worse than the median over rivals of mean(r_1..r_e), e the epochs done so far.

    Three rivals at least must have got as far as e. One that has not (it ended sooner, or its metric is no number)
    diverged or was stopped, and counts as the worst: were it left out, the median would creep up with every trial
    that is stopped. Rivals still on their way are for the caller to leave out.
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
    far = len(metrics) >= done and all(map(math.isfinite, metrics[:done]))
    return sign * math.fsum(metrics[:done]) / done if far else -math.inf
