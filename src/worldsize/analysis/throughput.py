"""The step as a sum of causes: loading and computing, slowed by neighbours on the node, and an exchange that overlaps.

    T(n, b, s) = C - C/s + ((C/s)^g + X^g)^(1/g)        C = busy(n, b, s),  X = exchange(n)

C is what a rank does by itself (s micro-batches of b samples), X what exchanging gradients and waiting for the others
takes; g = 1 hides nothing of X behind the last micro-batch, a large g hides all it can (Pollux). Both are sums of few
physical terms whose coefficients cannot be negative; `throughput_fit` finds them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from worldsize.analysis.ground import Ground, Timed
from worldsize.analysis.network import Network, allreduce_s, placed
from worldsize.analysis.stats import Floats

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
    timed: tuple[Timed, ...]
    ground: Ground
    busy: Floats
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

    @property
    def misfit(self) -> float:
        """Root mean square over the measured settings of log(measured / model)."""
        return float(np.sqrt(np.mean([self._off(each) ** 2 for each in self.timed])))

    def is_more_crowded(self, workers: int) -> bool:
        """Than at the largest measured count: what no measurement here has seen."""
        return self.ground.crowd(workers) > self.ground.crowd(self.top)

    def parts(self, workers: int, batch_per_worker: int, accumulation: int = 1, *, crowding: float = 1.0) -> Parts:
        """Of a setting that need not have been measured, on the machine that was; `crowding`: so many times what a
        larger crowd than any measured one is taken to cost."""
        busy_s = self._busy_s(workers, batch_per_worker, accumulation)
        step_s = joined(busy_s, self._exchange_s(workers, crowding), accumulation, self.overlap)
        near = math.exp(KEPT * self._residual(workers, batch_per_worker * accumulation))
        return self._parts(busy_s * near, step_s * near, batch_per_worker)

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
        on_node = min(placed(workers, network.workers_per_node)[0], placed(self.top, self.ground.places)[0])
        busy_s = float(self.busy @ busy_terms(on_node, batch_per_worker, accumulation, self.top))
        busy_s *= math.exp(KEPT * self._residual(on_node, batch_per_worker * accumulation))
        exchange_s = 0.0
        if workers > 1:
            found = allreduce_s(self.ground.payload_bytes or 0.0, workers, network)
            assert found is not None, "asked for more nodes than the network has wires for"
            exchange_s = found / use + (self._waited_s(min(workers, self.top)) if waiting else 0.0)
        return self._parts(busy_s, joined(busy_s, exchange_s, accumulation, overlap), batch_per_worker)

    def _parts(self, busy_s: float, step_s: float, batch: int) -> Parts:
        nearest = min(self.timed, key=lambda each: abs(math.log(each.batch_per_worker / batch)))
        same = [each for each in self.timed if each.batch_per_worker == nearest.batch_per_worker]
        load_s = busy_s * float(np.mean([each.load_s / each.busy_s for each in same]))
        return Parts(load_s=load_s, compute_s=busy_s - load_s, exposed_s=step_s - busy_s)

    def _busy_s(self, workers: int, batch: int, accumulation: int) -> float:
        on_node = placed(workers, self.ground.places)[0]
        own_s = float(self.busy @ busy_terms(on_node, batch, accumulation, self.top))
        return own_s * self.ground.overload(on_node, self.cores)

    def _exchange_s(self, workers: int, crowding: float = 1.0) -> float:
        dearer, seen = self.ground.crowd(workers), self.ground.crowd(self.top)
        if dearer > seen:
            dearer = seen + crowding * (dearer - seen)
        return float(self.exchange @ exchange_terms(workers, self.ground, self.top, dearer))

    def _waited_s(self, workers: int) -> float:
        """Exchanging beyond the ring as probed. Without a probed link nothing tells waiting from sending: 0 then."""
        ring, *others = exchange_terms(workers, self.ground, self.top, self.ground.crowd(workers))[:4]
        return float(max(self.exchange[0] - 1, 0.0) * ring + self.exchange[1:4] @ others) if ring else 0.0

    def _off(self, each: Timed) -> float:
        busy_s = self._busy_s(each.workers, each.batch_per_worker, each.accumulation)
        return math.log(each.step_s / joined(busy_s, self._exchange_s(each.workers), each.accumulation, self.overlap))

    def _residual(self, workers: int, work: int) -> float:
        """log(measured / model) near a setting: the nearest counts and batches speak loudest."""
        away = np.array([abs(math.log2(workers / e.workers)) + abs(math.log2(work / e.work)) for e in self.timed])
        weights = 4.0 ** -(away - away.min())
        return float(weights @ [self._off(each) for each in self.timed] / weights.sum())


def joined(busy_s: float, exchange_s: float, accumulation: int, overlap: float) -> float:
    """T = C - C/s + ((C/s)^g + X^g)^(1/g): only the last micro-batch has an exchange to hide."""
    last = busy_s / accumulation
    # Divided by the larger first: a large g would leave the range of floats.
    most = max(last, exchange_s, LEAST_S)
    behind_s = most * ((last / most) ** overlap + (exchange_s / most) ** overlap) ** (1 / overlap)
    return float(max(busy_s - last + behind_s, LEAST_S))


def busy_terms(on_node: int, batch: int, accumulation: int, top: int) -> Floats:
    """1 | s | s b | what m - 1 neighbours cost: s b (1 - 1/m) | s b log2 m | s b (m - 1) / (n_top - 1)."""
    work = float(batch * accumulation)
    crowd = [1 - 1 / on_node, math.log2(on_node), (on_node - 1) / max(top - 1, 1)]
    return np.array([1.0, accumulation, work, *(work * term for term in crowd)])


def exchange_terms(workers: int, ground: Ground, top: int, dearer: float) -> Floats:
    """The probed ring | 1 - 1/n | log2 n | (n - 1) / (n_top - 1) | across k nodes: 1 - 1/k | log2 k | what the ring
    inside a node costs more in a crowd. Waiting for others costs no more; without a probe nothing tells the two apart.
    """
    on_node, nodes = placed(workers, ground.places)
    ring_s, ring_inside_s = ground.link_s(workers), ground.link_s(on_node)
    alike = 1.0 if ring_s else dearer
    inside = [alike * (1 - 1 / workers), alike * math.log2(workers), alike * (workers - 1) / max(top - 1, 1)]
    return np.array([ring_s, *inside, 1 - 1 / nodes, math.log2(nodes), (dearer - 1) * ring_inside_s])
