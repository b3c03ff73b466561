"""Summarizes each variant over its repeats, and finds the learning rate at which training begins to diverge.

Also compares the best variants of all families and shows whether they differ by more than noise.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from worldsize.analysis.estimate import Estimate, Floats, Sample, from_logs, log_interval, mean_interval
from worldsize.analysis.learning.stable import Stable, stable
from worldsize.spec.setting import Setting


@dataclass(frozen=True, kw_only=True)
class TrainingRun:
    """The learning curves of one trial. Arrays have one value per epoch; all but the metrics are cumulative."""

    setting: Setting
    """Workers, batch, strategy. Trials of one setting are comparable."""
    variant: str
    """Optimizer, learning rate, momentum: everything that can differ between trials of one setting."""
    family: str
    """Optimizer family: sgd, momentum, adam."""
    variant_without_lr: str
    """The variant without its learning rate."""
    lr: float
    scaled: float
    """Factor of the learning-rate rule for the global batch."""
    repeat: int
    """Repeats with the same number share their seed across variants."""
    outcome: Literal["finished", "diverged", "plateaued", "stopped"]
    """plateaued: ended because the metric stopped improving. stopped: ended because other variants were much better."""
    steps: Floats
    samples: Floats
    seconds: Floats
    metric: Floats
    train_metric: Floats
    """The metric on training samples. Empty if it was not measured."""
    final: float | None
    """Metric at the end. None if training diverged."""
    goal: Floats | None = None
    """The metric that the target names, if it is not `metric`."""

    @property
    def learned(self) -> bool:
        return self.outcome in ("finished", "plateaued") and self.final is not None


@dataclass(frozen=True, kw_only=True)
class Goal:
    value: float
    at_least: bool

    def met(self, metric: Floats) -> npt.NDArray[np.bool_]:
        return metric >= self.value if self.at_least else metric <= self.value


INTERPOLATED = 0.5
"""Share of the gap between two evaluations that remains uncertain after interpolation."""


@dataclass(frozen=True, kw_only=True)
class Reached:
    """The point at which a run met its target. Steps, samples and seconds are interpolated between evaluations."""

    epoch: int
    """The epoch of the first evaluation that met the target."""
    steps: float
    samples: float
    seconds: float
    doubt: float
    """Standard deviation of log(steps) due to the gap between evaluations."""


@dataclass(frozen=True, kw_only=True)
class TargetSummary:
    target: Goal
    repeats: int
    reached: int
    """Repeats that reached the target. The estimates cover only these repeats, and are None if there are none."""
    epochs: Estimate | None
    steps: Estimate | None
    samples: Estimate | None
    seconds: Estimate | None
    of_repeats: dict[int, Reached]
    """The points at which the repeats met the target, by repeat number."""

    @property
    def always(self) -> bool:
        return self.reached == self.repeats

    @property
    def log_steps(self) -> Sample:
        return _logs(self.of_repeats, lambda reached: reached.steps)


@dataclass(frozen=True, kw_only=True)
class VariantSummary:
    setting: Setting
    variant: str
    family: str
    lr: float
    scaled: float
    repeats: int
    diverged: int
    stopped: int
    plateaued: int
    metric: Estimate | None
    """Final metric of the repeats that were trained to the end."""
    metrics: dict[int, float]
    """The final metric of these repeats, by repeat number."""
    target: TargetSummary | None
    stable: Stable | None
    """None with a target, because training ends at the target, before any plateau."""
    gap: Estimate | None
    """How much better the final metric is on training samples. Positive means overfitting."""


@dataclass(frozen=True, kw_only=True)
class DivergenceEdge:
    stable_lr: float
    """The highest stable learning rate below all diverged ones."""
    diverged: float
    """The lowest diverged learning rate."""
    estimate: float
    """sqrt(stable_lr * diverged), since learning rates are compared by their ratio."""
    highest_stable_lr: float
    monotone: bool
    """False if a learning rate diverged although a higher one did not, so that the edge is not sharp."""


def to_target(curve: TrainingRun, target: Goal) -> Reached | None:
    """Interpolate log s = log s0 + f (log s1 - log s0), f = (target - m0) / (m1 - m0).

    Evaluation 0 is the last one before the target was met, evaluation 1 the first one after.

    The logarithm of steps is used because curves rise fast at first and slowly later. If the first evaluation already
    meets the target, it was met at an unknown earlier step; half of the steps are assumed, with a large doubt. Samples
    and seconds are interpolated linearly at the resulting number of steps.
    """
    metric = curve.metric if curve.goal is None else curve.goal
    met = target.met(metric)
    if not met.any():
        return None
    first = int(np.argmax(met))
    after = float(curve.steps[first])
    if first == 0:
        steps, width = after / 2, after
    else:
        before, m0, m1 = float(curve.steps[first - 1]), float(metric[first - 1]), float(metric[first])
        share = (target.value - m0) / (m1 - m0) if math.isfinite(m0) else 0.5
        steps, width = math.exp(math.log(before) + share * math.log(after / before)), INTERPOLATED * (after - before)
    samples, seconds = (
        float(np.interp(steps, [0.0, *curve.steps], [0.0, *series])) for series in (curve.samples, curve.seconds)
    )
    doubt = width / math.sqrt(12) / steps  # standard deviation of a uniform distribution
    return Reached(epoch=first + 1, steps=steps, samples=samples, seconds=seconds, doubt=doubt)


def target_summary(curves: Sequence[TrainingRun], target: Goal) -> TargetSummary:
    by_repeat = {curve.repeat: reached for curve in curves if (reached := to_target(curve, target))}
    steps, samples, seconds = (
        _logs(by_repeat, quantity).exp() if by_repeat else None
        for quantity in (lambda point: point.steps, lambda point: point.samples, lambda point: point.seconds)
    )
    return TargetSummary(
        target=target,
        repeats=len(curves),
        reached=len(by_repeat),
        epochs=log_interval([reached.epoch for reached in by_repeat.values()]) if by_repeat else None,
        steps=steps,
        samples=samples,
        seconds=seconds,
        of_repeats=by_repeat,
    )


def _logs(of_repeats: Mapping[int, Reached], quantity: Callable[[Reached], float]) -> Sample:
    """Sample the logarithm of a quantity. The gap between evaluations gives a lower bound of its error."""
    doubts = [reached.doubt for reached in of_repeats.values()]
    logs = {repeat: math.log(quantity(reached)) for repeat, reached in of_repeats.items()}
    return Sample.of(logs, floor=math.hypot(*doubts) / len(doubts))


def summaries(
    curves: Iterable[TrainingRun],
    *,
    higher_is_better: bool,
    target: Goal | None = None,
    bounds: tuple[float, float] = (-math.inf, math.inf),
) -> list[VariantSummary]:
    """Return one summary per variant and setting, in order of appearance. `bounds`: limits of the metric."""
    groups: dict[tuple[Setting, str], list[TrainingRun]] = defaultdict(list)
    for curve in curves:
        groups[curve.setting, curve.variant].append(curve)
    return [_summary(group, higher_is_better, target, bounds) for group in groups.values()]


def divergence_edges(curves: Iterable[TrainingRun]) -> dict[tuple[Setting, str, str], DivergenceEdge]:
    """Return the divergence edges by setting, family and variant without learning rate, in scaled learning rates. A
    learning rate counts as diverged if any of its repeats diverged."""
    diverged: dict[tuple[Setting, str, str], dict[float, bool]] = defaultdict(lambda: defaultdict(bool))
    for curve in curves:
        diverged[curve.setting, curve.family, curve.variant_without_lr][curve.lr * curve.scaled] |= (
            curve.outcome == "diverged"
        )
    return {key: edge for key, rates in diverged.items() if (edge := divergence_edge(rates))}


def divergence_edge(diverged: Mapping[float, bool]) -> DivergenceEdge | None:
    """Return the learning rate at which training begins to diverge.

    It is None if no learning rate diverged, or none below the lowest diverged one was stable.
    """
    lowest_diverged = min((rate for rate, is_diverged in diverged.items() if is_diverged), default=math.inf)
    stable_rates = [rate for rate, is_diverged in diverged.items() if not is_diverged]
    highest_below = max((rate for rate in stable_rates if rate < lowest_diverged), default=None)
    if highest_below is None or math.isinf(lowest_diverged):
        return None
    return DivergenceEdge(
        stable_lr=highest_below,
        diverged=lowest_diverged,
        estimate=math.sqrt(highest_below * lowest_diverged),
        highest_stable_lr=max(stable_rates),
        monotone=max(stable_rates) < lowest_diverged,
    )


def _summary(
    curves: list[TrainingRun], higher_is_better: bool, target: Goal | None, bounds: tuple[float, float]
) -> VariantSummary:
    first, learned = curves[0], [curve for curve in curves if curve.learned]
    metrics = {curve.repeat: curve.final for curve in learned if curve.final is not None}
    sign = 1 if higher_is_better else -1
    gaps = [sign * float(curve.train_metric[-1] - curve.metric[-1]) for curve in learned if len(curve.train_metric)]
    outcomes = [curve.outcome for curve in curves]
    return VariantSummary(
        setting=first.setting,
        variant=first.variant,
        family=first.family,
        lr=first.lr,
        scaled=first.scaled,
        repeats=len(curves),
        diverged=outcomes.count("diverged"),
        stopped=outcomes.count("stopped"),
        plateaued=outcomes.count("plateaued"),
        metric=mean_interval(list(metrics.values())).clipped(*bounds) if metrics else None,
        metrics=metrics,
        target=None if target is None else target_summary(curves, target),
        stable=stable([curve.metric for curve in learned]) if target is None else None,
        gap=mean_interval(gaps) if gaps else None,
    )


@dataclass(frozen=True, kw_only=True)
class VariantDifference:
    """The best variant of one family compared with the best variant of all."""

    variant: str
    family: str
    against: str
    kind: Literal["steps", "metric"]
    """steps: ratio of the steps to the target, this / best. metric: difference of the final metrics, this - best."""
    estimate: Estimate | None
    """None if either variant has no comparable value: it diverged, was stopped, or missed a target the other met."""
    repeats: int
    diverged: int
    stopped: int
    reached: int | None
    """Repeats that met the target; None without a target."""
    paired: int
    """Number of repeats compared seed by seed. 0: the two means were compared."""
    within_noise: bool | None
    """Whether the interval includes no difference. None: unknown, because there is only one repeat of each."""


@dataclass(frozen=True, kw_only=True)
class VariantRanking:
    """The variants of one setting, compared with one another."""

    setting: Setting
    variants: tuple[VariantSummary, ...]
    """The variants, best first."""
    best_variants: tuple[VariantSummary, ...]
    differences: tuple[VariantDifference, ...]
    """The first of `best_variants` compared with each of the others."""


def variant_rankings(
    variants: Iterable[VariantSummary], *, higher_is_better: bool, by_target: bool
) -> list[VariantRanking]:
    groups: dict[Setting, list[VariantSummary]] = defaultdict(list)
    for variant in variants:
        groups[variant.setting].append(variant)
    rankings = []
    for setting, group in groups.items():
        bests = best_of_each_family(group, higher_is_better=higher_is_better, by_target=by_target)
        rankings.append(
            VariantRanking(
                setting=setting,
                variants=tuple(ordered(group, higher_is_better=higher_is_better, by_target=by_target)),
                best_variants=tuple(bests),
                differences=tuple(compare_best_variants(bests, by_target=by_target)),
            )
        )
    return rankings


def ordered(
    variants: Iterable[VariantSummary], *, higher_is_better: bool, by_target: bool = False
) -> list[VariantSummary]:
    """Sort the variants, best first.

    Variants with no diverged or stopped repeats come first. Among them, if there is a target, those that always reached
    it come first, ordered by steps. The rest are ordered by the final metric.
    """

    def rank(summary: VariantSummary) -> tuple[bool, bool, float, float]:
        steps = summary.target.steps if by_target and summary.target and summary.target.always else None
        metric = summary.metric.value if summary.metric else -math.inf if higher_is_better else math.inf
        failed = summary.diverged + summary.stopped > 0
        return failed, steps is None, steps.value if steps else 0.0, -metric if higher_is_better else metric

    return sorted(variants, key=rank)


def best_of_each_family(
    variants: Iterable[VariantSummary], *, higher_is_better: bool, by_target: bool = False
) -> list[VariantSummary]:
    """Return the best variant of each family, the best of all first."""
    bests: dict[str, VariantSummary] = {}
    for summary in ordered(variants, higher_is_better=higher_is_better, by_target=by_target):
        bests.setdefault(summary.family, summary)
    return list(bests.values())


def compare_best_variants(bests: Sequence[VariantSummary], *, by_target: bool = False) -> list[VariantDifference]:
    """Compare the first variant with each of the others, by steps if both always reached the target, else by metric."""
    return [_comparison(variant, bests[0], by_target) for variant in bests[1:]]


def _comparison(variant: VariantSummary, best: VariantSummary, by_target: bool) -> VariantDifference:
    own_target, best_target = variant.target, best.target
    estimate, paired, no_difference = None, 0, 0.0
    kind: Literal["steps", "metric"] = "metric"
    incomplete = variant.diverged + variant.stopped + best.diverged + best.stopped > 0
    if incomplete or (by_target and own_target and best_target and own_target.always != best_target.always):
        pass  # the remaining repeats of one variant are not a fair sample
    elif by_target and own_target and best_target and own_target.always and best_target.always:
        kind, no_difference = "steps", 1.0
        gap = own_target.log_steps.minus(best_target.log_steps)
        estimate, paired = from_logs(gap.estimate()), len(gap.repeats)
    elif variant.metrics and best.metrics:
        gap = Sample.of(variant.metrics).minus(Sample.of(best.metrics))
        estimate, paired = gap.estimate(), len(gap.repeats)
    within_noise = None
    if estimate and estimate.has_interval:
        low, high = estimate.ends
        within_noise = low <= no_difference <= high
    return VariantDifference(
        variant=variant.variant,
        family=variant.family,
        against=best.variant,
        kind=kind,
        estimate=estimate,
        repeats=variant.repeats,
        diverged=variant.diverged,
        stopped=variant.stopped,
        reached=own_target.reached if own_target else None,
        paired=paired,
        within_noise=within_noise,
    )
