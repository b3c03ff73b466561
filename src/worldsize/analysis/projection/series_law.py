"""The law that projects a bare series: two levels (inside a node, between nodes), shrunk; a companion law far away.

With n workers, g per node, m = min(n, g) inside a node, k = max(n / g, 1) nodes, n_L the largest measured count and
t(n) = n / rate the time a worker spends on one sample, relative to that at n_L:

    t(n) = c0 + c1 (1 - 1/m) + c2 log2 m + c3 (1 - 1/k) + c4 log2 k + c5 (n - 1) / n_L,   all c >= 0

1 - 1/m is the share of the data that a ring moves, log2 m the depth of a tree, (n - 1) / n_L what grows with every
worker. There are six terms and three to six points, so every coefficient but c0 is shrunk toward its usual value, as
far as its spread allows.

The bend describes the end of a bare series: whether it stops gaining, whether its losses rise, on how many nodes.
Slopes span at least a doubling, because between closer counts noise dominates.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from worldsize.analysis.estimate import Floats, fit_nonnegative

MOST_LOG_RATIO = 50.0
"""Rates further apart than exp(50) are not measurements; they are clipped, so that sums do not overflow."""


@dataclass(frozen=True, kw_only=True)
class TableSeries:
    """Rates at several worker counts, all else equal: one batch per worker (weak) or one global batch (strong).

    In both modes the laws work on the time a worker spends on one sample, n / rate: constant if scaling is perfect.
    """

    workers: tuple[int, ...]
    """Ascending, each once."""
    throughputs: tuple[tuple[float, ...], ...]
    """Samples per second of every repeat at each count, ascending. Any unit proportional to speed works."""
    workers_per_node: int | None = None
    name: str = ""
    stack: str = ""
    """Hardware and software it ran on; leaving a node costs series of one stack about the same. '': unknown."""

    @property
    def counts(self) -> Floats:
        return np.array(self.workers, dtype=np.float64)

    @property
    def log_throughputs(self) -> Floats:
        """Median over the repeats of each count, in logarithms, so that one bad repeat of three has no effect."""
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
    """A series from (workers, rate) pairs in any order; a count that occurs twice was repeated. Values are positive and
    finite."""
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
    """Time per sample and worker, n / rate, relative to that at the largest count."""
    logs = np.log(series.counts) - series.log_throughputs
    return np.asarray(np.exp(np.clip(logs - logs[-1], -MOST_LOG_RATIO, MOST_LOG_RATIO)))


USUAL_NODE = 8
"""With more workers, a series without a node size may have left its node."""
FULL_GAIN, LEAST_GAIN = 0.9, 0.4
"""Last local exponent p of the rate: above the first a series does not saturate, below the second it fully does."""
FULL_GAIN_FAR, LEAST_GAIN_FAR = 1.0, 0.8
"""The same on many nodes."""
FEW_NODES, MANY_NODES = 4, 8
"""By then a ring has paid most of its 1 - 1/k: further losses are crowding, and continue."""
RISE, FALL = 0.2, 0.05
"""Changes of p: after a rise this large a series does not saturate; a fall this large can come from leaving a node."""


@dataclass(frozen=True, kw_only=True)
class Bend:
    saturation: float = 0.0
    """0 to 1: how far the series has stopped gaining."""
    last_slope: float = 1.0
    """p of rate ~ n^p at the end of the series. At least 0: the data do not show how far a falling rate would fall."""
    rising: float = 0.0
    """q of (what a doubling adds to t) ~ n^q at the end, 0 to 1. 0: every doubling loses the same; 1: every worker does
    (Amdahl: t = 1 + f (n - 1))."""
    last_rise: float = 0.0
    """What each of the last workers added to t."""
    fell: float = 0.0
    """0 to 1: how far p fell in the last stretch, which may be a single bad point; 0 for a steady bend."""
    many_nodes: float = 0.0
    """0 up to four nodes, 1 from eight on."""


def bend(series: TableSeries) -> Bend:
    """How the series bends at its end; no bend if fewer than three counts were measured.

    Saturation counts if p has not risen and is below 0.9 (1 on many nodes), fully from 0.4 (0.8) down. A fall that
    leaving a node explains does not count, because it is paid only once.
    """
    if len(series.workers) < 3:
        return Bend()
    logs = np.log(series.counts)
    start = _a_doubling_below(logs, len(logs) - 1)
    first = _a_doubling_below(logs, start)
    last = _slope(logs, series.log_throughputs, start, len(logs) - 1)
    before = _slope(logs, series.log_throughputs, first, start) if start > 0 else 1.0
    # From one worker on, the first exchange is paid once; the end of a fall further up is not a rise.
    risen = last - (before if series.workers[first] == 1 else max(before, 0.0))
    far = _many_nodes(series)
    full = FULL_GAIN + far * (FULL_GAIN_FAR - FULL_GAIN)
    least = LEAST_GAIN + far * (LEAST_GAIN_FAR - LEAST_GAIN)
    spans = _clipped(float(logs[-1] - logs[start]) / math.log(2))
    saturation = spans * _clipped(1 - risen / RISE) * _clipped((full - last) / (full - least))
    left_node = series.workers[start] <= (series.workers_per_node or USUAL_NODE) < series.largest
    explained = _clipped((before - last) / FALL) if left_node else 0.0
    paid_once = left_node and series.workers_per_node is not None
    rising, last_rise = (0.0, 0.0) if start == 0 or paid_once else _rising(series, logs, first, start)
    return Bend(
        saturation=(1 - explained) * saturation,
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
    log_distance = float(logs[-1] - logs[first]) / 2  # between the middles of the two stretches
    power = math.log(last / before) / log_distance if before > 0 else 1.0
    return _clipped(power), float(step[-1] - step[start]) / (series.workers[-1] - series.workers[start])


def _many_nodes(series: TableSeries) -> float:
    nodes = series.largest / (series.workers_per_node or USUAL_NODE)
    return _clipped(math.log(nodes / FEW_NODES) / math.log(MANY_NODES / FEW_NODES))


def _a_doubling_below(logs: Floats, index: int) -> int:
    """Index of the next smaller count that is at most half as large; of the smallest if there is none."""
    below = np.flatnonzero(logs[:index] <= logs[index] - math.log(2) + 1e-9)
    return int(below[-1]) if len(below) else 0


def _slope(x: Floats, y: Floats, start: int, end: int) -> float:
    return float((y[end] - y[start]) / (x[end] - x[start]))


def _clipped(share: float) -> float:
    return min(max(share, 0.0), 1.0)


LEAST_STEP = 1e-9
"""A law with c0 = 0 leaves no time at all at one worker."""


@dataclass(frozen=True, kw_only=True)
class LawSettings:
    """Constants of the fit, rounded; docs/projection.md lists the data they were tested on. All are shares of the step
    at n_L."""

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
    """Usual c2 and c4 if only one count was measured: then the data do not show the loss inside it either."""
    crossing_usual: float = 0.18
    """Usual c3 before any boundary was crossed: 9 % of a step at two nodes, 14 % at four. The mean over ten published
    sources: seven report less than 10 %, two report 75 and 86 %."""
    follow_last: float = 0.75
    """Share of the residual at n_L that shifts the curve: the last point says most about what follows."""


DEFAULT = LawSettings()

SERIAL_SHARE = 0.5
"""On many nodes, rising losses go halfway toward losing as much with every worker as with the last ones."""


@dataclass(frozen=True, kw_only=True)
class SeriesLaw:
    """A fitted law: log of the rate at any count."""

    coefficients: tuple[float, ...]
    companion: tuple[float, ...] | None
    """a and b of t = a + b log2 n; None if the counts span less than a doubling, where noise would determine b."""
    log_shift: float
    """How far `follow_last` shifts the two-level curve."""
    bend: Bend
    largest: int
    log_throughput_largest: float
    workers_per_node: int | None
    converged: bool

    def two_level(self, workers: Floats) -> Floats:
        """t(n) relative to the one measured at n_L."""
        terms = design(workers, self.workers_per_node, self.largest)
        return np.asarray(np.maximum(terms @ np.array(self.coefficients), LEAST_STEP) * math.exp(self.log_shift))

    def log_throughput(self, workers: Floats) -> Floats:
        """log(n / t(n)), the two laws averaged in logarithms: the farther away, the more the companion counts.

        A worker is never faster than one at n_L, although the companion predicts that if the last point fell. A worker
        on several nodes is never faster than one on a full node, because steps wait for the slowest.
        """
        gain, node = self._log_throughput_gain(workers), self.workers_per_node
        if node is not None and node > self.largest:
            full = float(self._log_throughput_gain(np.array([float(node)]))[0])
            gain = np.where(workers > node, np.minimum(gain, full + np.log(workers / node)), gain)
        return np.asarray(self.log_throughput_largest + gain)

    def _log_throughput_gain(self, workers: Floats) -> Floats:
        saturated, growth = self._saturation(workers), np.log(workers / self.largest)
        tail = self.bend.last_slope * growth
        share = SERIAL_SHARE * self.bend.many_nodes * self.bend.rising
        tail = (1 - share) * tail + share * np.clip(self._serial_gain(workers), 0.0, tail)
        gain = (1 - saturated) * self._log_gain(workers) + saturated * tail
        return np.asarray(np.minimum(gain, growth))

    def alternatives(self, workers: float) -> tuple[float, float]:
        """How much lower and higher alternative readings are; 0 if there are none.

        Higher without saturation, if only the last point indicates it. Lower with losses that keep rising. Both apply
        inside the node only.
        """
        return self.lower_where_losses_rise(workers), self.bend.fell * self.held_back(workers)

    def held_back(self, workers: float) -> float:
        """How much higher the rate would be without saturation."""
        upto = np.array([self._inside(workers)])
        unsaturated = np.minimum(self._log_gain(upto), np.log(upto / self.largest))
        return max(0.0, float((unsaturated - self._log_throughput_gain(upto))[0]))

    def lower_where_losses_rise(self, workers: float) -> float:
        """How much lower the rate is if every further worker adds what the last ones did; for two doublings only, since
        other doubts dominate further out."""
        upto = np.array([min(self._inside(workers), 4.0 * self.largest)])
        return self.bend.rising * max(0.0, float((self._log_throughput_gain(upto) - self._serial_gain(upto))[0]))

    def _serial_gain(self, workers: Floats) -> Floats:
        """log(rate / rate at n_L) if every further worker adds to t what the last ones did."""
        return np.asarray(np.log(workers / self.largest) - np.log1p(self.bend.last_rise * (workers - self.largest)))

    def _inside(self, workers: float) -> float:
        """The workers, limited to a full node if no more were measured."""
        node = self.workers_per_node
        return float(workers if node is None or node < self.largest else min(workers, node))

    def _log_gain(self, workers: Floats) -> Floats:
        """log(rate / rate at n_L) without saturation."""
        log_step = np.log(self.two_level(workers))
        if self.companion is not None:
            share = companion_share(workers, self.largest)
            far = np.log(np.maximum(self.companion[0] + self.companion[1] * np.log2(workers), LEAST_STEP))
            log_step = (1 - share) * log_step + share * far
        return np.asarray(np.log(workers / self.largest) - log_step)

    def _saturation(self, workers: Floats) -> Floats:
        """Saturation at each count; 0 beyond the node, because the next node brings its own cores and bandwidth."""
        node = self.workers_per_node
        new_node = np.zeros(len(workers), dtype=bool) if node is None or self.largest > node else workers > node
        return np.where(new_node, 0.0, self.bend.saturation)


def companion_share(workers: Floats, largest: int) -> Floats:
    """1 - 1/d beyond one doubling: 0 at the next doubling, a half at 4 x, two thirds at 8 x.

    Near n_L the two-level law is better; farther away a plain cost per doubling makes fewer large errors.
    """
    doublings = np.log2(workers / largest)
    return np.asarray(1 - 1 / np.maximum(doublings, 1.0))


def design(workers: Floats, workers_per_node: int | None, largest: int) -> Floats:
    """The terms of the law, one column each. Without a node size all workers count as being on one node."""
    inside = workers if workers_per_node is None else np.minimum(workers, workers_per_node)
    nodes = np.ones_like(workers) if workers_per_node is None else np.maximum(workers / workers_per_node, 1.0)
    columns = [np.ones_like(workers), 1 - 1 / inside, np.log2(inside), 1 - 1 / nodes, np.log2(nodes)]
    return np.stack([*columns, (workers - 1) / largest], axis=1)


def never_crossed(series: TableSeries) -> bool:
    return series.workers_per_node is not None and series.largest <= series.workers_per_node


def usual(series: TableSeries, crossing: float | None, settings: LawSettings) -> Floats:
    """The values that c1 to c5 are shrunk toward. `crossing` is c3 from other series of the same stack."""
    log_cost = settings.log_usual_alone if len(series.workers) == 1 else settings.log_usual
    leaving = 0.0
    if never_crossed(series):
        leaving = settings.crossing_usual if crossing is None else crossing
    return np.array([0.0, log_cost, leaving, log_cost, 0.0])


def fit_series_law(series: TableSeries, *, crossing: float | None = None, settings: LawSettings = DEFAULT) -> SeriesLaw:
    """By relative residuals, plus ((c - usual) noise / spread)^2 for c1 to c5."""
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
