"""Gradient noise scale: the batch beyond which adding samples hardly improves a step.

Gradients of parts of a batch differ only by noise. Their squared norms and the squared norm of their mean therefore
give the length of the true gradient and the scatter of single samples about it (McCandlish et al. 2018, appendix A).
With parts of b samples and B = parts * b:

    G2 = (B |g_B|^2 - b |g_b|^2) / (B - b)        estimates |true gradient|^2
    S  = (|g_b|^2 - |g_B|^2) / (1/b - 1/B)        estimates tr(covariance of the gradients of single samples)
    noise scale = mean S / mean G2                averaged over steps before dividing, since a mean of ratios is biased
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from worldsize.analysis.estimate import LEVEL, REPLICATES, Floats, block_length

MIN_STEPS = 10
"""Fewest steps from which the variation between steps can be estimated."""
CONFIDENCE = 0.99
"""Share of resamples in which G2 must be above 0. Dividing by a value that could be 0 is meaningless."""


@dataclass(frozen=True, kw_only=True)
class NoiseScale:
    value: float | None
    """The noise scale in samples. None: unknown, because the gradient cannot be distinguished from 0."""
    low: float | None
    """Lower end of the interval. If the value is unknown, a lower bound, or None."""
    high: float | None
    steps: int
    gradient_sq: float
    """Mean of G2; can be negative by chance."""
    variance: float
    """Mean of S."""
    small_batch: float
    big_batch: float


def squared_norms(rows: Sequence[npt.NDArray[np.float32]]) -> tuple[Floats, Floats]:
    """Return small_sq and big_sq. Each rank's rows have one column per part, then one for the whole batch.

    Steps with a missing value on any rank are left out: partial batches, and gradients that overflowed.
    """
    small_sq = np.concatenate([rank_rows[:, :-1] for rank_rows in rows], axis=1).astype(np.float64)
    big_sq = rows[0][:, -1].astype(np.float64)
    complete = np.isfinite(small_sq).all(axis=1) & np.isfinite(big_sq)
    return small_sq[complete], big_sq[complete]


def noise_scale(small_sq: Floats, big_sq: Floats, small_batch: float, seed: int = 0) -> NoiseScale:
    """Estimate the noise scale over all given steps. It grows during training, so pass a window of steps.

    `small_sq` has one row per step and one column per part of `small_batch` samples; `big_sq` has one value per step.
    The interval comes from a block bootstrap over steps, which resamples S and G2 together.
    """
    steps, parts = small_sq.shape
    gradient_sq, variance = _estimates(small_sq, big_sq, small_batch)
    value = low = high = None
    if steps >= MIN_STEPS:
        starts = np.random.default_rng([seed, steps]).integers(0, steps, (REPLICATES, -(-steps // block_length(steps))))
        gradient_means, variance_means = _resampled_means(gradient_sq, starts), _resampled_means(variance, starts)
        tail = (1 - LEVEL) / 2
        if (gradient_means > 0).mean() >= CONFIDENCE:
            value = float(variance.mean() / gradient_sq.mean())
            ratios = (variance_means / gradient_means)[gradient_means > 0]
            low, high = (float(end) for end in np.quantile(ratios, [tail, 1 - tail]))
        elif (highest_gradient_sq := float(np.quantile(gradient_means, 1 - tail))) > 0:
            low = float(variance.mean()) / highest_gradient_sq
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
    """Return the noise scale over time: ema(S) / ema(G2) with a memory of `memory_steps`. NaN: unknown.

    It is about 0 at the start, rises while the gradient shrinks, then flattens. Both averages start at 0; the resulting
    bias cancels in the ratio.
    """
    estimates = np.stack(_estimates(small_sq, big_sq, small_batch), axis=1)
    keep = np.exp(-1 / memory_steps)
    average, averages = np.zeros(2), np.empty_like(estimates)
    for step, step_estimates in enumerate(estimates):
        average = keep * average + (1 - keep) * step_estimates
        averages[step] = average
    gradient_sq, variance = averages.T
    series: Floats = np.divide(variance, gradient_sq, out=np.full(len(averages), np.nan), where=gradient_sq > 0)
    return series


def _estimates(small_sq: Floats, big_sq: Floats, small: float) -> tuple[Floats, Floats]:
    """Return G2 and S of each step."""
    parts = small_sq.shape[1]
    if parts < 2 or len(small_sq) != len(big_sq):
        raise ValueError(
            f"small_sq has shape {small_sq.shape} (steps, parts) and big_sq has {len(big_sq)} steps; use equal numbers "
            "of steps, and at least two parts"
        )
    mean_sq, big = small_sq.mean(axis=1), parts * small
    return (big * big_sq - small * mean_sq) / (big - small), (mean_sq - big_sq) / (1 / small - 1 / big)


def _resampled_means(series: Floats, starts: npt.NDArray[np.int64]) -> Floats:
    """Return the mean of each resample, drawn as circular blocks that begin at `starts` (one row per resample)."""
    length = block_length(len(series))
    circular = np.concatenate([series, series[: length - 1]])
    block_means = np.convolve(circular, np.full(length, 1 / length), mode="valid")
    return np.asarray(block_means[starts].mean(axis=1))
