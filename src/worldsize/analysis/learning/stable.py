"""Finds the epoch from which a metric is stable, with an interval, from the learning curves of several repeats."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from scipy.special import stdtrit

from worldsize.analysis.estimate import LEVEL, Estimate, Floats

BAND = 2.0
"""A metric is stable while it is within this many standard deviations (the noise of one epoch) of the plateau."""
MIN_EPOCHS = 8
"""With fewer epochs, the plateau window would be half of the run, or too short to estimate the noise."""
WINDOW_SHARE = 4
"""The plateau is the last 1/4 of the epochs."""
MIN_WINDOW = 4
SMOOTHING = 8
"""The half-width of the smoothing at epoch e is e/8, because curves change fast at first and slowly later."""
TREND_LEVEL = 0.99
"""Confidence level at which a trend in the final window counts as real, so that the run is still improving."""
NO_NOISE = 1e-9
"""Smallest noise, as a share of the range of a curve. Allows for rounding errors on a plateau without noise."""
REPLICATES = 200
SLACK = 0.5
"""Smallest error of a crossing, in epochs. It counts twice at the lower end, because smoothing delays crossings."""


@dataclass(frozen=True, kw_only=True)
class Stable:
    epoch: Estimate | None
    """The first epoch from which the metric stays within the band. None: not reached within the epochs that ran.

    A single run has an interval too, because the effect of the noise of its epochs on the crossing is simulated.
    """
    epochs: int
    """Number of epochs examined: the length of the shortest usable repeat."""
    repeats: int
    reached: int
    """Number of repeats that are stable at the end when examined separately."""
    plateau: float | None
    """Mean over repeats of the level at the end of the run. None, like `noise`, if there are too few epochs."""
    noise: float | None
    """Standard deviation about the plateau of a single epoch of a single repeat."""


def stable(curves: Sequence[Floats], seed: int = 0) -> Stable:
    """Find T, the first epoch with |m(e) - plateau| <= 2 noise for all e >= T, whether the metric rises or falls.

    The plateau of a repeat is the mean of its last quarter. The noise is the standard deviation about a straight line
    there, pooled over repeats. m(e) is averaged over repeats relative to their plateaus, then smoothed over e +- e/8.
    Noise shifts the crossing. Curves simulated from the smoothed curve and its noise therefore give the bias (their
    median shift, which is subtracted) and the interval (5 % to 95 %). If the Student's t interval over the crossings of
    single repeats is wider, it is used instead.

    The plateau is not reached if there are too few epochs, if the metric is outside the band within the last quarter
    or has a significant trend there that exceeds the noise, or if at least half of the repeats are still improving when
    examined separately. A repeat that diverged (not finite) or has less than half of the epochs of the longest counts
    as not reached and is otherwise left out; the remaining repeats are cut to the length of the shortest.
    """
    longest = max((len(curve) for curve in curves), default=0)
    usable = [curve for curve in curves if 2 * len(curve) >= longest and bool(np.isfinite(curve).all())]
    epochs = min((len(curve) for curve in usable), default=0)
    if epochs < MIN_EPOCHS:
        return _not_reached(epochs, len(curves), 0, None, None)
    metric = np.stack([np.asarray(curve[:epochs], dtype=np.float64) for curve in usable])
    window = max(MIN_WINDOW, -(-epochs // WINDOW_SHARE))
    smooth = _smoother(epochs)
    noise = float(_noise(metric, window))
    departures = metric - metric[:, -window:].mean(axis=1, keepdims=True)
    repeats = len(usable)
    repeat_crossings = _crossings(departures @ smooth.T, np.full(repeats, BAND * noise))
    settled = [
        bool(_settled(departure, repeat_crossing, noise, window, repeats))
        for departure, repeat_crossing in zip(departures, repeat_crossings, strict=True)
    ]
    mean_departure = departures.mean(axis=0)
    smoothed = smooth @ mean_departure
    crossing = float(_crossings(smoothed, np.array(BAND * noise)))
    plateau = float(metric[:, -window:].mean())
    if 2 * sum(settled) <= len(curves) or not _settled(mean_departure, crossing, noise, window, repeats, repeats):
        return _not_reached(epochs, len(curves), sum(settled), plateau, noise)
    simulated, half_width = _simulated_crossing(smoothed, noise, repeats, window, smooth, seed)
    crossing += crossing - simulated
    half_width = max(half_width, SLACK)
    if sum(settled) > 1:
        spread = float(np.std(repeat_crossings[settled], ddof=1)) / math.sqrt(sum(settled))
        half_width = max(half_width, float(stdtrit(sum(settled) - 1, (1 + LEVEL) / 2)) * spread)
    # Simulated curves reproduce a bump caused by noise. At the lower end, the curve must therefore also be outside the
    # band by more than its error.
    errors = noise / math.sqrt(repeats) * np.linalg.norm(smooth, axis=1)
    half_widths = float(stdtrit(repeats * (window - 2), (1 + LEVEL) / 2)) * errors
    earliest = float(_crossings(np.maximum(np.abs(smoothed) - half_widths, 0.0), np.array(BAND * noise)))
    ends = (crossing, min(crossing - half_width - SLACK, earliest), crossing + half_width)
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
    """Return one row of weights per epoch: the mean over e +- e/8. The window is symmetric at the start and cut off at
    the end, where a stable curve is flat."""
    weights = np.zeros((epochs, epochs))
    for row in range(epochs):
        half = min(row, max(1, round((row + 1) / SMOOTHING)))
        window = slice(row - half, row + half + 1)
        weights[row, window] = 1 / len(range(epochs)[window])
    return weights


def _slopes(window: Floats) -> tuple[Floats, Floats]:
    """Fit a straight line along the last axis; return its slope and the residuals."""
    offsets = np.arange(window.shape[-1]) - (window.shape[-1] - 1) / 2
    centered = window - window.mean(axis=-1, keepdims=True)
    slopes = centered @ offsets / (offsets @ offsets)
    return slopes, centered - slopes[..., None] * offsets


def _noise(metric: Floats, window: int) -> Floats:
    """Return sqrt(sum r^2 / (repeats * (window - 2))) with r from one line per repeat; [..., repeats, epochs] -> [...].

    A line is fitted instead of a mean because the trend of a curve that is still improving is not noise.
    """
    _, residuals = _slopes(metric[..., -window:])
    noise = np.sqrt((residuals**2).sum(axis=(-1, -2)) / (metric.shape[-2] * (window - 2)))
    return np.asarray(np.maximum(noise, NO_NOISE * np.ptp(metric, axis=(-1, -2))))


def _crossings(departures: Floats, band: Floats) -> Floats:
    """Return where |departure| enters the band for good, interpolated between epochs; 0.5 if it was never outside."""
    size = np.abs(departures)
    outside = size > band[..., None]
    last = size.shape[-1] - 1 - np.argmax(outside[..., ::-1], axis=-1)
    following = np.minimum(last + 1, size.shape[-1] - 1)
    before, after = (np.take_along_axis(size, index[..., None], axis=-1)[..., 0] for index in (last, following))
    fall = np.where(before > after, before - after, np.inf)
    return np.where(outside.any(axis=-1), last + 1 + np.clip((before - band) / fall, 0.0, 1.0), 0.5)


def _settled(departure: Floats, crossing: float, noise: float, window: int, pooled: int, repeats: int = 1) -> bool:
    """Whether the curve entered the band before the final window and has no trend in it: |slope| (w - 1) <= max(noise,
    t * error).

    Error of slope (w - 1): noise / sqrt(repeats) * sqrt(12 (w - 1) / (w (w + 1))). `pooled`: number of repeats from
    which the noise was estimated.
    """
    slope, _ = _slopes(departure[-window:])
    error = noise * math.sqrt(12 * (window - 1) / (window * (window + 1)) / repeats)
    critical = float(stdtrit(pooled * (window - 2), (1 + TREND_LEVEL) / 2)) * error
    return crossing < len(departure) - window + 1 and abs(float(slope)) * (window - 1) <= max(noise, critical)


def _simulated_crossing(
    curve: Floats, noise: float, repeats: int, window: int, smooth: Floats, seed: int
) -> tuple[float, float]:
    """Simulate curves from this one; return the median of their crossings and half the range from 5 % to 95 %."""
    epochs = len(curve)
    flat = np.where(np.arange(epochs) < epochs - window, curve, 0.0)
    departures, noises = _unit_noise(seed, repeats, epochs, window)
    # The curve is set flat where plateau and noise are estimated, so that both depend only on the simulated noise.
    bands = BAND * np.maximum(noise * noises, NO_NOISE * np.ptp(flat))
    crossings = _crossings(smooth @ flat + noise * departures, bands)
    low, middle, high = np.quantile(crossings, [(1 - LEVEL) / 2, 0.5, (1 + LEVEL) / 2])
    return float(middle), float(high - low) / 2


@lru_cache(maxsize=4)
def _unit_noise(seed: int, repeats: int, epochs: int, window: int) -> tuple[Floats, Floats]:
    """Simulate curves of standard normal noise; return their departures from their plateaus, averaged over repeats and
    smoothed, and their estimated noise.

    Cached, because this is most of the work, and identical for all variants with equal numbers of repeats and epochs.
    """
    drawn = np.random.default_rng([seed, repeats, epochs]).standard_normal((REPLICATES, repeats, epochs))
    departures = (drawn - drawn[..., -window:].mean(axis=-1, keepdims=True)).mean(axis=1)
    return departures @ _smoother(epochs).T, _noise(drawn, window)
