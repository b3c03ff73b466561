"""Trials that several test files use. One launch runs them all."""

from __future__ import annotations

from typing import Any

from worldsize.spec.optimizer import OptimizerSpec
from worldsize.spec.study import TrialSpec
from worldsize.spec.training import TrainSpec
from worldsize.spec.workload import WorkloadSpec

COMMON: dict[str, Any] = {
    "kind": "train",
    "workload": WorkloadSpec(name="digits"),
    "scaling": "strong",
    "strategy": "ddp",
    "precision": "fp32",
    "repeat": 0,
    "seed": 0,
    "threads_per_worker": 1,
}

CURVE_STEPS, CURVE_BATCH = 20, 64


def curve_trial(workers: int) -> TrialSpec:
    """Return a trial whose global batch does not depend on the number of workers."""
    return TrialSpec(
        id=f"000{workers}-w{workers}",
        workers=workers,
        batch_per_worker=CURVE_BATCH // workers,
        optimizer=OptimizerSpec(lr=0.05, momentum=0.9),
        peak_lr=0.05,
        train=TrainSpec(steps=CURVE_STEPS),
        **COMMON,
    )


CURVES = {workers: curve_trial(workers) for workers in (2, 1, 4)}

NOISE_STEPS, NOISE_BATCH = 60, 32
STILL: dict[str, Any] = {"peak_lr": 0.0, "train": TrainSpec(steps=NOISE_STEPS, measure_noise_scale=True)}
"""The model does not change, so that all trials of this kind see the same samples at the same weights."""
LEARNING: dict[str, Any] = {"workers": 2, "batch_per_worker": 225, "accumulation": 2, "peak_lr": 0.02}
"""One epoch has 14 steps. The last has 300 samples instead of 900."""
MEASURED: dict[str, dict[str, Any]] = {
    "workers": {"workers": 2, "batch_per_worker": NOISE_BATCH // 2, **STILL},
    "halves": {"workers": 1, "batch_per_worker": NOISE_BATCH // 2, "accumulation": 2, **STILL},
    "eighths": {"workers": 1, "batch_per_worker": NOISE_BATCH // 8, "accumulation": 8, **STILL},
    "on": {**LEARNING, "train": TrainSpec(epochs=1, measure_noise_scale=True, clip_norm=0.5)},
    "off": {**LEARNING, "train": TrainSpec(epochs=1, clip_norm=0.5)},
}
NOISE = {
    name: TrialSpec(id=f"001{number}-noise", optimizer=OptimizerSpec(lr=0.02, momentum=0.9), **COMMON, **MEASURED[name])
    for number, name in enumerate(MEASURED)
}
