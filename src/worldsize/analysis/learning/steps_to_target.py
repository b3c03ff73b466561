"""Steps to a target against batch: steps(B) = S_min * (1 + B_crit / B), examples(B) = B * steps(B).

Far below B_crit twice the batch halves the steps and examples stay constant; far above it steps stay constant at S_min
(McCandlish et al. 2018). The law assumes that the learning rate is scaled well with the batch; a learning rate that
grows as B^p with p < 1 gives only (B_crit / B)^p, as seen with the square root rule.

Everything is in logarithms of steps. With batches i, each of n_i runs that reached the target:

    y_i = mean log steps = log S_min + log(1 + (B_crit / B_i)^p) + error,   var = scatter^2 / n_i + misfit^2 + doubt_i^2

scatter: how runs of one batch differ; misfit: how far a batch may be from the law; doubt: the gap between evaluations.
A run that did not reach the target needs more steps than it ran: P(log steps > log ran). The prior of B_crit is uniform
in its logarithm over all values that the batches could distinguish, or centered on the gradient noise scale. The result
is sampled from the posterior, so that every quantity has an interval, however few batches there are.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from scipy.special import gammaincinv, log_ndtr, logsumexp, stdtrit

from worldsize.analysis.estimate import PROJECTED_LEVEL, Estimate, Floats
from worldsize.analysis.learning.noise_scale import NoiseScale
from worldsize.analysis.learning.variants import Goal, TrainingRun, to_target


@dataclass(frozen=True, kw_only=True)
class TargetRun:
    """One training run toward a target."""

    global_batch: int
    steps: float | None
    """Steps to the target. None: not reached."""
    doubt: float = 0.0
    """As in `Reached`."""
    ran_steps: float
    """Steps until the end of training."""
    diverged: bool = False


@dataclass(frozen=True, kw_only=True)
class BatchSteps:
    """The runs of one batch."""

    global_batch: int
    runs: int
    reached: int
    diverged: int
    steps: float | None
    """Geometric mean over the runs that reached the target."""
    doubt: float

    @property
    def fails(self) -> bool:
        return 2 * self.reached <= self.runs


def target_runs(curves: Iterable[TrainingRun], target: Goal) -> list[TargetRun]:
    return [target_run(curve, target) for curve in curves]


def target_run(curve: TrainingRun, target: Goal) -> TargetRun:
    reached = to_target(curve, target)
    return TargetRun(
        global_batch=curve.setting.global_batch,
        steps=reached.steps if reached else None,
        doubt=reached.doubt if reached else 0.0,
        ran_steps=float(curve.steps[-1]) if len(curve.steps) else 0.0,
        diverged=reached is None and curve.outcome == "diverged",
    )


def by_batch(runs: Sequence[TargetRun]) -> list[BatchSteps]:
    batches = []
    for size in sorted({run.global_batch for run in runs}):
        group = [run for run in runs if run.global_batch == size]
        logs = [math.log(run.steps) for run in group if run.steps is not None]
        batches.append(
            BatchSteps(
                global_batch=size,
                runs=len(group),
                reached=len(logs),
                diverged=sum(run.diverged for run in group),
                steps=math.exp(float(np.mean(logs))) if logs else None,
                doubt=float(np.mean([run.doubt for run in group if run.steps is not None])) if logs else 0.0,
            )
        )
    return batches


BELOW, ABOVE = 8.0, 128.0
"""B_crit is searched from 1/8 of the smallest batch to 128 times the largest. Further below, steps are practically
constant. The upper side is wider, because with small batches at scaled learning rates examples mostly stay constant."""
NOISE_SCALE_TIMES, NOISE_SCALE_FACTOR = 2.0, 3.0
"""B_crit is twice the noise scale within a factor of 3, two times out of three. They are equal for the best learning
rate of each batch; below it, as for most rates that follow a rule, examples stay constant for longer."""
MISFITS = ((0.01, 0.5), (0.04, 0.3), (0.1, 0.15), (0.25, 0.04), (0.6, 0.01))
"""How far batches are from the law, and the prior probability of that."""
SCATTER_NODES = (0.1, 0.3, 0.5, 0.7, 0.9)
"""Quantiles of chi^2: repeats are few, so that their scatter is uncertain too."""
STUCK = 0.05
"""Share of runs that miss the target for other reasons: more steps would not have helped."""
BATCH_NODES, LEAST_NODES = 121, 25
DRAWS = 4_000


@dataclass(frozen=True, kw_only=True)
class Evidence:
    reached: Sequence[BatchSteps]
    """Batches at which the target was reached, in rising order."""
    missed: Sequence[TargetRun]
    """Runs that ended before the target."""
    scatter: float
    """Standard deviation of log steps between runs of one batch, and the degrees of freedom behind it."""
    freedom: float
    noise: NoiseScale | None

    @property
    def noise_known(self) -> bool:
        """Whether the noise scale has a value or at least a lower bound."""
        return self.noise is not None and bool(self.noise.value or self.noise.low)


@dataclass(frozen=True, kw_only=True)
class Draws:
    """Samples from the posterior, one value per draw."""

    log_least: Floats
    log_critical: Floats
    spread: Floats
    """Standard deviation of one run about the law."""
    normal: Floats

    def log_steps(self, global_batch: int, power: float, drift: float) -> Floats:
        law = self.log_least + excess(self.log_critical - math.log(global_batch), power)
        return np.asarray(law + np.hypot(self.spread, drift) * self.normal)


@dataclass(frozen=True, kw_only=True)
class _Node:
    """One scatter and one misfit; arrays of B_crit x S_min."""

    spread: float
    log_least: Floats
    log_weight: Floats


def draw(evidence: Evidence, power: float, seed: int) -> Draws:
    """Sample from a grid of scatter x misfit x B_crit x S_min, each cell as often as its probability."""
    sizes = np.log([batch.global_batch for batch in evidence.reached])
    critical = np.linspace(sizes[0] - math.log(BELOW), sizes[-1] + math.log(ABOVE), BATCH_NODES)
    nodes = [
        _node(evidence, critical, power, _drawn_scatter(evidence, share), misfit, likely)
        for share in SCATTER_NODES
        for misfit, likely in MISFITS
    ]
    weights = np.concatenate([node.log_weight.ravel() for node in nodes])
    rng = np.random.default_rng([seed, len(sizes)])
    # One draw from each of DRAWS equal parts of the total weight: smoother than independent draws, and also unbiased.
    parts = (np.arange(DRAWS) + rng.random(DRAWS)) / DRAWS
    indices = np.searchsorted(np.cumsum(np.exp(weights - logsumexp(weights))), parts)
    indices = np.minimum(indices, len(weights) - 1)
    node, inside = np.divmod(indices, BATCH_NODES * LEAST_NODES)
    return Draws(
        log_least=np.stack([entry.log_least.ravel() for entry in nodes])[node, inside],
        log_critical=critical[inside // LEAST_NODES],
        spread=np.array([entry.spread for entry in nodes])[node],
        normal=rng.standard_normal(DRAWS),
    )


def excess(log_ratio: Floats, power: float) -> Floats:
    """log(1 + (B_crit / B)^power)."""
    return np.logaddexp(0.0, power * log_ratio)


def _drawn_scatter(evidence: Evidence, share: float) -> float:
    """s * sqrt(freedom / chi^2): a possible true scatter, by a quantile of chi^2."""
    return evidence.scatter * math.sqrt(evidence.freedom / (2 * float(gammaincinv(evidence.freedom / 2, share))))


def _node(evidence: Evidence, critical: Floats, power: float, scatter: float, misfit: float, likely: float) -> _Node:
    """log weight = log prior - sum (y - law)^2 / (2 var) - sum log(var) / 2 + sum of log P(missed) over runs that did.

    P(missed) = P(steps > ran), or stuck for reasons of its own.
    S_min is searched around its best value for each B_crit, 4 standard errors to either side.
    """
    logs = np.log([batch.steps for batch in evidence.reached if batch.steps is not None])
    sizes = np.log([batch.global_batch for batch in evidence.reached])
    variance = np.array([scatter**2 / batch.reached + misfit**2 + batch.doubt**2 for batch in evidence.reached])
    seen = logs - excess(critical[:, None] - sizes, power)  # log S_min as each batch sees it
    total = float((1 / variance).sum())
    best = (seen / variance).sum(axis=1) / total
    offsets = np.linspace(-4, 4, LEAST_NODES)
    least = best[:, None] + offsets / math.sqrt(total)
    fit = (np.square(seen - best[:, None]) / variance).sum(axis=1)
    constant = math.log(likely) - 0.5 * float(np.log(variance).sum()) - 0.5 * math.log(total)
    weight = constant + (_log_prior(critical, evidence) - 0.5 * fit)[:, None] - 0.5 * np.square(offsets)
    spread = math.hypot(scatter, misfit)
    for run in evidence.missed:
        expected = least + excess(critical - math.log(run.global_batch), power)[:, None]
        too_slow = math.log(1 - STUCK) + log_ndtr((expected - math.log(run.ran_steps)) / spread)
        weight = weight + np.logaddexp(too_slow, math.log(STUCK))
    return _Node(spread=spread, log_least=least, log_weight=weight)


def _log_prior(critical: Floats, evidence: Evidence) -> Floats:
    """Log prior of B_crit: uniform, centered on the noise scale, or above its lower bound."""
    noise, spread = evidence.noise, math.log(NOISE_SCALE_FACTOR)
    if noise is not None and noise.value:
        return np.asarray(-0.5 * np.square((critical - math.log(NOISE_SCALE_TIMES * noise.value)) / spread))
    if noise is not None and noise.low:
        return np.asarray(log_ndtr((critical - math.log(NOISE_SCALE_TIMES * noise.low)) / spread))
    return np.zeros_like(critical)


MOST_DOUBLINGS = 4
"""Largest distance beyond the trained batches. The law does not know when training begins to diverge."""
DRIFT = 0.06
"""Standard deviation of log steps that each doubling beyond the trained batches adds: no law is exact."""
USUAL_SCATTER, USUAL_RUNS = 0.08, 3.0
"""Scatter between runs of one batch if there are no repeats, and the degrees of freedom it counts for."""
USUAL_MISFIT = 0.05
"""How far a batch may lie from the law, in log steps, before the law itself is in doubt."""
SURE = 0.95

Law = Literal["holds", "steps-rise", "examples-fall"]
"""steps-rise: the largest batch needs more steps than a smaller one; examples-fall: fewer examples the larger it is."""
Basis = Literal["batches", "noise-scale", "one-batch"]
"""one-batch: no evidence where steps stop falling, so anything between constant steps and constant examples."""
Unknown = Literal["not-reached-there", "too-far", "steps-rise"]


@dataclass(frozen=True, kw_only=True)
class StepsPrediction:
    global_batch: int
    steps: Estimate | None
    """Steps of one run, with an 80 % interval. None: unknown."""
    unknown: Unknown | None = None
    """Why they are unknown."""


@dataclass(frozen=True, kw_only=True)
class BatchModel:
    batches: tuple[BatchSteps, ...]
    """In rising order."""
    basis: Basis
    law: Law
    power: float
    critical_batch: Estimate
    """An end at the edge of the searched range (`BELOW`, `ABOVE`) means at most, or at least, that value."""
    least_steps: Estimate
    """S_min."""
    fails_from: int | None
    """The smallest batch from which on half or more of the runs miss the target at every batch."""
    draws: Draws = field(repr=False, compare=False)

    def predict(self, global_batch: int) -> StepsPrediction:
        """Steps that one run at this batch will take: the median and the 80 % interval of the posterior."""
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
    """The fitted model; None if no run reached the target."""
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
    smallest = None
    for batch in reversed(batches):
        if not batch.fails:
            break
        smallest = batch.global_batch
    return smallest


def _missed(runs: Sequence[TargetRun]) -> list[TargetRun]:
    """Runs that missed the target. A diverged run is left out: it shows that the learning rate was too high, not how
    many steps are needed."""
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
    """Whether the batches contradict the law by more than their scatter and the usual misfit.

    The largest batch is compared with the best of k - 1 others, so each comparison is made at 1 - (1 - SURE) / (k - 1).
    """
    logs = np.log([batch.steps for batch in reached if batch.steps is not None])
    sizes = np.log([batch.global_batch for batch in reached])
    variance = np.array([scatter**2 / batch.reached + USUAL_MISFIT**2 + batch.doubt**2 for batch in reached])
    if len(reached) < 2:
        return "holds"
    least = int(np.argmin(logs[:-1]))
    surely_more = float(stdtrit(freedom, 1 - (1 - SURE) / (len(reached) - 1)))
    if logs[-1] - logs[least] > surely_more * math.sqrt(variance[-1] + variance[least]):
        return "steps-rise"
    surely = float(stdtrit(freedom, SURE))
    centered = sizes - np.average(sizes, weights=1 / variance)
    weight = float((centered**2 / variance).sum())
    slope = float((centered * logs / variance).sum()) / weight
    return "examples-fall" if slope + surely / math.sqrt(weight) < -1 else "holds"


def _interval(logs: Floats) -> Estimate:
    tail = (1 - PROJECTED_LEVEL) / 2
    low, middle, high = np.exp(np.quantile(logs, [tail, 0.5, 1 - tail]))
    return Estimate(value=float(middle), low=float(low), high=float(high), level=PROJECTED_LEVEL)
