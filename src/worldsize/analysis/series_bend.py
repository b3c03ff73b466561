"""How a bare series bends at its end: whether it stops gaining, whether its losses rise, on how many nodes.

Slopes span at least a doubling: a last count close to the one before would be read from the noise of both.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from worldsize.analysis.stats import Floats
from worldsize.analysis.table import TableSeries, relative_step

USUAL_NODE = 8
"""Beyond so many workers a series without a node size may have left its node."""
FULL_GAIN, LEAST_GAIN = 0.9, 0.4
"""Last local exponent p of the rate above which a series does not saturate, and below which it does entirely."""
FULL_GAIN_FAR, LEAST_GAIN_FAR = 1.0, 0.8
"""The same on many nodes."""
FEW_NODES, MANY_NODES = 4, 8
"""A ring has paid most of its 1 - 1/k by then: what is lost beyond is crowding, and goes on."""
RISE, FALL = 0.2, 0.05
"""Of p: a rise by so much clears a series of saturating; a fall by so much is one that leaving a node explains."""


@dataclass(frozen=True, kw_only=True)
class Bend:
    saturation: float = 0.0
    """0 to 1: how far the series has stopped gaining."""
    waived: float = 0.0
    """The same, where it does not count because the series may have left a node whose size nobody gave."""
    last_slope: float = 1.0
    """p of rate ~ n^p at its end. A rate that turned down is kept level: how far it would fall is not in the data."""
    rising: float = 0.0
    """q of (what a doubling adds to t) ~ n^q at its end, 0 to 1. 0: every doubling loses the same; 1: every worker does
    (Amdahl: t = 1 + f (n - 1))."""
    last_rise: float = 0.0
    """What each of its last workers added to t."""
    fell: float = 0.0
    """0 to 1: how far p fell in the last stretch, which may be a bad point; a steady bend is none."""
    many_nodes: float = 0.0
    """0 up to four nodes, 1 from eight on."""


def bend(series: TableSeries) -> Bend:
    """Nothing, where fewer than three counts were measured.

    Counted where p has not risen and is below 0.9 (on many nodes 1), in full from 0.4 (0.8) down. A fall that leaving a
    node explains is not counted: it is paid once.
    """
    if len(series.workers) < 3:
        return Bend()
    logs = np.log(series.counts)
    start = _a_doubling_below(logs, len(logs) - 1)
    first = _a_doubling_below(logs, start)
    last = _slope(logs, series.log_rates, start, len(logs) - 1)
    before = _slope(logs, series.log_rates, first, start) if start > 0 else 1.0
    # From one worker on, the first exchange is paid once; a fall further up that ends is no rise.
    risen = last - (before if series.workers[first] == 1 else max(before, 0.0))
    far = _many_nodes(series)
    full = FULL_GAIN + far * (FULL_GAIN_FAR - FULL_GAIN)
    least = LEAST_GAIN + far * (LEAST_GAIN_FAR - LEAST_GAIN)
    spans = _clipped(float(logs[-1] - logs[start]) / math.log(2))
    found = spans * _clipped(1 - risen / RISE) * _clipped((full - last) / (full - least))
    left_node = series.workers[start] <= (series.workers_per_node or USUAL_NODE) < series.largest
    explained = _clipped((before - last) / FALL) if left_node else 0.0
    known = series.workers_per_node is not None
    rising, last_rise = (0.0, 0.0) if start == 0 or (left_node and known) else _rising(series, logs, first, start)
    return Bend(
        saturation=(1 - explained) * found,
        waived=0.0 if known else explained * found,
        last_slope=max(last, 0.0),
        rising=rising,
        last_rise=last_rise,
        fell=_clipped((before - last) / RISE),
        many_nodes=far,
    )


def _rising(series: TableSeries, logs: Floats, first: int, start: int) -> tuple[float, float]:
    step = relative_step(series)
    last, before = _slope(logs, step, start, len(step) - 1), _slope(logs, step, first, start)
    if last <= 0:
        return 0.0, 0.0
    apart = float(logs[-1] - logs[first]) / 2  # from the middle of one stretch to that of the other
    power = math.log(last / before) / apart if before > 0 else 1.0
    return _clipped(power), float(step[-1] - step[start]) / (series.workers[-1] - series.workers[start])


def _many_nodes(series: TableSeries) -> float:
    nodes = series.largest / (series.workers_per_node or USUAL_NODE)
    return _clipped(math.log(nodes / FEW_NODES) / math.log(MANY_NODES / FEW_NODES))


def _a_doubling_below(logs: Floats, index: int) -> int:
    """The next smaller count that is at most half as large; the smallest where there is none."""
    below = np.flatnonzero(logs[:index] <= logs[index] - math.log(2) + 1e-9)
    return int(below[-1]) if len(below) else 0


def _slope(x: Floats, y: Floats, start: int, end: int) -> float:
    return float((y[end] - y[start]) / (x[end] - x[start]))


def _clipped(share: float) -> float:
    return min(max(share, 0.0), 1.0)
