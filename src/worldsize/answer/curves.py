"""Data for figures about training: outcomes, learning curves, the noise scale over time."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from worldsize.analysis.estimate import Estimate, log_interval, mean_interval
from worldsize.analysis.learning.noise_scale import noise_series, squared_norms
from worldsize.answer.from_records import TrialResult
from worldsize.answer.results import Results
from worldsize.folder.record import Epoch
from worldsize.spec.setting import Setting, setting_order

MAX_EPOCHS = 80
"""A longer curve is thinned to this many points. They are denser at its beginning, where it changes most."""
MAX_SAMPLES = 150
"""Maximum number of points of the noise scale over the course of training."""
MAX_NOISE = 8
"""Maximum number of variants for which the noise scale is drawn."""

Groups = dict[tuple[Setting, str], list[TrialResult]]


def ended(results: Results) -> list[TrialResult]:
    """Return the trials that ended with a usable outcome."""
    pairs = ((results.trials[trial_id], record) for trial_id, record in results.records.items())
    return [
        (trial, record)
        for trial, record in pairs
        if record.outcome not in ("failed", "out_of_memory") and trial.kind != "pretrain"
    ]


def by_variant(pairs: Sequence[TrialResult]) -> Groups:
    """Group training trials by setting and variant, in the order of the scaling table."""
    groups: Groups = defaultdict(list)
    for trial, record in pairs:
        if trial.kind == "train":
            groups[trial.setting, trial.variant].append((trial, record))
    return dict(sorted(groups.items(), key=lambda item: setting_order(item[0][0])))


@dataclass(frozen=True, kw_only=True)
class Trained:
    """Time and results of training with one variant, over the repeats that learned."""

    setting: Setting
    variant: str
    peak_lr: float
    """After the learning-rate rule."""
    repeats: int
    learned: int
    """Number of repeats that trained to the end. The estimates are over these."""
    train_s: Estimate | None
    wall_s: Estimate | None
    epochs: Estimate | None
    train_loss: Estimate | None
    test_loss: Estimate | None
    metric: Estimate | None


def training(results: Results, groups: Groups) -> list[Trained]:
    """Return training time, final losses and final metric, over the repeats that learned."""
    metric = results.facts.metric
    rows = []
    for (setting, variant), pairs in groups.items():
        learned = [record for _, record in pairs if record.outcome in ("finished", "plateaued") and record.epochs]
        rows.append(
            Trained(
                setting=setting,
                variant=variant,
                peak_lr=pairs[0][0].peak_lr,
                repeats=len(pairs),
                learned=len(learned),
                train_s=_mean([sum(epoch.train_s for epoch in record.epochs) for record in learned]),
                wall_s=_mean([record.wall_s for record in learned]),
                epochs=_mean([len(record.epochs) for record in learned]),
                train_loss=_mean([record.epochs[-1].train_loss for record in learned]),
                test_loss=_mean([record.metrics.get("loss") for record in learned]),
                metric=_mean([record.metrics.get(metric) for record in learned], by_factors=False),
            )
        )
    return rows


def _mean(values: Sequence[float | None], *, by_factors: bool = True) -> Estimate | None:
    """Return the mean with its interval. `by_factors` keeps the interval of positive values above 0."""
    numbers = [value for value in values if value is not None]
    if not numbers:
        return None
    return log_interval(numbers) if by_factors and all(number > 0 for number in numbers) else mean_interval(numbers)


@dataclass(frozen=True, kw_only=True)
class CurvePoint:
    """One epoch of a learning curve. The ends of its estimates are the lowest and the highest repeat."""

    epoch: int
    step: float
    """Number of steps up to the end of this epoch."""
    train_loss: Estimate | None
    test_loss: Estimate | None
    train_metric: Estimate | None
    test_metric: Estimate | None


@dataclass(frozen=True, kw_only=True)
class Curve:
    """Learning curve of one variant at one setting."""

    setting: Setting
    variant: str
    family: str
    """Optimizer family: sgd, momentum, adam."""
    variant_without_lr: str
    """Label shared by variants that differ only in the learning rate."""
    peak_lr: float
    """After the learning-rate rule."""
    repeats: int
    diverged: int
    diverged_at_steps: tuple[int, ...]
    epochs: int
    points: tuple[CurvePoint, ...]
    """Fewer points than `epochs` if the curve is thinned."""


def curves(results: Results, groups: Groups) -> list[Curve]:
    """Return the learning curve of each variant: mean and range over the repeats that learned, at their common epochs.

    If no repeat learned, the curve is that of the repeat that got furthest.
    """
    metric = results.facts.metric
    rows = []
    for (setting, variant), pairs in groups.items():
        trial = pairs[0][0]
        diverged = [record for _, record in pairs if record.outcome == "diverged"]
        learned = [record.epochs for _, record in pairs if record.outcome != "diverged" and record.epochs]
        shown_repeats = learned or [max((record.epochs for record in diverged), key=len, default=())]
        length = min(map(len, shown_repeats), default=0)
        if not length and not diverged:
            continue
        steps = np.mean([np.cumsum([epoch.steps for epoch in epochs[:length]]) for epochs in shown_repeats], axis=0)
        rows.append(
            Curve(
                setting=setting,
                variant=variant,
                family=trial.optimizer.family,
                variant_without_lr=trial.family_label,
                peak_lr=trial.peak_lr,
                repeats=len(pairs),
                diverged=len(diverged),
                diverged_at_steps=tuple(
                    sorted(record.diverged_at_step for record in diverged if record.diverged_at_step is not None)
                ),
                epochs=length,
                points=tuple(
                    _point(index, float(steps[index]), [epochs[index] for epochs in shown_repeats], metric)
                    for index in thinned(length, MAX_EPOCHS)
                ),
            )
        )
    return rows


def thinned(length: int, most: int) -> list[int]:
    """Return the indices to keep: all of a short series, and always the first and the last."""
    if length <= most:
        return list(range(length))
    half = most // 2
    even = np.linspace(0, length - 1, half)
    early = np.geomspace(1, length, most - half) - 1
    return sorted({int(index) for index in np.concatenate([even, early])} | {0, length - 1})


def _point(index: int, step: float, epochs: Sequence[Epoch], metric: str) -> CurvePoint:
    return CurvePoint(
        epoch=index + 1,
        step=step,
        train_loss=_over_repeats([epoch.train_loss for epoch in epochs]),
        test_loss=_over_repeats([epoch.test.get("loss") for epoch in epochs]),
        train_metric=_over_repeats([epoch.train.get(metric) for epoch in epochs]),
        test_metric=_over_repeats([epoch.test.get(metric) for epoch in epochs]),
    )


def _over_repeats(values: Sequence[float | None]) -> Estimate | None:
    """Return the mean, the lowest and the highest value."""
    numbers = [value for value in values if value is not None]
    if not numbers or not math.isfinite(mean := sum(numbers) / len(numbers)):
        return None
    return Estimate(value=mean, low=min(numbers), high=max(numbers), level=1.0, n=len(numbers))


def _finite_or_none(values: npt.NDArray[np.float64]) -> list[float | None]:
    return [float(value) if np.isfinite(value) else None for value in values]


@dataclass(frozen=True, kw_only=True)
class NoiseOverTime:
    """Noise scale over the course of training."""

    setting: Setting
    variant: str
    step: tuple[int, ...]
    samples: tuple[float | None, ...]
    """None where the noise scale is unknown, because the gradient cannot be distinguished from 0."""


def noise_over_time(results: Results, groups: Groups) -> list[NoiseOverTime]:
    """Return the noise scale over the course of training, for the first repeat of each variant that recorded it."""
    rows: list[NoiseOverTime] = []
    for (setting, variant), pairs in groups.items():
        record = next((record for _, record in pairs if record.noise and record.outcome != "diverged"), None)
        if record is None or len(rows) == MAX_NOISE or setting.workers * setting.accumulation == 1:
            continue
        small, big = squared_norms(results.folder.noise(record))
        if len(big) < 2:
            continue
        series = noise_series(small, big, setting.global_batch / small.shape[1])
        indices = np.linspace(0, len(series) - 1, min(len(series), MAX_SAMPLES)).astype(int)
        rows.append(
            NoiseOverTime(
                setting=setting,
                variant=variant,
                step=tuple(int(index) + 1 for index in indices),
                samples=tuple(
                    value if value is not None and value > 0 else None for value in _finite_or_none(series[indices])
                ),
            )
        )
    return rows
