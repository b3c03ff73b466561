"""What is measured of a step, and where: the node, its cores, the link between its workers."""

from __future__ import annotations

from dataclasses import dataclass, replace

from worldsize.analysis.network import Network, allreduce_s, placed

EXCHANGE_THREADS = 2
"""Of a worker that exchanges over gloo: one runs the ring, one its sockets. On 16 cores the time of an all-reduce is a
straight line up to 8 workers, and far above it at 16 (docs/benchmarks/projection-cores.md)."""
TURNS = 2.0
"""Power of the threads a core by which an all-reduce becomes dearer: a message waits for a turn at either end. Steps
measured on 16 cores say 2, bare all-reduces 1.4."""


def threads_a_core(on_node: int, cores: int | None) -> float:
    """Of exchanges, at least 1; without cores of their own to compute on, workers do not crowd."""
    return 1.0 if cores is None else max(1.0, EXCHANGE_THREADS * on_node / cores)


@dataclass(frozen=True, kw_only=True)
class Timed:
    """One measured setting. Seconds a step."""

    workers: int
    batch_per_worker: int
    accumulation: int = 1
    step_s: float
    """Of the slowest rank."""
    busy_s: float
    """What is neither exchange nor waiting for other ranks; mean over ranks."""
    load_s: float = 0.0
    """Of that, waiting for data."""
    cores: float | None = None
    """That a worker keeps busy; None: not watched, or it computes on a GPU."""

    @property
    def work(self) -> int:
        """Samples that a worker computes in one step."""
        return self.batch_per_worker * self.accumulation


@dataclass(frozen=True, kw_only=True)
class Ground:
    """Where it was measured."""

    places: int
    """Workers on a node: those that fit without sharing a core or a GPU, or as many as ran there."""
    cores: int | None = None
    """Of a node, where workers compute on cores: what they ask for beyond these, they wait for."""
    network: Network | None = None
    """As probed."""
    payload_bytes: float | None = None
    """Gradients that a worker sends a step."""

    def overload(self, on_node: int, cores_a_worker: float | None) -> float:
        """Workers that keep more cores busy than there are take turns: max(1, m * u / cores)."""
        if cores_a_worker is None or self.cores is None:
            return 1.0
        return max(1.0, on_node * cores_a_worker / self.cores)

    def crowd(self, workers: int) -> float:
        """By how much an all-reduce is dearer, those of all workers of a node at once: max(1, 2 m / cores)^2."""
        return 1.0 if workers == 1 else threads_a_core(placed(workers, self.places)[0], self.cores) ** TURNS

    def link_s(self, workers: int) -> float:
        """What the probed network would take for the gradients; 0 where nothing was probed. Across nodes no less than
        inside one, where only that was probed."""
        if self.network is None or self.payload_bytes is None or workers == 1:
            return 0.0
        found = allreduce_s(self.payload_bytes, workers, self.network)
        if found is None:
            found = allreduce_s(self.payload_bytes, workers, replace(self.network, workers_per_node=workers))
        return found or 0.0
