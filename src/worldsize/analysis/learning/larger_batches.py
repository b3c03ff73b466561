"""Predicts what a larger batch will take from trials at several batches: one set of models for each variant.

Trials of one variant, strategy, precision and target are comparable: only the global batch differs, however many
workers share it. The models hold for the learning rate rule under which the trials were trained.

A trend is a quantity against batch: v(B) = v_0 + d * log2(B / B_0), where d is the change per doubling.

Trends exist for epochs until stable and for the metric after equal epochs, under the learning rate rule that was used.
Batches are weighted by their errors; if they scatter more than that, all errors are widened by sqrt(chi^2 / (k - 2)).
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

MOST_DOUBLINGS = 2.0
"""Largest distance beyond the trained batches: further out a straight line is not reliable."""

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
    """With its 80 % interval. None: unknown."""
    unknown: Unknown | None = None
    """Why the value is unknown."""


@dataclass(frozen=True, kw_only=True)
class Trend:
    points: tuple[TrendPoint, ...]
    """In the order of their batches."""
    per_doubling: Estimate
    """80 %, by Student's t."""
    fails_from: int | None
    """From this batch on training diverged or never became stable, so the quantity does not exist."""
    least: float
    most: float
    middle: float
    """Weighted mean of log2 B, where the line is most certain."""
    at_middle: float
    variance_at_middle: float
    variance_of_slope: float
    scatter: float
    """Standard deviation of a measurement at one batch about the line."""
    freedom: float

    def predict(self, global_batch: int) -> TrendPrediction:
        """Predicts the result of the same measurement at this batch."""
        sizes = [point.global_batch for point in self.points]
        if self.fails_from is not None and global_batch >= self.fails_from:
            return TrendPrediction(global_batch=global_batch, value=None, unknown="failed-there")
        if max(math.log2(global_batch / sizes[-1]), math.log2(sizes[0] / global_batch)) > MOST_DOUBLINGS:
            return TrendPrediction(global_batch=global_batch, value=None, unknown="too-far")
        away = math.log2(global_batch) - self.middle
        error = math.sqrt(self.variance_at_middle + self.variance_of_slope * away**2 + self.scatter**2)
        value = self.at_middle + self.per_doubling.value * away
        reach = _reach(self.freedom) * error
        value, low, high = (min(max(end, self.least), self.most) for end in (value, value - reach, value + reach))
        estimate = Estimate(value=value, low=low, high=high, level=PROJECTED_LEVEL)
        return TrendPrediction(global_batch=global_batch, value=estimate)


def fit_trend(
    points: Sequence[TrendPoint],
    *,
    freedom: float,
    fails_from: int | None = None,
    least: float = -math.inf,
    most: float = math.inf,
) -> Trend | None:
    """d = sum w (x - x_mean) v / sum w (x - x_mean)^2, x = log2 B, w = 1 / error^2.

    `freedom`: degrees of freedom of the errors. None for one batch, or two without errors, which any line fits.
    The intervals have the degrees of freedom of what gives their scale: the residuals where these exceed the errors,
    else the errors.
    """
    points = sorted(points, key=lambda point: point.global_batch)
    known = [point.error for point in points if point.error is not None]
    all_known = len(known) == len(points)
    errors = np.array(known) if all_known else np.ones(len(points))
    freedom = freedom if all_known else 0.0
    over = len(points) - 2
    if len({point.global_batch for point in points}) < 2 or freedom + over < 1:
        return None
    sizes, values = np.log2([point.global_batch for point in points]), np.array([point.value for point in points])
    weights = 1 / np.square(np.maximum(errors, 1e-12))
    middle, at_middle = float(np.average(sizes, weights=weights)), float(np.average(values, weights=weights))
    total = float((weights * np.square(sizes - middle)).sum())
    slope = float((weights * (sizes - middle) * values).sum()) / total
    left = values - at_middle - slope * (sizes - middle)
    chi = float((weights * np.square(left)).sum())
    # If no error is known, the residuals alone give it; otherwise residuals can only widen the errors.
    widen = max(chi / over if over else 1.0, 1.0 if all_known else 0.0)
    scale_freedom = freedom if freedom and widen == 1.0 else float(over)
    reach = _reach(scale_freedom) * math.sqrt(widen / total)
    return Trend(
        points=tuple(points),
        per_doubling=Estimate(value=slope, low=slope - reach, high=slope + reach, level=PROJECTED_LEVEL),
        fails_from=fails_from,
        least=least,
        most=most,
        middle=middle,
        at_middle=at_middle,
        variance_at_middle=widen / float(weights.sum()),
        variance_of_slope=widen / total,
        scatter=math.sqrt(widen * float(np.mean(np.square(errors)))),
        freedom=scale_freedom,
    )


