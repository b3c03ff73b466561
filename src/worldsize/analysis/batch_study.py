"""What was trained at several batches -> what a larger batch will take: one set of models for each variant.

Comparable are trials of one variant, strategy, precision and target: nothing but the global batch differs, however many
workers share it. The models hold for the rate rule under which the trials were trained.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from worldsize.analysis.batch_model import BatchModel, fit_batches
from worldsize.analysis.batch_runs import target_runs
from worldsize.analysis.batch_trend import Trend, TrendPoint, fit_trend
from worldsize.analysis.learning import Target, Trained
from worldsize.analysis.noise_scale import NoiseScale
from worldsize.analysis.points import Setting
from worldsize.analysis.stable import stable

NORMAL_90 = 1.645
PLAIN = ("sgd", "momentum", "nesterov")
"""A step is as long as rate x gradient; the others divide by the size of gradients, so that a batch with less noise
lengthens it by itself."""

Group = tuple[str, str, str, str]
"""Variant, strategy, precision, target."""


@dataclass(frozen=True, kw_only=True)
class BatchStudy:
    """What larger batches do to one variant. A model is None where the trials do not say."""

    variant: str
    family: str
    strategy: str
    precision: str
    on: str
    rate_power: float | None
    """The rate went with batch^this: 1 linear, 0.5 square root, 0 unscaled. None: a single batch."""
    steps: BatchModel | None
    """To the target, where there is one."""
    epochs_stable: Trend | None
    """Epochs until stable; None with a target, like the metric: training ends there."""
    metric: Trend | None
    """At the end of training."""


def batch_studies(
    curves: Iterable[Trained],
    *,
    target: Target | None,
    noise_scales: Iterable[tuple[Setting, str, NoiseScale]] = (),
    most_metric: float = math.inf,
) -> list[BatchStudy]:
    """In the order in which variants come. `most_metric`: the best that there is, such as an accuracy of 1."""
    groups: dict[Group, list[Trained]] = defaultdict(list)
    for curve in curves:
        groups[curve.variant, *curve.setting.kind].append(curve)
    noises: dict[Group, list[tuple[Setting, NoiseScale]]] = defaultdict(list)
    for setting, variant, noise in noise_scales:
        noises[variant, *setting.kind].append((setting, noise))
    return [_study(key, here, target, noises[key], most_metric) for key, here in groups.items()]


def _study(
    key: Group,
    curves: Sequence[Trained],
    target: Target | None,
    noises: Sequence[tuple[Setting, NoiseScale]],
    most_metric: float,
) -> BatchStudy:
    power, plain = rate_power(curves), curves[0].family in PLAIN
    model = None
    if target is not None:
        # At a rate that does not grow, larger batches save few steps, however noisy gradients are.
        useful = power is None or power > 0
        noise = known_noise(noises) if useful else None
        model = fit_batches(target_runs(curves, target), noise, power if plain and power else 1.0)
    by_batch: dict[int, list[Trained]] = defaultdict(list)
    for curve in curves:
        by_batch[curve.setting.global_batch].append(curve)
    return BatchStudy(
        variant=key[0],
        family=curves[0].family,
        strategy=key[1],
        precision=key[2],
        on=key[3],
        rate_power=power,
        steps=model,
        epochs_stable=_stable_trend(by_batch) if target is None else None,
        metric=_metric_trend(by_batch, most_metric) if target is None else None,
    )


def rate_power(curves: Iterable[Trained]) -> float | None:
    """p of rate ~ batch^p, from the smallest and the largest batch."""
    rates = {curve.setting.global_batch: curve.rate * curve.scaled for curve in curves}
    small, large = min(rates), max(rates)
    return None if small == large else math.log(rates[large] / rates[small]) / math.log(large / small)


def known_noise(noises: Sequence[tuple[Setting, NoiseScale]]) -> NoiseScale | None:
    """Of the largest batch that knows it: smaller ones see the same, through more noise. Else the highest bound."""
    ordered = [noise for _, noise in sorted(noises, key=lambda pair: pair[0].global_batch, reverse=True)]
    bounds = [noise for noise in ordered if noise.value is None and noise.low is not None]
    return next(
        (noise for noise in ordered if noise.value is not None), max(bounds, key=lambda n: n.low or 0.0, default=None)
    )


def _stable_trend(by_batch: dict[int, list[Trained]]) -> Trend | None:
    """A batch whose runs do not settle is no point; where no larger one settles either, nothing is known from there."""
    points, failed, freedom = [], [], 0
    for batch, curves in by_batch.items():
        found = stable([curve.metric for curve in curves if curve.learned])
        if found.epoch is None or found.low is None or found.high is None:
            failed.append(batch)
            continue
        error = max(found.high - found.low, 1) / 2 / NORMAL_90
        points.append(TrendPoint(global_batch=batch, value=float(found.epoch), error=error))
        freedom += found.repeats
    return fit_trend(points, freedom=freedom, fails_from=_from(failed, points), least=1.0)


def _metric_trend(by_batch: dict[int, list[Trained]], most: float) -> Trend | None:
    """The error of each batch from the scatter of all repeats: that of two or three alone would be chance."""
    finals = {
        batch: [curve.final for curve in curves if curve.learned and curve.final is not None]
        for batch, curves in by_batch.items()
    }
    kept = {batch: values for batch, values in finals.items() if 2 * len(values) > len(by_batch[batch])}
    freedom = sum(len(values) - 1 for values in kept.values())
    squares = sum(float(np.var(values)) * len(values) for values in kept.values())
    scatter = math.sqrt(squares / freedom) if freedom else None
    points = [
        TrendPoint(
            global_batch=batch,
            value=float(np.mean(values)),
            error=None if scatter is None else max(scatter, 1e-9) / math.sqrt(len(values)),
        )
        for batch, values in kept.items()
    ]
    return fit_trend(points, freedom=freedom, fails_from=_from(finals.keys() - kept.keys(), points), most=most)


def _from(failed: Iterable[int], points: Sequence[TrendPoint]) -> int | None:
    largest = max((point.global_batch for point in points), default=0)
    return min((batch for batch in failed if batch > largest), default=None)
