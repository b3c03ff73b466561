"""What measured steps say about the batch law, drawn: see `batch_model.py` for the law and its errors."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.special import gammaincinv, log_ndtr, logsumexp

from worldsize.analysis.batch_runs import BatchSteps, TargetRun
from worldsize.analysis.noise_scale import NoiseScale
from worldsize.analysis.stats import Floats

BELOW, ABOVE = 8.0, 128.0
"""B_crit is looked for from an 8th of the smallest batch to 128 times the largest. Further below, steps are constant to
any eye; and who trains small batches at scaled rates mostly sees examples stay constant: hence the wider upper side."""
NOISE_SCALE_TIMES, NOISE_SCALE_FACTOR = 2.0, 3.0
"""B_crit is twice the noise scale within a factor of 3, two times out of three. They are the same for the best rate of
each batch; below that, as rates that follow a rule mostly are, examples stay constant for longer."""
MISFITS = ((0.01, 0.5), (0.04, 0.3), (0.1, 0.15), (0.25, 0.04), (0.6, 0.01))
"""How far batches lie from the law, and how likely that is before anything is seen."""
SCATTER_NODES = (0.1, 0.3, 0.5, 0.7, 0.9)
"""Quantiles of chi^2: repeats are few, so that their scatter is itself not well known."""
STUCK = 0.05
"""Of runs that miss the target, so many do for reasons of their own: more steps would not have helped."""
BATCH_NODES, LEAST_NODES = 121, 25
DRAWS = 4_000


@dataclass(frozen=True, kw_only=True)
class Evidence:
    reached: Sequence[BatchSteps]
    """Batches at which the target was reached, in rising order."""
    missed: Sequence[TargetRun]
    """Runs that ended before it."""
    scatter: float
    """Standard deviation of log steps between runs of one batch, and the degrees of freedom behind it."""
    freedom: float
    noise: NoiseScale | None

    @property
    def noise_known(self) -> bool:
        """Whether the noise scale says anything: a value, or that it is at least so much."""
        return self.noise is not None and bool(self.noise.value or self.noise.low)


@dataclass(frozen=True, kw_only=True)
class Draws:
    """Of what is likely, one value a draw."""

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
    """From a grid of scatter x misfit x B_crit x S_min, each place as often as it is likely."""
    sizes = np.log([batch.global_batch for batch in evidence.reached])
    critical = np.linspace(sizes[0] - math.log(BELOW), sizes[-1] + math.log(ABOVE), BATCH_NODES)
    nodes = [
        _node(evidence, critical, power, _scatter(evidence, share), misfit, likely)
        for share in SCATTER_NODES
        for misfit, likely in MISFITS
    ]
    weights = np.concatenate([node.log_weight.ravel() for node in nodes])
    rng = np.random.default_rng([seed, len(sizes)])
    # One draw in each of equal parts of the whole weight: smoother than independent draws, and as unbiased.
    parts = (np.arange(DRAWS) + rng.random(DRAWS)) / DRAWS
    places = np.searchsorted(np.cumsum(np.exp(weights - logsumexp(weights))), parts)
    places = np.minimum(places, len(weights) - 1)
    node, inside = np.divmod(places, BATCH_NODES * LEAST_NODES)
    return Draws(
        log_least=np.stack([each.log_least.ravel() for each in nodes])[node, inside],
        log_critical=critical[inside // LEAST_NODES],
        spread=np.array([each.spread for each in nodes])[node],
        normal=rng.standard_normal(DRAWS),
    )


def excess(log_ratio: Floats, power: float) -> Floats:
    """log(1 + (B_crit / B)^power)."""
    return np.logaddexp(0.0, power * log_ratio)


def _scatter(evidence: Evidence, share: float) -> float:
    """s * sqrt(freedom / chi^2): what the true scatter may be, by a quantile of chi^2."""
    return evidence.scatter * math.sqrt(evidence.freedom / (2 * float(gammaincinv(evidence.freedom / 2, share))))


def _node(evidence: Evidence, critical: Floats, power: float, scatter: float, misfit: float, likely: float) -> _Node:
    """log weight = log prior - sum (y - law)^2 / (2 var) - sum log(var) / 2 + sum of log P(missed) over runs that did.

    P(missed) = P(steps > ran), or stuck for reasons of its own.
    S_min is looked for about its best value for each B_crit, 4 standard errors to either side.
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
    """Even, about the noise scale, or above the least that it may be."""
    noise, spread = evidence.noise, math.log(NOISE_SCALE_FACTOR)
    if noise is not None and noise.value:
        return np.asarray(-0.5 * np.square((critical - math.log(NOISE_SCALE_TIMES * noise.value)) / spread))
    if noise is not None and noise.low:
        return np.asarray(log_ndtr((critical - math.log(NOISE_SCALE_TIMES * noise.low)) / spread))
    return np.zeros_like(critical)
