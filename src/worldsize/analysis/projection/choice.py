"""Chooses among measured and projected worker counts: the knee, and the best count for a budget or a deadline.

Also finds what limits scaling beyond the knee.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic, Literal, Protocol, TypeVar

from worldsize.analysis.estimate import Estimate
from worldsize.analysis.projection.step_model import Parts
from worldsize.analysis.speed.recommend import (
    LEAST_MARGINAL_EFFICIENCY,
    WIDEST,
    Finding,
    marginal_efficiency,
    paying_counts,
)

FEW_UPDATES = 10
"""With fewer steps per epoch, the data set is too small for the batch."""
Limit = Literal[
    "data",
    "compute",
    "fixed-cost",
    "communication",
    "learning",
    "above-the-step",
    "data-set-too-small",
    "not-measured",
]


class Candidate(Protocol):
    """A worker count to choose from."""

    @property
    def workers(self) -> int: ...
    @property
    def time_s(self) -> float: ...
    @property
    def sure(self) -> bool: ...


@dataclass(frozen=True, kw_only=True)
class Option:
    """One worker count and what training with it takes. Intervals are 80 %, as for projections."""

    workers: int
    nodes: int
    batch_per_worker: int
    accumulation: int
    measured: bool
    """Whether its throughput was measured. Otherwise it is projected."""
    samples_per_s: Estimate
    step_s: Estimate
    epoch_s: Estimate
    """Training only, without evaluation."""
    parts: Parts | None = None
    """Parts of the step; None for a bare table, or for a count whose parts are unknown."""
    steps_per_epoch: float
    steps: Estimate | None = None
    """Steps of the whole training. None: nothing was trained, or unknown for this batch."""
    overhead_s: float | None = None
    """Time of the whole training outside steps."""
    wall_s: Estimate | None = None
    """Time of the whole training. None: unknown."""
    joules: Estimate | None = None
    learns: bool = True
    """False if training at this batch diverged, missed its target, or has a worse metric (measured or expected)."""
    lr: float | None = None
    """Learning rate at this batch, by the study's learning-rate rule. None: nothing was trained."""
    epochs_stable: Estimate | None = None
    metric: Estimate | None = None
    """Metric after the study's epochs at this batch, by its learning-rate rule. None: unknown."""
    metric_measured: bool = False
    """Whether the metric was measured at this batch. Otherwise it is estimated from other batches."""
    price: float | None = None
    """Price per worker-hour."""
    speedup: Estimate | None = None
    """Speedup over the smallest measured count, from paired repeats. None for a projection."""
    notes: tuple[str, ...] = ()

    @property
    def global_batch(self) -> int:
        return self.workers * self.batch_per_worker * self.accumulation

    @property
    def time(self) -> Estimate:
        """Time of the whole training if known, else of an epoch: the time that more workers should reduce."""
        return self.wall_s or self.epoch_s

    @property
    def time_s(self) -> float:
        return self.time.value

    @property
    def sure(self) -> bool:
        """Whether the option learns and is certain enough to act on."""
        return self.learns and (self.measured or self.samples_per_s.relative_width <= WIDEST)

    @property
    def cost(self) -> Estimate | None:
        """Worker-hours * price."""
        if self.price is None or self.wall_s is None:
            return None
        return self.wall_s.scaled(self.workers * self.price / 3600)


def speedup_of(option: Option, base: Option) -> Estimate:
    """Return the measured speedup or, for a projection, the ratio to the value of the base. The interval of a
    projection already includes the noise of the base."""
    if option.speedup is not None and base.measured:
        return option.speedup
    return option.samples_per_s.scaled(1 / base.samples_per_s.value)


C = TypeVar("C", bound=Candidate)


@dataclass(frozen=True, kw_only=True)
class Knee(Generic[C]):
    knee: C
    """The largest count that pays."""
    following: C | None
    """The next larger count."""
    unsure: C | None
    """The first larger count that would pay, but is too uncertain to choose."""
    sure: bool
    """False if the knee itself is too uncertain or does not learn. Then it is only the best guess."""


def choose_knee(known: Sequence[C], margin: float = LEAST_MARGINAL_EFFICIENCY) -> Knee[C]:
    """Choose among counts in ascending order. An uncertain count is not chosen, nor is a larger count that is no faster
    than an uncertain one."""
    uncertain = [count for count in known if not count.sure]
    trusted = [
        count
        for count in known
        if count.sure and not any(other.workers < count.workers and other.time_s <= count.time_s for other in uncertain)
    ] or known[:1]
    chosen = trusted[paying_counts([c.workers for c in trusted], [1 / c.time_s for c in trusted], margin)[-1]]
    larger = [count for count in known if count.workers > chosen.workers]
    would_pay = (count for count in larger if not count.sure and marginal(chosen, count) >= margin)
    return Knee(knee=chosen, following=next(iter(larger), None), unsure=next(would_pay, None), sure=chosen.sure)


@dataclass(frozen=True, kw_only=True)
class Choice(Knee[Option]):
    """Answers to the three usual questions: the knee, the fastest count within a budget, the cheapest by a deadline.

    The latter two are None if no count qualifies.
    """

    fastest_in_budget: Option | None
    cheapest_in_time: Option | None
    pareto: tuple[int, ...]
    """Counts that no other count beats in both time and worker-hours."""
    limit: Finding | None
    """What keeps the next count after the knee from reaching its ideal time."""


