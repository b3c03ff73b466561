"""Curves of training -> steps to a target, batch by batch, finer than the evaluations are apart."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from worldsize.analysis.learning import Target, Trained

INTERPOLATED = 0.5
"""Of the gap between two evaluations, how much doubt interpolating leaves."""


@dataclass(frozen=True, kw_only=True)
class TargetRun:
    """One training towards a target."""

    global_batch: int
    steps: float | None
    """To the target, between evaluations. None: not reached."""
    doubt: float = 0.0
    """Standard deviation of log(steps) that evaluating so rarely leaves."""
    ran_steps: float
    """Up to the evaluation that met the target, or to the end of training."""
    diverged: bool = False


@dataclass(frozen=True, kw_only=True)
class BatchSteps:
    """The runs of one batch."""

    global_batch: int
    runs: int
    reached: int
    diverged: int
    steps: float | None
    """Geometric mean of those that reached the target."""
    doubt: float

    @property
    def fails(self) -> bool:
        return 2 * self.reached <= self.runs


def target_runs(curves: Iterable[Trained], target: Target) -> list[TargetRun]:
    return [target_run(curve, target) for curve in curves]


def target_run(curve: Trained, target: Target) -> TargetRun:
    """log s = log s0 + f (log s1 - log s0), f = (target - m0) / (m1 - m0), between the evaluations 0 and 1 around it.

    In the logarithm of steps, since curves bend that way: they rise fast, then slowly. A target met by the first
    evaluation lies anywhere before it: half of its steps, and a wide doubt.
    """
    batch, metric = curve.setting.global_batch, curve.metric if curve.goal is None else curve.goal
    met = target.met(metric)
    if not met.any():
        ran = float(curve.steps[-1]) if len(curve.steps) else 0.0
        return TargetRun(global_batch=batch, steps=None, ran_steps=ran, diverged=curve.outcome == "diverged")
    first = int(np.argmax(met))
    after = float(curve.steps[first])
    if first == 0:
        return TargetRun(global_batch=batch, steps=after / 2, doubt=_uniform(after, after / 2), ran_steps=after)
    before, low, high = float(curve.steps[first - 1]), float(metric[first - 1]), float(metric[first])
    share = (target.value - low) / (high - low) if math.isfinite(low) else 0.5
    steps = math.exp(math.log(before) + share * math.log(after / before))
    doubt = INTERPOLATED * _uniform(after - before, steps)
    return TargetRun(global_batch=batch, steps=steps, doubt=doubt, ran_steps=after)


def by_batch(runs: Sequence[TargetRun]) -> list[BatchSteps]:
    found = []
    for size in sorted({run.global_batch for run in runs}):
        here = [run for run in runs if run.global_batch == size]
        logs = [math.log(run.steps) for run in here if run.steps is not None]
        found.append(
            BatchSteps(
                global_batch=size,
                runs=len(here),
                reached=len(logs),
                diverged=sum(run.diverged for run in here),
                steps=math.exp(float(np.mean(logs))) if logs else None,
                doubt=float(np.mean([run.doubt for run in here if run.steps is not None])) if logs else 0.0,
            )
        )
    return found


def _uniform(width: float, value: float) -> float:
    """Standard deviation of what lies anywhere within the width, relative."""
    return width / math.sqrt(12) / value