def _reach(freedom: float) -> float:
    return float(stdtrit(freedom, (1 + PROJECTED_LEVEL) / 2))


PLAIN = ("sgd", "momentum", "nesterov")
"""Optimizers whose step is learning rate x gradient. The others divide by the size of gradients, so that their steps
grow by themselves when a larger batch reduces the noise."""


@dataclass(frozen=True, kw_only=True)
class BatchStudy:
    """The effect of larger batches on one variant. A model is None if the trials do not determine it."""

    variant: str
    family: str
    method: Method
    """Undivided: its trials may have any accumulation."""
    lr_power: float | None
    """The learning rate is proportional to batch^lr_power: 1 linear, 0.5 square root, 0 unscaled. None: one batch."""
    steps: BatchModel | None
    """Steps to the target, if there is one."""
    epochs_stable: Trend | None
    """Epochs until stable; None with a target, like the metric, because training ends at the target."""
    metric: Trend | None
    """At the end of training."""


def batch_studies(
    curves: Iterable[TrainingRun],
    *,
    target: Goal | None,
    noise_scales: Iterable[tuple[Setting, str, NoiseScale]] = (),
    most_metric: float = math.inf,
) -> list[BatchStudy]:
    """One study per variant, in order of appearance. `most_metric`: the best possible metric, such as an accuracy of
    1."""
    groups: dict[tuple[str, Method], list[TrainingRun]] = defaultdict(list)
    for curve in curves:
        groups[curve.variant, curve.setting.method.undivided].append(curve)
    noises: dict[tuple[str, Method], list[tuple[Setting, NoiseScale]]] = defaultdict(list)
    for setting, variant, noise in noise_scales:
        noises[variant, setting.method.undivided].append((setting, noise))
    return [_study(group, target, noises[key], most_metric) for key, group in groups.items()]


def _study(
    curves: Sequence[TrainingRun],
    target: Goal | None,
    noises: Sequence[tuple[Setting, NoiseScale]],
    most_metric: float,
) -> BatchStudy:
    first = curves[0]
    power, plain = lr_power(curves), first.family in PLAIN
    model = None
    if target is not None:
        # With a learning rate that does not grow, larger batches save few steps, however noisy gradients are.
        useful = power is None or power > 0
        noise = known_noise(noises) if useful else None
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
        metric=_metric_trend(by_batch, most_metric) if target is None else None,
    )


def lr_power(curves: Iterable[TrainingRun]) -> float | None:
    """p of learning rate ~ batch^p, from the smallest and the largest batch."""
    rates = {curve.setting.global_batch: curve.lr * curve.scaled for curve in curves}
    small, large = min(rates), max(rates)
    return None if small == large else math.log(rates[large] / rates[small]) / math.log(large / small)


def known_noise(noises: Sequence[tuple[Setting, NoiseScale]]) -> NoiseScale | None:
    """The noise scale of the largest batch with a known value, because smaller ones measure it with more noise. Else
    the highest lower bound."""
    ordered = [noise for _, noise in sorted(noises, key=lambda pair: pair[0].global_batch, reverse=True)]
    bounds = [noise for noise in ordered if noise.value is None and noise.low is not None]
    return next(
        (noise for noise in ordered if noise.value is not None), max(bounds, key=lambda n: n.low or 0.0, default=None)
    )


