"""Predicts how a larger batch affects training, from trials at several batches, with one set of models per variant.

Trials of one variant, strategy, precision and target are comparable: they differ only in the global batch, and the
number of workers that share the batch does not matter. The models hold for the learning-rate rule of the trials.

A trend is linear in the logarithm of the batch: v(B) = v_0 + d * log2(B / B_0), where d is the change per doubling.

The two trends are epochs until stable and the metric after equal epochs. Batches are weighted by 1 / error^2. If the k
batches scatter more than their errors allow, all errors are multiplied by sqrt(chi^2 / (k - 2)).
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from scipy.special import ndtri, stdtrit

from worldsize.analysis.estimate import LEVEL, PROJECTED_LEVEL, Estimate, Sample
from worldsize.analysis.learning.noise_scale import NoiseScale
from worldsize.analysis.learning.stable import stable
from worldsize.analysis.learning.steps_to_target import BatchModel, fit_batches, target_runs
from worldsize.analysis.learning.variants import Goal, TrainingRun, VariantRanking, VariantSummary
from worldsize.spec.setting import Method, Setting

MAX_DOUBLINGS = 2.0
"""Largest distance beyond the trained batches. A straight line is not reliable further out."""

Unknown = Literal["too-far", "failed-there"]


@dataclass(frozen=True, kw_only=True)
class TrendPoint:
    global_batch: int
    value: float
    error: float | None
    """Standard error. None for a single run, whose spread is unknown."""


@dataclass(frozen=True, kw_only=True)
class TrendPrediction:
    global_batch: int
    value: Estimate | None
    """The value with its 80 % interval. None: unknown."""
    unknown: Unknown | None = None
    """Why the value is unknown."""


@dataclass(frozen=True, kw_only=True)
class Trend:
    points: tuple[TrendPoint, ...]
    """The points, by ascending batch."""
    per_doubling: Estimate
    """Change per doubling of the batch, with an 80 % interval by Student's t."""
    fails_from: int | None
    """From this batch on, training diverged or never became stable, so the quantity does not exist."""
    lowest: float
    highest: float
    """`lowest` and `highest` bound the possible values of the quantity."""
    middle: float
    """Weighted mean of log2 B, where the error of the line is smallest."""
    at_middle: float
    variance_at_middle: float
    variance_of_slope: float
    scatter: float
    """Standard deviation of the measurement of one batch about the line."""
    freedom: float

    def predict(self, global_batch: int) -> TrendPrediction:
        """Predict the result of the same measurement at this batch."""
        sizes = [point.global_batch for point in self.points]
        if self.fails_from is not None and global_batch >= self.fails_from:
            return TrendPrediction(global_batch=global_batch, value=None, unknown="failed-there")
        if max(math.log2(global_batch / sizes[-1]), math.log2(sizes[0] / global_batch)) > MAX_DOUBLINGS:
            return TrendPrediction(global_batch=global_batch, value=None, unknown="too-far")
        distance = math.log2(global_batch) - self.middle
        error = math.sqrt(self.variance_at_middle + self.variance_of_slope * distance**2 + self.scatter**2)
        value = self.at_middle + self.per_doubling.value * distance
        half_width = _critical_t(self.freedom) * error
        ends = (value, value - half_width, value + half_width)
        value, low, high = (min(max(end, self.lowest), self.highest) for end in ends)
        estimate = Estimate(value=value, low=low, high=high, level=PROJECTED_LEVEL)
        return TrendPrediction(global_batch=global_batch, value=estimate)


def fit_trend(
    points: Sequence[TrendPoint],
    *,
    freedom: float,
    fails_from: int | None = None,
    lowest: float = -math.inf,
    highest: float = math.inf,
) -> Trend | None:
    """Weighted least squares: d = sum w (x - x_mean) v / sum w (x - x_mean)^2, x = log2 B, w = 1 / error^2.

    `freedom`: degrees of freedom of the errors. Return None for a single batch, and for two batches without errors,
    because any line fits those. The degrees of freedom of the intervals are those of the residuals if the residuals
    exceed the errors, else those of the errors.
    """
    points = sorted(points, key=lambda point: point.global_batch)
    known_errors = [point.error for point in points if point.error is not None]
    all_known = len(known_errors) == len(points)
    errors = np.array(known_errors) if all_known else np.ones(len(points))
    freedom = freedom if all_known else 0.0
    residual_freedom = len(points) - 2
    if len({point.global_batch for point in points}) < 2 or freedom + residual_freedom < 1:
        return None
    sizes, values = np.log2([point.global_batch for point in points]), np.array([point.value for point in points])
    weights = 1 / np.square(np.maximum(errors, 1e-12))
    middle, at_middle = float(np.average(sizes, weights=weights)), float(np.average(values, weights=weights))
    total = float((weights * np.square(sizes - middle)).sum())
    slope = float((weights * (sizes - middle) * values).sum()) / total
    residuals = values - at_middle - slope * (sizes - middle)
    chi_square = float((weights * np.square(residuals)).sum())
    # Without known errors the residuals are the only estimate of the error; otherwise they can only widen the errors.
    widening = max(chi_square / residual_freedom if residual_freedom else 1.0, 1.0 if all_known else 0.0)
    scale_freedom = freedom if freedom and widening == 1.0 else float(residual_freedom)
    half_width = _critical_t(scale_freedom) * math.sqrt(widening / total)
    return Trend(
        points=tuple(points),
        per_doubling=Estimate(value=slope, low=slope - half_width, high=slope + half_width, level=PROJECTED_LEVEL),
        fails_from=fails_from,
        lowest=lowest,
        highest=highest,
        middle=middle,
        at_middle=at_middle,
        variance_at_middle=widening / float(weights.sum()),
        variance_of_slope=widening / total,
        scatter=math.sqrt(widening * float(np.mean(np.square(errors)))),
        freedom=scale_freedom,
    )


