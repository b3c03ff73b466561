"""Throughput of any count of a line: measured, from parts of the step, from the bare series, on another network."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from worldsize.analysis.estimate import Interval, narrower
from worldsize.analysis.projection.bare import (
    LogMargin,
    crossing_kind,
    joint_noise,
    margin,
    project_series,
    series_unpredictability,
    unpredictability,
)
from worldsize.analysis.projection.series_law import TableSeries, table_series
from worldsize.analysis.projection.step_model import Parts, ThroughputModel, fit_throughput
from worldsize.analysis.speed.network import Network, placed
from worldsize.analysis.speed.scaling import ScalingRow
from worldsize.errors import InputError
from worldsize.spec.setting import Setting

OVERLAP_UNKNOWN = (1.0, 2.0, 10.0)
"""Nothing of the exchange hidden, some, almost all: the range where one worker or one batch could not tell."""
NETWORK_USE = (0.6, 0.8, 1.0)
"""Of a declared rate: what real transfers reach."""


OTHER_BATCH = "from other batches that were measured"
CROWDED = "more threads exchange than there are cores"
WHOLE_EXCHANGES = ("ddp", "zero")
"""Strategies that send all gradients, as they are, in every step."""
Throughput = tuple[Interval, Parts | None, bool, tuple[str, ...]]
"""Samples a second with an 80 % interval, the parts of the step, whether it was measured, what to know."""


@dataclass(frozen=True, kw_only=True)
class Throughputs:
    rows: tuple[ScalingRow, ...]
    """Measured ones of the line."""
    model: ThroughputModel | None
    series: TableSeries
    workers_per_node: int
    """Workers on a node."""
    network: Network | None
    """Declared, in place of the measured one."""
    threads: int
    noise_of: tuple[Interval, ...]
    """Measured samples a second whose noise is that of the projection: those of the line; where it has none, of all."""

    def row(self, workers: int) -> ScalingRow | None:
        return next((each for each in self.rows if each.setting.workers == workers), None)

    def at(self, setting: Setting) -> Throughput:
        """Samples a second with an 80 % interval, the parts of the step, whether it was measured, what to know."""
        workers, batch, times = setting.workers, setting.batch_per_worker, setting.accumulation
        row = self.row(workers)
        if row is not None and (self.network is None or workers == 1):
            return (
                narrower(row.samples_per_s),
                self.model.parts(workers, batch, times) if self.model else None,
                True,
                (),
            )
        if self.network is not None:
            return self._on_network(setting, self.network)
        known = max(self.series.largest, self.model.top if self.model else 0)
        new_node = placed(workers, self.workers_per_node)[1] > placed(known, self.workers_per_node)[1]
        if not new_node and (not self.rows or self.series.largest < workers <= known):
            return self._of_batch(setting)  # of what other batches did at that count more is known than of scaling
        series = self._with_other_batches(setting) if new_node else self.series
        found = project_series(series, [workers])[0]
        if self.model is None or self.model.top == 1 or new_node:
            # What an exchange costs, a worker alone cannot say; what leaving a node costs, no span inside one can.
            rate = self._with_noise(Interval(found.samples_per_s, found.low, found.high))
            of_others = not self.rows or series is not self.series
            if of_others:  # what is not known of this batch there is not known further up either
                told = self._of_batch(replace(setting, workers=series.largest))[0]
                rate = Interval(rate.value, rate.low * told.low / told.value, rate.high * told.high / told.value)
            crowded = self._on_full_nodes(rate, setting)
            notes = (*found.notes, *((OTHER_BATCH,) if of_others else ()), *((CROWDED,) if crowded else ()))
            return crowded or rate, None, False, notes
        parts = self.model.parts(workers, batch, times)
        by_parts = setting.global_batch / parts.step_s
        low, high = self._margin(workers).around(by_parts)
        if self.model.is_more_crowded(workers):
            # The range: those threads need not take turns at all, or cost that much once more.
            freer, fuller = (self.model.parts(workers, batch, times, crowding=by) for by in (0.0, 2.0))
            low, high = min(low, setting.global_batch / fuller.step_s), max(high, setting.global_batch / freer.step_s)
            return Interval(by_parts, low, high), parts, False, (*found.notes, CROWDED)
        # Where the work of a rank changes with the workers, a bare series cannot tell that from what scaling costs.
        both = [by_parts] if setting.scaling == "strong" else [by_parts, found.samples_per_s]
        value = math.exp(sum(map(math.log, both)) / len(both))
        low, high = self._margin(workers).around(value)
        # Two models that disagree say how little is known: the interval holds both.
        return Interval(value, min(low, *both), max(high, *both)), parts, False, found.notes

    def _with_other_batches(self, setting: Setting) -> TableSeries:
        """With larger counts that ran with other batches alone, as the parts of the step tell them for this one."""
        if self.model is None or self.model.top <= self.series.largest or setting.scaling == "strong":
            return self.series
        batch, times = setting.batch_per_worker, setting.accumulation
        points = list(zip(self.series.workers, self.series.samples_per_s.tolist(), strict=True))
        for count in sorted({each.workers for each in self.model.timed if each.workers > self.series.largest}):
            points.append((count, count * batch * times / self.model.parts(count, batch, times).step_s))
        return table_series(points, workers_per_node=self.workers_per_node)

    def _on_full_nodes(self, bare: Interval, setting: Setting) -> Interval | None:
        """What a series of fewer workers on a node does not know of; None: it knows as much. No node does better for
        having others beside it."""
        workers_on_node = placed(setting.workers, self.workers_per_node)[0]
        if self.model is None or not self.model.is_more_crowded(workers_on_node):
            return None
        batch, times = setting.batch_per_worker, setting.accumulation
        step_s = self.model.parts(workers_on_node, batch, times).step_s
        slower = step_s / self.model.parts(workers_on_node, batch, times, crowding=0.0).step_s
        value = min(bare.value / slower, setting.global_batch / step_s)
        return Interval(value, min(bare.low / slower**2, value), max(bare.high, value))

    def _of_batch(self, setting: Setting) -> Throughput:
        """A batch that was never run: from those that were, by the parts of the step.

        One batch tells nothing of what part of a step grows with it: anything from none to all of it.
        """
        assert self.model is not None
        workers, batch, times = setting.workers, setting.batch_per_worker, setting.accumulation
        works = sorted({each.samples_per_worker_step for each in self.model.timed})
        parts = self.model.parts(workers, batch, times)
        away = min(abs(math.log2(setting.samples_per_worker_step / work)) for work in works)
        nearest = min(abs(math.log2(workers / other)) for other in self.series.workers)
        crossing = crossing_kind(self.series, workers)
        doubtful = max(self._unpredictability(), series_unpredictability(self.series) if crossing != "none" else 0.0)
        rates = [setting.global_batch / parts.step_s]
        notes: tuple[str, ...] = (OTHER_BATCH,)
        if len(works) == 1:
            constant_s = self.model.parts(workers, works[0] // times or 1, times).step_s
            rates.append(setting.global_batch / constant_s)
            notes = ("one batch was measured: how the step follows the batch is not known",)
        value = math.exp(sum(map(math.log, rates)) / len(rates))
        low, high = margin(doublings=nearest + away, unpredictability=doubtful, crossing=crossing).around(value)
        told = self._with_noise(Interval(value, min(low, *rates), max(high, *rates)))
        return told, parts, False, notes

    def _margin(self, workers: int) -> LogMargin:
        """As far beyond what was measured, and as unsure as that was: this run's noise is in the fit, the next run's in
        what is asked about."""
        distance = min(abs(math.log2(workers / other)) for other in self.series.workers)
        far = margin(
            doublings=distance, unpredictability=self._unpredictability(), crossing=crossing_kind(self.series, workers)
        )
        return far.with_noise(self._noise)

    @property
    def _noise(self) -> float:
        return joint_noise([math.log(rate.high / rate.low) / 2 for rate in map(narrower, self.noise_of)])

    def _with_noise(self, throughput: Interval) -> Interval:
        reached = LogMargin(
            down=math.log(throughput.value / throughput.low), up=math.log(throughput.high / throughput.value)
        )
        return Interval(throughput.value, *reached.with_noise(self._noise).around(throughput.value))

    def _unpredictability(self) -> float:
        """How well the parts of smaller counts foretell the largest one; of a single count, what a bare series says."""
        assert self.model is not None
        top = self.model.top
        smaller = [each for each in self.model.timed if each.workers < top]
        if not smaller:
            return series_unpredictability(self.series)
        foretelling = fit_throughput(smaller, self.model.node)
        misses = [
            abs(math.log(foretelling.parts(top, each.batch_per_worker, each.accumulation).step_s / each.step_s))
            for each in self.model.timed
            if each.workers == top
        ]
        apart = max(math.log2(top / max(each.workers for each in smaller)), 1.0)
        counts = len({each.workers for each in self.model.timed})
        return unpredictability(miss=sum(misses) / len(misses) / apart, loss_per_doubling=0.0, counts=counts)

    def _on_network(self, setting: Setting, network: Network) -> Throughput:
        """On a network that was declared: how much of the exchange hides and how much of the rate is reached is a
        range, and so is the answer."""
        assert self.model is not None
        workers, batch, times = setting.workers, setting.batch_per_worker, setting.accumulation
        if placed(workers, network.workers_per_node)[1] > 1 and network.across is None:
            raise InputError(
                f"{workers} workers need {placed(workers, network.workers_per_node)[1]} nodes, and the network "
                f"({network.source}) has no rate across nodes; add one: '8 x 450GB/s 2us, 50GB/s 5us'"
            )
        if setting.strategy.name not in WHOLE_EXCHANGES:
            raise InputError(
                f"--network knows what {' and '.join(WHOLE_EXCHANGES)} send, not {setting.strategy.label}; leave it "
                "out, or project a study of these"
            )
        if self.model.node.payload_bytes is None and workers > 1:
            raise InputError(
                "the records do not tell how many bytes of gradients a step sends, which probes of this version do; "
                "probe one setting again"
            )
        known = self.model.overlap if self.model.overlap_known else None
        overlaps = OVERLAP_UNKNOWN if known is None else (max(known / 2, 1.0), known, min(known * 2, 10.0))
        slow, middle, fast = (  # whether others are waited for as they were here is part of the range
            self.model.parts_on(network, workers, batch, times, overlap=overlap, use=use, waiting=waiting)
            for overlap, use, waiting in zip(overlaps, NETWORK_USE, (True, False, False), strict=True)
        )
        rates = [setting.global_batch / each.step_s for each in (slow, middle, fast)]
        doublings = math.log2(workers) if workers > 1 else 0.0
        # Computing is as measured; what more workers add beyond the wire (stragglers) widens as elsewhere.
        more = margin(doublings=min(doublings, 3.0), unpredictability=0.0)
        low, high = rates[0] * math.exp(-more.down), rates[2] * math.exp(more.up)
        told = self._with_noise(Interval(rates[1], low, high))
        return told, middle, False, (f"network {network.source}",)
