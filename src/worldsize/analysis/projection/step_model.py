"""Models the step as loading and computing, slowed down by neighbors on the node, and an exchange that overlaps.

    T(n, b, s) = C - C/s + ((C/s)^g + X^g)^(1/g)        C = local(n, b, s),  X = exchange(n)

C is the time that a rank needs by itself (for s micro-batches of b samples), X the time for exchanging gradients and
waiting for other ranks. With g = 1, no part of X overlaps with the last micro-batch; with a large g, as much as
possible does (Pollux). C and X are sums of a few physical terms with non-negative coefficients, which `fit_throughput`
finds.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from worldsize.analysis.estimate import Floats, fit_nonnegative
from worldsize.analysis.speed.network import Network, allreduce_s, node_layout

EXCHANGE_THREADS = 2
"""Threads of a worker that exchanges over gloo: one for the ring, one for its sockets. On 16 cores, the time of an
all-reduce grows linearly up to 8 workers, and is far above that line at 16 (docs/benchmarks/projection-cores.md)."""
TURNS = 2.0
"""An all-reduce slows down with this power of the threads per core, because a message waits for a turn at either end.
Steps measured on 16 cores give 2, bare all-reduces 1.4."""


def threads_per_core(workers_on_node: int, cores: int | None) -> float:
    """Return the exchange threads per core, at least 1; 1 if workers do not compute on cores."""
    return 1.0 if cores is None else max(1.0, EXCHANGE_THREADS * workers_on_node / cores)


@dataclass(frozen=True, kw_only=True)
class StepTiming:
    """The step time of one measured setting and its parts."""

    workers: int
    batch_per_worker: int
    accumulation: int = 1
    step_s: float
    """Step time of the slowest rank."""
    local_s: float
    """Time that is neither exchange nor waiting for other ranks; mean over ranks."""
    load_s: float = 0.0
    """Part of `local_s`: waiting for data."""
    cores: float | None = None
    """Cores that a worker keeps busy. None: not measured, or it computes on a GPU."""

    @property
    def samples_per_worker_step(self) -> int:
        """Samples that a worker computes in one step."""
        return self.batch_per_worker * self.accumulation


@dataclass(frozen=True, kw_only=True)
class Node:
    """A node of the measured machine."""

    workers_per_node: int
    """Workers that fit on a node without sharing a core or a GPU, or that ran on one."""
    cores: int | None = None
    """Cores per node, if workers compute on cores. Workers that need more take turns."""
    network: Network | None = None
    """The probed network."""
    payload_bytes: float | None = None
    """Bytes of gradients that a worker sends per step."""

    def core_oversubscription(self, workers_on_node: int, cores_per_worker: float | None) -> float:
        """Return the slowdown of workers that take turns on too few cores: max(1, m * u / cores)."""
        if cores_per_worker is None or self.cores is None:
            return 1.0
        return max(1.0, workers_on_node * cores_per_worker / self.cores)

    def exchange_slowdown(self, workers: int) -> float:
        """Return the slowdown of an all-reduce when all workers of a node exchange at once: max(1, 2 m / cores)^2."""
        on_node = node_layout(workers, self.workers_per_node)[0]
        return 1.0 if workers == 1 else threads_per_core(on_node, self.cores) ** TURNS

    def link_s(self, workers: int) -> float:
        """Return the time of the gradients on the probed network; 0 if nothing was probed.

        If only the inside of a node was probed, all workers count as being on one node.
        """
        if self.network is None or self.payload_bytes is None or workers == 1:
            return 0.0
        seconds = allreduce_s(self.payload_bytes, workers, self.network)
        if seconds is None:
            seconds = allreduce_s(self.payload_bytes, workers, replace(self.network, workers_per_node=workers))
        return seconds or 0.0


KEPT = 0.75
"""Share of the residual at the nearest measured settings that is kept."""
MIN_STEP_S = 1e-9
"""Shortest possible step. A fit to erratic times may otherwise give 0."""


@dataclass(frozen=True, kw_only=True)
class Parts:
    """The parts of a projected step, in seconds. They add up to the step."""

    load_s: float
    compute_s: float
    exposed_s: float

    @property
    def step_s(self) -> float:
        return self.load_s + self.compute_s + self.exposed_s


@dataclass(frozen=True, kw_only=True)
class ThroughputModel:
    timed: tuple[StepTiming, ...]
    node: Node
    local: Floats
    """Coefficients of `local_terms`."""
    exchange: Floats
    """Coefficients of `exchange_terms`."""
    overlap: float
    overlap_known: bool
    """Whether the overlap was fitted. A single batch or a single worker cannot show it."""
    cores: float | None
    """Cores that a worker keeps busy."""

    @property
    def top(self) -> int:
        """The largest measured count."""
        return max(timing.workers for timing in self.timed)

    def is_more_crowded(self, workers: int) -> bool:
        """Whether cores are more crowded than at the largest measured count, so that no measurement shows the cost."""
        return self.node.exchange_slowdown(workers) > self.node.exchange_slowdown(self.top)

    def parts(self, workers: int, batch_per_worker: int, accumulation: int = 1, *, crowding: float = 1.0) -> Parts:
        """Return the parts of a step on the measured machine.

        `crowding` multiplies the cost of more crowding than was measured.
        """
        local_s = self._local_s(workers, batch_per_worker, accumulation)
        step_s = overlapped_step_s(local_s, self._exchange_s(workers, crowding), accumulation, self.overlap)
        near = math.exp(KEPT * self._residual(workers, batch_per_worker * accumulation))
        return self._parts(local_s * near, step_s * near, batch_per_worker)

    def parts_on(
        self,
        network: Network,
        workers: int,
        batch_per_worker: int,
        accumulation: int = 1,
        *,
        overlap: float,
        use: float,
        waiting: bool = False,
    ) -> Parts:
        """Return the parts of a step on a declared network, with this overlap, using this share (`use`) of its rate.

        `waiting` adds the measured exchange time beyond that of the probed link, such as waiting for other ranks.
        Declared nodes have a core or GPU for every worker, so no worker waits for a core. Neighbors cost as much as
        measured.
        """
        workers_on_node = min(
            node_layout(workers, network.workers_per_node)[0], node_layout(self.top, self.node.workers_per_node)[0]
        )
        local_s = float(self.local @ local_terms(workers_on_node, batch_per_worker, accumulation, self.top))
        local_s *= math.exp(KEPT * self._residual(workers_on_node, batch_per_worker * accumulation))
        exchange_s = 0.0
        if workers > 1:
            seconds = allreduce_s(self.node.payload_bytes or 0.0, workers, network)
            assert seconds is not None, "the workers need several nodes, but the rate across nodes is unknown"
            exchange_s = seconds / use + (self._waited_s(min(workers, self.top)) if waiting else 0.0)
        return self._parts(local_s, overlapped_step_s(local_s, exchange_s, accumulation, overlap), batch_per_worker)

    def _parts(self, local_s: float, step_s: float, batch: int) -> Parts:
        nearest = min(self.timed, key=lambda timing: abs(math.log(timing.batch_per_worker / batch)))
        same = [timing for timing in self.timed if timing.batch_per_worker == nearest.batch_per_worker]
        load_s = local_s * float(np.mean([timing.load_s / timing.local_s for timing in same]))
        return Parts(load_s=load_s, compute_s=local_s - load_s, exposed_s=step_s - local_s)

    def _local_s(self, workers: int, batch: int, accumulation: int) -> float:
        workers_on_node = node_layout(workers, self.node.workers_per_node)[0]
        own_s = float(self.local @ local_terms(workers_on_node, batch, accumulation, self.top))
        return own_s * self.node.core_oversubscription(workers_on_node, self.cores)

    def _exchange_s(self, workers: int, crowding: float = 1.0) -> float:
        slowdown, measured = self.node.exchange_slowdown(workers), self.node.exchange_slowdown(self.top)
        if slowdown > measured:
            slowdown = measured + crowding * (slowdown - measured)
        return float(self.exchange @ exchange_terms(workers, self.node, self.top, slowdown))

    def _waited_s(self, workers: int) -> float:
        """Return the exchange time beyond the probed ring; 0 without a probe, which alone separates it from sending."""
        ring, *others = exchange_terms(workers, self.node, self.top, self.node.exchange_slowdown(workers))[:4]
        return float(max(self.exchange[0] - 1, 0.0) * ring + self.exchange[1:4] @ others) if ring else 0.0

    def _log_error(self, timing: StepTiming) -> float:
        """Return log(measured / model) of the step time of a measured setting."""
        local_s = self._local_s(timing.workers, timing.batch_per_worker, timing.accumulation)
        exchange_s = self._exchange_s(timing.workers)
        return math.log(timing.step_s / overlapped_step_s(local_s, exchange_s, timing.accumulation, self.overlap))

    def _residual(self, workers: int, work: int) -> float:
        """Return log(measured / model) near a setting. The nearest counts and batches weigh most."""
        doublings = np.array(
            [
                abs(math.log2(workers / timing.workers)) + abs(math.log2(work / timing.samples_per_worker_step))
                for timing in self.timed
            ]
        )
        weights = 4.0 ** -(doublings - doublings.min())
        return float(weights @ [self._log_error(timing) for timing in self.timed] / weights.sum())


def overlapped_step_s(local_s: float, exchange_s: float, accumulation: int, overlap: float) -> float:
    """Return T = C - C/s + ((C/s)^g + X^g)^(1/g). Only the last micro-batch overlaps with the exchange."""
    last_s = local_s / accumulation
    # Dividing by the larger one first avoids overflow with a large g.
    longer_s = max(last_s, exchange_s, MIN_STEP_S)
    both_s = longer_s * ((last_s / longer_s) ** overlap + (exchange_s / longer_s) ** overlap) ** (1 / overlap)
    return float(max(local_s - last_s + both_s, MIN_STEP_S))


def local_terms(workers_on_node: int, batch: int, accumulation: int, top: int) -> Floats:
    """Return the terms of C: 1, s, s b; for m - 1 neighbors s b (1 - 1/m), s b log2 m, s b (m - 1) / (n_top - 1)."""
    work = float(batch * accumulation)
    crowd = [1 - 1 / workers_on_node, math.log2(workers_on_node), (workers_on_node - 1) / max(top - 1, 1)]
    return np.array([1.0, accumulation, work, *(work * term for term in crowd)])


def exchange_terms(workers: int, node: Node, top: int, slowdown: float) -> Floats:
    """Return the terms of X: the probed ring, 1 - 1/n, log2 n, (n - 1) / (n_top - 1); across k nodes 1 - 1/k, log2 k;
    the extra time of the ring inside a crowded node.

    Crowding slows down sending, but not waiting. Without a probe, the two cannot be separated.
    """
    workers_on_node, nodes = node_layout(workers, node.workers_per_node)
    ring_s, ring_inside_s = node.link_s(workers), node.link_s(workers_on_node)
    factor = 1.0 if ring_s else slowdown
    inside = [factor * (1 - 1 / workers), factor * math.log2(workers), factor * (workers - 1) / max(top - 1, 1)]
    return np.array([ring_s, *inside, 1 - 1 / nodes, math.log2(nodes), (slowdown - 1) * ring_inside_s])


OVERLAPS = (1.0, 1.2, 1.5, 2.0, 3.0, 5.0, 10.0)
"""Values tried for g. A few are enough, because steps contain little information about it."""
EARNED = 0.95
"""A larger g is chosen only if it reduces the misfit to this share of the misfit of a smaller one."""
PULL, PULL_LOG, PULL_LINEAR = 0.05, 0.15, 0.1
"""How strongly a term is shrunk toward 0, because a term that no count needs must not affect a projection."""
PULL_USUAL = 0.1
"""How strongly the cost of crowding is shrunk toward its usual value, so that a single crowded count cannot decide."""
NEARNESS = 0.8
"""Weight of a point one doubling below the largest count. The largest counts matter most for a projection."""
USUAL_EXCHANGE = np.array([0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 1.0])
"""Coefficients of `exchange_terms` if nothing was measured: crowding costs what it did on other machines."""


def fit_throughput(timed: Sequence[StepTiming], node: Node) -> ThroughputModel:
    """Fit the settings of one strategy and precision. One is enough, but more counts and batches improve the fit."""
    timed = tuple(sorted(timed, key=lambda timing: (timing.workers, timing.batch_per_worker, timing.accumulation)))
    several = [timing for timing in timed if timing.workers > 1]
    known_cores = [timing.cores for timing in timed if timing.cores is not None]
    cores = float(np.median(known_cores)) if known_cores else None
    # With one batch, any g gives the same steps, so assume no overlap.
    overlap_known = len({timing.samples_per_worker_step for timing in several}) > 1
    overlap, exchange, misfit = 1.0, USUAL_EXCHANGE, math.inf
    for candidate in OVERLAPS if overlap_known else OVERLAPS[:1]:
        coefficients = _fit_exchange(several, node, timed[-1].workers, candidate)
        candidate_misfit = _exchange_misfit(several, node, timed[-1].workers, candidate, coefficients)
        if candidate_misfit < EARNED * misfit:
            overlap, exchange, misfit = candidate, coefficients, candidate_misfit
    return ThroughputModel(
        timed=timed,
        node=node,
        local=_fit_local(timed, node, cores),
        exchange=exchange,
        overlap=overlap,
        overlap_known=overlap_known,
        cores=cores,
    )


def _fit_local(timed: Sequence[StepTiming], node: Node, cores: float | None) -> Floats:
    top = timed[-1].workers
    workers_on_node = [node_layout(timing.workers, node.workers_per_node)[0] for timing in timed]
    pairs = list(zip(workers_on_node, timed, strict=True))
    rows = [local_terms(m, timing.batch_per_worker, timing.accumulation, top) for m, timing in pairs]
    own_s = np.array([timing.local_s / node.core_oversubscription(m, cores) for m, timing in pairs])
    works = {timing.samples_per_worker_step for timing in timed}
    batches, accumulations = {timing.batch_per_worker for timing in timed}, {timing.accumulation for timing in timed}
    # One batch does not show a constant part: assume that all of the step, or of a micro-batch, grows with the batch.
    known = np.array([len(works) > 1, min(len(batches), len(accumulations)) > 1, True, True, True, True])
    pulls = np.array([0.0, 0.0, 0.0, PULL, PULL_LOG, PULL_LINEAR])
    return _shrunk(np.stack(rows) * known, own_s, own_s, pulls, _nearness(timed), towards=np.zeros(6))


def _fit_exchange(several: Sequence[StepTiming], node: Node, top: int, overlap: float) -> Floats:
    """Fit the X that step and local time imply: X^g = (T - C + C/s)^g - (C/s)^g.

    Errors are relative to the step, because the implied X of a fully overlapped exchange is 0.
    """
    if not several:
        return USUAL_EXCHANGE
    rows = np.stack(
        [exchange_terms(timing.workers, node, top, node.exchange_slowdown(timing.workers)) for timing in several]
    )
    implied_s = np.array([_implied(timing, overlap) for timing in several])
    step_s = np.array([timing.step_s for timing in several])
    pulls = np.array([0.0, PULL, PULL_LOG, PULL_LINEAR, PULL, PULL_LOG, PULL_USUAL])
    return _shrunk(rows, implied_s, step_s, pulls, _nearness(several), towards=USUAL_EXCHANGE)


def _implied(timing: StepTiming, overlap: float) -> float:
    last_s = timing.local_s / timing.accumulation
    both_s = max(timing.step_s - timing.local_s + last_s, last_s)
    return float(both_s * (1 - (last_s / both_s) ** overlap) ** (1 / overlap))


def _exchange_misfit(several: Sequence[StepTiming], node: Node, top: int, overlap: float, exchange: Floats) -> float:
    log_errors = []
    for timing in several:
        exchange_s = float(exchange @ exchange_terms(timing.workers, node, top, node.exchange_slowdown(timing.workers)))
        step_s = overlapped_step_s(timing.local_s, exchange_s, timing.accumulation, overlap)
        log_errors.append(math.log(timing.step_s / step_s))
    return float(np.sqrt(np.mean(np.square(log_errors)))) if log_errors else 0.0


def _nearness(timed: Sequence[StepTiming]) -> Floats:
    return np.array([NEARNESS ** math.log2(timed[-1].workers / timing.workers) for timing in timed])


def _shrunk(rows: Floats, values: Floats, scale: Floats, pulls: Floats, weights: Floats, *, towards: Floats) -> Floats:
    """Return the non-negative least squares of errors / `scale`.

    Coefficients that are usually 0 are shrunk by their share of a step, others by their distance from the usual value.
    """
    share = rows.max(axis=0) / float(np.median(scale))
    pull = pulls * np.where(towards > 0, 1.0, share)
    return fit_nonnegative(rows, values, weights=weights / scale, pull=pull, towards=towards).coefficients
