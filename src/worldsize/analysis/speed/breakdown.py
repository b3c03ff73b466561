"""Spans of steps -> where a step goes: waiting for data, computing, exposed communication, waiting for slower ranks."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from worldsize.analysis.estimate import Estimate, Floats, Sample, bootstrap_medians, log_interval, mean_interval
from worldsize.analysis.speed.network import ring_bytes
from worldsize.spec.setting import Setting

WAITING = "waiting"
"""Waiting for the slowest rank; separated from communication afterwards."""
TRIMMED = 0.05
"""Share of the fastest and of the slowest steps left out of a mean: a hiccup of the machine is not part of a span."""


@dataclass(frozen=True, kw_only=True)
class Breakdown:
    """Where the step of one setting goes: seconds per step, mean over ranks. The spans add up to the step."""

    step_s: Estimate
    spans: dict[str, Estimate]
    of_ranks: list[dict[str, float]]
    """Spans of each rank, mean over repeats."""
    of_repeats: dict[int, dict[str, float]]
    """Spans of each repeat, mean over ranks, by repeat number."""

    def share(self, span: str) -> float:
        return self.spans[span].value / self.step_s.value


@dataclass(frozen=True, kw_only=True)
class Exposed:
    """What the exchange of gradients adds to a step: the same step with it and without it."""

    seconds: Estimate
    with_s: float
    without_s: float


@dataclass(frozen=True, kw_only=True)
class Traffic:
    """One all-reduce of all gradients, as nccl-tests defines it: algbw = bytes / t, busbw = algbw * 2(n-1)/n."""

    bytes: float
    seconds: float
    workers: int

    @property
    def algbw(self) -> float:
        return self.bytes / self.seconds

    @property
    def busbw(self) -> float:
        return ring_bytes(self.bytes, self.workers) / self.seconds


@dataclass(frozen=True, kw_only=True)
class StepParts:
    """Everything known about where the step of a setting goes."""

    setting: Setting
    parts: Breakdown
    exposed: Exposed | None
    """None for one worker, and for strategies whose step cannot be run without its exchange."""
    by_subtraction_s: float | None
    """This step minus that of one worker. Not a measure of communication, since computing itself slows down when cores,
    memory or power are shared. Given because people compute it."""
    outlier_share: float
    """Share of steps more than 5 deviations from the median. They are kept in all figures, and reported."""
    total_s: Estimate | None
    """Time of the exchange as torch measured it, overlapped or not."""
    traffic: Traffic | None

    @property
    def communication_s(self) -> Estimate | None:
        """What communication adds to a step: measured with and without it where possible, else its span. None for one
        worker."""
        if self.setting.workers == 1:
            return None
        return self.exposed.seconds if self.exposed else self.parts.spans.get("communication")

    @property
    def communication_share(self) -> Estimate | None:
        """The same as a share of the step."""
        if (added := self.communication_s) is None:
            return None
        return added.scaled(1 / (self.exposed.with_s if self.exposed else self.parts.step_s.value))


def breakdown(columns: Sequence[str], repeats: Mapping[int, Floats]) -> Breakdown:
    """`repeats`: steps x ranks x columns, in seconds. Means of the middle 90 % of steps, which add up, then over
    repeats.

    Ranks leave an all-reduce together, so the rank that arrives last waits for no other: its time there is transfer,
    and what the others spend there beyond that is waiting for it.
    """
    names = [*columns, WAITING] if "communication" in columns else list(columns)
    of_repeats = np.stack([_means(columns, spans) for spans in repeats.values()])  # repeats x ranks x names
    means = of_repeats.mean(axis=1)
    return Breakdown(
        step_s=_positive(means.sum(axis=1).tolist()),
        spans={name: _positive(means[:, index].tolist()) for index, name in enumerate(names)},
        of_ranks=[dict(zip(names, rank.tolist(), strict=True)) for rank in of_repeats.mean(axis=0)],
        of_repeats={
            repeat: dict(zip(names, mean.tolist(), strict=True)) for repeat, mean in zip(repeats, means, strict=True)
        },
    )


def _positive(values: Sequence[float]) -> Estimate:
    """The mean, so that spans add up, with an interval from logarithms, since a span cannot be negative."""
    if min(values) <= 0:
        return mean_interval(values).clipped(0.0, math.inf)
    mean, by_factors = float(np.mean(values)), log_interval(values)
    if not by_factors.has_interval:
        return by_factors
    low, high = by_factors.ends
    return replace(by_factors, value=mean, low=min(low, mean), high=max(high, mean))


def _means(columns: Sequence[str], spans: Floats) -> Floats:
    """Ranks x (columns and waiting)."""
    step_s = spans.sum(axis=2).max(axis=1)
    low, high = np.quantile(step_s, [TRIMMED, 1 - TRIMMED])
    kept = spans[(step_s >= low) & (step_s <= high)]
    return np.asarray(waiting_apart(columns, kept).mean(axis=0))


def waiting_apart(columns: Sequence[str], spans: Floats) -> Floats:
    """Steps x ranks x (columns and waiting): separates waiting from communication, if there is any."""
    if "communication" not in columns:
        return spans
    index = list(columns).index("communication")
    transfer = spans[:, :, index].min(axis=1, keepdims=True)
    separated = spans.copy()
    separated[:, :, index] = transfer
    return np.concatenate([separated, (spans[:, :, index] - transfer)[:, :, None]], axis=2)


def exposed(blocks: Sequence[Floats], kinds: Sequence[npt.NDArray[Any]], seed: int = 0) -> Exposed | None:
    """Mean over repeats of median(step with exchange) - median(step without), of the slowest rank.

    Student's t over the repeats, because these differ by more than their steps tell; at least as wide as a bootstrap
    over blocks of steps says. One entry per repeat: `blocks` steps x ranks, `kinds` 1 with the exchange and 0 without.
    """
    slowest = [(steps.max(axis=1), kind) for steps, kind in zip(blocks, kinds, strict=True)]
    sides = [(steps[kind == 1], steps[kind == 0]) for steps, kind in slowest if {0, 1} <= set(kind.tolist())]
    if not sides:
        return None
    rng = np.random.default_rng(seed)
    drawn = np.mean([bootstrap_medians(on, rng) - bootstrap_medians(off, rng) for on, off in sides], axis=0)
    medians = np.array([(np.median(on), np.median(off)) for on, off in sides])
    with_s, without_s = (float(mean) for mean in medians.mean(axis=0))
    added = Sample.of(dict(enumerate((medians[:, 0] - medians[:, 1]).tolist())), floor=float(drawn.std()))
    return Exposed(seconds=added.estimate(), with_s=with_s, without_s=without_s)


def straggler(parts: Breakdown, least: float = 0.1) -> tuple[int, float] | None:
    """The rank that the others wait for, and how many seconds longer it computes than the median of the others."""
    busy = [sum(rank.values()) - rank.get("communication", 0.0) - rank.get(WAITING, 0.0) for rank in parts.of_ranks]
    if len(busy) < 2:
        return None
    slowest = int(np.argmax(busy))
    others = float(np.median([seconds for rank, seconds in enumerate(busy) if rank != slowest]))
    extra = busy[slowest] - others
    return (slowest, extra) if extra > least * parts.step_s.value else None
