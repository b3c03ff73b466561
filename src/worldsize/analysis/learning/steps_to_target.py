"""Models the steps to a target by batch: steps(B) = S_min * (1 + B_crit / B), examples(B) = B * steps(B).

Far below B_crit, doubling the batch halves the steps and examples stay constant. Far above it, steps stay constant at
S_min (McCandlish et al. 2018). The law assumes that the learning rate scales well with the batch. If the learning
rate grows only as B^p with p < 1, B_crit / B becomes (B_crit / B)^p, as seen with the square root rule.

The model works on logarithms of steps. For batch i with n_i runs that reached the target:

    y_i = mean log steps = log S_min + log(1 + (B_crit / B_i)^p) + error,   var = scatter^2 / n_i + misfit^2 + doubt_i^2

The three standard deviations are those between runs of one batch (scatter), of a batch from the law (misfit), and due
to the gap between evaluations (doubt). A run that did not reach the target is censored; it contributes
P(log steps > log ran). The prior of B_crit is uniform in its logarithm over all values that the batches could
distinguish, or centered on the gradient noise scale. The result is sampled from the posterior, so that every quantity
has an interval even with very few batches.
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
    """See `Reached.doubt`."""
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
    for batch in sorted({run.global_batch for run in runs}):
        group = [run for run in runs if run.global_batch == batch]
        logs = [math.log(run.steps) for run in group if run.steps is not None]
        batches.append(
            BatchSteps(
                global_batch=batch,
                runs=len(group),
                reached=len(logs),
                diverged=sum(run.diverged for run in group),
                steps=math.exp(float(np.mean(logs))) if logs else None,
                doubt=float(np.mean([run.doubt for run in group if run.steps is not None])) if logs else 0.0,
            )
        )
    return batches


BELOW, ABOVE = 8.0, 128.0
"""B_crit is searched from 1/8 of the smallest batch to 128 times the largest. Below this range, steps are practically
constant. The range extends further up, because with scaled learning rates, small batches mostly need constant
examples."""
NOISE_SCALE_TIMES, NOISE_SCALE_FACTOR = 2.0, 3.0
"""Prior: B_crit is twice the noise scale, within a factor of 3 with probability 2/3. The two are equal at the best
learning rate of each batch. At lower learning rates, which most rules give, examples stay constant up to larger
batches."""
MISFITS = ((0.01, 0.5), (0.04, 0.3), (0.1, 0.15), (0.25, 0.04), (0.6, 0.01))
"""Values of the misfit and their prior probabilities."""
SCATTER_NODES = (0.1, 0.3, 0.5, 0.7, 0.9)
"""Quantiles of chi^2 at which the scatter is evaluated. With few repeats the scatter itself is uncertain."""
STUCK = 0.05
"""Share of runs that would miss the target no matter how many steps they ran."""
BATCH_NODES, MIN_STEPS_NODES = 121, 25
"""Grid points of B_crit and of S_min."""
DRAWS = 4_000
"""Samples from the posterior."""


@dataclass(frozen=True, kw_only=True)
class Evidence:
    reached: Sequence[BatchSteps]
    """Batches at which the target was reached, in ascending order."""
    missed: Sequence[TargetRun]
    """Runs that ended before the target."""
    scatter: float
    """Standard deviation of log steps between runs of one batch."""
    freedom: float
    """Degrees of freedom of `scatter`."""
    noise: NoiseScale | None

    @property
    def noise_known(self) -> bool:
        """Whether the noise scale has a value or at least a lower bound."""
        return self.noise is not None and bool(self.noise.value or self.noise.low)


@dataclass(frozen=True, kw_only=True)
class Draws:
    """Samples from the posterior, one value per draw."""

    log_min_steps: Floats
    log_critical: Floats
    spread: Floats
    """Standard deviation of one run about the law."""
    normal: Floats

    def log_steps(self, global_batch: int, power: float, drift: float) -> Floats:
        law = self.log_min_steps + excess(self.log_critical - math.log(global_batch), power)
        return np.asarray(law + np.hypot(self.spread, drift) * self.normal)


@dataclass(frozen=True, kw_only=True)
class _Node:
    """The posterior for one scatter and one misfit, over the grid of B_crit x S_min."""

    spread: float
    log_min_steps: Floats
    log_weight: Floats


def draw(evidence: Evidence, power: float, seed: int) -> Draws:
    """Sample from the posterior on a grid of scatter x misfit x B_crit x S_min."""
    sizes = np.log([batch.global_batch for batch in evidence.reached])
    critical = np.linspace(sizes[0] - math.log(BELOW), sizes[-1] + math.log(ABOVE), BATCH_NODES)
    nodes = [
        _node(evidence, critical, power, _scatter_at(evidence, quantile), misfit, prior)
        for quantile in SCATTER_NODES
        for misfit, prior in MISFITS
    ]
    weights = np.concatenate([node.log_weight.ravel() for node in nodes])
    rng = np.random.default_rng([seed, len(sizes)])
    # Stratified sampling, one draw from each of DRAWS equal shares of the weight: unbiased, with less variance.
    shares = (np.arange(DRAWS) + rng.random(DRAWS)) / DRAWS
    indices = np.searchsorted(np.cumsum(np.exp(weights - logsumexp(weights))), shares)
    indices = np.minimum(indices, len(weights) - 1)
    node, cell = np.divmod(indices, BATCH_NODES * MIN_STEPS_NODES)
    return Draws(
        log_min_steps=np.stack([entry.log_min_steps.ravel() for entry in nodes])[node, cell],
        log_critical=critical[cell // MIN_STEPS_NODES],
        spread=np.array([entry.spread for entry in nodes])[node],
        normal=rng.standard_normal(DRAWS),
    )


def excess(log_ratio: Floats, power: float) -> Floats:
    """Return log(1 + (B_crit / B)^power)."""
    return np.logaddexp(0.0, power * log_ratio)


def _scatter_at(evidence: Evidence, quantile: float) -> float:
    """Return s * sqrt(freedom / chi^2), the true scatter if chi^2 is at this quantile."""
    return evidence.scatter * math.sqrt(evidence.freedom / (2 * float(gammaincinv(evidence.freedom / 2, quantile))))


def _node(evidence: Evidence, critical: Floats, power: float, scatter: float, misfit: float, prior: float) -> _Node:
    """log weight = log prior - sum (y - law)^2 / (2 var) - sum log(var) / 2 + sum of log P(missed) over missed runs.

    P(missed) = STUCK + (1 - STUCK) P(steps > ran). The grid of S_min spans 4 standard errors on either side of its best
    value for each B_crit.
    """
    logs = np.log([batch.steps for batch in evidence.reached if batch.steps is not None])
    sizes = np.log([batch.global_batch for batch in evidence.reached])
    variance = np.array([scatter**2 / batch.reached + misfit**2 + batch.doubt**2 for batch in evidence.reached])
    implied = logs - excess(critical[:, None] - sizes, power)  # log S_min implied by each batch
    total = float((1 / variance).sum())
    best = (implied / variance).sum(axis=1) / total
    offsets = np.linspace(-4, 4, MIN_STEPS_NODES)
    log_min_steps = best[:, None] + offsets / math.sqrt(total)
    fit = (np.square(implied - best[:, None]) / variance).sum(axis=1)
    constant = math.log(prior) - 0.5 * float(np.log(variance).sum()) - 0.5 * math.log(total)
    weight = constant + (_log_prior(critical, evidence) - 0.5 * fit)[:, None] - 0.5 * np.square(offsets)
    spread = math.hypot(scatter, misfit)
    for run in evidence.missed:
        expected = log_min_steps + excess(critical - math.log(run.global_batch), power)[:, None]
        too_slow = math.log(1 - STUCK) + log_ndtr((expected - math.log(run.ran_steps)) / spread)
        weight = weight + np.logaddexp(too_slow, math.log(STUCK))
    return _Node(spread=spread, log_min_steps=log_min_steps, log_weight=weight)


def _log_prior(critical: Floats, evidence: Evidence) -> Floats:
    """Return the log prior of B_crit: uniform, centered on the noise scale, or above its lower bound."""
    noise, spread = evidence.noise, math.log(NOISE_SCALE_FACTOR)
    if noise is not None and noise.value:
        return np.asarray(-0.5 * np.square((critical - math.log(NOISE_SCALE_TIMES * noise.value)) / spread))
    if noise is not None and noise.low:
        return np.asarray(log_ndtr((critical - math.log(NOISE_SCALE_TIMES * noise.low)) / spread))
    return np.zeros_like(critical)


MAX_DOUBLINGS = 4
"""Largest distance beyond the trained batches. The law does not predict where training begins to diverge."""
DRIFT = 0.06
"""Standard deviation of log steps that each doubling beyond the trained batches adds, because no law is exact."""
USUAL_SCATTER, USUAL_RUNS = 0.08, 3.0
"""Prior of the scatter between runs of one batch, and its degrees of freedom."""
USUAL_MISFIT = 0.05
"""Standard deviation of batches about the law, in log steps, within which the law is not rejected."""
CONFIDENCE = 0.95

Law = Literal["holds", "steps-rise", "examples-fall"]
"""steps-rise: the largest batch needs more steps than a smaller one. examples-fall: larger batches need fewer
examples."""
Basis = Literal["batches", "noise-scale", "one-batch"]
"""one-batch: no evidence of where steps stop falling; anything from constant steps to constant examples is possible."""
Unknown = Literal["not-reached-there", "too-far", "steps-rise"]


@dataclass(frozen=True, kw_only=True)
class StepsPrediction:
    global_batch: int
    steps: Estimate | None
    """Steps of one run, with an 80 % interval. None: unknown."""
    unknown: Unknown | None = None
    """Why the steps are unknown."""


@dataclass(frozen=True, kw_only=True)
class BatchModel:
    batches: tuple[BatchSteps, ...]
    """The batches, in ascending order."""
    basis: Basis
    law: Law
    power: float
    critical_batch: Estimate
    """B_crit. An end of the interval at the edge of the searched range (`BELOW`, `ABOVE`) is only a bound."""
    least_steps: Estimate
    """S_min."""
    fails_from: int | None
    """At this batch and all larger ones, at least half of the runs miss the target. None: at no batch."""
    draws: Draws = field(repr=False, compare=False)

    def predict(self, global_batch: int) -> StepsPrediction:
        """Predict the steps of one run at this batch: the median and the 80 % interval of the posterior."""
        reached = [batch.global_batch for batch in self.batches if batch.steps is not None]
        doublings_beyond = max(math.log2(global_batch / reached[-1]), math.log2(reached[0] / global_batch), 0.0)
        unknown: Unknown | None = None
        if self.fails_from is not None and global_batch >= self.fails_from:
            unknown = "not-reached-there"
        elif self.law == "steps-rise" and global_batch > reached[-1]:
            unknown = "steps-rise"
        elif doublings_beyond > MAX_DOUBLINGS:
            unknown = "too-far"
        if unknown:
            return StepsPrediction(global_batch=global_batch, steps=None, unknown=unknown)
        log_steps = self.draws.log_steps(global_batch, self.power, DRIFT * doublings_beyond)
        return StepsPrediction(global_batch=global_batch, steps=_interval(log_steps))


def fit_batches(
    runs: Iterable[TargetRun], noise: NoiseScale | None = None, power: float = 1.0, seed: int = 0
) -> BatchModel | None:
    """Fit the model; return None if no run reached the target."""
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
        least_steps=_interval(draws.log_min_steps),
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
    """Return the runs that missed the target. Diverged runs are left out: they show that the learning rate is too high,
    not how many steps are needed."""
    return [run for run in runs if run.steps is None and not run.diverged and run.ran_steps > 0]


def _scatter(runs: Sequence[TargetRun]) -> tuple[float, float]:
    """Return the pooled standard deviation of log steps between runs of one batch, and its degrees of freedom."""
    squares, freedom = USUAL_RUNS * USUAL_SCATTER**2, USUAL_RUNS
    for batch in {run.global_batch for run in runs}:
        logs = [math.log(run.steps) for run in runs if run.global_batch == batch and run.steps is not None]
        if len(logs) > 1:
            squares += float(np.var(logs)) * len(logs)
            freedom += len(logs) - 1
    return math.sqrt(squares / freedom), freedom


def _law(reached: Sequence[BatchSteps], scatter: float, freedom: float) -> Law:
    """Test whether the batches contradict the law by more than their scatter and the usual misfit.

    The largest batch is compared with the best of k - 1 others, so the level is 1 - (1 - CONFIDENCE) / (k - 1).
    """
    logs = np.log([batch.steps for batch in reached if batch.steps is not None])
    sizes = np.log([batch.global_batch for batch in reached])
    variance = np.array([scatter**2 / batch.reached + USUAL_MISFIT**2 + batch.doubt**2 for batch in reached])
    if len(reached) < 2:
        return "holds"
    fewest = int(np.argmin(logs[:-1]))
    corrected_t = float(stdtrit(freedom, 1 - (1 - CONFIDENCE) / (len(reached) - 1)))
    if logs[-1] - logs[fewest] > corrected_t * math.sqrt(variance[-1] + variance[fewest]):
        return "steps-rise"
    critical_t = float(stdtrit(freedom, CONFIDENCE))
    centered = sizes - np.average(sizes, weights=1 / variance)
    precision = float((centered**2 / variance).sum())
    slope = float((centered * logs / variance).sum()) / precision
    return "examples-fall" if slope + critical_t / math.sqrt(precision) < -1 else "holds"


def _interval(logs: Floats) -> Estimate:
    tail = (1 - PROJECTED_LEVEL) / 2
    low, middle, high = np.exp(np.quantile(logs, [tail, 0.5, 1 - tail]))
    return Estimate(value=float(middle), low=float(low), high=float(high), level=PROJECTED_LEVEL)
