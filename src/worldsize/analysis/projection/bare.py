"""Projects a bare series to counts that were never run: each rate with an 80 % interval and notes.

The margin of a projection: one rule for any model of the value, tested against published series.

In logarithms of the rate, with d the doublings beyond the largest measured count (at least 0.5):

    up   = d (0.02 + 0.15 unpredictability)      + 0.09 where a node boundary is crossed for the first time
    down = 2.5 d (0.02 + 0.15 unpredictability)  + 0.23 where a node boundary is crossed for the first time

The interval also covers alternative readings of the series that are lower or higher. The noise of the machine is added
in quadrature: that of the repeats; without repeats that of the points, but at least a floor.

Down is further: what has not been seen yet (another switch, a straggler, a smaller batch) costs time far more often
than it saves any. The bounds should contain 80 % of later measurements.
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
"""All of what leaving a node usually costs at two nodes, log(1 + 0.18 / 2): on a fast network it may cost nothing."""
CROSSING_DOWN = 0.23
LEAST_DOUBLINGS = 0.5
"""Being close does not make the next count more certain: it still contains the noise of a single run."""
FEW_POINTS_DOUBT = 0.1
"""Fewer than three counts cannot show how well they predict the next one."""
NOISE_FLOOR = 0.03
"""Noise of a table without repeats, as the half-width of an 80 % interval: one run each does not mean no noise."""
COUNTS_THAT_SCATTER = 5
"""With fewer counts a single bend, such as a node that was left, would look like noise."""
MOST_MISS = 0.3
MOST_LOSS = 1.0

Crossing = Literal["none", "possible", "new", "as siblings"]
"""Whether a node boundary lies between the measured and the projected counts: `possible` if the size of a node is
unknown, `as siblings` if other series of the same stack crossed it."""

CROSSING_SHARE: dict[Crossing, float] = {"none": 0.0, "possible": 0.5, "new": 1.0, "as siblings": 0.5}


@dataclass(frozen=True, kw_only=True)
class LogMargin:
    """How far a projection may be off, in logarithms, both positive."""

    down: float
    up: float

    def with_noise(self, noise: float) -> LogMargin:
        """The margin with noise added in quadrature, because noise is independent of the rest."""
        return LogMargin(down=math.hypot(self.down, noise), up=math.hypot(self.up, noise))

    def around(self, value: float) -> tuple[float, float]:
        return value * math.exp(-self.down), value * math.exp(self.up)


def unpredictability(*, miss: float | None, loss_per_doubling: float, spread: float = 0.0, counts: int) -> float:
    """How unpredictable a series is by its own evidence: the largest of several signs.

    `miss`: |log error| per doubling of its largest count, projected from the smaller ones.
    `loss_per_doubling`: log of how much longer a step became with each doubling; large losses are uneven.
    `spread`: standard deviation of log rates over repeats of one count.
    """
    signs = [min(miss or 0.0, MOST_MISS), min(max(loss_per_doubling, 0.0), MOST_LOSS), min(spread, MOST_LOSS)]
    return max(*signs, FEW_POINTS_DOUBT if counts < 3 else 0.0)


def joint_noise(margins: Sequence[float]) -> float:
    """How far measurement noise reaches in a projection. `margins` are the half-widths of the 80 % intervals of the
    measured counts, in the order of workers.

    The typical noise counts twice, once for the measurement and once for the projected run. It is never less than the
    noise of the largest count, which the projection depends on.
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
    """The margin of a projection; never shrinks as `doublings` or `unpredictability` grow.

    `alternatives`: how much lower and higher alternative readings of the series are.
    """
    distance = max(doublings, LEAST_DOUBLINGS)
    rough = distance * (base + PER_DOUBT * unpredictability)
    share = CROSSING_SHARE[crossing]
    lower, higher = alternatives
    return LogMargin(
        down=DOWN_OVER_UP * rough + lower + CROSSING_DOWN * share,
        up=rough + higher + CROSSING_UP * share,
    )


WORTH_A_NOTE = 0.02
"""How much lower or higher an alternative reading must be, in logarithms."""
SIBLING_PRIOR = 2.0
"""Number of siblings that weigh as much as the usual cost of leaving a node."""
MOST_CROSSING = 10.0
"""Upper bound of c3: no published series lost more by leaving its node, so more must be a mistake."""
FAR = 3.0
"""Doublings beyond which published series have almost no data to check against."""
MOST_GAIN_BELOW = 2.0
"""A worker in a smaller group is at most this many times as fast as one in the smallest measured group."""

