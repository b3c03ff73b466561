"""Gradient noise scale: the batch beyond which more samples per step hardly improve a step.

Gradients of parts of a batch differ only by noise, so their square norms and that of their mean give the length of the
true gradient and the scatter of single samples about it (McCandlish et al. 2018, appendix A). With parts of b samples
and B = parts * b:

    G2 = (B |g_B|^2 - b |g_b|^2) / (B - b)        estimates |true gradient|^2
    S  = (|g_b|^2 - |g_B|^2) / (1/b - 1/B)        estimates tr(covariance of the gradients of single samples)
    noise scale = mean S / mean G2                each averaged over steps before dividing: a mean of ratios is biased
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from worldsize.analysis.estimate import LEVEL, REPLICATES, Floats, block_length

LEAST_STEPS = 10
"""Fewer steps say nothing about how steps differ."""
SURE = 0.99
"""Share of resamples that must find a gradient above 0: dividing by a value that may be 0 is meaningless."""


@dataclass(frozen=True, kw_only=True)
class NoiseScale:
    value: float | None
    """In samples. None: unknown, because the gradient cannot be distinguished from 0."""
    low: float | None
    """May be known even if the value is not: then the noise scale is at least this."""
    high: float | None
    steps: int
    gradient_sq: float
    """Mean of G2; may come out below 0."""
    variance: float
    """Mean of S."""
    small_batch: float
    big_batch: float


def of_ranks(rows: Sequence[npt.NDArray[np.float32]]) -> tuple[Floats, Floats]:
    """small_sq and big_sq from what each rank stored: a column for each of its parts, then one for the whole batch.

    Steps that are missing on some rank are left out: partial batches, and gradients that overflowed.
    """
    parts = np.concatenate([of_rank[:, :-1] for of_rank in rows], axis=1).astype(np.float64)
    whole_batch = rows[0][:, -1].astype(np.float64)
    known = np.isfinite(parts).all(axis=1) & np.isfinite(whole_batch)
    return parts[known], whole_batch[known]


def noise_scale(small_sq: Floats, big_sq: Floats, small_batch: float, seed: int = 0) -> NoiseScale:
    """The noise scale over all given steps. Pass a window of steps, since it grows while a model learns.

    `small_sq` has a row for each step and a column for each part, of `small_batch` samples; `big_sq` a value for each
    step. The interval is a block bootstrap over steps, which resamples S and G2 together.
    """
    steps, parts = small_sq.shape
    gradient_sq, variance = _estimates(small_sq, big_sq, small_batch)
    value = low = high = None
    if steps >= LEAST_STEPS:
        starts = np.random.default_rng([seed, steps]).integers(0, steps, (REPLICATES, -(-steps // block_length(steps))))
        below, above = _resampled_means(gradient_sq, starts), _resampled_means(variance, starts)
        tail = (1 - LEVEL) / 2
        if (below > 0).mean() >= SURE:
            value = float(variance.mean() / gradient_sq.mean())
            low, high = (float(end) for end in np.quantile((above / below)[below > 0], [tail, 1 - tail]))
        elif (most := float(np.quantile(below, 1 - tail))) > 0:
            low = float(variance.mean()) / most
    return NoiseScale(
        value=value,
        low=low,
        high=high,
        steps=steps,
        gradient_sq=float(gradient_sq.mean()) if steps else 0.0,
        variance=float(variance.mean()) if steps else 0.0,
        small_batch=small_batch,
        big_batch=parts * small_batch,
    )


def noise_series(small_sq: Floats, big_sq: Floats, small_batch: float, memory_steps: float = 50.0) -> Floats:
    """The noise scale over time: ema(S) / ema(G2), in which the last `memory_steps` count most. NaN: unknown.

    It is about 0 at the start, rises while the gradient shrinks, then flattens. Both averages begin at 0, which
    cancels.
    """
    estimates = np.stack(_estimates(small_sq, big_sq, small_batch), axis=1)
    keep = np.exp(-1 / memory_steps)
    average, averages = np.zeros(2), np.empty_like(estimates)
    for step, estimate in enumerate(estimates):
        average = keep * average + (1 - keep) * estimate
        averages[step] = average
    gradient_sq, variance = averages.T
    series: Floats = np.divide(variance, gradient_sq, out=np.full(len(averages), np.nan), where=gradient_sq > 0)
    return series


def _estimates(small_sq: Floats, big_sq: Floats, small: float) -> tuple[Floats, Floats]:
    """G2 and S of each step."""
    parts = small_sq.shape[1]
    if parts < 2 or len(small_sq) != len(big_sq):
        raise ValueError(f"square norms of {small_sq.shape} parts do not fit {len(big_sq)} steps of two or more parts")
    mean_sq, big = small_sq.mean(axis=1), parts * small
    return (big * big_sq - small * mean_sq) / (big - small), (mean_sq - big_sq) / (1 / small - 1 / big)


def _resampled_means(series: Floats, starts: npt.NDArray[np.int64]) -> Floats:
    """Means over circular blocks that begin at `starts`, one row per resample."""
    length = block_length(len(series))
    around = np.concatenate([series, series[: length - 1]])
    of_blocks = np.convolve(around, np.full(length, 1 / length), mode="valid")
    return np.asarray(of_blocks[starts].mean(axis=1))
