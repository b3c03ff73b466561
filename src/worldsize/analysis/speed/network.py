"""Latency and bandwidth of a link, from the raw times of all-reduces of several sizes.

The cost of exchanging gradients on a measured or declared network: a ring inside a node, two levels across nodes.
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
"""Error of the law at a size, in logarithms, that is acceptable for a law this simple."""
PASSES = 30
FEW = 3
"""Fewer repetitions say nothing about their own spread."""


@dataclass(frozen=True, kw_only=True)
class SizeSpeed:
    """One size, as nccl-tests has it."""

    size_bytes: int
    seconds: Estimate
    """Median over repetitions of the maximum over ranks."""
    repetitions: int
    algbw_bytes_per_s: float
    """bytes / t."""
    busbw_bytes_per_s: float
    """algbw * 2(n-1)/n: what the hardware carried, comparable between worker counts."""


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
    """The place, if the study has several."""

    @property
    def is_poor(self) -> bool:
        """The law does not hold for this link: use the sizes, not latency and bandwidth."""
        return self.misfit > POOR or math.isinf(self.bandwidth_bytes_per_s.value)


@dataclass(frozen=True, kw_only=True)
class Wire:
    """The wire that a worker sends over, in both directions at once."""

    latency_s: float
    bandwidth_bytes_per_s: float
    shared_by_node: bool = False
    """True if the workers of a node share the bandwidth."""


def ring_bytes(size_bytes: float, workers: int) -> float:
    """What each worker of a ring sends in an all-reduce: 2(n-1)/n * bytes, in 2(n-1) turns."""
    return 2 * (workers - 1) / workers * size_bytes


def ring_allreduce_s(size_bytes: float, workers: int, wire: Wire) -> float:
    """t = 2(n-1) * latency + 2(n-1)/n * bytes / bandwidth."""
    return 2 * (workers - 1) * wire.latency_s + ring_bytes(size_bytes, workers) / wire.bandwidth_bytes_per_s


def fit_link(workers: int, seconds: Mapping[int, Sequence[float]], seed: int = 0) -> Link | None:
    """Fit the ring law of `ring_allreduce_s` to the median time of each size; `seconds` of each repetition by bytes.

    Residuals are relative, since sizes differ by a factor of 65,536; latency and 1 / bandwidth are not negative.
    Intervals come from resampling repetitions within each size. None: fewer than two sizes, so that latency and
    bandwidth cannot be separated.
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
    """The interval of a fit: `fitted` is the value, followed by its replicates."""
    low, high = np.quantile(fitted[1:], [(1 - LEVEL) / 2, (1 + LEVEL) / 2], method="nearest")
    value = float(fitted[0])
    return Estimate(value=value, low=min(float(low), value), high=max(float(high), value))


def _fit(steps: float, traffic: Floats, seconds: Floats, sigma: Floats) -> tuple[Floats, Floats]:
    """Latency and seconds per byte for each row of `seconds`: minimizes the sum of rho(log(seconds / model) / sigma).

    rho is Huber's: residuals beyond sigma pull no harder than sigma, so a size that an algorithm, a cache or a token
    bucket treats differently does not bend the law for the others. Gauss-Newton: with rows divided by the model, the
    right-hand side is 1 + residual.
    """
    latency, per_byte = _non_negative(steps / seconds, traffic / seconds, np.ones_like(seconds), 1 / sigma**2)
    for _ in range(PASSES):
        model = latency[:, None] * steps + per_byte[:, None] * traffic
        residual = np.maximum(np.log(seconds / model), -0.9)  # a right-hand side above 0 keeps the model above 0
        weights = 1 / (sigma * np.maximum(np.abs(residual), sigma))
        latency, per_byte = _non_negative(steps / model, traffic / model, 1 + residual, weights)
    return latency, per_byte


def _non_negative(first: Floats, second: Floats, right: Floats, weights: Floats) -> tuple[Floats, Floats]:
    """Weighted least squares of a * first + b * second = right in each row, a >= 0 and b >= 0."""
    aa, bb = (weights * first**2).sum(axis=1), (weights * second**2).sum(axis=1)
    ab = (weights * first * second).sum(axis=1)
    ar, br = (weights * first * right).sum(axis=1), (weights * second * right).sum(axis=1)
    determinant = aa * bb - ab**2
    a, b = (bb * ar - ab * br) / determinant, (aa * br - ab * ar) / determinant
    # If one of the two is negative, it is 0 at the optimum, and the other is then fitted alone.
    return np.where(b < 0, ar / aa, np.maximum(a, 0)), np.where(a < 0, br / bb, np.maximum(b, 0))


@dataclass(frozen=True, kw_only=True)
class Network:
    inside: Wire | None
    """Between workers of one node. None: unknown."""
    across: Wire | None
    """Between nodes. None: unknown, so the first crossing is a guess."""
    workers_per_node: int
    source: str
    """Measured here, declared by the user, or the publication a preset comes from."""


def placed(workers: int, per_node: int) -> tuple[int, int]:
    """Workers per node, and the number of nodes: nodes are filled one after another."""
    return min(workers, per_node), -(-workers // per_node)


def allreduce_s(size_bytes: float, workers: int, network: Network) -> float | None:
    """Time of an all-reduce: a ring inside a node; across k nodes of m workers, reduce-scatter inside, all-reduce
    between, all-gather inside.

    t = 2(m-1) * latency_in + 2(m-1)/m * bytes / bandwidth_in  +  ring over k nodes of bytes / m (each of the m workers
    has its own ring; if they share the link of the node, m rings of bytes / m are one ring of bytes).
    None: a wire that is needed is unknown.
    """
    m, k = placed(workers, network.workers_per_node)
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
