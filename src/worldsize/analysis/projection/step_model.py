"""The step as a sum of causes: loading and computing, slowed by neighbours on the node, and an exchange that overlaps.

    T(n, b, s) = C - C/s + ((C/s)^g + X^g)^(1/g)        C = busy(n, b, s),  X = exchange(n)

C is what a rank does by itself (s micro-batches of b samples), X what exchanging gradients and waiting for the others
takes; g = 1 hides nothing of X behind the last micro-batch, a large g hides all it can (Pollux). Both are sums of few
physical terms whose coefficients cannot be negative; `throughput_fit` finds them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.optimize import nnls

from worldsize.analysis.estimate import Floats
from worldsize.analysis.speed.network import Network, allreduce_s, placed

EXCHANGE_THREADS = 2
"""Of a worker that exchanges over gloo: one runs the ring, one its sockets. On 16 cores the time of an all-reduce is a
straight line up to 8 workers, and far above it at 16 (docs/benchmarks/projection-cores.md)."""
TURNS = 2.0
"""Power of the threads a core by which an all-reduce becomes dearer: a message waits for a turn at either end. Steps
measured on 16 cores say 2, bare all-reduces 1.4."""


def threads_per_core(workers_on_node: int, cores: int | None) -> float:
    """Of exchanges, at least 1; without cores of their own to compute on, workers do not crowd."""
    return 1.0 if cores is None else max(1.0, EXCHANGE_THREADS * workers_on_node / cores)


@dataclass(frozen=True, kw_only=True)
class StepTiming:
    """One measured setting. Seconds a step."""

    workers: int
    batch_per_worker: int
    accumulation: int = 1
    step_s: float
    """Of the slowest rank."""
    local_s: float
    """What is neither exchange nor waiting for other ranks; mean over ranks."""
    load_s: float = 0.0
    """Of that, waiting for data."""
    cores: float | None = None
    """That a worker keeps busy; None: not watched, or it computes on a GPU."""

    @property
    def samples_per_worker_step(self) -> int:
        """Samples that a worker computes in one step."""
        return self.batch_per_worker * self.accumulation


@dataclass(frozen=True, kw_only=True)
class Node:
    """Where it was measured."""

    workers_per_node: int
    """Workers on a node: those that fit without sharing a core or a GPU, or as many as ran there."""
    cores: int | None = None
    """Of a node, where workers compute on cores: what they ask for beyond these, they wait for."""
    network: Network | None = None
    """As probed."""
    payload_bytes: float | None = None
    """Gradients that a worker sends a step."""

    def core_oversubscription(self, workers_on_node: int, cores_per_worker: float | None) -> float:
        """Workers that keep more cores busy than there are take turns: max(1, m * u / cores)."""
        if cores_per_worker is None or self.cores is None:
            return 1.0
        return max(1.0, workers_on_node * cores_per_worker / self.cores)

    def exchange_slowdown(self, workers: int) -> float:
        """By how much an all-reduce is dearer, those of all workers of a node at once: max(1, 2 m / cores)^2."""
        return 1.0 if workers == 1 else threads_per_core(placed(workers, self.workers_per_node)[0], self.cores) ** TURNS

    def link_s(self, workers: int) -> float:
        """What the probed network would take for the gradients; 0 where nothing was probed. Across nodes no less than
        inside one, where only that was probed."""
        if self.network is None or self.payload_bytes is None or workers == 1:
            return 0.0
        found = allreduce_s(self.payload_bytes, workers, self.network)
        if found is None:
            found = allreduce_s(self.payload_bytes, workers, replace(self.network, workers_per_node=workers))
        return found or 0.0


KEPT = 0.75
"""Share of the residual at the nearest measured settings that is taken for real."""
LEAST_S = 1e-9
"""No step takes less: a fit to wild times may leave it nothing at all."""


@dataclass(frozen=True, kw_only=True)
class Parts:
    """A projected step, by cause. They add up."""

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
    """Coefficients of `busy_terms`."""
    exchange: Floats
    """Coefficients of `exchange_terms`."""
    overlap: float
    overlap_known: bool
    """False: one batch, or one worker, tells nothing about it."""
    cores: float | None
    """That a worker keeps busy."""

    @property
    def top(self) -> int:
        return max(each.workers for each in self.timed)

    def is_more_crowded(self, workers: int) -> bool:
        """Than at the largest measured count: what no measurement here has seen."""
        return self.node.exchange_slowdown(workers) > self.node.exchange_slowdown(self.top)

    def parts(self, workers: int, batch_per_worker: int, accumulation: int = 1, *, crowding: float = 1.0) -> Parts:
        """Of a setting that need not have been measured, on the machine that was; `crowding`: so many times what a
        larger crowd than any measured one is taken to cost."""
        local_s = self._local_s(workers, batch_per_worker, accumulation)
        step_s = joined(local_s, self._exchange_s(workers, crowding), accumulation, self.overlap)
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
        """The same on a network that was declared, with this overlap and this share of its rate; `waiting`: and with
        what was waited for others where it was measured, beyond what the probed link takes.

        Its nodes have a place for every worker they hold, so nobody waits for a core; neighbours cost what as many of
        them did where it was measured.
        """
        workers_on_node = min(
            placed(workers, network.workers_per_node)[0], placed(self.top, self.node.workers_per_node)[0]
        )
        local_s = float(self.local @ local_terms(workers_on_node, batch_per_worker, accumulation, self.top))
        local_s *= math.exp(KEPT * self._residual(workers_on_node, batch_per_worker * accumulation))
        exchange_s = 0.0
        if workers > 1:
            found = allreduce_s(self.node.payload_bytes or 0.0, workers, network)
            assert found is not None, "asked for more nodes than the network has wires for"
            exchange_s = found / use + (self._waited_s(min(workers, self.top)) if waiting else 0.0)
        return self._parts(local_s, joined(local_s, exchange_s, accumulation, overlap), batch_per_worker)

    def _parts(self, local_s: float, step_s: float, batch: int) -> Parts:
        nearest = min(self.timed, key=lambda each: abs(math.log(each.batch_per_worker / batch)))
        same = [each for each in self.timed if each.batch_per_worker == nearest.batch_per_worker]
        load_s = local_s * float(np.mean([each.load_s / each.local_s for each in same]))
        return Parts(load_s=load_s, compute_s=local_s - load_s, exposed_s=step_s - local_s)

    def _local_s(self, workers: int, batch: int, accumulation: int) -> float:
        workers_on_node = placed(workers, self.node.workers_per_node)[0]
        own_s = float(self.local @ local_terms(workers_on_node, batch, accumulation, self.top))
        return own_s * self.node.core_oversubscription(workers_on_node, self.cores)

    def _exchange_s(self, workers: int, crowding: float = 1.0) -> float:
        dearer, seen = self.node.exchange_slowdown(workers), self.node.exchange_slowdown(self.top)
        if dearer > seen:
            dearer = seen + crowding * (dearer - seen)
        return float(self.exchange @ exchange_terms(workers, self.node, self.top, dearer))

    def _waited_s(self, workers: int) -> float:
        """Exchanging beyond the ring as probed. Without a probed link nothing tells waiting from sending: 0 then."""
        ring, *others = exchange_terms(workers, self.node, self.top, self.node.exchange_slowdown(workers))[:4]
        return float(max(self.exchange[0] - 1, 0.0) * ring + self.exchange[1:4] @ others) if ring else 0.0

    def _off(self, each: StepTiming) -> float:
        local_s = self._local_s(each.workers, each.batch_per_worker, each.accumulation)
        return math.log(each.step_s / joined(local_s, self._exchange_s(each.workers), each.accumulation, self.overlap))

    def _residual(self, workers: int, work: int) -> float:
        """log(measured / model) near a setting: the nearest counts and batches speak loudest."""
        away = np.array(
            [abs(math.log2(workers / e.workers)) + abs(math.log2(work / e.samples_per_worker_step)) for e in self.timed]
        )
        weights = 4.0 ** -(away - away.min())
        return float(weights @ [self._off(each) for each in self.timed] / weights.sum())


def joined(local_s: float, exchange_s: float, accumulation: int, overlap: float) -> float:
    """T = C - C/s + ((C/s)^g + X^g)^(1/g): only the last micro-batch has an exchange to hide."""
    last = local_s / accumulation
    # Divided by the larger first: a large g would leave the range of floats.
    most = max(last, exchange_s, LEAST_S)
    behind_s = most * ((last / most) ** overlap + (exchange_s / most) ** overlap) ** (1 / overlap)
    return float(max(local_s - last + behind_s, LEAST_S))


def local_terms(workers_on_node: int, batch: int, accumulation: int, top: int) -> Floats:
    """1 | s | s b | what m - 1 neighbours cost: s b (1 - 1/m) | s b log2 m | s b (m - 1) / (n_top - 1)."""
    work = float(batch * accumulation)
    crowd = [1 - 1 / workers_on_node, math.log2(workers_on_node), (workers_on_node - 1) / max(top - 1, 1)]
    return np.array([1.0, accumulation, work, *(work * term for term in crowd)])


def exchange_terms(workers: int, node: Node, top: int, slowdown: float) -> Floats:
    """The probed ring | 1 - 1/n | log2 n | (n - 1) / (n_top - 1) | across k nodes: 1 - 1/k | log2 k | what the ring
    inside a node costs more in a crowd. Waiting for others costs no more; without a probe nothing tells the two apart.
    """
    workers_on_node, nodes = placed(workers, node.workers_per_node)
    ring_s, ring_inside_s = node.link_s(workers), node.link_s(workers_on_node)
    alike = 1.0 if ring_s else slowdown
    inside = [alike * (1 - 1 / workers), alike * math.log2(workers), alike * (workers - 1) / max(top - 1, 1)]
    return np.array([ring_s, *inside, 1 - 1 / nodes, math.log2(nodes), (slowdown - 1) * ring_inside_s])


OVERLAPS = (1.0, 1.2, 1.5, 2.0, 3.0, 5.0, 10.0)
"""Tried for g. Few: a step tells little about it."""
EARNED = 0.95
"""A larger g must lower the misfit to this share of what a smaller one left."""
PULL, PULL_LOG, PULL_LINEAR = 0.05, 0.15, 0.1
"""How hard a term is pulled towards 0: one that no count needs must not take part in a projection."""
PULL_USUAL = 0.1
"""How hard what a crowd costs is pulled towards what it usually does: one count at its edge must not decide."""
NEARNESS = 0.8
"""Weight of a point a doubling of workers below the largest count: what happens up there matters most further out."""
USUAL_EXCHANGE = np.array([0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 1.0])
"""Coefficients of `exchange_terms` of which nothing was measured: a crowd costs what it did elsewhere."""


def fit_throughput(timed: Sequence[StepTiming], node: Node) -> ThroughputModel:
    """Settings of one strategy and precision. Works from one setting on; more counts and batches make it better."""
    timed = tuple(sorted(timed, key=lambda each: (each.workers, each.batch_per_worker, each.accumulation)))
    several = [each for each in timed if each.workers > 1]
    watched = [each.cores for each in timed if each.cores is not None]
    cores = float(np.median(watched)) if watched else None
    # With one batch any g gives the same steps: nothing is taken to overlap beyond what the step shows.
    telling = len({each.samples_per_worker_step for each in several}) > 1
    overlap, exchange, misfit = 1.0, USUAL_EXCHANGE, math.inf
    for candidate in OVERLAPS if telling else OVERLAPS[:1]:
        found = _fit_exchange(several, node, timed[-1].workers, candidate)
        off = _exchange_misfit(several, node, timed[-1].workers, candidate, found)
        if off < EARNED * misfit:
            overlap, exchange, misfit = candidate, found, off
    return ThroughputModel(
        timed=timed,
        node=node,
        local=_fit_local(timed, node, cores),
        exchange=exchange,
        overlap=overlap,
        overlap_known=telling,
        cores=cores,
    )


def _fit_local(timed: Sequence[StepTiming], node: Node, cores: float | None) -> Floats:
    top = timed[-1].workers
    workers_on_node = [placed(each.workers, node.workers_per_node)[0] for each in timed]
    rows = [
        local_terms(m, e.batch_per_worker, e.accumulation, top) for m, e in zip(workers_on_node, timed, strict=True)
    ]
    own_s = np.array(
        [e.local_s / node.core_oversubscription(m, cores) for m, e in zip(workers_on_node, timed, strict=True)]
    )
    used = np.asarray(np.stack(rows).any(axis=0))
    used[0] = (
        len({each.samples_per_worker_step for each in timed}) > 1
    )  # one batch tells nothing apart: the step grows with it
    used[1] = len({each.accumulation for each in timed}) > 1
    pulls = np.array([0.0, 0.0, 0.0, PULL, PULL_LOG, PULL_LINEAR])
    return _pulled(np.stack(rows), own_s, own_s, used, pulls, _nearness(timed), towards=np.zeros(6))


def _fit_exchange(several: Sequence[StepTiming], node: Node, top: int, overlap: float) -> Floats:
    """Fitted to what X must have been, given the step and what the rank did by itself: X^g = (T - C + C/s)^g - (C/s)^g.

    Errors count against the step: an exchange that hides itself wholly leaves nothing to divide by.
    """
    if not several:
        return USUAL_EXCHANGE
    rows = np.stack([exchange_terms(each.workers, node, top, node.exchange_slowdown(each.workers)) for each in several])
    implied_s = np.array([_implied(each, overlap) for each in several])
    step_s = np.array([each.step_s for each in several])
    pulls = np.array([0.0, PULL, PULL_LOG, PULL_LINEAR, PULL, PULL_LOG, PULL_USUAL])
    used = np.asarray(rows.any(axis=0))
    return _pulled(rows, implied_s, step_s, used, pulls, _nearness(several), towards=USUAL_EXCHANGE)


def _implied(each: StepTiming, overlap: float) -> float:
    last = each.local_s / each.accumulation
    behind = max(each.step_s - each.local_s + last, last)
    return float(behind * (1 - (last / behind) ** overlap) ** (1 / overlap))


def _exchange_misfit(several: Sequence[StepTiming], node: Node, top: int, overlap: float, exchange: Floats) -> float:
    off = []
    for each in several:
        exchange_s = float(exchange @ exchange_terms(each.workers, node, top, node.exchange_slowdown(each.workers)))
        off.append(math.log(each.step_s / joined(each.local_s, exchange_s, each.accumulation, overlap)))
    return float(np.sqrt(np.mean(np.square(off)))) if off else 0.0


def _nearness(timed: Sequence[StepTiming]) -> Floats:
    return np.array([NEARNESS ** math.log2(timed[-1].workers / each.workers) for each in timed])


def _pulled(
    rows: Floats,
    values: Floats,
    scale: Floats,
    used: npt.NDArray[Any],
    pulls: Floats,
    weights: Floats,
    *,
    towards: Floats,
) -> Floats:
    """Least squares of errors over `scale`; coefficients not negative, each pulled towards 0 by its share of a step,
    or, where something is usual, towards that by how far it is off."""
    found = towards.copy()
    if used.any():
        unit = float(np.median(scale)) / rows[:, used].max(axis=0)  # a coefficient of 1 is then a whole step
        design = rows[:, used] * unit * (weights / scale)[:, None]
        pull = pulls[used] * np.where(towards[used] > 0, unit, 1.0)
        wanted = np.concatenate([values * weights / scale, pulls[used] * towards[used]])
        solution, _ = nnls(np.vstack([design, np.diag(pull)]), wanted)
        found[used] = solution * unit
    return found