def _critical_t(freedom: float) -> float:
    return float(stdtrit(freedom, (1 + PROJECTED_LEVEL) / 2))


PLAIN = ("sgd", "momentum", "nesterov")
"""Optimizers whose step is learning rate x gradient. All other optimizers divide by the size of the gradients, so their
steps grow automatically when a larger batch reduces the noise."""


@dataclass(frozen=True, kw_only=True)
class BatchStudy:
    """The effect of larger batches on one variant. A model is None if the trials do not determine it."""

    variant: str
    family: str
    method: Method
    """The method without its accumulation: trials with any accumulation are combined."""
    lr_power: float | None
    """The learning rate is proportional to batch^lr_power: 1 linear, 0.5 square root, 0 unscaled. None: one batch."""
    steps: BatchModel | None
    """The model of the steps to the target; None without a target."""
    epochs_stable: Trend | None
    """Epochs until stable. With a target, this and `metric` are None, because training ends at the target."""
    metric: Trend | None
    """The metric at the end of training."""


def batch_studies(
    curves: Iterable[TrainingRun],
    *,
    target: Goal | None,
    noise_scales: Iterable[tuple[Setting, str, NoiseScale]] = (),
    max_metric: float = math.inf,
) -> list[BatchStudy]:
    """Return one batch study per variant, in order of appearance. `max_metric`: the highest possible metric, such as 1
    for accuracy."""
    groups: dict[tuple[str, Method], list[TrainingRun]] = defaultdict(list)
    for curve in curves:
        groups[curve.variant, curve.setting.method.undivided].append(curve)
    scales: dict[tuple[str, Method], list[tuple[Setting, NoiseScale]]] = defaultdict(list)
    for setting, variant, scale in noise_scales:
        scales[variant, setting.method.undivided].append((setting, scale))
    return [_study(group, target, scales[key], max_metric) for key, group in groups.items()]


def _study(
    curves: Sequence[TrainingRun],
    target: Goal | None,
    noise_scales: Sequence[tuple[Setting, NoiseScale]],
    max_metric: float,
) -> BatchStudy:
    first = curves[0]
    power, plain = lr_power(curves), first.family in PLAIN
    model = None
    if target is not None:
        # If the learning rate does not grow with the batch, larger batches save few steps, however noisy the gradients.
        lr_grows = power is None or power > 0
        noise = known_noise(noise_scales) if lr_grows else None
        model = fit_batches(target_runs(curves, target), noise, power if plain and power else 1.0)
    by_batch: dict[int, list[TrainingRun]] = defaultdict(list)
    for curve in curves:
        by_batch[curve.setting.global_batch].append(curve)
    return BatchStudy(
        variant=first.variant,
        family=first.family,
        method=first.setting.method.undivided,
        lr_power=power,
        steps=model,
        epochs_stable=_stable_trend(by_batch) if target is None else None,
        metric=_metric_trend(by_batch, max_metric) if target is None else None,
    )


def lr_power(curves: Iterable[TrainingRun]) -> float | None:
    """Return p of learning rate ~ batch^p, from the smallest and the largest batch."""
    rates = {curve.setting.global_batch: curve.lr * curve.scaled for curve in curves}
    small, large = min(rates), max(rates)
    return None if small == large else math.log(rates[large] / rates[small]) / math.log(large / small)


def known_noise(noise_scales: Sequence[tuple[Setting, NoiseScale]]) -> NoiseScale | None:
    """Return the noise scale measured at the largest batch with a known value, because smaller batches measure it less
    precisely. Without a known value, return the highest lower bound."""
    ordered = [noise for _, noise in sorted(noise_scales, key=lambda pair: pair[0].global_batch, reverse=True)]
    bounds = [noise for noise in ordered if noise.value is None and noise.low is not None]
    return next(
        (noise for noise in ordered if noise.value is not None), max(bounds, key=lambda n: n.low or 0.0, default=None)
    )


def _stable_trend(by_batch: dict[int, list[TrainingRun]]) -> Trend | None:
    """Fit the trend of epochs until stable. Batches that do not become stable are left out. The trend ends at the first
    of them that is larger than every stable batch."""
    points, failed, freedom = [], [], 0
    for batch, curves in by_batch.items():
        plateau = stable([curve.metric for curve in curves if curve.learned])
        if plateau.epoch is None:
            failed.append(batch)
            continue
        low, high = plateau.epoch.ends
        error = max(high - low, 1) / 2 / float(ndtri((1 + LEVEL) / 2))
        points.append(TrendPoint(global_batch=batch, value=plateau.epoch.value, error=error))
        freedom += plateau.repeats - 1
    return fit_trend(points, freedom=freedom, fails_from=_fails_from(failed, points), lowest=1.0)


