"""The law that projects a bare series: two levels (inside a node, between nodes), and a law for distant counts.

With n workers, g per node, m = min(n, g) inside a node, k = max(n / g, 1) nodes, the largest measured count n_L, and
t(n) = n / rate, the time that a worker spends on one sample, relative to t(n_L):

    t(n) = c0 + c1 (1 - 1/m) + c2 log2 m + c3 (1 - 1/k) + c4 log2 k + c5 (n - 1) / n_L,   all c >= 0

1 - 1/m is the share of the data that a ring moves, log2 m the depth of a tree, (n - 1) / n_L a cost that grows with
every worker. There are six terms but only three to six points, so every coefficient except c0 is shrunk toward its
usual value. A smaller spread means stronger shrinkage.

The bend describes the end of a bare series: whether it stops gaining, whether its losses rise, and on how many nodes.
Slopes span at least a doubling, because between closer counts noise dominates.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from worldsize.analysis.estimate import Floats, fit_nonnegative

MAX_LOG_RATIO = 50.0
"""Log ratios of rates are clipped to this, so that sums do not overflow. No two measurements differ by exp(50)."""


@dataclass(frozen=True, kw_only=True)
class TableSeries:
    """Rates at several worker counts, all else equal: one batch per worker (weak) or one global batch (strong).

    In both modes, the laws describe n / rate, the time that a worker spends on one sample. It is constant if scaling is
    perfect.
    """

    workers: tuple[int, ...]
    """Worker counts, ascending, without duplicates."""
    throughputs: tuple[tuple[float, ...], ...]
    """Samples per second of the repeats at each count, ascending. Any unit proportional to speed works."""
    workers_per_node: int | None = None
    name: str = ""
    stack: str = ""
    """Hardware and software of the runs; empty if unknown. Leaving a node costs series of one stack about the same."""

    @property
    def counts(self) -> Floats:
        return np.array(self.workers, dtype=np.float64)

    @property
    def log_throughputs(self) -> Floats:
        """Median over the repeats of each count, in logarithms, so that one bad repeat out of three has no effect."""
        return np.array([float(np.median(np.log(repeats))) for repeats in self.throughputs])

    @property
    def samples_per_s(self) -> Floats:
        return np.asarray(np.exp(self.log_throughputs))

    @property
    def largest(self) -> int:
        return self.workers[-1]

    def smaller(self) -> TableSeries:
        """The series without its largest count."""
        return TableSeries(
            workers=self.workers[:-1],
            throughputs=self.throughputs[:-1],
            workers_per_node=self.workers_per_node,
            name=self.name,
            stack=self.stack,
        )


def table_series(
    points: Iterable[tuple[int, float]], *, workers_per_node: int | None = None, name: str = "", stack: str = ""
) -> TableSeries:
    """Return a series from (workers, rate) pairs in any order. Pairs with the same count are repeats. Rates must be
    positive and finite."""
    by_count: dict[int, list[float]] = defaultdict(list)
    for workers, rate in points:
        by_count[workers].append(rate)
    counts = tuple(sorted(by_count))
    return TableSeries(
        workers=counts,
        throughputs=tuple(tuple(sorted(by_count[count])) for count in counts),
        workers_per_node=workers_per_node,
        name=name,
        stack=stack,
    )


def relative_step(series: TableSeries) -> Floats:
    """Return t(n): the time that a worker spends on one sample, n / rate, relative to that at the largest count."""
    logs = np.log(series.counts) - series.log_throughputs
    return np.asarray(np.exp(np.clip(logs - logs[-1], -MAX_LOG_RATIO, MAX_LOG_RATIO)))


USUAL_NODE = 8
"""With more workers than this, a series without a node size may have left its node."""
FULL_GAIN, MIN_GAIN = 0.9, 0.4
"""Local exponents p of the rate at the end of a series. Above the first, the series does not saturate; below the
second, it saturates fully."""
FULL_GAIN_FAR, MIN_GAIN_FAR = 1.0, 0.8
"""The same on many nodes."""
FEW_NODES, MANY_NODES = 4, 8
"""Numbers of nodes between which `Bend.many_nodes` rises from 0 to 1. Beyond them, a ring has paid most of its 1 - 1/k,
so further losses come from crowding and continue."""
RISE, FALL = 0.2, 0.05
"""Changes of p. After a rise this large, a series does not saturate. A fall this large can come from leaving a node."""


@dataclass(frozen=True, kw_only=True)
class Bend:
    """The shape of a series at its end."""

    saturation: float = 0.0
    """How far the series has stopped gaining, from 0 to 1."""
    last_slope: float = 1.0
    """p of rate ~ n^p at the end of the series. At least 0: the data do not show how far a falling rate would fall."""
    rising: float = 0.0
    """q of (what a doubling adds to t) ~ n^q at the end of the series, from 0 to 1. 0: every doubling costs the same;
    1: every worker does (Amdahl: t = 1 + f (n - 1))."""
    last_rise: float = 0.0
    """What each of the last workers added to t."""
    fell: float = 0.0
    """How far p fell in the last stretch, from 0 to 1, perhaps due to a single bad point. 0 for a steady bend."""
    many_nodes: float = 0.0
    """0 up to four nodes, 1 from eight nodes on."""


def bend(series: TableSeries) -> Bend:
    """Return how a series bends at its end; no bend if fewer than three counts were measured.

    A series saturates if p has not risen and is below 0.9 (1 on many nodes), fully at 0.4 (0.8) or below. A fall that
    leaving a node can explain is ignored, because that cost is paid only once.
    """
    if len(series.workers) < 3:
        return Bend()
    logs = np.log(series.counts)
    start = _a_doubling_below(logs, len(logs) - 1)
    first = _a_doubling_below(logs, start)
    last = _slope(logs, series.log_throughputs, start, len(logs) - 1)
    before = _slope(logs, series.log_throughputs, first, start) if start > 0 else 1.0
    # A fall from one worker is the cost of the first exchange, paid once. Further up, the end of a fall is not a rise.
    rise = last - (before if series.workers[first] == 1 else max(before, 0.0))
    many_nodes = _many_nodes(series)
    full_gain = FULL_GAIN + many_nodes * (FULL_GAIN_FAR - FULL_GAIN)
    min_gain = MIN_GAIN + many_nodes * (MIN_GAIN_FAR - MIN_GAIN)
    span = _clipped(float(logs[-1] - logs[start]) / math.log(2))
    saturation = span * _clipped(1 - rise / RISE) * _clipped((full_gain - last) / (full_gain - min_gain))
    left_node = series.workers[start] <= (series.workers_per_node or USUAL_NODE) < series.largest
    explained_share = _clipped((before - last) / FALL) if left_node else 0.0
    paid_once = left_node and series.workers_per_node is not None
    rising, last_rise = (0.0, 0.0) if start == 0 or paid_once else _rising(series, logs, first, start)
    return Bend(
        saturation=(1 - explained_share) * saturation,
        last_slope=max(last, 0.0),
        rising=rising,
        last_rise=last_rise,
        fell=_clipped((before - last) / RISE),
        many_nodes=many_nodes,
    )


def _rising(series: TableSeries, logs: Floats, first: int, start: int) -> tuple[float, float]:
    """Return `Bend.rising` and `Bend.last_rise`."""
    step = relative_step(series)
    last, before = _slope(logs, step, start, len(step) - 1), _slope(logs, step, first, start)
    if last <= 0:
        return 0.0, 0.0
    log_distance = float(logs[-1] - logs[first]) / 2  # between the middles of the two stretches
    power = math.log(last / before) / log_distance if before > 0 else 1.0
    return _clipped(power), float(step[-1] - step[start]) / (series.workers[-1] - series.workers[start])


def _many_nodes(series: TableSeries) -> float:
    nodes = series.largest / (series.workers_per_node or USUAL_NODE)
    return _clipped(math.log(nodes / FEW_NODES) / math.log(MANY_NODES / FEW_NODES))


def _a_doubling_below(logs: Floats, index: int) -> int:
    """Return the index of the next smaller count that is at most half as large, or of the smallest count."""
    below = np.flatnonzero(logs[:index] <= logs[index] - math.log(2) + 1e-9)
    return int(below[-1]) if len(below) else 0


def _slope(x: Floats, y: Floats, start: int, end: int) -> float:
    return float((y[end] - y[start]) / (x[end] - x[start]))


def _clipped(share: float) -> float:
    return min(max(share, 0.0), 1.0)


MIN_STEP = 1e-9
"""Smallest t(n). A law with c0 = 0 would leave no time at all at one worker."""


@dataclass(frozen=True, kw_only=True)
class LawSettings:
    """Constants of the fit, as shares of the step at n_L, rounded. docs/projection.md lists the data they were tested
    on."""

    noise: float = 0.05
    """How far a measured point may lie from the law."""
    saturating_spread: float = 0.1
    """Spread of c1 and c3."""
    log_spread: float = 0.03
    """Spread of c2 and c4."""
    linear_spread: float = 0.02
    """Spread of c5; narrow, so that growth with every worker needs clear evidence."""
    log_usual: float = 0.01
    """Usual c2 and c4: most stacks lose something with every doubling."""
    log_usual_alone: float = 0.04
    """Usual c2 and c4 if only one count was measured, because its own loss is unknown too."""
    crossing_usual: float = 0.18
    """Usual c3 of a series that never left its node: 9 % of a step at two nodes, 14 % at four. It is the mean over ten
    published sources, of which seven report less than 10 %, and two report 75 and 86 %."""
    follow_last: float = 0.75
    """Share of the residual at n_L by which the curve is shifted. The last point says most about what follows."""


DEFAULT = LawSettings()

SERIAL_SHARE = 0.5
"""On many nodes, rising losses are projected halfway toward every further worker costing as much as the last ones."""


@dataclass(frozen=True, kw_only=True)
class SeriesLaw:
    """A fitted law, which gives the rate at any count."""

    coefficients: tuple[float, ...]
    companion: tuple[float, ...] | None
    """a and b of t = a + b log2 n. None if the counts span less than a doubling, so that noise would determine b."""
    log_shift: float
    """How far `follow_last` shifts the two-level curve, in logarithms."""
    bend: Bend
    largest: int
    log_throughput_largest: float
    workers_per_node: int | None
    converged: bool

    def two_level(self, workers: Floats) -> Floats:
        """Return t(n) of the two-level law."""
        terms = design(workers, self.workers_per_node, self.largest)
        return np.asarray(np.maximum(terms @ np.array(self.coefficients), MIN_STEP) * math.exp(self.log_shift))

    def log_throughput(self, workers: Floats) -> Floats:
        """Return log(n / t(n)), the average of the two laws. The farther from n_L, the more the companion weighs.

        A worker is never faster than at n_L, although the companion predicts that if the last point fell. A worker
        on several nodes is never faster than on one full node, because steps wait for the slowest worker.
        """
        gain, node = self._log_throughput_gain(workers), self.workers_per_node
        if node is not None and node > self.largest:
            full_node = float(self._log_throughput_gain(np.array([float(node)]))[0])
            gain = np.where(workers > node, np.minimum(gain, full_node + np.log(workers / node)), gain)
        return np.asarray(self.log_throughput_largest + gain)

    def _log_throughput_gain(self, workers: Floats) -> Floats:
        saturated, growth = self._saturation(workers), np.log(workers / self.largest)
        tail = self.bend.last_slope * growth
        share = SERIAL_SHARE * self.bend.many_nodes * self.bend.rising
        tail = (1 - share) * tail + share * np.clip(self._serial_gain(workers), 0.0, tail)
        gain = (1 - saturated) * self._log_gain(workers) + saturated * tail
        return np.asarray(np.minimum(gain, growth))

    def alternatives(self, workers: float) -> tuple[float, float]:
        """Return how much lower and how much higher alternative readings are, in logarithms; 0 if there are none.

        In the lower one, losses keep rising; in the higher one, there is no saturation that only the last point
        suggests. Both apply inside the node only.
        """
        return self.rising_loss(workers), self.bend.fell * self.saturation_loss(workers)

    def saturation_loss(self, workers: float) -> float:
        """Return how much higher the rate would be without saturation, in logarithms."""
        count = np.array([self._inside(workers)])
        unsaturated = np.minimum(self._log_gain(count), np.log(count / self.largest))
        return max(0.0, float((unsaturated - self._log_throughput_gain(count))[0]))

    def rising_loss(self, workers: float) -> float:
        """Return how much lower the rate is if every further worker adds what the last ones did, in logarithms.

        This applies to two doublings only, because other uncertainties dominate further out.
        """
        count = np.array([min(self._inside(workers), 4.0 * self.largest)])
        return self.bend.rising * max(0.0, float((self._log_throughput_gain(count) - self._serial_gain(count))[0]))

    def _serial_gain(self, workers: Floats) -> Floats:
        """Return log(rate / rate at n_L) if every further worker adds to t what the last ones did."""
        return np.asarray(np.log(workers / self.largest) - np.log1p(self.bend.last_rise * (workers - self.largest)))

    def _inside(self, workers: float) -> float:
        """Return the worker count, limited to a full node if no more were measured."""
        node = self.workers_per_node
        return float(workers if node is None or node < self.largest else min(workers, node))

    def _log_gain(self, workers: Floats) -> Floats:
        """Return log(rate / rate at n_L) without saturation."""
        log_step = np.log(self.two_level(workers))
        if self.companion is not None:
            share = companion_share(workers, self.largest)
            log_companion = np.log(np.maximum(self.companion[0] + self.companion[1] * np.log2(workers), MIN_STEP))
            log_step = (1 - share) * log_step + share * log_companion
        return np.asarray(np.log(workers / self.largest) - log_step)

    def _saturation(self, workers: Floats) -> Floats:
        """Return the saturation at each count; 0 beyond the node, because other nodes add their cores and bandwidth."""
        node = self.workers_per_node
        new_node = np.zeros(len(workers), dtype=bool) if node is None or self.largest > node else workers > node
        return np.where(new_node, 0.0, self.bend.saturation)


def companion_share(workers: Floats, largest: int) -> Floats:
    """Return the weight of the companion law, 1 - 1/d at d doublings: 0 at the first, 1/2 at 4x, 2/3 at 8x.

    Near n_L, the two-level law is more accurate. Farther away, a plain cost per doubling makes fewer large errors.
    """
    doublings = np.log2(workers / largest)
    return np.asarray(1 - 1 / np.maximum(doublings, 1.0))


def design(workers: Floats, workers_per_node: int | None, largest: int) -> Floats:
    """Return the terms of the law, one per column. Without a node size, all workers count as being on one node."""
    inside = workers if workers_per_node is None else np.minimum(workers, workers_per_node)
    nodes = np.ones_like(workers) if workers_per_node is None else np.maximum(workers / workers_per_node, 1.0)
    columns = [np.ones_like(workers), 1 - 1 / inside, np.log2(inside), 1 - 1 / nodes, np.log2(nodes)]
    return np.stack([*columns, (workers - 1) / largest], axis=1)


def never_crossed(series: TableSeries) -> bool:
    return series.workers_per_node is not None and series.largest <= series.workers_per_node


def usual(series: TableSeries, crossing: float | None, settings: LawSettings) -> Floats:
    """Return the values that c1 to c5 are shrunk toward. `crossing`: c3 from other series of the same stack."""
    log_cost = settings.log_usual_alone if len(series.workers) == 1 else settings.log_usual
    leaving = 0.0
    if never_crossed(series):
        leaving = settings.crossing_usual if crossing is None else crossing
    return np.array([0.0, log_cost, leaving, log_cost, 0.0])


def fit_series_law(series: TableSeries, *, crossing: float | None = None, settings: LawSettings = DEFAULT) -> SeriesLaw:
    """Minimize the squares of relative residuals, plus ((c - usual) noise / spread)^2 for c1 to c5."""
    counts, step = series.counts, relative_step(series)
    terms = design(counts, series.workers_per_node, series.largest)
    saturating, log, linear = settings.saturating_spread, settings.log_spread, settings.linear_spread
    pull = np.array([0.0, *(settings.noise / spread for spread in (saturating, log, saturating, log, linear))])
    towards = np.array([0.0, *usual(series, crossing, settings)])
    fit = fit_nonnegative(terms, step, weights=1 / step, pull=pull, towards=towards)
    companion = None
    if counts[-1] >= 2 * counts[0]:
        companion = fit_nonnegative(np.stack([np.ones_like(counts), np.log2(counts)], axis=1), step, weights=1 / step)
    return SeriesLaw(
        coefficients=tuple(fit.coefficients.tolist()),
        companion=tuple(companion.coefficients.tolist()) if companion else None,
        log_shift=-settings.follow_last * math.log(float(terms[-1] @ fit.coefficients)),
        bend=bend(series),
        largest=series.largest,
        log_throughput_largest=float(series.log_throughputs[-1]),
        workers_per_node=series.workers_per_node,
        converged=fit.converged and (companion is None or companion.converged),
    )