NOTE_ONE_POINT = "one point"
NOTE_TWO_POINTS = "two points"
NOTE_NEW_NODE = "new node boundary"
NOTE_MAYBE_NEW_NODE = "node size not given"
NOTE_SIBLINGS = "node boundary as in {count} other series of the same stack"
NOTE_SATURATING = "leveling off"
NOTE_RISING = "the last step up lost more than the one before"
NOTE_FAR = "more than 8 x beyond the largest count"
NOTE_BETWEEN = "between measured counts"
NOTE_BELOW = "below the smallest count"
NOTE_ONE_RUN = "one run: no interval"
NOTE_NOT_CONVERGED = "the fit did not converge"


@dataclass(frozen=True, kw_only=True)
class Projected:
    workers: int
    samples_per_s: Estimate
    """In the unit of the rates of the series."""
    measured: bool
    """True if the count was run: then this is its own value, with an interval over its repeats."""
    notes: tuple[str, ...]


def project_series(
    series: TableSeries,
    workers: Sequence[int],
    crossings: Sequence[float] = (),
    *,
    noise: float | None = None,
    settings: LawSettings = DEFAULT,
) -> list[Projected]:
    """One projection for each of `workers`.

    `crossings` is what leaving a node cost other series of the same stack (`crossing_cost`). It is used if this series
    never left a node. Series of other stacks do not help. `noise` is how far measurement noise reaches; None: as the
    series shows (`series_noise`).
    """
    law = alone = fit_series_law(series, settings=settings)
    if crossings and never_crossed(series):
        law = fit_series_law(series, crossing=blended_crossing(crossings, settings), settings=settings)
    own_doubt = series_unpredictability(series, settings)
    noise = series_noise(series) if noise is None else noise
    return [_project(series, law, alone, own_doubt, noise, count, len(crossings)) for count in workers]


def crossing_cost(series: TableSeries) -> float | None:
    """c3 = (t(first count beyond the node) / t(largest inside) - 1) / (1 - 1/k); None if no such pair was run."""
    node = series.workers_per_node
    if node is None or series.workers[0] > node or never_crossed(series):
        return None
    last = max(index for index, count in enumerate(series.workers) if count <= node)
    step = relative_step(series)
    nodes = series.workers[last + 1] / node
    return max(0.0, float(step[last + 1] / step[last] - 1) / (1 - 1 / nodes))


def blended_crossing(costs: Sequence[float], settings: LawSettings = DEFAULT) -> float:
    """Median over the siblings, shrunk toward the usual cost as if that were two more siblings; averaged as
    log(1 + c3 / 2), the log of how much longer a step is on two nodes."""
    own, usual = math.log1p(min(float(np.median(costs)), MOST_CROSSING) / 2), math.log1p(settings.crossing_usual / 2)
    share = _usual_share(len(costs))
    return 2 * math.expm1((1 - share) * own + share * usual)


def _usual_share(siblings: int) -> float:
    return SIBLING_PRIOR / (siblings + SIBLING_PRIOR)


def series_unpredictability(series: TableSeries, settings: LawSettings = DEFAULT) -> float:
    """Unpredictability of a series: how well it predicts its own largest count, how much it loses, how much its repeats
    differ."""
    spread = max(
        (float(np.std(np.log(repeats), ddof=1)) for repeats in series.throughputs if len(repeats) > 1), default=0.0
    )
    if len(series.workers) == 1:
        return unpredictability(miss=None, loss_per_doubling=0.0, spread=spread, counts=1)
    predicted = fit_series_law(series.smaller(), settings=settings).log_throughput(series.counts[-1:])[0]
    last_doublings, doublings = (math.log2(series.largest / series.workers[index]) for index in (-2, 0))
    miss = abs(float(predicted - series.log_throughputs[-1])) / max(last_doublings, 1.0)
    loss = -math.log(relative_step(series)[0]) / max(doublings, 1.0)  # noise would dominate closer counts
    return unpredictability(miss=miss, loss_per_doubling=loss, spread=spread, counts=len(series.workers))


