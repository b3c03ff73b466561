"""steering: predict the steering angle of a driver from camera frames. Training and test data are split by time."""

from __future__ import annotations

import math

import torch

from worldsize.data.sets import find_path
from worldsize.data.steering import read_steering
from worldsize.spec.workload import WorkloadSpec
from worldsize.worker import models
from worldsize.worker.workloads import DataFolders
from worldsize.worker.workloads.base import Split, Workload
from worldsize.worker.workloads.images import Normalize, pixel_statistics, report_decoding

HEIGHT = 60
"""Default height of a frame, in pixels."""
ASPECT = 4 / 3
"""Width over height of a camera frame."""


def load(spec: WorkloadSpec, folders: DataFolders) -> Workload:
    height = spec.image_size or HEIGHT
    size = height, round(height * ASPECT)
    frames = read_steering(
        find_path(spec, folders.data),
        size,
        folders.cache,
        test_fraction=spec.test_fraction,
        on_progress=report_decoding,
    )
    for name, reason in frames.skipped:
        print(f"skipped {name!r}: {reason}")
    mean, deviation = pixel_statistics(frames.train)
    return Workload(
        train=Split(inputs=torch.from_numpy(frames.train), targets=torch.from_numpy(frames.train_angles)),
        test=Split(inputs=torch.from_numpy(frames.test), targets=torch.from_numpy(frames.test_angles)),
        build_model=lambda: models.build(
            spec.model or "steering-cnn", classes=1, channels=3, size=size, **spec.model_options
        ),
        prepare=Normalize(mean, deviation, "channels-last"),
        loss=lambda outputs, angles: (outputs - angles).square(),
        measures={
            "absolute": lambda outputs, angles: (outputs - angles).abs(),
            "angle": lambda _, angles: angles,
            "angle_squared": lambda _, angles: angles.square(),
        },
        summary=regression_metrics,
        augment=spec.augment,
    )


def regression_metrics(means: dict[str, float]) -> dict[str, float]:
    """Return the metrics. R2 = 1 - mean squared error / variance of the angles; guessing their mean gives 0."""
    variance = means["angle_squared"] - means["angle"] ** 2
    return {
        "loss": means["loss"],
        "mae": means["absolute"],
        "rmse": math.sqrt(means["loss"]),
        "r2": 1 - means["loss"] / variance if variance > 0 else 0.0,
    }
