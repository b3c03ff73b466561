"""The epoch from which a metric is stable, from its curves over epochs, with an interval over repeats."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from scipy.special import stdtrit

from worldsize.analysis.estimate import LEVEL, Estimate, Floats

BAND = 2.0
"""Stable means: no further from the plateau than this many times the noise of one epoch."""
FEWEST_EPOCHS = 8
"""Fewer epochs show no plateau: its window would be half of the run, or too short to estimate the noise."""
WINDOW_SHARE = 4
"""The plateau is the last 1/4 of the epochs."""
FEWEST_WINDOW = 4
SMOOTHING = 8
"""Half-width of smoothing at epoch e is e/8: curves change fast at first and slowly later."""
TREND_LEVEL = 0.99
"""Confidence in a trend above which the run counts as still improving."""
NO_NOISE = 1e-9
"""Smallest noise, as a share of the range of a curve: rounding errors of a plateau without noise."""
REPLICATES = 200
SLACK = 0.5
"""Smallest error of a crossing, in epochs. It counts twice at the lower end, because smoothing delays crossings."""


@dataclass(frozen=True, kw_only=True)
class Stable:
    epoch: Estimate | None
    """The first epoch from which the metric stays within the band. None: not reached in the epochs that were run.

    A single run has an interval too: the noise of its own epochs moves the crossing, and that is simulated.
    """
    epochs: int
    """Number of epochs that were examined: those that all usable repeats have."""
    repeats: int
    reached: int
    """Number of repeats that are stable at the end, each examined alone."""
    plateau: float | None
    """Mean over repeats of the level at the end of the run. None, like the noise, if there are too few epochs."""
    noise: float | None
    """Standard deviation of one epoch of one repeat about the plateau."""


def stable(curves: Sequence[Floats], seed: int = 0) -> Stable:
    """T = first epoch with |m(e) - plateau| <= 2 noise for all e >= T; the metric may rise or fall.

    Plateau: mean of the last quarter, for each repeat. Noise: about a straight line there, pooled over repeats.
    m(e): departures from the plateau, averaged over repeats, then smoothed over e +- e/8. Noise shifts the crossing:
    curves simulated from the smoothed one, with its noise, give the bias (their median shift is subtracted) and the
    interval (5 % to 95 %). If Student's t over the crossings of the single repeats is wider, that interval is used.

    Not reached: too few epochs, outside the band within the last quarter, a significant trend there of more than the
    noise, or half or more of the repeats still improving when examined alone. A repeat that diverged (not finite) or
    has less than half of the epochs of the longest is left out and not reached; the others are cut to the shortest.
    """
    longest = max((len(curve) for curve in curves), default=0)
    usable = [curve for curve in curves if 2 * len(curve) >= longest and bool(np.isfinite(curve).all())]
    epochs = min((len(curve) for curve in usable), default=0)
    if epochs < FEWEST_EPOCHS:
        return _not_reached(epochs, len(curves), 0, None, None)
    metric = np.stack([np.asarray(curve[:epochs], dtype=np.float64) for curve in usable])
    window = max(FEWEST_WINDOW, -(-epochs // WINDOW_SHARE))
    smooth = _smoother(epochs)
    noise = float(_noise(metric, window))
    departures = metric - metric[:, -window:].mean(axis=1, keepdims=True)
    repeats = len(usable)
    alone = _crossings(departures @ smooth.T, np.full(repeats, BAND * noise))
    settled = [
        bool(_settled(departure, at, noise, window, repeats)) for departure, at in zip(departures, alone, strict=True)
    ]
    together = departures.mean(axis=0)
    crossing = float(_crossings(smooth @ together, np.array(BAND * noise)))
    plateau = float(metric[:, -window:].mean())
    if 2 * sum(settled) <= len(curves) or not _settled(together, crossing, noise, window, repeats, repeats):
        return _not_reached(epochs, len(curves), sum(settled), plateau, noise)
    middle, reach = _redrawn(smooth @ together, noise, repeats, window, smooth, seed)
    crossing += crossing - middle
    reach = max(reach, SLACK)
    if sum(settled) > 1:
        spread = float(np.std(alone[settled], ddof=1)) / math.sqrt(sum(settled))
        reach = max(reach, float(stdtrit(sum(settled) - 1, (1 + LEVEL) / 2)) * spread)
    # Simulated curves repeat a bump caused by noise, so the lower end must also be outside the band by more than its
    # error.
    errors = noise / math.sqrt(repeats) * np.linalg.norm(smooth, axis=1)
    doubt = float(stdtrit(repeats * (window - 2), (1 + LEVEL) / 2)) * errors
    surely = float(_crossings(np.maximum(np.abs(smooth @ together) - doubt, 0.0), np.array(BAND * noise)))
    ends = (crossing, min(crossing - reach - SLACK, surely), crossing + reach)
    epoch, low, high = (float(min(max(math.ceil(end), 1), epochs)) for end in ends)
    return Stable(
        epoch=Estimate(value=epoch, low=low, high=high, n=repeats),
        epochs=epochs,
        repeats=len(curves),
        reached=sum(settled),
        plateau=plateau,
        noise=noise,
    )


def _not_reached(epochs: int, repeats: int, reached: int, plateau: float | None, noise: float | None) -> Stable:
    return Stable(
        epoch=None,
        epochs=epochs,
        repeats=repeats,
        reached=reached,
        plateau=plateau,
        noise=noise,
    )


def _smoother(epochs: int) -> Floats:
    """Rows of weights: the mean over e +- e/8. Cut off at the end, where a settled curve is flat; symmetric at the
    start."""
    weights = np.zeros((epochs, epochs))
    for row in range(epochs):
        half = min(row, max(1, round((row + 1) / SMOOTHING)))
        window = slice(row - half, row + half + 1)
        weights[row, window] = 1 / len(range(epochs)[window])
    return weights


def _slopes(window: Floats) -> tuple[Floats, Floats]:
    """Slope of the straight line through the last axis, and the residuals."""
    offsets = np.arange(window.shape[-1]) - (window.shape[-1] - 1) / 2
    centered = window - window.mean(axis=-1, keepdims=True)
    slopes = centered @ offsets / (offsets @ offsets)
    return slopes, centered - slopes[..., None] * offsets


def _noise(metric: Floats, window: int) -> Floats:
    """sqrt(sum r^2 / (repeats * (window - 2))), r about each repeat's own line; [..., repeats, epochs] -> [...].

    A line, not a mean: the trend of a curve that is still improving is not noise.
    """
    _, left = _slopes(metric[..., -window:])
    noise = np.sqrt((left**2).sum(axis=(-1, -2)) / (metric.shape[-2] * (window - 2)))
    return np.asarray(np.maximum(noise, NO_NOISE * np.ptp(metric, axis=(-1, -2))))


def _crossings(departures: Floats, band: Floats) -> Floats:
    """Where |departure| enters the band for good, interpolated between epochs; 0.5 if it was never outside."""
    size = np.abs(departures)
    outside = size > band[..., None]
    last = size.shape[-1] - 1 - np.argmax(outside[..., ::-1], axis=-1)
    following = np.minimum(last + 1, size.shape[-1] - 1)
    before, after = (np.take_along_axis(size, at[..., None], axis=-1)[..., 0] for at in (last, following))
    fall = np.where(before > after, before - after, np.inf)
    return np.where(outside.any(axis=-1), last + 1 + np.clip((before - band) / fall, 0.0, 1.0), 0.5)


def _settled(departure: Floats, crossing: float, noise: float, window: int, pooled: int, repeats: int = 1) -> bool:
    """Whether it is inside the band before the final window, without a trend in it: |slope| (w - 1) <= max(noise,
    t * its error).

    Error of slope (w - 1): noise / sqrt(repeats) * sqrt(12 (w - 1) / (w (w + 1))). The noise was `pooled` over repeats.
    """
    slope, _ = _slopes(departure[-window:])
    error = noise * math.sqrt(12 * (window - 1) / (window * (window + 1)) / repeats)
    chance = float(stdtrit(pooled * (window - 2), (1 + TREND_LEVEL) / 2)) * error
    return crossing < len(departure) - window + 1 and abs(float(slope)) * (window - 1) <= max(noise, chance)


def _redrawn(curve: Floats, noise: float, repeats: int, window: int, smooth: Floats, seed: int) -> tuple[float, float]:
    """Median of the crossings of curves simulated from this one, and half the distance from their 5 % to their 95 %."""
    epochs = len(curve)
    flat = np.where(np.arange(epochs) < epochs - window, curve, 0.0)
    departures, noises = _unit(seed, repeats, epochs, window)
    # The curve is flat where plateau and noise are estimated, so both come from the noise alone.
    bands = BAND * np.maximum(noise * noises, NO_NOISE * np.ptp(flat))
    crossings = _crossings(smooth @ flat + noise * departures, bands)
    low, middle, high = np.quantile(crossings, [(1 - LEVEL) / 2, 0.5, (1 + LEVEL) / 2])
    return float(middle), float(high - low) / 2


@lru_cache(maxsize=4)
def _unit(seed: int, repeats: int, epochs: int, window: int) -> tuple[Floats, Floats]:
    """Simulated curves with noise 1 about 0: departures from their plateaus, averaged over repeats and smoothed; their
    noise.

    Cached: it is most of the work, and the same for all variants with equal numbers of repeats and epochs.
    """
    drawn = np.random.default_rng([seed, repeats, epochs]).standard_normal((REPLICATES, repeats, epochs))
    departures = (drawn - drawn[..., -window:].mean(axis=-1, keepdims=True)).mean(axis=1)
    return departures @ _smoother(epochs).T, _noise(drawn, window)
