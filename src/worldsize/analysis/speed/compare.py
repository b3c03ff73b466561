"""Compares studies at their common settings, and shows which differences are more than noise."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from scipy.special import ndtr, stdtr

from worldsize.analysis.estimate import Estimate, Sample, from_logs
from worldsize.spec.setting import Setting, setting_order

ALPHA = 0.05
"""Familywise error rate: the chance that at least one difference is called significant although there is none."""
THROUGHPUT, EFFICIENCY, METRIC, STEPS = "throughput", "efficiency", "metric", "steps_to_target"
PARTS = {
    "data": ("data",),
    "compute": ("copy", "forward", "backward", "optimizer", "rest"),
    "communication": ("communication",),
    "waiting": ("waiting",),
}
"""The four parts of a step. Each part is the sum of its spans."""
RATIOS = (THROUGHPUT, STEPS)
"""Quantities compared by their ratio, with means of logarithms. All others are compared by their difference."""
MIN_SHARE = 0.01
"""A part below this share of the step in both studies is not compared: it does not matter, and would weaken the other
tests."""


@dataclass(frozen=True, kw_only=True)
class Side:
    """One study."""

    name: str
    means: Mapping[Setting, Mapping[str, Sample]]
    step_s: Mapping[Setting, float]
    baselines: Mapping[Setting, int]
    """The worker count of the baseline, by setting."""


@dataclass(frozen=True, kw_only=True)
class Difference:
    """The difference in one quantity at one setting between the study `side` and the first study."""

    side: str
    setting: Setting
    quantity: str
    first: float
    other: float
    estimate: Estimate
    """other / first for RATIOS, other - first for all other quantities; 90 % interval, uncorrected.

    There is no interval if either study has a single repeat.
    """
    p: float | None
    """p-value: the probability of a difference at least this large by chance. None: unknown, a single repeat."""
    p_holm: float | None = None
    """`p` corrected for the number of tested differences."""

    @property
    def significant(self) -> bool | None:
        return None if self.p_holm is None else self.p_holm <= ALPHA


@dataclass(frozen=True, kw_only=True)
class Compared:
    names: tuple[str, ...]
    common: tuple[Setting, ...]
    """Settings of the first study that at least one other study shares."""
    only: Mapping[str, tuple[Setting, ...]]
    """Settings that occur in a single study, by study."""
    differences: tuple[Difference, ...]
    """By setting, then by study."""

    @property
    def judged(self) -> int:
        return sum(result.p_holm is not None for result in self.differences)

    @property
    def significant(self) -> tuple[Difference, ...]:
        return tuple(result for result in self.differences if result.significant)


def share_of(logged: Sample) -> Sample:
    """Convert a sample of logarithms to the quantity itself: d(exp x) = exp(x) dx."""
    share = math.exp(logged.value)
    return Sample(value=share, error=share * logged.error, freedom=logged.freedom, floor=share * logged.floor)


def of_values(values: Sequence[float], grain: float = 0.0) -> Sample:
    """Return the mean over repeats. Its error is at least that of rounding each value to a multiple of `grain`."""
    sample = Sample.of(dict(enumerate(values)))
    return replace(sample, error=max(sample.error, grain / math.sqrt(12 * len(values))))


def of_parts(of_repeats: Mapping[int, Mapping[str, float]]) -> dict[str, Sample]:
    """Return the PARTS whose spans are known, from the spans of each repeat."""
    known_spans = next(iter(of_repeats.values()), {})
    return {
        part: of_values([sum(spans[name] for name in names) for spans in of_repeats.values()])
        for part, names in PARTS.items()
        if all(name in known_spans for name in names)
    }


def compare(sides: Sequence[Side]) -> Compared:
    """Compare every other study with the first at equal settings, with one Holm correction over all differences."""
    first, others = sides[0], sides[1:]
    differences = []
    for setting in sorted(first.means, key=setting_order):
        for other in others:
            if setting in other.means:
                differences += _differences_at(setting, first, other)
    owners = {
        setting: [side.name for side in sides if setting in side.means] for side in sides for setting in side.means
    }
    return Compared(
        names=tuple(side.name for side in sides),
        common=tuple(sorted((key for key in first.means if len(owners[key]) > 1), key=setting_order)),
        only={
            side.name: tuple(sorted((key for key in side.means if len(owners[key]) == 1), key=setting_order))
            for side in sides
        },
        differences=tuple(holm(differences)),
    )


def holm(differences: Sequence[Difference]) -> list[Difference]:
    """Apply Holm's correction: the k-th smallest of m p-values becomes p * (m - k + 1), but at least the one before it.

    The chance of a single false positive is at most ALPHA, whatever the dependence between the differences.
    """
    p_values = sorted((result.p, index) for index, result in enumerate(differences) if result.p is not None)
    corrected: dict[int, float] = {}
    previous = 0.0
    for rank, (p, index) in enumerate(p_values):
        previous = corrected[index] = max(previous, min(1.0, p * (len(p_values) - rank)))
    return [replace(result, p_holm=corrected.get(index)) for index, result in enumerate(differences)]


def difference(first: Sample, other: Sample) -> tuple[Estimate, float | None]:
    """Return the difference and its p-value, by Welch's t test.

    Repeats are not paired: those of two studies rarely ran together, and if they did, drift that both share only makes
    the test more careful. Interval and p-value are unknown if either sample has a single repeat, or if all repeats have
    the same value.
    """
    gap = other.minus_unpaired(first)
    unknown = Estimate(value=gap.value)
    if not (first.freedom and other.freedom):
        return unknown, None
    if not (gap.error or gap.floor):
        return unknown, None if gap.value else 1.0
    p_floor = 2 * float(ndtr(-abs(gap.value) / gap.floor)) if gap.floor else 0.0
    p_repeats = 2 * float(stdtr(gap.freedom, -abs(gap.value) / gap.error)) if gap.error else 0.0
    return gap.estimate(), max(p_floor, p_repeats)


def _differences_at(setting: Setting, first: Side, other: Side) -> list[Difference]:
    first_means, other_means = first.means[setting], other.means[setting]
    same_baseline = first.baselines.get(setting) == other.baselines.get(setting)
    differences = []
    for quantity in (name for name in first_means if name in other_means):
        if quantity in PARTS and not _matters(first_means[quantity], other_means[quantity], first.step_s[setting]):
            continue
        if quantity == EFFICIENCY and not same_baseline:  # efficiencies are relative to the baseline
            continue
        estimate, p = difference(first_means[quantity], other_means[quantity])
        ratio = quantity in RATIOS
        values = (first_means[quantity].value, other_means[quantity].value)
        differences.append(
            Difference(
                side=other.name,
                setting=setting,
                quantity=quantity,
                first=math.exp(values[0]) if ratio else values[0],
                other=math.exp(values[1]) if ratio else values[1],
                estimate=from_logs(estimate) if ratio else estimate,
                p=p,
            )
        )
    return differences


def _matters(first: Sample, other: Sample, step_s: float) -> bool:
    return max(first.value, other.value) >= MIN_SHARE * step_s
