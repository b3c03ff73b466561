"""What exchanging gradients costs on a network, measured or declared: a ring inside a node, two levels across nodes."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Wire:
    """What one worker sends over, in each direction at once."""

    latency_s: float
    bandwidth_bytes_per_s: float
    shared_by_node: bool = False
    """The bandwidth is that of a whole node, whose workers share it."""


@dataclass(frozen=True, kw_only=True)
class Network:
    inside: Wire | None
    """Between workers of one node. None: not known."""
    across: Wire | None
    """Between nodes. None: not known, so the first crossing is a guess."""
    workers_per_node: int
    source: str
    """Measured here, declared by the user, or the publication a preset comes from."""


def placed(workers: int, per_node: int) -> tuple[int, int]:
    """Workers on a node, and nodes: nodes are filled one after another."""
    return min(workers, per_node), -(-workers // per_node)


def ring_s(size_bytes: float, workers: int, wire: Wire) -> float:
    """All-reduce: t = 2(n-1) * latency + 2(n-1)/n * bytes / bandwidth."""
    turns = 2 * (workers - 1)
    return turns * wire.latency_s + turns / workers * size_bytes / wire.bandwidth_bytes_per_s


def allreduce_s(size_bytes: float, workers: int, network: Network) -> float | None:
    """Inside a node a ring. Across k nodes of m workers: reduce-scatter inside, all-reduce between, all-gather inside.

    t = 2(m-1) * latency_in + 2(m-1)/m * bytes / bandwidth_in  +  ring over k nodes of bytes / m (each of the m workers
    has its own ring; where they share the node's link, m rings of bytes / m are one of bytes).
    None: a wire that it needs is not known.
    """
    m, k = placed(workers, network.workers_per_node)
    inside = 0.0
    if m > 1:
        if network.inside is None:
            return None
        inside = ring_s(size_bytes, m, network.inside)
    if k == 1:
        return inside
    if network.across is None:
        return None
    part = size_bytes if network.across.shared_by_node else size_bytes / m
    return inside + ring_s(part, k, network.across)