def _metric_trend(by_batch: dict[int, list[TrainingRun]], highest: float) -> Trend | None:
    """Fit the trend of the final metric. The scatter is pooled over all batches, because two or three repeats per batch
    are too few."""
    finals = {
        batch: [curve.final for curve in curves if curve.learned and curve.final is not None]
        for batch, curves in by_batch.items()
    }
    usable = {batch: values for batch, values in finals.items() if 2 * len(values) > len(by_batch[batch])}
    freedom = sum(len(values) - 1 for values in usable.values())
    squares = sum(float(np.var(values)) * len(values) for values in usable.values())
    scatter = math.sqrt(squares / freedom) if freedom else None
    points = [
        TrendPoint(
            global_batch=batch,
            value=float(np.mean(values)),
            error=None if scatter is None else max(scatter, 1e-9) / math.sqrt(len(values)),
        )
        for batch, values in usable.items()
    ]
    fails_from = _fails_from(finals.keys() - usable.keys(), points)
    return fit_trend(points, freedom=freedom, fails_from=fails_from, highest=highest)


def _fails_from(failed: Iterable[int], points: Sequence[TrendPoint]) -> int | None:
    largest = max((point.global_batch for point in points), default=0)
    return min((batch for batch in failed if batch > largest), default=None)


@dataclass(frozen=True, kw_only=True)
class Recovered:
    base_batch: int
    global_batch: int
    unscaled: str
    """The variant whose learning rate was not scaled."""
    lost: Estimate
    """How much worse the metric of `unscaled` is at this batch than at the base batch; positive means worse."""
    variant: str
    """The best variant at this batch with a scaled learning rate."""
    share: Estimate
    """Share of the loss that `variant` recovers: 1 is all of it."""


def recovered(rankings: Sequence[VariantRanking], *, higher_is_better: bool) -> list[Recovered]:
    """Compute share = mean(m - u) / mean(b - u): metric m of the scaled variant, u unscaled, b at the base batch.

    Only settings with a clear loss (its interval is above 0) are included, since a share of no loss is meaningless.
    """
    base_batch = min((ranking.setting.global_batch for ranking in rankings), default=0)
    sign = 1 if higher_is_better else -1
    results = []
    for ranking in rankings:
        setting = ranking.setting
        if setting.global_batch == base_batch:
            continue
        base = next((candidate for candidate in rankings if _is_base_of(candidate, setting, base_batch)), None)
        plain = next((variant for variant in ranking.variants if variant.scaled == 1 and _learned(variant)), None)
        best = next((variant for variant in ranking.variants if variant.scaled != 1 and _learned(variant)), None)
        before = _same_variant(plain, base) if plain and base else None
        if before is None or plain is None or best is None or not _learned(before):
            continue
        b, u, m = (variant.metrics for variant in (before, plain, best))
        common = sorted(b.keys() & u.keys() & m.keys())
        lost = Sample.of({key: sign * (b[key] - u[key]) for key in common}) if common else None
        if lost is not None and _clear(lost):
            results.append(
                Recovered(
                    base_batch=base_batch,
                    global_batch=setting.global_batch,
                    unscaled=plain.variant,
                    lost=lost.estimate(),
                    variant=best.variant,
                    share=_share({key: sign * (m[key] - u[key]) for key in common}, lost),
                )
            )
    return results


def _share(gained: Mapping[int, float], lost: Sample) -> Estimate:
    """Return mean(gained) / mean(lost), with the error of gained - share * lost. The mean of the ratios would be biased
    upward."""
    share = float(np.mean(list(gained.values()))) / lost.value
    residuals = Sample.of({key: (gain - share * lost.repeats[key]) / lost.value for key, gain in gained.items()})
    return residuals.plus(share).estimate()


def _clear(lost: Sample) -> bool:
    """Whether every repeat and the mean show a loss. A single repeat cannot separate a loss from noise."""
    return len(lost.repeats) > 1 and min(lost.repeats.values()) > 0 and lost.estimate().ends[0] > 0


def _learned(variant: VariantSummary) -> bool:
    return bool(variant.metrics) and not variant.diverged and not variant.stopped


def _same_variant(plain: VariantSummary, base: VariantRanking) -> VariantSummary | None:
    """Return the same variant at the base batch, or the best of its family: the loss depends on the optimizer."""
    exact = [variant for variant in base.variants if variant.variant == plain.variant]
    return next(iter(exact or [variant for variant in base.variants if variant.family == plain.family]), None)


def _is_base_of(ranking: VariantRanking, setting: Setting, base_batch: int) -> bool:
    """Whether a ranking is at the base batch and uses the same method as the setting."""
    return ranking.setting.method.undivided == setting.method.undivided and ranking.setting.global_batch == base_batch
