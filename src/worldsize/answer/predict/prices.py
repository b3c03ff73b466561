"""Time and worker-hours of each worker count, measured or projected, for a figure of time against cost."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from worldsize.analysis.estimate import Estimate
from worldsize.analysis.projection.choice import eligible
from worldsize.answer.predict.predict import Prediction
from worldsize.spec.setting import Setting

Basis = Literal["measured", "estimated", "projected"]
"""Estimated: computed from measured steps and overhead, because the total time was not measured."""


@dataclass(frozen=True, kw_only=True)
class PricePoint:
    """One worker count."""

    setting: Setting
    time: Estimate
    """Seconds."""
    worker_hours: Estimate
    is_whole_training: bool
    """False if the values are for one epoch, because the time of the whole training is unknown."""
    basis: Basis
    is_best: bool
    """Whether no other count is both faster and cheaper."""


def price_points(prediction: Prediction) -> list[PricePoint]:
    """Return the counts among which the prediction chooses."""
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
