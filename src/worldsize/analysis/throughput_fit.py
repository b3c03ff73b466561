"""Measured steps -> the coefficients of the model of the step: non-negative least squares, drawn to what is usual."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.optimize import nnls

from worldsize.analysis.ground import Ground, Timed
from worldsize.analysis.network import placed
from worldsize.analysis.stats import Floats
from worldsize.analysis.throughput import ThroughputModel, busy_terms, exchange_terms, joined

OVERLAPS = (1.0, 1.2, 1.5, 2.0, 3.0, 5.0, 10.0)
"""Tried for g. Few: a step tells little about it."""
EARNED = 0.95
"""A larger g must lower the misfit to this share of what a smaller one left."""
PULL, PULL_LOG, PULL_LINEAR = 0.05, 0.15, 0.1
"""How hard a term is pulled towards 0: one that no count needs must not take part in a projection."""
PULL_USUAL = 0.1
"""How hard what a crowd costs is pulled towards what it usually does: one count at its edge must not decide."""
NEARNESS = 0.8
"""Weight of a point a doubling of workers below the largest count: what happens up there matters most further out."""
USUAL_EXCHANGE = np.array([0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 1.0])
"""Coefficients of `exchange_terms` of which nothing was measured: a crowd costs what it did elsewhere."""


def fit_throughput(timed: Sequence[Timed], ground: Ground) -> ThroughputModel:
    """Settings of one strategy and precision. Works from one setting on; more counts and batches make it better."""
    timed = tuple(sorted(timed, key=lambda each: (each.workers, each.batch_per_worker, each.accumulation)))
    several = [each for each in timed if each.workers > 1]
    watched = [each.cores for each in timed if each.cores is not None]
    cores = float(np.median(watched)) if watched else None
    # With one batch any g gives the same steps: nothing is taken to overlap beyond what the step shows.
    telling = len({each.work for each in several}) > 1
    overlap, exchange, misfit = 1.0, USUAL_EXCHANGE, math.inf
    for candidate in OVERLAPS if telling else OVERLAPS[:1]:
        found = _fit_exchange(several, ground, timed[-1].workers, candidate)
        off = _exchange_misfit(several, ground, timed[-1].workers, candidate, found)
        if off < EARNED * misfit:
            overlap, exchange, misfit = candidate, found, off
    return ThroughputModel(
        timed=timed,
        ground=ground,
        busy=_fit_busy(timed, ground, cores),
        exchange=exchange,
        overlap=overlap,
        overlap_known=telling,
        cores=cores,
    )


def _fit_busy(timed: Sequence[Timed], ground: Ground, cores: float | None) -> Floats:
    top = timed[-1].workers
    on_node = [placed(each.workers, ground.places)[0] for each in timed]
    rows = [busy_terms(m, e.batch_per_worker, e.accumulation, top) for m, e in zip(on_node, timed, strict=True)]
    own_s = np.array([e.busy_s / ground.overload(m, cores) for m, e in zip(on_node, timed, strict=True)])
    used = np.asarray(np.stack(rows).any(axis=0))
    used[0] = len({each.work for each in timed}) > 1  # one batch tells nothing apart: the step grows with it
    used[1] = len({each.accumulation for each in timed}) > 1
    pulls = np.array([0.0, 0.0, 0.0, PULL, PULL_LOG, PULL_LINEAR])
    return _pulled(np.stack(rows), own_s, own_s, used, pulls, _nearness(timed), towards=np.zeros(6))


def _fit_exchange(several: Sequence[Timed], ground: Ground, top: int, overlap: float) -> Floats:
    """Fitted to what X must have been, given the step and what the rank did by itself: X^g = (T - C + C/s)^g - (C/s)^g.

    Errors count against the step: an exchange that hides itself wholly leaves nothing to divide by.
    """
    if not several:
        return USUAL_EXCHANGE
    rows = np.stack([exchange_terms(each.workers, ground, top, ground.crowd(each.workers)) for each in several])
    implied_s = np.array([_implied(each, overlap) for each in several])
    step_s = np.array([each.step_s for each in several])
    pulls = np.array([0.0, PULL, PULL_LOG, PULL_LINEAR, PULL, PULL_LOG, PULL_USUAL])
    used = np.asarray(rows.any(axis=0))
    return _pulled(rows, implied_s, step_s, used, pulls, _nearness(several), towards=USUAL_EXCHANGE)


def _implied(each: Timed, overlap: float) -> float:
    last = each.busy_s / each.accumulation
    behind = max(each.step_s - each.busy_s + last, last)
    return float(behind * (1 - (last / behind) ** overlap) ** (1 / overlap))


def _exchange_misfit(several: Sequence[Timed], ground: Ground, top: int, overlap: float, exchange: Floats) -> float:
    off = []
    for each in several:
        exchange_s = float(exchange @ exchange_terms(each.workers, ground, top, ground.crowd(each.workers)))
        off.append(math.log(each.step_s / joined(each.busy_s, exchange_s, each.accumulation, overlap)))
    return float(np.sqrt(np.mean(np.square(off)))) if off else 0.0


def _nearness(timed: Sequence[Timed]) -> Floats:
    return np.array([NEARNESS ** math.log2(timed[-1].workers / each.workers) for each in timed])


def _pulled(
    rows: Floats,
    values: Floats,
    scale: Floats,
    used: npt.NDArray[Any],
    pulls: Floats,
    weights: Floats,
    *,
    towards: Floats,
) -> Floats:
    """Least squares of errors over `scale`; coefficients not negative, each pulled towards 0 by its share of a step,
    or, where something is usual, towards that by how far it is off."""
    found = towards.copy()
    if used.any():
        unit = float(np.median(scale)) / rows[:, used].max(axis=0)  # a coefficient of 1 is then a whole step
        design = rows[:, used] * unit * (weights / scale)[:, None]
        pull = pulls[used] * np.where(towards[used] > 0, unit, 1.0)
        wanted = np.concatenate([values * weights / scale, pulls[used] * towards[used]])
        solution, _ = nnls(np.vstack([design, np.diag(pull)]), wanted)
        found[used] = solution * unit
    return found
