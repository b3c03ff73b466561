"""Image classification: digits, MNIST, Fashion-MNIST, CIFAR-10 and image folders.

digits: 12,000 + 2,000 handwritten digits that come with the package.
mnist and fashion-mnist: 60,000 + 10,000 gray images of 28x28 in ten classes, read from the official files.
cifar10: 50,000 + 10,000 photographs of 32x32 in ten classes, read from the official binary batches.
image-folder: any tree of images, with one folder per class. Images are decoded once, then read from a memory map.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn import functional as F

from worldsize.data.arrays import read_cifar10, read_mnist
from worldsize.data.images import load_images
from worldsize.data.sets import find_path
from worldsize.spec.workload import WorkloadSpec
from worldsize.worker import models
from worldsize.worker.workloads import DataFolders
from worldsize.worker.workloads.base import PerSample, Split, Workload

Pixels = npt.NDArray[np.uint8]
Labels = npt.NDArray[Any]
Layout = Literal["gray", "channels-first", "channels-last"]
CHANNEL_AXIS = {"gray": None, "channels-first": 1, "channels-last": 3}


def classification(
    spec: WorkloadSpec,
    train: tuple[Pixels, Labels],
    test: tuple[Pixels, Labels],
    *,
    layout: Layout,
    classes: int,
    model: str,
    mean: Sequence[float],
    deviation: Sequence[float],
) -> Workload:
    """Return a classification workload. `mean` and `deviation` of training pixels are in 0..1, one per channel."""
    axis = CHANNEL_AXIS[layout]
    channels = 1 if axis is None else train[0].shape[axis]
    size = train[0].shape[1] if layout != "channels-first" else train[0].shape[2]
    measures: dict[str, PerSample] = {"accuracy": lambda outputs, labels: (outputs.argmax(1) == labels).float()}
    if classes > 5:
        measures["top5"] = _in_top5
    return Workload(
        train=_split(train),
        test=_split(test),
        build_model=lambda: models.build(
            spec.model or model, classes=classes, channels=channels, size=size, **spec.model_options
        ),
        prepare=Normalize(mean, deviation, layout),
        loss=cross_entropy(0.0),
        smoothed=cross_entropy,
        measures=measures,
        augment=spec.augment,
    )


class Normalize:
    """Converts stored uint8 images to float, N x C x H x W, with mean 0 and deviation 1."""

    def __init__(self, mean: Sequence[float], deviation: Sequence[float], layout: Layout) -> None:
        self._layout = layout
        self._scale = torch.tensor([1 / 255 / channel for channel in deviation]).view(1, -1, 1, 1)
        self._offset = torch.tensor([-center / width for center, width in zip(mean, deviation, strict=True)]).view(
            1, -1, 1, 1
        )

    def __call__(self, images: Tensor) -> Tensor:
        if self._scale.device != images.device:
            self._scale, self._offset = self._scale.to(images.device), self._offset.to(images.device)
        if self._layout == "gray":
            images = images[:, None]
        elif self._layout == "channels-last":
            images = images.permute(0, 3, 1, 2)
        return torch.addcmul(self._offset, images.float(), self._scale)


def pixel_statistics(images: Pixels, channel_axis: int = 3, max_images: int = 1_000) -> tuple[list[float], list[float]]:
    """Return mean and deviation of each channel, in 0..1, from a sample of the images."""
    sample = np.asarray(images[:: -(-len(images) // max_images)], dtype=np.float32) / 255
    others = tuple(axis for axis in range(4) if axis != channel_axis)
    return sample.mean(axis=others).tolist(), np.maximum(sample.std(axis=others), 1e-3).tolist()


def cross_entropy(smoothing: float) -> PerSample:
    return lambda outputs, labels: F.cross_entropy(outputs, labels, reduction="none", label_smoothing=smoothing)


def _split(pair: tuple[Pixels, Labels]) -> Split:
    images, labels = pair
    return Split(inputs=torch.from_numpy(images), targets=torch.from_numpy(labels.astype(np.int64)))


def _in_top5(outputs: Tensor, labels: Tensor) -> Tensor:
    return (outputs.topk(5, dim=1).indices == labels[:, None]).any(1).float()


REPORT_EVERY = 1_000
"""Images per progress line."""


def report_decoding(done: int, total: int) -> None:
    if done == total or done % REPORT_EVERY == 0:
        print(f"decoded {done:,} of {total:,} images", flush=True)


DIGITS_MEAN, DIGITS_DEVIATION = (0.1307,), (0.3081,)
"""Mean and deviation of MNIST's training pixels, scaled to 0..1."""


def load_digits(spec: WorkloadSpec, folders: DataFolders) -> Workload:
    del folders
    with np.load(Path(__file__).with_name("digits.npz"), allow_pickle=False) as arrays:
        train = arrays["train_images"], arrays["train_labels"]
        test = arrays["test_images"], arrays["test_labels"]
    return classification(
        spec, train, test, layout="gray", classes=10, model="plain-cnn", mean=DIGITS_MEAN, deviation=DIGITS_DEVIATION
    )


MNIST_STATISTICS = {"mnist": ((0.1307,), (0.3081,)), "fashion-mnist": ((0.2860,), (0.3530,))}
"""Mean and deviation of the training pixels."""


def load_mnist(spec: WorkloadSpec, folders: DataFolders) -> Workload:
    train_images, train_labels, test_images, test_labels = read_mnist(folders.data / spec.name)
    mean, deviation = MNIST_STATISTICS[spec.name]
    train, test = (train_images, train_labels), (test_images, test_labels)
    return classification(spec, train, test, layout="gray", classes=10, model="cnn", mean=mean, deviation=deviation)


CIFAR_MEAN, CIFAR_DEVIATION = (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)
"""Mean and deviation of the training pixels."""


def load_cifar10(spec: WorkloadSpec, folders: DataFolders) -> Workload:
    train_images, train_labels, test_images, test_labels = read_cifar10(folders.data / "cifar10")
    train, test = (train_images, train_labels), (test_images, test_labels)
    return classification(
        spec,
        train,
        test,
        layout="channels-first",
        classes=10,
        model="resnet18",
        mean=CIFAR_MEAN,
        deviation=CIFAR_DEVIATION,
    )


FOLDER_SIZE = 64
"""Default side of the images of an image folder, in pixels."""


def load_image_folder(spec: WorkloadSpec, folders: DataFolders) -> Workload:
    images = load_images(
        find_path(spec, folders.data),
        spec.image_size or FOLDER_SIZE,
        folders.cache,
        test_fraction=spec.test_fraction,
        on_progress=report_decoding,
    )
    for name, reason in images.skipped:
        print(f"skipped {name!r}: {reason}")
    mean, deviation = pixel_statistics(images.train)
    return classification(
        spec,
        (images.train, images.train_labels),
        (images.test, images.test_labels),
        layout="channels-last",
        classes=len(images.classes),
        model="resnet18",
        mean=mean,
        deviation=deviation,
    )
