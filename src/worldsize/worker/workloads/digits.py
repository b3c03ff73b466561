"""digits: 12,000 + 2,000 handwritten digits that come with the package, and a small CNN (2 conv, 2 linear layers)."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from worldsize.worker.workloads.base import Split, Workload

MEAN, DEVIATION = 0.1307, 0.3081
"""Of MNIST's training pixels, scaled to 0..1."""


def load() -> Workload:
    with np.load(Path(__file__).with_name("digits.npz"), allow_pickle=False) as arrays:
        splits = {
            name: Split(
                inputs=torch.from_numpy(arrays[f"{name}_images"]),
                targets=torch.from_numpy(arrays[f"{name}_labels"]).long(),
            )
            for name in ("train", "test")
        }
    return Workload(
        train=splits["train"],
        test=splits["test"],
        build_model=small_cnn,
        prepare=prepare,
        loss=lambda outputs, labels: F.cross_entropy(outputs, labels, reduction="none"),
        metrics={"accuracy": lambda outputs, labels: (outputs.argmax(1) == labels).float()},
    )


def prepare(images: Tensor) -> Tensor:
    return images[:, None].float().div_(255).sub_(MEAN).div_(DEVIATION)


def small_cnn() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 16, 3),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(32 * 5 * 5, 128),
        nn.ReLU(),
        nn.Linear(128, 10),
    )
