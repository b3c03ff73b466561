"""Breaks the step time down into waiting for data, computing, exposed communication and waiting for slower ranks."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from worldsize.analysis.estimate import Estimate, Floats, Sample, bootstrap, log_interval, mean_interval
from worldsize.analysis.speed.network import ring_bytes
from worldsize.spec.setting import Setting

WAITING = "waiting"
"""The span of waiting for the slowest rank, which is computed from the span of communication."""
TRIMMED = 0.05
"""Share of the fastest and of the slowest steps that a mean leaves out, so that hiccups of the machine do not count."""


@dataclass(frozen=True, kw_only=True)
class Breakdown:
    """The spans of a step of one setting, in seconds, averaged over ranks. The spans add up to the step time."""

    step_s: Estimate
    spans: dict[str, Estimate]
    of_ranks: list[dict[str, float]]
    """Spans of each rank, averaged over repeats."""
    of_repeats: dict[int, dict[str, float]]
    """Spans of each repeat, averaged over ranks, by repeat number."""

    def share(self, span: str) -> float:
        return self.spans[span].value / self.step_s.value


@dataclass(frozen=True, kw_only=True)
class Exposed:
    """Exposed communication, from steps with and without the exchange of gradients."""

    seconds: Estimate
    """Time that the exchange adds to a step."""
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
    """The step time of one setting by part."""

    setting: Setting
    parts: Breakdown
    exposed: Exposed | None
    """None for one worker, and for strategies whose steps cannot run without their exchange."""
    by_subtraction_s: float | None
    """Step time minus the step time of one worker. This is not a measure of communication, because computing slows down
    when cores, memory or power are shared. It is included because people compute it."""
    outlier_share: float
    """Share of steps more than 5 deviations from the median. These steps are reported, and included in all figures."""
    total_s: Estimate | None
    """Time of the exchange as measured by torch, including overlapped time."""
    traffic: Traffic | None

    @property
    def communication_s(self) -> Estimate | None:
        """Time that communication adds to a step: exposed communication if it was measured, else the span of
        communication. None for one worker."""
        if self.setting.workers == 1:
            return None
        return self.exposed.seconds if self.exposed else self.parts.spans.get("communication")

    @property
    def communication_share(self) -> Estimate | None:
        """`communication_s` as a share of the step time."""
        if (seconds := self.communication_s) is None:
            return None
        return seconds.scaled(1 / (self.exposed.with_s if self.exposed else self.parts.step_s.value))


def breakdown(columns: Sequence[str], repeats: Mapping[int, Floats]) -> Breakdown:
    """Average the spans over the middle 90 % of steps, then over repeats.

    `repeats` holds one array of steps x ranks x columns per repeat, in seconds.

    Means are used because they add up. Ranks leave an all-reduce together, and the last rank to arrive does not wait:
    its time in the all-reduce is transfer. Any time beyond this that another rank spends there is waiting.
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
    """Return the mean, so that spans add up, with an interval from logarithms, since spans cannot be negative."""
    if min(values) <= 0:
        return mean_interval(values).clipped(0.0, math.inf)
    mean, geometric = float(np.mean(values)), log_interval(values)
    if not geometric.has_interval:
        return geometric
    low, high = geometric.ends
    return replace(geometric, value=mean, low=min(low, mean), high=max(high, mean))


def _means(columns: Sequence[str], spans: Floats) -> Floats:
    """Return the means as ranks x (columns and waiting)."""
    step_s = spans.sum(axis=2).max(axis=1)
    low, high = np.quantile(step_s, [TRIMMED, 1 - TRIMMED])
    middle = spans[(step_s >= low) & (step_s <= high)]
    return np.asarray(separate_waiting(columns, middle).mean(axis=0))


def separate_waiting(columns: Sequence[str], spans: Floats) -> Floats:
    """Separate waiting from communication, if there is any; return steps x ranks x (columns and waiting)."""
    if "communication" not in columns:
        return spans
    index = list(columns).index("communication")
    transfer = spans[:, :, index].min(axis=1, keepdims=True)
    separated = spans.copy()
    separated[:, :, index] = transfer
    return np.concatenate([separated, (spans[:, :, index] - transfer)[:, :, None]], axis=2)


def exposed(blocks: Sequence[Floats], kinds: Sequence[npt.NDArray[Any]], seed: int = 0) -> Exposed | None:
    """Return the mean over repeats of median(step with exchange) - median(step without), for the slowest rank.

    The interval is Student's t over repeats, because repeats differ by more than the noise of their steps. It is at
    least as wide as that of a block bootstrap over steps. `blocks` and `kinds` have one entry per repeat: the steps x
    ranks, and for each step 1 with the exchange or 0 without.
    """
    slowest = [(steps.max(axis=1), kind) for steps, kind in zip(blocks, kinds, strict=True)]
    pairs = [(steps[kind == 1], steps[kind == 0]) for steps, kind in slowest if {0, 1} <= set(kind.tolist())]
    if not pairs:
        return None
    rng = np.random.default_rng(seed)
    replicates = np.mean([bootstrap(on, rng) - bootstrap(off, rng) for on, off in pairs], axis=0)
    medians = np.array([(np.median(on), np.median(off)) for on, off in pairs])
    with_s, without_s = (float(mean) for mean in medians.mean(axis=0))
    added = Sample.of(dict(enumerate((medians[:, 0] - medians[:, 1]).tolist())), floor=float(replicates.std()))
    return Exposed(seconds=added.estimate(), with_s=with_s, without_s=without_s)


def straggler(parts: Breakdown, min_share: float = 0.1) -> tuple[int, float] | None:
    """Return the rank that the others wait for, and how many seconds longer it computes than the median of the others;
    None if this is less than `min_share` of the step."""
    busy = [sum(rank.values()) - rank.get("communication", 0.0) - rank.get(WAITING, 0.0) for rank in parts.of_ranks]
    if len(busy) < 2:
        return None
    slowest = int(np.argmax(busy))
    others = float(np.median([seconds for rank, seconds in enumerate(busy) if rank != slowest]))
    extra = busy[slowest] - others
    return (slowest, extra) if extra > min_share * parts.step_s.value else None
