"""Compares studies at the settings they share, and tells which differences are more than noise."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from scipy.special import ndtr, stdtr

from worldsize.analysis.estimate import Estimate, Sample, from_logs
from worldsize.spec.setting import Setting, setting_order

ALPHA = 0.05
"""Chance that at least one difference is called significant although there is none."""
THROUGHPUT, EFFICIENCY, METRIC, STEPS = "throughput", "efficiency", "metric", "steps_to_target"
PARTS = {
    "data": ("data",),
    "compute": ("copy", "forward", "backward", "optimizer", "rest"),
    "communication": ("communication",),
    "waiting": ("waiting",),
}
"""The four parts of a step, and the spans that each is the sum of."""
RATIOS = (THROUGHPUT, STEPS)
"""Quantities compared by their ratio, with means of logarithms. All others are compared by their difference."""
LEAST_SHARE = 0.01
"""A part of the step smaller than this share in both studies is not compared: it decides nothing and would weaken the
other tests."""


@dataclass(frozen=True, kw_only=True)
class Side:
    """One study."""

    name: str
    means: Mapping[Setting, Mapping[str, Sample]]
    step_s: Mapping[Setting, float]
    baselines: Mapping[Setting, int]
    """The baseline worker count for the efficiency of each setting."""


@dataclass(frozen=True, kw_only=True)
class Difference:
    """The difference of one quantity at one setting, `side` compared with the first study."""

    side: str
    setting: Setting
    quantity: str
    first: float
    other: float
    estimate: Estimate
    """other / first for RATIOS, other - first for the rest; 90 % interval, uncorrected. Its ends are None if one of the
    two has a single repeat."""
    p: float | None
    """Probability of a difference at least this large if there is none. None: unknown, a single repeat."""
    p_holm: float | None = None
    """`p` corrected for the number of differences that were tested."""

    @property
    def significant(self) -> bool | None:
        return None if self.p_holm is None else self.p_holm <= ALPHA


@dataclass(frozen=True, kw_only=True)
class Compared:
    names: tuple[str, ...]
    common: tuple[Setting, ...]
    """Settings of the first study that at least one other study has too."""
    only: Mapping[str, tuple[Setting, ...]]
    """Settings that only one study has."""
    differences: tuple[Difference, ...]
    """Setting by setting, for each of the others."""

    @property
    def judged(self) -> int:
        return sum(result.p_holm is not None for result in self.differences)

    @property
    def significant(self) -> tuple[Difference, ...]:
        return tuple(result for result in self.differences if result.significant)


def share_of(logged: Sample) -> Sample:
    """The mean itself, of a sample in logarithms: d(exp x) = exp(x) dx."""
    share = math.exp(logged.value)
    return Sample(value=share, error=share * logged.error, freedom=logged.freedom, floor=share * logged.floor)


def of_values(values: Sequence[float], grain: float = 0.0) -> Sample:
    """The mean over repeats, whose error is at least that of rounding each of them to whole `grain`s."""
    sample = Sample.of(dict(enumerate(values)))
    return replace(sample, error=max(sample.error, grain / math.sqrt(12 * len(values))))


def of_parts(of_repeats: Mapping[int, Mapping[str, float]]) -> dict[str, Sample]:
    """Spans of each repeat -> PARTS, as far as the spans are known."""
    known = next(iter(of_repeats.values()), {})
    return {
        part: of_values([sum(spans[name] for name in names) for spans in of_repeats.values()])
        for part, names in PARTS.items()
        if all(name in known for name in names)
    }


def compare(sides: Sequence[Side]) -> Compared:
    """Every other study against the first, at equal settings, with one Holm correction over all differences."""
    first, others = sides[0], sides[1:]
    differences = []
    for setting in sorted(first.means, key=setting_order):
        for other in others:
            if setting in other.means:
                differences += _at(setting, first, other)
    counts = {name: [side.name for side in sides if name in side.means] for side in sides for name in side.means}
    return Compared(
        names=tuple(side.name for side in sides),
        common=tuple(sorted((key for key in first.means if len(counts[key]) > 1), key=setting_order)),
        only={
            side.name: tuple(sorted((key for key in side.means if len(counts[key]) == 1), key=setting_order))
            for side in sides
        },
        differences=tuple(holm(differences)),
    )


def holm(differences: Sequence[Difference]) -> list[Difference]:
    """Holm: the k-th smallest of m p-values is multiplied by m - k + 1, and never less than the one before it.

    The chance of even one false alarm stays below ALPHA, however the differences depend on one another.
    """
    known = sorted((result.p, index) for index, result in enumerate(differences) if result.p is not None)
    corrected: dict[int, float] = {}
    before = 0.0
    for rank, (p, index) in enumerate(known):
        before = corrected[index] = max(before, min(1.0, p * (len(known) - rank)))
    return [replace(result, p_holm=corrected.get(index)) for index, result in enumerate(differences)]


def difference(first: Sample, other: Sample) -> tuple[Estimate, float | None]:
    """The difference and the probability of one at least as large by chance, by Welch and Student's t.

    Not paired: repeats of one study ran together, those of different studies did not. Neither is known if one of the
    two has a single repeat, or if all repeats have the same value.
    """
    gap = other.apart(first)
    unknown = Estimate(value=gap.value)
    if not (first.freedom and other.freedom):
        return unknown, None
    if not (gap.error or gap.floor):
        return unknown, None if gap.value else 1.0
    by_floor = 2 * float(ndtr(-abs(gap.value) / gap.floor)) if gap.floor else 0.0
    by_repeats = 2 * float(stdtr(gap.freedom, -abs(gap.value) / gap.error)) if gap.error else 0.0
    return gap.estimate(), max(by_floor, by_repeats)


def _at(setting: Setting, first: Side, other: Side) -> list[Difference]:
    first_means, other_means = first.means[setting], other.means[setting]
    same_baseline = first.baselines.get(setting) == other.baselines.get(setting)
    differences = []
    for quantity in (name for name in first_means if name in other_means):
        if quantity in PARTS and not _matters(first_means[quantity], other_means[quantity], first.step_s[setting]):
            continue
        if quantity == EFFICIENCY and not same_baseline:  # not comparable
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
    return max(first.value, other.value) >= LEAST_SHARE * step_s
