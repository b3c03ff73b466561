"""Images with one class each: what digits, MNIST, CIFAR-10 and image folders have in common."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn import functional as F

from worldsize.spec import WorkloadSpec
from worldsize.worker import models
from worldsize.worker.workloads.base import OfEach, Split, Workload

Images = npt.NDArray[np.uint8]
Labels = npt.NDArray[Any]
Layout = Literal["grey", "channels-first", "channels-last"]
CHANNEL_AXIS = {"grey": None, "channels-first": 1, "channels-last": 3}


def classification(
    spec: WorkloadSpec,
    train: tuple[Images, Labels],
    test: tuple[Images, Labels],
    *,
    layout: Layout,
    classes: int,
    model: str,
    mean: Sequence[float],
    deviation: Sequence[float],
) -> Workload:
    """`mean` and `deviation` are of the training pixels scaled to 0..1, one a channel."""
    axis = CHANNEL_AXIS[layout]
    channels = 1 if axis is None else train[0].shape[axis]
    size = train[0].shape[1] if layout != "channels-first" else train[0].shape[2]
    measures: dict[str, OfEach] = {"accuracy": lambda outputs, labels: (outputs.argmax(1) == labels).float()}
    if classes > 5:
        measures["top5"] = _in_top5
    return Workload(
        train=_split(train),
        test=_split(test),
        build_model=lambda: models.build(
            spec.model or model, classes=classes, channels=channels, size=size, **spec.model_options
        ),
        prepare=Normalise(mean, deviation, layout),
        loss=cross_entropy(0.0),
        smoothed=cross_entropy,
        measures=measures,
        augment=spec.augment,
    )


class Normalise:
    """uint8 as stored -> float, N x C x H x W, mean 0 and deviation 1."""

    def __init__(self, mean: Sequence[float], deviation: Sequence[float], layout: Layout) -> None:
        self._layout = layout
        self._scale = torch.tensor([1 / 255 / each for each in deviation]).view(1, -1, 1, 1)
        self._offset = torch.tensor([-m / d for m, d in zip(mean, deviation, strict=True)]).view(1, -1, 1, 1)

    def __call__(self, images: Tensor) -> Tensor:
        if self._scale.device != images.device:
            self._scale, self._offset = self._scale.to(images.device), self._offset.to(images.device)
        if self._layout == "grey":
            images = images[:, None]
        elif self._layout == "channels-last":
            images = images.permute(0, 3, 1, 2)
        return torch.addcmul(self._offset, images.float(), self._scale)


def pixel_statistics(images: Images, channel_axis: int = 3, most: int = 1_000) -> tuple[list[float], list[float]]:
    """Mean and deviation of each channel over a sample of the images, in 0..1."""
    sample = np.asarray(images[:: -(-len(images) // most)], dtype=np.float32) / 255
    others = tuple(axis for axis in range(4) if axis != channel_axis)
    return sample.mean(axis=others).tolist(), np.maximum(sample.std(axis=others), 1e-3).tolist()


def cross_entropy(smoothing: float) -> OfEach:
    return lambda outputs, labels: F.cross_entropy(outputs, labels, reduction="none", label_smoothing=smoothing)


def _split(part: tuple[Images, Labels]) -> Split:
    images, labels = part
    return Split(inputs=torch.from_numpy(images), targets=torch.from_numpy(labels.astype(np.int64)))


def _in_top5(outputs: Tensor, labels: Tensor) -> Tensor:
    return (outputs.topk(5, dim=1).indices == labels[:, None]).any(1).float()
