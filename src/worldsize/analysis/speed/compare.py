"""Studies -> by what they differ at the settings they share, and which of these differences are more than noise."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from scipy.special import ndtr, ndtri, stdtr, stdtrit

from worldsize.analysis.estimate import LEVEL, Estimate, Sampled, from_logs
from worldsize.spec.setting import Setting, setting_order

ALPHA = 0.05
"""How often at least one of all differences called significant may be chance, if there were none."""
THROUGHPUT, EFFICIENCY, METRIC, STEPS = "throughput", "efficiency", "metric", "steps_to_target"
PARTS = {
    "data": ("data",),
    "compute": ("copy", "forward", "backward", "optimizer", "rest"),
    "communication": ("communication",),
    "waiting": ("waiting",),
}
"""Where a step goes, in four words, and the spans that each is the sum of."""
RATIOS = (THROUGHPUT, STEPS)
"""Compared by their ratio: their means are of logarithms. All else is compared by its difference."""
LEAST_SHARE = 0.01
"""A part of the step that is less than this in both is not compared: it decides nothing and would cost the others."""


@dataclass(frozen=True, kw_only=True)
class Mean:
    """What repeats say of one quantity: of its logarithm where ratios are compared."""

    value: float
    error: float
    """Standard error, from how the repeats differ."""
    freedom: float
    """Degrees of freedom of `error`; 0: one repeat, so that nobody knows how repeats differ."""
    least: float = 0.0
    """Standard error from the steps inside the repeats: repeats that agree by chance know no more than that."""


@dataclass(frozen=True, kw_only=True)
class Side:
    """One study."""

    name: str
    means: Mapping[Setting, Mapping[str, Mean]]
    step_s: Mapping[Setting, float]
    baselines: Mapping[Setting, int]
    """The count of workers that the efficiency of each setting is held against."""


@dataclass(frozen=True, kw_only=True)
class Difference:
    """Of one quantity at one setting, of `side` against the first study."""

    side: str
    setting: Setting
    quantity: str
    first: float
    other: float
    estimate: Estimate
    """other / first for RATIOS, other - first for the rest; 90 % interval, uncorrected. Its ends are None where one of
    the two has a single repeat."""
    p: float | None
    """Of a difference at least this large, if there were none. None: unknown, a single repeat."""
    p_holm: float | None = None
    """Corrected for all differences that were looked at."""

    @property
    def significant(self) -> bool | None:
        return None if self.p_holm is None else self.p_holm <= ALPHA


@dataclass(frozen=True, kw_only=True)
class Compared:
    names: tuple[str, ...]
    common: tuple[Setting, ...]
    """Settings of the first study that at least one other has too."""
    only: Mapping[str, tuple[Setting, ...]]
    """Settings that one study alone has."""
    differences: tuple[Difference, ...]
    """Setting by setting, for each of the others."""

    @property
    def judged(self) -> int:
        return sum(each.p_holm is not None for each in self.differences)

    @property
    def significant(self) -> tuple[Difference, ...]:
        return tuple(each for each in self.differences if each.significant)


def of_sampled(sampled: Sampled) -> Mean:
    """In logarithms, as it is."""
    return Mean(
        value=sampled.log_value, error=sampled.error, freedom=sampled.freedom, least=float(np.std(sampled.within))
    )


def of_share(sampled: Sampled) -> Mean:
    """Not in logarithms: d(exp x) = exp(x) dx."""
    logged, share = of_sampled(sampled), sampled.value
    return Mean(value=share, error=share * logged.error, freedom=logged.freedom, least=share * logged.least)


def of_values(values: Sequence[float], grain: float = 0.0) -> Mean:
    """s / sqrt(n), with s^2 never less than grain^2 / 12: what rounding to whole `grain`s hides."""
    n, mean = len(values), float(np.mean(values))
    if n == 1:
        return Mean(value=mean, error=0.0, freedom=0.0)
    variance = max(float(np.var(values, ddof=1)), grain**2 / 12)
    return Mean(value=mean, error=math.sqrt(variance / n), freedom=n - 1.0)


def of_parts(of_repeats: Mapping[int, Mapping[str, float]]) -> dict[str, Mean]:
    """Spans of each repeat -> PARTS, as far as the spans are known."""
    known = next(iter(of_repeats.values()), {})
    return {
        part: of_values([sum(spans[name] for name in names) for spans in of_repeats.values()])
        for part, names in PARTS.items()
        if all(name in known for name in names)
    }


def compare(sides: Sequence[Side]) -> Compared:
    """Every other study against the first, at equal settings; one Holm correction over all that is looked at."""
    first, others = sides[0], sides[1:]
    found = []
    for setting in sorted(first.means, key=setting_order):
        for other in others:
            if setting in other.means:
                found += _at(setting, first, other)
    counts = {name: [side.name for side in sides if name in side.means] for side in sides for name in side.means}
    return Compared(
        names=tuple(side.name for side in sides),
        common=tuple(sorted((key for key in first.means if len(counts[key]) > 1), key=setting_order)),
        only={
            side.name: tuple(sorted((key for key in side.means if len(counts[key]) == 1), key=setting_order))
            for side in sides
        },
        differences=tuple(holm(found)),
    )


def holm(differences: Sequence[Difference]) -> list[Difference]:
    """Holm: the k-th smallest of m p-values is multiplied by m - k + 1, and never less than the one before it.

    The chance of even one false alarm stays below ALPHA, however the differences depend on one another.
    """
    known = sorted((each.p, place) for place, each in enumerate(differences) if each.p is not None)
    corrected: dict[int, float] = {}
    before = 0.0
    for rank, (p, place) in enumerate(known):
        before = corrected[place] = max(before, min(1.0, p * (len(known) - rank)))
    return [replace(each, p_holm=corrected.get(place)) for place, each in enumerate(differences)]


def difference(first: Mean, other: Mean) -> tuple[Estimate, float | None]:
    """Welch: error^2 = e1^2 + e2^2, freedom = error^4 / (e1^4/f1 + e2^4/f2), and Student's t.

    Not paired: what repeats of one study saw together, those of another did not. Never surer than the steps inside the
    repeats are.
    """
    apart = other.value - first.value
    if not (first.freedom and other.freedom):
        return Estimate(value=apart, low=None, high=None), None
    error, least = math.hypot(first.error, other.error), math.hypot(first.least, other.least)
    if not (error or least):  # repeats that are all the same value: no measure of noise
        return Estimate(value=apart, low=None, high=None), None if apart else 1.0
    reach, p = float(ndtri((1 + LEVEL) / 2)) * least, 0.0
    if least:
        p = 2 * float(ndtr(-abs(apart) / least))
    if error:
        freedom = error**4 / sum(side.error**4 / side.freedom for side in (first, other))
        reach = max(reach, float(stdtrit(freedom, (1 + LEVEL) / 2)) * error)
        p = max(p, 2 * float(stdtr(freedom, -abs(apart) / error)))
    return Estimate(value=apart, low=apart - reach, high=apart + reach), p


def _at(setting: Setting, first: Side, other: Side) -> list[Difference]:
    one, two = first.means[setting], other.means[setting]
    same_baseline = first.baselines.get(setting) == other.baselines.get(setting)
    found = []
    for quantity in (name for name in one if name in two):
        if quantity in PARTS and not _matters(one[quantity], two[quantity], first.step_s[setting]):
            continue
        if quantity == EFFICIENCY and not same_baseline:  # of 2 workers and of 1: two different things
            continue
        estimate, p = difference(one[quantity], two[quantity])
        ratio = quantity in RATIOS
        values = (one[quantity].value, two[quantity].value)
        found.append(
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
    return found


def _matters(one: Mean, two: Mean, step_s: float) -> bool:
    return max(one.value, two.value) >= LEAST_SHARE * step_s
