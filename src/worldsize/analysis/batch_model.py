"""Steps to a target against batch: steps(B) = S_min * (1 + B_crit / B), examples(B) = B * steps(B).

Far below B_crit twice the batch halves the steps and examples stay constant; far above it steps stay constant at S_min
(McCandlish et al. 2018). The law is for rates that follow the batch as they should; a rate that follows as B^p with
p < 1 brings only (B_crit / B)^p, as seen with the square root rule.

Everything is in logarithms of steps. With batches i, each of n_i runs that reached the target:

    y_i = mean log steps = log S_min + log(1 + (B_crit / B_i)^p) + error,   var = scatter^2 / n_i + misfit^2 + doubt_i^2

scatter: how runs of one batch differ; misfit: how far a batch may lie from the law; doubt: evaluations are apart. A run
that did not reach the target took more steps than it ran: P(log steps > log ran). B_crit has an even prior in its
logarithm over all that the batches could tell apart, or one about the gradient noise scale. What is likely after all
that is drawn from, so that every quantity has an interval, however few batches there are.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from scipy.special import stdtrit

from worldsize.analysis.batch_posterior import Draws, Evidence, draw
from worldsize.analysis.batch_runs import BatchSteps, TargetRun, by_batch
from worldsize.analysis.noise_scale import NoiseScale
from worldsize.analysis.stats import Floats, Interval

PREDICTED_LEVEL = 0.80
MOST_DOUBLINGS = 4
"""Beyond the batches that were trained. The law says nothing of the rate at which training begins to diverge."""
DRIFT = 0.06
"""Standard deviation of log steps that each doubling beyond the trained batches adds: no law is exact."""
USUAL_SCATTER, USUAL_RUNS = 0.08, 3.0
"""What runs of one batch differ by when there are no repeats, and for how many degrees of freedom that counts."""
SURE = 0.95

Law = Literal["holds", "steps-rise", "examples-fall"]
"""steps-rise: the largest batch needs more steps than a smaller one; examples-fall: fewer examples the larger it is."""
Basis = Literal["batches", "noise-scale", "one-batch"]
"""one-batch: nothing tells where steps stop falling, so anything between constant steps and constant examples."""
Unknown = Literal["not-reached-there", "too-far", "steps-rise"]


@dataclass(frozen=True, kw_only=True)
class StepsPrediction:
    global_batch: int
    steps: Interval | None
    """Of one run, 80 %. None: not known."""
    unknown: Unknown | None = None
    """Why."""

    def epochs(self, samples: int) -> Interval | None:
        """steps * B / samples. The partial batch at an epoch's end is a step too."""
        per_epoch = -(-samples // self.global_batch)
        if self.steps is None:
            return None
        return Interval(*(end / per_epoch for end in (self.steps.value, self.steps.low, self.steps.high)))


@dataclass(frozen=True, kw_only=True)
class BatchModel:
    batches: tuple[BatchSteps, ...]
    """In rising order."""
    basis: Basis
    law: Law
    power: float
    critical_batch: Interval
    """An end at the edge of what is looked for (`BELOW`, `ABOVE`) means: at most, or at least, that."""
    least_steps: Interval
    """S_min."""
    fails_from: int | None
    """The smallest batch at which half of the runs or more miss the target, where no larger one reaches it."""
    draws: Draws = field(repr=False, compare=False)

    def predict(self, global_batch: int) -> StepsPrediction:
        """Steps that one run at this batch will take: the median of what is likely, and its 80 % interval."""
        reached = [batch.global_batch for batch in self.batches if batch.steps is not None]
        beyond = max(math.log2(global_batch / reached[-1]), math.log2(reached[0] / global_batch), 0.0)
        unknown: Unknown | None = None
        if self.fails_from is not None and global_batch >= self.fails_from:
            unknown = "not-reached-there"
        elif self.law == "steps-rise" and global_batch > reached[-1]:
            unknown = "steps-rise"
        elif beyond > MOST_DOUBLINGS:
            unknown = "too-far"
        if unknown:
            return StepsPrediction(global_batch=global_batch, steps=None, unknown=unknown)
        return StepsPrediction(
            global_batch=global_batch, steps=_interval(self.draws.log_steps(global_batch, self.power, DRIFT * beyond))
        )


def fit_batches(
    runs: Iterable[TargetRun], noise: NoiseScale | None = None, power: float = 1.0, seed: int = 0
) -> BatchModel | None:
    """None: no run reached the target."""
    runs = list(runs)
    batches = by_batch(runs)
    reached = [batch for batch in batches if batch.steps is not None]
    if not reached:
        return None
    scatter, freedom = _scatter(runs)
    evidence = Evidence(reached=reached, missed=_missed(runs), scatter=scatter, freedom=freedom, noise=noise)
    draws = draw(evidence, power, seed)
    return BatchModel(
        batches=tuple(batches),
        basis="batches" if len(reached) > 1 else "noise-scale" if evidence.noise_known else "one-batch",
        law=_law(reached, scatter, freedom),
        power=power,
        critical_batch=_interval(draws.log_critical),
        least_steps=_interval(draws.log_least),
        fails_from=_fails_from(batches),
        draws=draws,
    )


def _fails_from(batches: Sequence[BatchSteps]) -> int | None:
    found = None
    for batch in reversed(batches):
        if not batch.fails:
            break
        found = batch.global_batch
    return found


def _missed(runs: Sequence[TargetRun]) -> list[TargetRun]:
    """What diverged says that the rate was too high, not how many steps are needed."""
    return [run for run in runs if run.steps is None and not run.diverged and run.ran_steps > 0]


def _scatter(runs: Sequence[TargetRun]) -> tuple[float, float]:
    """Standard deviation of log steps between runs of one batch, pooled, and its degrees of freedom."""
    squares, freedom = USUAL_RUNS * USUAL_SCATTER**2, USUAL_RUNS
    for size in {run.global_batch for run in runs}:
        logs = [math.log(run.steps) for run in runs if run.global_batch == size and run.steps is not None]
        if len(logs) > 1:
            squares += float(np.var(logs)) * len(logs)
            freedom += len(logs) - 1
    return math.sqrt(squares / freedom), freedom


def _law(reached: Sequence[BatchSteps], scatter: float, freedom: float) -> Law:
    """Whether the batches contradict the law by more than their scatter."""
    logs = np.log([batch.steps for batch in reached if batch.steps is not None])
    sizes = np.log([batch.global_batch for batch in reached])
    variance = np.array([scatter**2 / batch.reached + batch.doubt**2 for batch in reached])
    surely = float(stdtrit(freedom, SURE))
    if len(reached) < 2:
        return "holds"
    least = int(np.argmin(logs[:-1]))
    if logs[-1] - logs[least] > surely * math.sqrt(variance[-1] + variance[least]):
        return "steps-rise"
    centred = sizes - np.average(sizes, weights=1 / variance)
    weight = float((centred**2 / variance).sum())
    slope = float((centred * logs / variance).sum()) / weight
    return "examples-fall" if slope + surely / math.sqrt(weight) < -1 else "holds"


def _interval(logs: Floats) -> Interval:
    tail = (1 - PREDICTED_LEVEL) / 2
    low, middle, high = np.exp(np.quantile(logs, [tail, 0.5, 1 - tail]))
    return Interval(float(middle), float(low), float(high))
