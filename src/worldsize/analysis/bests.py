"""Variants -> the best of each family, and whether they really differ."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from worldsize.analysis.estimates import Estimate, from_logs, student
from worldsize.analysis.learning import VariantSummary
from worldsize.analysis.points import Setting


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """One best variant against the best of all."""

    variant: str
    family: str
    against: str
    kind: Literal["steps", "metric"]
    """steps: ratio of the steps to the target, this / best; metric: difference of the final metric, this - best."""
    estimate: Estimate | None
    """None where one of them has no number to compare: it diverged, was stopped, or missed the target the other met."""
    repeats: int
    diverged: int
    stopped: int
    reached: int | None
    """Repeats that met the target; None without one."""
    paired: int
    """Repeats compared seed by seed. 0: the two means were compared."""
    within_noise: bool | None
    """Whether the interval contains no difference. None: unknown, a single repeat of each."""


@dataclass(frozen=True, kw_only=True)
class Contest:
    """The variants of one setting, against one another."""

    setting: Setting
    variants: tuple[VariantSummary, ...]
    """The best one first."""
    bests: tuple[VariantSummary, ...]
    comparisons: tuple[Comparison, ...]
    """Of the bests, each against the first."""


def contests(variants: Iterable[VariantSummary], *, higher_is_better: bool, by_target: bool) -> list[Contest]:
    groups: dict[Setting, list[VariantSummary]] = defaultdict(list)
    for variant in variants:
        groups[variant.setting].append(variant)
    found = []
    for setting, group in groups.items():
        bests = best_of_each(group, higher_is_better=higher_is_better, by_target=by_target)
        found.append(
            Contest(
                setting=setting,
                variants=tuple(ordered(group, higher_is_better=higher_is_better, by_target=by_target)),
                bests=tuple(bests),
                comparisons=tuple(compare_bests(bests, by_target=by_target)),
            )
        )
    return found


def ordered(
    variants: Iterable[VariantSummary], *, higher_is_better: bool, by_target: bool = False
) -> list[VariantSummary]:
    """First those of which no repeat diverged or was stopped; with a target, of these first those that always reached
    it, by the fewest steps; then by the final metric."""

    def rank(summary: VariantSummary) -> tuple[bool, bool, float, float]:
        steps = summary.target.steps if by_target and summary.target and summary.target.always else None
        metric = summary.metric.value if summary.metric else -math.inf if higher_is_better else math.inf
        failed = summary.diverged + summary.stopped > 0
        return failed, steps is None, steps.value if steps else 0.0, -metric if higher_is_better else metric

    return sorted(variants, key=rank)


def best_of_each(
    variants: Iterable[VariantSummary], *, higher_is_better: bool, by_target: bool = False
) -> list[VariantSummary]:
    """The best variant of each family, the best of all first."""
    bests: dict[str, VariantSummary] = {}
    for summary in ordered(variants, higher_is_better=higher_is_better, by_target=by_target):
        bests.setdefault(summary.family, summary)
    return list(bests.values())


def compare_bests(bests: Sequence[VariantSummary], *, by_target: bool = False) -> list[Comparison]:
    """Each of the others against the first: by steps where both always reached the target, else by the metric."""
    return [_comparison(other, bests[0], by_target) for other in bests[1:]]


def _comparison(other: VariantSummary, best: VariantSummary, by_target: bool) -> Comparison:
    mine, its = other.target, best.target
    estimate, paired, same = None, 0, 0.0
    kind: Literal["steps", "metric"] = "metric"
    lost = other.diverged + other.stopped + best.diverged + best.stopped > 0
    if lost or (by_target and mine and its and mine.always != its.always):
        pass  # what is left of one of them is no fair sample of it
    elif by_target and mine and its and mine.always and its.always:
        kind, same = "steps", 1.0
        logs, of_best = ({key: math.log(at.steps) for key, at in side.of_repeats.items()} for side in (mine, its))
        # Evaluations are an epoch apart: nobody knows within that when the target was met.
        grain = math.hypot(*(0.5 / side.epochs.value for side in (mine, its) if side.epochs))
        logged, paired = _difference(logs, of_best, grain)
        estimate = from_logs(logged)
    elif other.metrics and best.metrics:
        estimate, paired = _difference(other.metrics, best.metrics)
    within = None
    if estimate and estimate.low is not None and estimate.high is not None:
        within = estimate.low <= same <= estimate.high
    return Comparison(
        variant=other.variant,
        family=other.family,
        against=best.variant,
        kind=kind,
        estimate=estimate,
        repeats=other.repeats,
        diverged=other.diverged,
        stopped=other.stopped,
        reached=mine.reached if mine else None,
        paired=paired,
        within_noise=within,
    )


def _difference(one: Mapping[int, float], two: Mapping[int, float], grain: float = 0.0) -> tuple[Estimate, int]:
    """Mean of the differences of common repeats, two at least (what a seed does to both cancels); else of the means.

    Of means: s^2 = (SS_1 + SS_2) / (n_1 + n_2 - 2), error = s * sqrt(1/n_1 + 1/n_2).
    """
    common = sorted(one.keys() & two.keys())
    if len(common) > 1:
        apart = np.array([one[key] - two[key] for key in common])
        n = len(common)
        return student(float(apart.mean()), float(apart.std(ddof=1)) / math.sqrt(n), n - 1, grain), n
    sides = [np.array(list(side.values())) for side in (one, two)]
    mean, freedom = float(sides[0].mean() - sides[1].mean()), sum(map(len, sides)) - 2
    if not freedom:
        return Estimate(value=mean, low=None, high=None), 0
    variance = sum(float(side.var()) * len(side) for side in sides) / freedom
    return student(mean, math.sqrt(variance * sum(1 / len(side) for side in sides)), freedom, grain), 0
