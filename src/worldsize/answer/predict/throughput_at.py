"""Throughput at any worker count: measured, from the step model, from the bare series, or on another network."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from worldsize.analysis.estimate import PROJECTED_LEVEL, Estimate, Sample
from worldsize.analysis.projection.bare import (
    NOISE_FLOOR,
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
from worldsize.analysis.speed.network import Network, node_layout
from worldsize.analysis.speed.scaling import ScalingRow
from worldsize.errors import InputError
from worldsize.spec.setting import Setting

OVERLAP_UNKNOWN = (1.0, 2.0, 10.0)
"""No overlap, some, and almost complete: the range if the measurements do not show the overlap."""
NETWORK_USE = (0.6, 0.8, 1.0)
"""Share of a declared rate that real transfers reach."""
STEP_BASE = 0.045
"""What each doubling adds to the margin of the step model, whatever its evidence. A bare series needs less, because its
interval also covers alternative readings."""
OTHER_BATCH = "estimated from other measured batches"
CROWDED = "more exchange threads than cores"
WHOLE_EXCHANGES = ("ddp", "zero")
"""Strategies that send all gradients in every step, uncompressed."""


@dataclass(frozen=True, kw_only=True)
class Throughput:
    """Throughput at one worker count."""

    samples_per_s: Estimate
    """With an 80 % interval."""
    parts: Parts | None = None
    """Parts of the step; None if they are unknown."""
    measured: bool = False
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Throughputs:
    rows: tuple[ScalingRow, ...]
    """Measured rows of the curve."""
    model: ThroughputModel | None
    series: TableSeries
    workers_per_node: int
    network: Network | None
    """Declared network that replaces the measured one. None: the measured network."""
    noise_samples: tuple[Sample, ...]
    """Measured throughputs from which the noise is estimated: those of the curve or, if it has none, all."""

    def row(self, workers: int) -> ScalingRow | None:
        return next((row for row in self.rows if row.setting.workers == workers), None)

    def at(self, setting: Setting) -> Throughput:
        workers = setting.workers
        row = self.row(workers)
        if row is not None and (self.network is None or workers == 1):
            return self._measured(row)
        if self.network is not None:
            return self._on_network(setting, self.network)
        known = max(self.series.largest, self.model.top if self.model else 0)
        new_node = node_layout(workers, self.workers_per_node)[1] > node_layout(known, self.workers_per_node)[1]
        if not new_node and (not self.rows or self.series.largest < workers <= known):
            return self._from_other_batches(setting)  # at this count, they tell more than an extrapolation
        if self.model is None or self.model.top == 1 or new_node:
            # One worker does not show the cost of an exchange, and spans inside a node do not show that of leaving it.
            return self._from_bare_series(setting, new_node)
        return self._from_step_model(setting, self.model)

    def _measured(self, row: ScalingRow) -> Throughput:
        setting = row.setting
        parts = (setting.workers, setting.batch_per_worker, setting.accumulation)
        return Throughput(
            samples_per_s=row.pace.throughput.exp(PROJECTED_LEVEL),
            parts=self.model.parts(*parts) if self.model else None,
            measured=True,
        )

    def _from_bare_series(self, setting: Setting, new_node: bool) -> Throughput:
        series = self._with_other_batches(setting) if new_node else self.series
        projected = project_series(series, [setting.workers], noise=self._noise)[0]
        rate = projected.samples_per_s
        of_others = not self.rows or series is not self.series
        if of_others:  # larger counts have at least the uncertainty about this batch at the largest count
            at_largest = self._from_other_batches(replace(setting, workers=series.largest)).samples_per_s
            (low, high), (down, up) = rate.ends, at_largest.scaled(1 / at_largest.value).ends
            rate = rate.with_ends(low * down, high * up)
        crowded = self._on_full_nodes(rate, setting)
        notes = (*projected.notes, *((OTHER_BATCH,) if of_others else ()), *((CROWDED,) if crowded else ()))
        return Throughput(samples_per_s=crowded or rate, notes=notes)

    def _from_step_model(self, setting: Setting, model: ThroughputModel) -> Throughput:
        workers, batch, times = setting.workers, setting.batch_per_worker, setting.accumulation
        projected = project_series(self.series, [workers], noise=self._noise)[0]
        parts = model.parts(workers, batch, times)
        by_parts = setting.global_batch / parts.step_s
        low, high = self._margin(workers).around(by_parts)
        if model.is_more_crowded(workers):
            # The interval reaches from crowding that costs nothing to crowding that costs twice as much.
            fastest, slowest = (model.parts(workers, batch, times, crowding=factor) for factor in (0.0, 2.0))
            low = min(low, setting.global_batch / slowest.step_s)
            high = max(high, setting.global_batch / fastest.step_s)
            rate = _projected(by_parts, low, high)
            return Throughput(samples_per_s=rate, parts=parts, notes=(*projected.notes, CROWDED))
        # In strong scaling, a bare series cannot separate the cost of scaling from that of less work per rank.
        both = [by_parts] if setting.scaling == "strong" else [by_parts, projected.samples_per_s.value]
        # The more the two models disagree, the less is known, so the interval includes both.
        rate = _projected(by_parts, min(low, *both), max(high, *both))
        return Throughput(samples_per_s=rate, parts=parts, notes=projected.notes)

    def _with_other_batches(self, setting: Setting) -> TableSeries:
        """Return the series, plus larger counts that ran only with other batches, converted to this batch."""
        if self.model is None or self.model.top <= self.series.largest or setting.scaling == "strong":
            return self.series
        batch, times = setting.batch_per_worker, setting.accumulation
        points = list(zip(self.series.workers, self.series.samples_per_s.tolist(), strict=True))
        for count in sorted({timing.workers for timing in self.model.timed if timing.workers > self.series.largest}):
            points.append((count, count * batch * times / self.model.parts(count, batch, times).step_s))
        return table_series(points, workers_per_node=self.workers_per_node)

    def _on_full_nodes(self, bare: Estimate, setting: Setting) -> Estimate | None:
        """Return a projection slowed down by crowding that the series, with fewer workers per node, does not show.

        None if the series shows it. More nodes never make a node faster.
        """
        workers_on_node = node_layout(setting.workers, self.workers_per_node)[0]
        if self.model is None or not self.model.is_more_crowded(workers_on_node):
            return None
        batch, times = setting.batch_per_worker, setting.accumulation
        step_s = self.model.parts(workers_on_node, batch, times).step_s
        slower = step_s / self.model.parts(workers_on_node, batch, times, crowding=0.0).step_s
        value = min(bare.value / slower, setting.global_batch / step_s)
        low, high = bare.ends
        return _projected(value, min(low / slower**2, value), max(high, value))

    def _from_other_batches(self, setting: Setting) -> Throughput:
        """Project the throughput at a batch that was never run from the batches that were, by the step model.

        A single batch does not show which part of a step grows with the batch; it may be any part from none to all.
        """
        assert self.model is not None
        workers, batch, times = setting.workers, setting.batch_per_worker, setting.accumulation
        works = sorted({timing.samples_per_worker_step for timing in self.model.timed})
        parts = self.model.parts(workers, batch, times)
        from_batch = min(abs(math.log2(setting.samples_per_worker_step / work)) for work in works)
        from_count = min(abs(math.log2(workers / other)) for other in self.series.workers)
        crossing = crossing_kind(self.series, workers)
        doubt = max(self._unpredictability(), series_unpredictability(self.series) if crossing != "none" else 0.0)
        rates = [setting.global_batch / parts.step_s]
        notes: tuple[str, ...] = (OTHER_BATCH,)
        if len(works) == 1:
            constant_s = self.model.parts(workers, works[0] // times or 1, times).step_s
            rates.append(setting.global_batch / constant_s)
            notes = ("only one batch was measured, so the effect of the batch on the step is unknown",)
        value = math.exp(sum(map(math.log, rates)) / len(rates))
        low, high = margin(doublings=from_count + from_batch, unpredictability=doubt, crossing=crossing).around(value)
        rate = self._with_noise(_projected(value, min(low, *rates), max(high, *rates)))
        return Throughput(samples_per_s=rate, parts=parts, notes=notes)

    def _margin(self, workers: int) -> LogMargin:
        """Return a margin that grows with the distance from the measurements and includes their noise."""
        distance = min(abs(math.log2(workers / other)) for other in self.series.workers)
        far = margin(
            doublings=distance,
            unpredictability=self._unpredictability(),
            crossing=crossing_kind(self.series, workers),
            base=STEP_BASE,
        )
        return far.with_noise(self._noise)

    @property
    def _noise(self) -> float:
        """Half-width due to measurement noise, from the repeats; without repeats at least the floor, as in a table."""
        noise = joint_noise([throughput.half_width(PROJECTED_LEVEL) for throughput in self.noise_samples])
        return noise if any(throughput.freedom for throughput in self.noise_samples) else max(noise, NOISE_FLOOR)

    def _with_noise(self, rate: Estimate) -> Estimate:
        low, high = rate.ends
        reached = LogMargin(down=math.log(rate.value / low), up=math.log(high / rate.value))
        return rate.with_ends(*reached.with_noise(self._noise).around(rate.value))

    def _unpredictability(self) -> float:
        """Return how unpredictable the largest count is, from the parts of smaller ones or else from the series."""
        assert self.model is not None
        top = self.model.top
        smaller = [timing for timing in self.model.timed if timing.workers < top]
        if not smaller:
            return series_unpredictability(self.series)
        smaller_model = fit_throughput(smaller, self.model.node)
        misses = [
            abs(math.log(smaller_model.parts(top, timing.batch_per_worker, timing.accumulation).step_s / timing.step_s))
            for timing in self.model.timed
            if timing.workers == top
        ]
        doublings = max(math.log2(top / max(timing.workers for timing in smaller)), 1.0)
        counts = len({timing.workers for timing in self.model.timed})
        return unpredictability(miss=sum(misses) / len(misses) / doublings, loss_per_doubling=0.0, counts=counts)

    def _on_network(self, setting: Setting, network: Network) -> Throughput:
        """Project the throughput on a declared network.

        The interval covers ranges of the overlap, of the share of the rate that is reached, and of waiting.
        """
        assert self.model is not None
        workers, batch, times = setting.workers, setting.batch_per_worker, setting.accumulation
        if node_layout(workers, network.workers_per_node)[1] > 1 and network.across is None:
            raise InputError(
                f"{workers} workers need {node_layout(workers, network.workers_per_node)[1]} nodes, but the network "
                f"({network.source}) has no rate across nodes; add one, as in '8 x 450GB/s 2us, 50GB/s 5us'"
            )
        if setting.strategy.name not in WHOLE_EXCHANGES:
            raise InputError(
                f"--network does not support {setting.strategy.label}, only {' and '.join(WHOLE_EXCHANGES)}; leave it "
                "out, or use a study of these strategies"
            )
        if self.model.node.payload_bytes is None and workers > 1:
            raise InputError(
                "the records lack the bytes of gradients per step, which probes of this version record; probe one "
                "setting again"
            )
        known = self.model.overlap if self.model.overlap_known else None
        overlaps = OVERLAP_UNKNOWN if known is None else (max(known / 2, 1.0), known, min(known * 2, 10.0))
        slow, middle, fast = (  # only the slow case includes the measured waiting for other ranks
            self.model.parts_on(network, workers, batch, times, overlap=overlap, use=use, waiting=waiting)
            for overlap, use, waiting in zip(overlaps, NETWORK_USE, (True, False, False), strict=True)
        )
        rates = [setting.global_batch / parts.step_s for parts in (slow, middle, fast)]
        doublings = math.log2(workers) if workers > 1 else 0.0
        # More workers also add time beyond the network, such as by stragglers, which widens the interval as usual.
        beyond_network = margin(doublings=min(doublings, 3.0), unpredictability=0.0)
        low, high = rates[0] * math.exp(-beyond_network.down), rates[2] * math.exp(beyond_network.up)
        rate = self._with_noise(_projected(rates[1], low, high))
        return Throughput(samples_per_s=rate, parts=middle, notes=(f"network {network.source}",))


def _projected(value: float, low: float, high: float) -> Estimate:
    return Estimate(value=value, low=low, high=high, level=PROJECTED_LEVEL)
