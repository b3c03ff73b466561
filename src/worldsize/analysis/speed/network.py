"""Fits latency and bandwidth of a link to the raw times of all-reduces of several sizes.

Also computes the time of an all-reduce on a measured or declared network: a ring inside a node, two levels across them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from worldsize.analysis.estimate import LEVEL, REPLICATES, Estimate, Floats

POOR = 0.25
"""Relative residual above which latency and bandwidth do not describe a link."""
TOLERANCE = 0.1
"""Acceptable error of the law at one size, in logarithms. So simple a law cannot be exact."""
PASSES = 30
"""Iterations of the fit."""
FEW = 3
"""With fewer repetitions, their spread is unknown."""


@dataclass(frozen=True, kw_only=True)
class SizeSpeed:
    """The speed of an all-reduce of one size, as nccl-tests defines it."""

    size_bytes: int
    seconds: Estimate
    """Median over repetitions of the maximum over ranks."""
    repetitions: int
    algbw_bytes_per_s: float
    """bytes / t."""
    busbw_bytes_per_s: float
    """algbw * 2(n-1)/n: the rate that the hardware carried, comparable between worker counts."""


@dataclass(frozen=True, kw_only=True)
class Link:
    workers: int
    latency_s: Estimate
    bandwidth_bytes_per_s: Estimate
    """Infinite if no size was large enough to show it."""
    sizes: tuple[SizeSpeed, ...]
    misfit: float
    """Relative residual: root mean square over the sizes of log(measured / model), minus the spread of repetitions."""
    place: str = ""
    """Name of the place; empty if the study has only one."""

    @property
    def is_poor(self) -> bool:
        """Whether latency and bandwidth do not describe this link. Use the times of the sizes instead."""
        return self.misfit > POOR or math.isinf(self.bandwidth_bytes_per_s.value)


@dataclass(frozen=True, kw_only=True)
class Wire:
    """The wire over which a worker sends and receives at the same time."""

    latency_s: float
    bandwidth_bytes_per_s: float
    shared_by_node: bool = False
    """Whether the workers of a node share the bandwidth."""


def ring_bytes(size_bytes: float, workers: int) -> float:
    """Return the bytes that each worker of a ring sends in an all-reduce: 2(n-1)/n * bytes, in 2(n-1) turns."""
    return 2 * (workers - 1) / workers * size_bytes


def ring_allreduce_s(size_bytes: float, workers: int, wire: Wire) -> float:
    """Return 2(n-1) * latency + 2(n-1)/n * bytes / bandwidth."""
    return 2 * (workers - 1) * wire.latency_s + ring_bytes(size_bytes, workers) / wire.bandwidth_bytes_per_s


def fit_link(workers: int, seconds: Mapping[int, Sequence[float]], seed: int = 0) -> Link | None:
    """Fit `ring_allreduce_s` to the median time of each size. `seconds` maps each size to the times of its repetitions.

    Residuals are relative, because sizes differ by a factor of 65,536. Latency and 1 / bandwidth are not negative.
    Intervals come from resampling the repetitions of each size. Return None for fewer than two sizes, because latency
    and bandwidth cannot be separated.
    """
    if len(seconds) < 2:
        return None
    sizes = sorted(seconds)
    repetitions = [np.asarray(seconds[size], dtype=np.float64) for size in sizes]
    rng = np.random.default_rng([seed, *(len(times) for times in repetitions)])
    medians = np.array([float(np.median(times)) for times in repetitions])
    drawn = np.stack([_median_replicates(times, rng) for times in repetitions], axis=1)
    spread = np.log(drawn).std(axis=0)
    unknown = np.array([len(times) < FEW for times in repetitions])
    spread = np.where(unknown, spread.max(), spread)
    steps = 2.0 * (workers - 1)
    traffic = np.array([ring_bytes(size, workers) for size in sizes])
    latency, per_byte = _fit(steps, traffic, np.vstack([medians, drawn]), np.hypot(spread, TOLERANCE))
    with np.errstate(divide="ignore"):
        bandwidth = 1 / per_byte
    residual = np.log(medians / (latency[0] * steps + per_byte[0] * traffic))
    return Link(
        workers=workers,
        latency_s=_interval(latency),
        bandwidth_bytes_per_s=_interval(bandwidth),
        sizes=tuple(
            _speed(size, workers, _interval(np.concatenate([[median], replicates])), len(times))
            for size, median, replicates, times in zip(sizes, medians, drawn.T, repetitions, strict=True)
        ),
        misfit=math.sqrt(max(0.0, float(np.mean(residual**2 - spread**2)))),
    )


def _speed(size_bytes: int, workers: int, seconds: Estimate, repetitions: int) -> SizeSpeed:
    return SizeSpeed(
        size_bytes=size_bytes,
        seconds=seconds,
        repetitions=repetitions,
        algbw_bytes_per_s=size_bytes / seconds.value,
        busbw_bytes_per_s=ring_bytes(size_bytes, workers) / seconds.value,
    )


def _median_replicates(seconds: Floats, rng: np.random.Generator) -> Floats:
    drawn = rng.integers(0, len(seconds), (REPLICATES, len(seconds)))
    return np.asarray(np.median(seconds[drawn], axis=1))


def _interval(fitted: Floats) -> Estimate:
    """Return a fitted value with its interval. `fitted` is the value, followed by its bootstrap replicates."""
    low, high = np.quantile(fitted[1:], [(1 - LEVEL) / 2, (1 + LEVEL) / 2], method="nearest")
    value = float(fitted[0])
    return Estimate(value=value, low=min(float(low), value), high=max(float(high), value))


def _fit(steps: float, traffic: Floats, seconds: Floats, sigma: Floats) -> tuple[Floats, Floats]:
    """Return latency and seconds per byte for each row of `seconds`.

    They minimize the sum of rho(log(seconds / model) / sigma). rho is Huber's loss: residuals beyond sigma pull no
    harder than sigma, so that a size which an algorithm, a cache or a token bucket treats differently does not distort
    the fit to the others. Each iteration is a Gauss-Newton step: with rows divided by the model, the right-hand side is
    1 + residual.
    """
    latency, per_byte = _non_negative(steps / seconds, traffic / seconds, np.ones_like(seconds), 1 / sigma**2)
    for _ in range(PASSES):
        model = latency[:, None] * steps + per_byte[:, None] * traffic
        residual = np.maximum(np.log(seconds / model), -0.9)  # a right-hand side above 0 keeps the model above 0
        weights = 1 / (sigma * np.maximum(np.abs(residual), sigma))
        latency, per_byte = _non_negative(steps / model, traffic / model, 1 + residual, weights)
    return latency, per_byte


def _non_negative(first: Floats, second: Floats, right: Floats, weights: Floats) -> tuple[Floats, Floats]:
    """Solve a * first + b * second = right for each row by weighted least squares, with a >= 0 and b >= 0."""
    aa, bb = (weights * first**2).sum(axis=1), (weights * second**2).sum(axis=1)
    ab = (weights * first * second).sum(axis=1)
    ar, br = (weights * first * right).sum(axis=1), (weights * second * right).sum(axis=1)
    determinant = aa * bb - ab**2
    a, b = (bb * ar - ab * br) / determinant, (aa * br - ab * ar) / determinant
    # If one of the two is negative, it is 0 at the optimum, and the other one is fitted alone.
    return np.where(b < 0, ar / aa, np.maximum(a, 0)), np.where(a < 0, br / bb, np.maximum(b, 0))


@dataclass(frozen=True, kw_only=True)
class Network:
    inside: Wire | None
    """Between the workers of a node. None: unknown."""
    across: Wire | None
    """Between nodes. None: unknown, so that the cost of leaving a node is a guess."""
    workers_per_node: int
    source: str
    """Where the values come from: `measured`, the user's declaration, or the publication behind a preset."""


def node_layout(workers: int, per_node: int) -> tuple[int, int]:
    """Return the workers per node and the number of nodes, if nodes are filled one after another."""
    return min(workers, per_node), -(-workers // per_node)


def allreduce_s(size_bytes: float, workers: int, network: Network) -> float | None:
    """Return the time of an all-reduce: a ring inside a node; across k nodes of m workers, reduce-scatter inside,
    all-reduce between, all-gather inside. None if a wire that it needs is unknown.

    t = 2(m-1) * latency_in + 2(m-1)/m * bytes / bandwidth_in  +  ring over k nodes of bytes / m

    Each of the m workers has its own ring over the nodes. If they share the link of the node, m rings of bytes / m are
    as slow as one ring of bytes.
    """
    m, k = node_layout(workers, network.workers_per_node)
    inside = 0.0
    if m > 1:
        if network.inside is None:
            return None
        inside = ring_allreduce_s(size_bytes, m, network.inside)
    if k == 1:
        return inside
    if network.across is None:
        return None
    part = size_bytes if network.across.shared_by_node else size_bytes / m
    return inside + ring_allreduce_s(part, k, network.across)
