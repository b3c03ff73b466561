"""Projects a bare series, for which only the rates are known, to counts that were never run.

Each projected rate has an 80 % interval and notes. The margin of a projection follows one rule, no matter which
model gives the value. The rule was tested against published series. In logarithms of the rate, where d is the number of
doublings from the nearest measured count (at least 0.5):

    up   = d (0.02 + 0.15 unpredictability)      + 0.09 if a node boundary is crossed for the first time
    down = 2.5 d (0.02 + 0.15 unpredictability)  + 0.23 if a node boundary is crossed for the first time

The interval also covers alternative readings of the series that are lower or higher. Measurement noise is added in
quadrature. It comes from the repeats or, without repeats, from the scatter of the points, but is at least a floor.

The downward margin is larger, because anything that no run has seen yet (another switch, a straggler, a smaller batch)
costs time far more often than it saves time. The interval should contain 80 % of later measurements.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from scipy.special import ndtri

from worldsize.analysis.estimate import PROJECTED_LEVEL, Estimate, Floats, Sample
from worldsize.analysis.projection.series_law import (
    DEFAULT,
    USUAL_NODE,
    LawSettings,
    SeriesLaw,
    TableSeries,
    fit_series_law,
    never_crossed,
    relative_step,
)

BASE = 0.02
PER_DOUBT = 0.15
DOWN_OVER_UP = 2.5
CROSSING_UP = 0.09
"""The usual cost of leaving a node, at two nodes: log(1 + 0.18 / 2). On a fast network it may cost nothing."""
CROSSING_DOWN = 0.23
MIN_DOUBLINGS = 0.5
"""A smaller distance does not make the projected count more certain: it still contains the noise of a single run."""
FEW_POINTS_DOUBT = 0.1
"""Smallest unpredictability of fewer than three counts, which cannot show how well they predict the next one."""
NOISE_FLOOR = 0.03
"""Smallest noise of a table without repeats, as the half-width of an 80 % interval: single runs are noisy too."""
COUNTS_THAT_SCATTER = 5
"""With fewer counts, a single bend, such as at a node boundary, would look like noise."""
MAX_MISS = 0.3
MAX_LOSS = 1.0
"""Upper bounds of the signs of unpredictability."""

Crossing = Literal["none", "possible", "new", "as siblings"]
"""Whether a node boundary lies between the measured and the projected counts: `possible` if the size of a node is
unknown, `as siblings` if other series of the same stack crossed it."""

CROSSING_SHARE: dict[Crossing, float] = {"none": 0.0, "possible": 0.5, "new": 1.0, "as siblings": 0.5}


@dataclass(frozen=True, kw_only=True)
class LogMargin:
    """How far the true value may be below and above a projection, in logarithms; both are positive."""

    down: float
    up: float

    def with_noise(self, noise: float) -> LogMargin:
        """Return the margin with noise added in quadrature, because noise is independent of the rest."""
        return LogMargin(down=math.hypot(self.down, noise), up=math.hypot(self.up, noise))

    def around(self, value: float) -> tuple[float, float]:
        """Return the ends of the interval."""
        return value * math.exp(-self.down), value * math.exp(self.up)


def unpredictability(*, miss: float | None, loss_per_doubling: float, spread: float = 0.0, counts: int) -> float:
    """Return how unpredictable a series is, judging by its own data: the largest of several signs.

    `miss`: |log error| per doubling of its largest count, projected from the smaller ones.
    `loss_per_doubling`: log of the factor by which each doubling lengthens a step; large losses tend to be irregular.
    `spread`: standard deviation of log rates over repeats of one count.
    """
    signs = [min(miss or 0.0, MAX_MISS), min(max(loss_per_doubling, 0.0), MAX_LOSS), min(spread, MAX_LOSS)]
    return max(*signs, FEW_POINTS_DOUBT if counts < 3 else 0.0)


def joint_noise(margins: Sequence[float]) -> float:
    """Return the half-width of a projection's interval that is due to measurement noise.

    `margins`: the half-widths of the 80 % intervals of the measured counts, in order of workers. The typical noise
    counts twice, once for the measurement and once for the projected run. The result is at least the noise of the
    largest count, on which the projection depends most.
    """
    return max(math.sqrt(2) * float(np.median(margins)), margins[-1]) if margins else 0.0


def margin(
    *,
    doublings: float,
    unpredictability: float,
    crossing: Crossing = "none",
    alternatives: tuple[float, float] = (0.0, 0.0),
    base: float = BASE,
) -> LogMargin:
    """Return the margin of a projection. It never shrinks as `doublings` or `unpredictability` grow.

    `alternatives`: how much lower and how much higher alternative readings of the series are.
    """
    distance = max(doublings, MIN_DOUBLINGS)
    spread = distance * (base + PER_DOUBT * unpredictability)
    share = CROSSING_SHARE[crossing]
    lower, higher = alternatives
    return LogMargin(
        down=DOWN_OVER_UP * spread + lower + CROSSING_DOWN * share,
        up=spread + higher + CROSSING_UP * share,
    )


WORTH_A_NOTE = 0.02
"""Smallest effect of an alternative reading that is mentioned in a note, in logarithms."""
SIBLING_PRIOR = 2.0
"""The usual cost of leaving a node has the weight of this many siblings (other series of the same stack)."""
MAX_CROSSING = 10.0
"""Upper bound of c3. No published series lost more by leaving its node, so a larger value must be a mistake."""
FAR = 3.0
"""Doublings beyond which there is almost no published data to check projections against."""
MAX_GAIN_BELOW = 2.0
"""A worker in a smaller group is at most this many times as fast as one in the smallest measured group."""

NOTE_ONE_POINT = "based on only one measured count"
NOTE_TWO_POINTS = "based on only two measured counts"
NOTE_NEW_NODE = "beyond one node, where nothing was measured"
NOTE_MAYBE_NEW_NODE = "node size not given, so possibly beyond one node"
NOTE_SIBLINGS = "cost of leaving a node estimated from {count} other series of the same stack"
NOTE_SATURATING = "leveling off"
NOTE_RISING = "the last step up lost more than the one before"
NOTE_FAR = "more than 8x beyond the largest measured count"
NOTE_BETWEEN = "between measured counts"
NOTE_BELOW = "below the smallest measured count"
NOTE_ONE_RUN = "one run: no interval"
NOTE_NOT_CONVERGED = "the fit did not converge"


@dataclass(frozen=True, kw_only=True)
class Projected:
    workers: int
    samples_per_s: Estimate
    """In the unit of the rates of the series."""
    measured: bool
    """Whether the count was run. If so, this is the measured value, with an interval over its repeats."""
    notes: tuple[str, ...]


def project_series(
    series: TableSeries,
    workers: Sequence[int],
    crossings: Sequence[float] = (),
    *,
    noise: float | None = None,
    settings: LawSettings = DEFAULT,
) -> list[Projected]:
    """Return one projection for each of `workers`.

    `crossings`: what leaving a node cost other series of the same stack (`crossing_cost`), used if this series never
    left a node. `noise`: half-width due to measurement noise; by default, `series_noise` of this series.
    """
    law = own_law = fit_series_law(series, settings=settings)
    if crossings and never_crossed(series):
        law = fit_series_law(series, crossing=blended_crossing(crossings, settings), settings=settings)
    own_doubt = series_unpredictability(series, settings)
    noise = series_noise(series) if noise is None else noise
    return [_project(series, law, own_law, own_doubt, noise, count, len(crossings)) for count in workers]


def crossing_cost(series: TableSeries) -> float | None:
    """Return c3 = (t(first count beyond the node) / t(largest inside) - 1) / (1 - 1/k); None without such a pair."""
    node = series.workers_per_node
    if node is None or series.workers[0] > node or never_crossed(series):
        return None
    last = max(index for index, count in enumerate(series.workers) if count <= node)
    step = relative_step(series)
    nodes = series.workers[last + 1] / node
    return max(0.0, float(step[last + 1] / step[last] - 1) / (1 - 1 / nodes))


def blended_crossing(costs: Sequence[float], settings: LawSettings = DEFAULT) -> float:
    """Return the median over the siblings, shrunk toward the usual cost, which counts as two more siblings.

    The two are averaged as log(1 + c3 / 2), the log of the factor by which a second node lengthens a step.
    """
    siblings = math.log1p(min(float(np.median(costs)), MAX_CROSSING) / 2)
    usual = math.log1p(settings.crossing_usual / 2)
    share = _usual_share(len(costs))
    return 2 * math.expm1((1 - share) * siblings + share * usual)


def _usual_share(siblings: int) -> float:
    return SIBLING_PRIOR / (siblings + SIBLING_PRIOR)


def series_unpredictability(series: TableSeries, settings: LawSettings = DEFAULT) -> float:
    """Return the unpredictability of a series, from how well it predicts its own largest count, how much it loses, and
    how much its repeats differ."""
    spread = max(
        (float(np.std(np.log(repeats), ddof=1)) for repeats in series.throughputs if len(repeats) > 1), default=0.0
    )
    if len(series.workers) == 1:
        return unpredictability(miss=None, loss_per_doubling=0.0, spread=spread, counts=1)
    predicted = fit_series_law(series.smaller(), settings=settings).log_throughput(series.counts[-1:])[0]
    last_doublings, doublings = (math.log2(series.largest / series.workers[index]) for index in (-2, 0))
    miss = abs(float(predicted - series.log_throughputs[-1])) / max(last_doublings, 1.0)
    loss = -math.log(relative_step(series)[0]) / max(doublings, 1.0)  # between closer counts, noise dominates
    return unpredictability(miss=miss, loss_per_doubling=loss, spread=spread, counts=len(series.workers))


def series_noise(series: TableSeries) -> float:
    """Return the half-width due to measurement noise, in logarithms: from the repeats or, without repeats, from the
    scatter of the points, but at least the floor."""
    margins = [_logged(repeats).half_width(PROJECTED_LEVEL) for repeats in series.throughputs if len(repeats) > 1]
    if margins:
        return joint_noise(margins)
    return max(NOISE_FLOOR, joint_noise([float(ndtri((1 + PROJECTED_LEVEL) / 2)) * scatter(series)]))


def scatter(series: TableSeries) -> float:
    """Return the standard deviation of single points, from their distances to the line between their neighbors on
    log-log axes; 0 if there are too few counts.

    Residuals of the law are not used, because they are large wherever the law does not fit, even on a quiet machine.
    The median is used, because a series that leaves its node or levels off bends once without being noisy.
    """
    if len(series.workers) < COUNTS_THAT_SCATTER:
        return 0.0
    x, y = np.log(series.counts), series.log_throughputs
    left = (x[2:] - x[1:-1]) / (x[2:] - x[:-2])  # weight of the left neighbor
    off_line = y[1:-1] - left * y[:-2] - (1 - left) * y[2:]
    return float(np.median(np.abs(off_line) / np.sqrt(1 + left**2 + (1 - left) ** 2)) / ndtri(0.75))


def _logged(repeats: Sequence[float]) -> Sample:
    return Sample.of(dict(enumerate(np.log(repeats).tolist())))


def crossing_kind(series: TableSeries, count: int, siblings: int = 0) -> Crossing:
    """Return whether a node boundary lies between the measured counts and `count`."""
    node = series.workers_per_node
    if count <= series.largest:
        return "none"
    if node is None:
        return "possible" if series.largest <= USUAL_NODE < count else "none"
    if not never_crossed(series) or count <= node:
        return "none"
    return "as siblings" if siblings > 1 else "new"


def _project(
    series: TableSeries, law: SeriesLaw, own_law: SeriesLaw, own_doubt: float, noise: float, count: int, siblings: int
) -> Projected:
    if count in series.workers:
        return _measured(series, count)
    crossing = crossing_kind(series, count, siblings)
    log_rate = _log_throughput(series, law, count)
    value = math.exp(log_rate)
    distance = min(abs(math.log2(count / other)) for other in series.workers)
    alternatives = law.alternatives(count) if count > series.largest else (0.0, 0.0)
    if crossing in ("new", "as siblings"):  # the usual cost is an alternative reading too
        usual_gap = _usual_share(siblings) * (_log_throughput(series, own_law, count) - log_rate)
        alternatives = (max(alternatives[0], -usual_gap), max(alternatives[1], usual_gap))
    log_margin: LogMargin = margin(
        doublings=distance, unpredictability=own_doubt, crossing=crossing, alternatives=alternatives
    )
    low, high = log_margin.with_noise(noise).around(value)
    rate = Estimate(value=value, low=low, high=high, level=PROJECTED_LEVEL)
    notes = _notes(series, law, count, crossing, siblings)
    return Projected(workers=count, samples_per_s=rate, measured=False, notes=notes)


def _log_throughput(series: TableSeries, law: SeriesLaw, count: int) -> float:
    workers: Floats = np.array([float(count)])
    if count > series.largest:
        return float(law.log_throughput(workers)[0])
    if count < series.workers[0]:  # follow the law from the smallest count down
        gain = float((law.two_level(series.counts[:1]) / law.two_level(workers))[0])
        log_gain = math.log(min(max(gain, 1.0), MAX_GAIN_BELOW))
        return float(series.log_throughputs[0]) + math.log(count / series.workers[0]) + log_gain
    return float(np.interp(math.log(count), np.log(series.counts), series.log_throughputs))


def _measured(series: TableSeries, count: int) -> Projected:
    """Return the median of a measured count. Its interval is Student's t over the logarithms of its repeats, widened to
    include the median."""
    repeats = series.throughputs[series.workers.index(count)]
    if len(repeats) == 1:
        rate = Estimate(value=repeats[0], level=PROJECTED_LEVEL, n=1)
        return Projected(workers=count, samples_per_s=rate, measured=True, notes=(NOTE_ONE_RUN,))
    rate, middle = _logged(repeats).exp(PROJECTED_LEVEL), float(np.exp(np.median(np.log(repeats))))
    low, high = rate.ends
    rate = replace(rate, value=middle, low=min(low, middle), high=max(high, middle))
    return Projected(workers=count, samples_per_s=rate, measured=True, notes=())


def _notes(series: TableSeries, law: SeriesLaw, count: int, crossing: Crossing, siblings: int) -> tuple[str, ...]:
    by_points = {1: NOTE_ONE_POINT, 2: NOTE_TWO_POINTS}
    notes = [by_points[len(series.workers)]] if len(series.workers) in by_points else []
    if crossing in ("new", "as siblings"):
        notes.append(NOTE_NEW_NODE)
        if siblings:
            notes.append(NOTE_SIBLINGS.format(count=siblings))
    if crossing == "possible":
        notes.append(NOTE_MAYBE_NEW_NODE)
    if count > series.largest:
        notes += _notes_on_bend(law, count, crossing)
    if count < series.workers[0]:
        notes.append(NOTE_BELOW)
    elif count < series.largest:
        notes.append(NOTE_BETWEEN)
    elif math.log2(count / series.largest) > FAR:
        notes.append(NOTE_FAR)
    if not law.converged:
        notes.append(NOTE_NOT_CONVERGED)
    return tuple(notes)


def _notes_on_bend(law: SeriesLaw, count: int, crossing: Crossing) -> Iterator[str]:
    saturating = law.saturation_loss(count) > WORTH_A_NOTE and crossing not in ("new", "as siblings")
    if saturating:
        yield NOTE_SATURATING
    if not saturating and law.rising_loss(count) > WORTH_A_NOTE:
        yield NOTE_RISING
