"""Time against cost: what each worker count, measured or projected, takes of both."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from worldsize.analysis.estimate import Estimate
from worldsize.analysis.projection.choice import eligible
from worldsize.answer.predict.predict import Prediction
from worldsize.spec.setting import Setting

Basis = Literal["measured", "estimated", "projected"]
"""Estimated: the steps and the overhead of a training were measured, not its total time."""


@dataclass(frozen=True, kw_only=True)
class PricePoint:
    """One worker count."""

    setting: Setting
    time: Estimate
    """Seconds."""
    worker_hours: Estimate
    is_whole_training: bool
    """False: one epoch, because the time of the whole training is unknown."""
    basis: Basis
    is_best: bool
    """Whether no other count is both faster and cheaper."""


def price_points(prediction: Prediction) -> list[PricePoint]:
    """The counts that the choice considers."""
    is_whole_training = any(option.wall_s for option in prediction.options)
    measured: Basis = "estimated" if is_whole_training else "measured"
    return [
        PricePoint(
            setting=prediction.setting.with_workers(option.workers),
            time=option.time,
            worker_hours=option.time.scaled(option.workers / 3600),
            is_whole_training=is_whole_training,
            basis=measured if option.measured else "projected",
            is_best=option.workers in prediction.choice.pareto,
        )
        for option in eligible(prediction.options)
    ]