def choose(
    options: Sequence[Option],
    *,
    budget: float | None = None,
    deadline_s: float | None = None,
    margin: float = LEAST_MARGINAL_EFFICIENCY,
) -> Choice:
    """Choose among `options` of one series, which differ only in workers.

    A count meets a deadline or a budget if its value does; its interval shows how certain that is. If the time of the
    whole training is known for some counts, the others, whose batch misses the target or is unknown, are left out.
    """
    known = eligible(options)
    best = choose_knee(known, margin)
    affordable = [option for option in known if budget is not None and _within(option.cost, budget)]
    in_time = [option for option in known if deadline_s is not None and _within(option.wall_s, deadline_s)]
    return Choice(
        knee=best.knee,
        following=best.following,
        unsure=best.unsure,
        sure=best.sure,
        fastest_in_budget=min(affordable, key=lambda option: option.time_s, default=None),
        cheapest_in_time=min(in_time, key=lambda option: option.workers * option.time_s, default=None),
        pareto=pareto(known),
        limit=limit(best.knee, best.following) if best.following else None,
    )


def eligible(options: Sequence[Option]) -> list[Option]:
    """Return the options whose times are comparable, in order of workers, up to the first that no longer learns. If no
    smaller count learned, an option is trusted only if it was trained itself."""
    usable: list[Option] = []
    ordered = sorted(options, key=lambda option: option.workers)
    for option in [option for option in ordered if option.wall_s is not None] or ordered:
        if not option.learns and usable:
            break
        if option.learns and (usable or option.metric_measured or option is ordered[0]):
            usable.append(option)
    return usable or ordered[:1]


def _within(spent: Estimate | None, limit: float) -> bool:
    """Whether an amount of money or time is known and within a limit."""
    return spent is not None and spent.value <= limit


def marginal(smaller: Candidate, larger: Candidate) -> float:
    return marginal_efficiency(smaller.time_s / larger.time_s, larger.workers / smaller.workers)


def pareto(options: Sequence[Option]) -> tuple[int, ...]:
    """Return the Pareto-optimal counts, from the cheapest to the fastest."""
    front: list[Option] = []
    for option in sorted(options, key=lambda option: (option.workers * option.time_s, option.time_s)):
        if not front or option.time_s < front[-1].time_s:
            front.append(option)
    return tuple(option.workers for option in front)


def limit(smaller: Option, larger: Option) -> Finding | None:
    """Return the cause that costs the most time from one count to a larger one, relative to ideal scaling.

    time = steps * (load + compute + exposed) + overhead; ideal: time * n / n'. Each cause counts for what it adds.
    """
    losses = _losses(smaller, larger)
    if larger.steps_per_epoch < FEW_UPDATES and losses.get("learning", 0.0) >= 0:
        losses["data-set-too-small"] = math.log(FEW_UPDATES / larger.steps_per_epoch)
    if not losses:
        return None
    cause, lost = max(losses.items(), key=lambda item: item[1])
    if lost <= 0.01:
        return Finding(code="nothing-limits", numbers={"workers": larger.workers})
    numbers = {
        "from": float(smaller.workers),
        "workers": float(larger.workers),
        "percent": 100 * (1 - math.exp(-lost)),
        "steps_per_epoch": larger.steps_per_epoch,
        "global_batch": float(larger.global_batch),
    }
    return Finding(code=f"limit-{cause}", numbers=numbers)


def _losses(smaller: Option, larger: Option) -> dict[Limit, float]:
    """Return the log of the factor by which each cause lengthens the ideal time."""
    growth = larger.workers / smaller.workers
    # In strong scaling, a rank has less work with more workers, so the ideal step is shorter.
    work = larger.batch_per_worker * larger.accumulation / (smaller.batch_per_worker * smaller.accumulation)
    ideal, steps = smaller.step_s.value * work, 1.0
    lost_s: dict[Limit, float] = {}
    if (
        smaller.wall_s
        and smaller.steps
        and larger.steps
        and smaller.overhead_s is not None
        and larger.overhead_s is not None
    ):
        ideal, steps = smaller.wall_s.value / growth, larger.steps.value
        lost_s["above-the-step"] = larger.overhead_s - smaller.overhead_s / growth
        if larger.steps.has_interval:  # from a fit, not from the study's number of epochs
            # Ideally, the steps fall in proportion to the global batch.
            ideal_steps = smaller.steps.value * smaller.global_batch / larger.global_batch
            lost_s["learning"] = (larger.steps.value - ideal_steps) * larger.step_s.value
    if smaller.parts and larger.parts:
        before, after = smaller.parts, larger.parts
        # If the batch per rank shrinks, compute time that does not shrink too is a fixed cost, not due to neighbors.
        slower: Limit = "compute" if work == 1 else "fixed-cost"
        lost_s["data"] = steps * (after.load_s - before.load_s * work)
        lost_s[slower] = steps * (after.compute_s - before.compute_s * work)
        lost_s["communication"] = steps * (after.exposed_s - before.exposed_s * work)
    else:
        lost_s["not-measured"] = steps * (larger.step_s.value - smaller.step_s.value * work)
    return {cause: math.log1p(max(lost / ideal, -0.9)) for cause, lost in lost_s.items()}