def _stable_trend(by_batch: dict[int, list[TrainingRun]]) -> Trend | None:
    """Trend of the epochs until stable. Batches whose runs do not settle are left out; beyond the largest batch that
    settles, nothing is known."""
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
    return fit_trend(points, freedom=freedom, fails_from=_from(failed, points), least=1.0)


def _metric_trend(by_batch: dict[int, list[TrainingRun]], most: float) -> Trend | None:
    """Trend of the final metric. The errors use the scatter of all repeats, because two or three per batch are too
    few."""
    finals = {
        batch: [curve.final for curve in curves if curve.learned and curve.final is not None]
        for batch, curves in by_batch.items()
    }
    kept = {batch: values for batch, values in finals.items() if 2 * len(values) > len(by_batch[batch])}
    freedom = sum(len(values) - 1 for values in kept.values())
    squares = sum(float(np.var(values)) * len(values) for values in kept.values())
    scatter = math.sqrt(squares / freedom) if freedom else None
    points = [
        TrendPoint(
            global_batch=batch,
            value=float(np.mean(values)),
            error=None if scatter is None else max(scatter, 1e-9) / math.sqrt(len(values)),
        )
        for batch, values in kept.items()
    ]
    return fit_trend(points, freedom=freedom, fails_from=_from(finals.keys() - kept.keys(), points), most=most)


def _from(failed: Iterable[int], points: Sequence[TrendPoint]) -> int | None:
    largest = max((point.global_batch for point in points), default=0)
    return min((batch for batch in failed if batch > largest), default=None)


@dataclass(frozen=True, kw_only=True)
class Recovered:
    base_batch: int
    global_batch: int
    unscaled: str
    """The variant whose learning rate was not scaled."""
    lost: Estimate
    """Metric at the base batch minus that of `unscaled`, positive if it got worse."""
    variant: str
    """The best of the other variants at this batch."""
    share: Estimate
    """Share of the loss that it recovers: 1 is all of it."""


def recovered(contests: Sequence[VariantRanking], *, higher_is_better: bool) -> list[Recovered]:
    """share = mean(m - u) / mean(b - u): m the metric of the variant, u unscaled, b at the base batch.

    Only if the loss is clear (its interval is above 0), since a share of no loss means nothing.
    """
    base_batch = min((contest.setting.global_batch for contest in contests), default=0)
    sign = 1 if higher_is_better else -1
    results = []
    for contest in contests:
        setting = contest.setting
        if setting.global_batch == base_batch:
            continue
        base = next((other for other in contests if _base_of(other, setting, base_batch)), None)
        plain = next((variant for variant in contest.variants if variant.scaled == 1 and _learned(variant)), None)
        best = next((variant for variant in contest.variants if variant.scaled != 1 and _learned(variant)), None)
        before = _same(plain, base) if plain and base else None
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
    """mean(gained) / mean(lost), with the error of gained - share * lost: the mean of the ratios would be too high."""
    share = float(np.mean(list(gained.values()))) / lost.value
    off = Sample.of({key: (gain - share * lost.repeats[key]) / lost.value for key, gain in gained.items()})
    return off.plus(share).estimate()


def _clear(lost: Sample) -> bool:
    """Whether each of several repeats, and their mean, shows a loss; one repeat cannot separate it from noise."""
    return len(lost.repeats) > 1 and min(lost.repeats.values()) > 0 and lost.estimate().ends[0] > 0


def _learned(variant: VariantSummary) -> bool:
    return bool(variant.metrics) and not variant.diverged and not variant.stopped


def _same(plain: VariantSummary, base: VariantRanking) -> VariantSummary | None:
    """The same variant at the base batch, or the best of its family: another optimizer would give another loss."""
    named = [variant for variant in base.variants if variant.variant == plain.variant]
    return next(iter(named or [variant for variant in base.variants if variant.family == plain.family]), None)


def _base_of(contest: VariantRanking, setting: Setting, base_batch: int) -> bool:
    """Whether a ranking has the base batch of a setting: the same method, only the batch differs."""
    other = contest.setting
    return other.method.undivided == setting.method.undivided and other.global_batch == base_batch