def series_noise(series: TableSeries) -> float:
    """How far measurement noise reaches, in logarithms: that of the repeats; without repeats that of the points, but at
    least the floor."""
    margins = [_logged(repeats).reach(PROJECTED_LEVEL) for repeats in series.throughputs if len(repeats) > 1]
    if margins:
        return joint_noise(margins)
    return max(NOISE_FLOOR, joint_noise([float(ndtri((1 + PROJECTED_LEVEL) / 2)) * scatter(series)]))


def scatter(series: TableSeries) -> float:
    """Standard deviation of single points, from how far each lies off the line between its neighbors on log-log axes.

    0 with too few counts to tell. Not the residuals of the law: they are large where it does not fit, however quiet the
    machine is. The median, because a series that leaves its node or stops gaining bends once without being noisy.
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
    node = series.workers_per_node
    if count <= series.largest:
        return "none"
    if node is None:
        return "possible" if series.largest <= USUAL_NODE < count else "none"
    if not never_crossed(series) or count <= node:
        return "none"
    return "as siblings" if siblings > 1 else "new"


def _project(
    series: TableSeries, law: SeriesLaw, alone: SeriesLaw, own_doubt: float, noise: float, count: int, siblings: int
) -> Projected:
    if count in series.workers:
        return _measured(series, count)
    crossing = crossing_kind(series, count, siblings)
    log_rate = _log_throughput(series, law, count)
    value = math.exp(log_rate)
    distance = min(abs(math.log2(count / other)) for other in series.workers)
    alternatives = law.alternatives(count) if count > series.largest else (0.0, 0.0)
    if crossing in ("new", "as siblings"):  # the usual cost is an alternative too, by its weight
        usual_gap = _usual_share(siblings) * (_log_throughput(series, alone, count) - log_rate)
        alternatives = (max(alternatives[0], -usual_gap), max(alternatives[1], usual_gap))
    log_margin: LogMargin = margin(
        doublings=distance, unpredictability=own_doubt, crossing=crossing, alternatives=alternatives
    )
    low, high = log_margin.with_noise(noise).around(value)
    rate = Estimate(value=value, low=low, high=high, level=PROJECTED_LEVEL)
    notes = _notes(series, law, count, crossing, siblings)
    return Projected(workers=count, samples_per_s=rate, measured=False, notes=notes)


def _log_throughput(series: TableSeries, law: SeriesLaw, count: int) -> float:
    at: Floats = np.array([float(count)])
    if count > series.largest:
        return float(law.log_throughput(at)[0])
    if count < series.workers[0]:  # the shape of the law, anchored at the smallest count
        gained = float((law.two_level(series.counts[:1]) / law.two_level(at))[0])
        kept = math.log(min(max(gained, 1.0), MOST_GAIN_BELOW))
        return float(series.log_throughputs[0]) + math.log(count / series.workers[0]) + kept
    return float(np.interp(math.log(count), np.log(series.counts), series.log_throughputs))


def _measured(series: TableSeries, count: int) -> Projected:
    """The median of a measured count; the interval is Student's t over the logs of its repeats, widened to include the
    median."""
    repeats = series.throughputs[series.workers.index(count)]
    if len(repeats) == 1:
        rate = Estimate(value=repeats[0], level=PROJECTED_LEVEL, n=1)
        return Projected(workers=count, samples_per_s=rate, measured=True, notes=(NOTE_ONE_RUN,))
    rate, middle = _logged(repeats).exp(PROJECTED_LEVEL), float(np.exp(np.median(np.log(repeats))))
    low, high = rate.ends
    rate = replace(rate, value=middle, low=min(low, middle), high=max(high, middle))
    return Projected(workers=count, samples_per_s=rate, measured=True, notes=())


def _notes(series: TableSeries, law: SeriesLaw, count: int, crossing: Crossing, siblings: int) -> tuple[str, ...]:
    few = {1: NOTE_ONE_POINT, 2: NOTE_TWO_POINTS}
    notes = [few[len(series.workers)]] if len(series.workers) in few else []
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
    saturating = law.held_back(count) > WORTH_A_NOTE and crossing not in ("new", "as siblings")
    if saturating:
        yield NOTE_SATURATING
    if not saturating and law.lower_where_losses_rise(count) > WORTH_A_NOTE:
        yield NOTE_RISING
