"""The shape of a workload: data that return batches by index, a model, and measures of its outputs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Protocol, Self

import torch
from torch import Tensor, nn

from worldsize.spec.training import TrainSpec
from worldsize.spec.workload import AugmentSpec

ON_DEVICE_BYTES = 2 * 1024**3
"""Data up to this size are kept on the GPU, so that no step waits for a copy."""

PerSample = Callable[[Tensor, Tensor], Tensor]
"""Outputs and targets of a batch -> one value per sample."""


class Data(Protocol):
    def __len__(self) -> int: ...
    def on(self, device: torch.device) -> Data: ...
    def take(self, indices: Tensor) -> tuple[Tensor, ...]:
        """Samples by index, on the device of the data."""
        ...

    def place(self, samples: tuple[Tensor, ...], device: torch.device) -> tuple[Tensor, Tensor]:
        """Inputs and targets on the device that trains."""
        ...


def batch(data: Data, indices: Tensor, device: torch.device) -> tuple[Tensor, Tensor]:
    return data.place(data.take(indices), device)


@dataclass(frozen=True, kw_only=True)
class Split:
    """Inputs and targets as two tensors, which may be mapped from a file."""

    inputs: Tensor
    """As stored (images as uint8); `Workload.prepare` turns a batch of them into what the model takes."""
    targets: Tensor

    def __len__(self) -> int:
        return len(self.targets)

    def on(self, device: torch.device) -> Self:
        if device.type != "cuda" or self.inputs.nbytes + self.targets.nbytes > ON_DEVICE_BYTES:
            return self
        return replace(self, inputs=self.inputs.to(device), targets=self.targets.to(device))

    def take(self, indices: Tensor) -> tuple[Tensor, ...]:
        indices = indices.to(self.inputs.device, non_blocking=True)
        return self.inputs[indices], self.targets[indices]

    def place(self, samples: tuple[Tensor, ...], device: torch.device) -> tuple[Tensor, Tensor]:
        inputs, targets = samples
        return inputs.to(device, non_blocking=True), targets.to(device, non_blocking=True)


@dataclass(frozen=True, kw_only=True)
class Workload:
    train: Data
    test: Data
    build_model: Callable[[], nn.Module]
    prepare: Callable[[Tensor], Tensor]
    """A batch of inputs as stored -> as the model takes them."""
    loss: PerSample
    """One value per sample: the loop weights them, so that partial batches count by their samples."""
    smoothed: Callable[[float], PerSample] | None = None
    """The same loss by label smoothing, if targets are classes."""
    measures: dict[str, PerSample] = field(default_factory=dict)
    """Measures beside the loss: one value per sample, averaged over the samples of an evaluation."""
    summary: Callable[[dict[str, float]], dict[str, float]] = lambda means: means
    """The means of loss and measures -> the metrics that are recorded (a root of a mean is not a mean of roots)."""
    augment: AugmentSpec = field(default_factory=AugmentSpec)
    theory: dict[str, float] = field(default_factory=dict)
    """Numbers known in advance, such as the entropy of a source or the largest stable learning rate."""

    def training_loss(self, train: TrainSpec | None) -> PerSample:
        """The loss to minimize. Evaluation uses the plain loss, so that trials can be compared."""
        if train is None or not train.label_smoothing:
            return self.loss
        assert self.smoothed is not None
        return self.smoothed(train.label_smoothing)

    def on(self, device: torch.device) -> Workload:
        return replace(self, train=self.train.on(device), test=self.test.on(device))
