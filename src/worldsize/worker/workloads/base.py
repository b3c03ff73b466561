"""The interface of a workload: data that return batches by index, a model, and measures of its outputs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Protocol, Self

import torch
from torch import Tensor, nn

from worldsize.spec.training import TrainSpec
from worldsize.spec.workload import AugmentSpec

ON_DEVICE_BYTES = 2 * 1024**3
"""Maximum size of data that is kept on the GPU, so that no step waits for a copy."""

PerSample = Callable[[Tensor, Tensor], Tensor]
"""A function of the outputs and targets of a batch that returns one value per sample."""


class Data(Protocol):
    def __len__(self) -> int: ...
    def on(self, device: torch.device) -> Data: ...
    def take(self, indices: Tensor) -> tuple[Tensor, ...]:
        """Return samples by index, on the device of the data."""
        ...

    def place(self, samples: tuple[Tensor, ...], device: torch.device) -> tuple[Tensor, Tensor]:
        """Return inputs and targets on the training device."""
        ...


def batch(data: Data, indices: Tensor, device: torch.device) -> tuple[Tensor, Tensor]:
    return data.place(data.take(indices), device)


@dataclass(frozen=True, kw_only=True)
class Split:
    """Inputs and targets as two tensors, which may be memory-mapped from a file."""

    inputs: Tensor
    """Inputs as stored, such as images in uint8. `Workload.prepare` converts a batch of them for the model."""
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
    """Converts a batch of stored inputs for the model."""
    loss: PerSample
    """Returns one value per sample. The loop weights them, so that partial batches count by their samples."""
    smoothed: Callable[[float], PerSample] | None = None
    """Returns the loss for a given label smoothing, if targets are classes."""
    measures: dict[str, PerSample] = field(default_factory=dict)
    """Other measures than the loss. They return one value per sample, which is averaged over an evaluation."""
    summary: Callable[[dict[str, float]], dict[str, float]] = lambda means: means
    """Computes the recorded metrics from the means of loss and measures. (A root of a mean is not a mean of roots.)"""
    augment: AugmentSpec = field(default_factory=AugmentSpec)
    theory: dict[str, float] = field(default_factory=dict)
    """Numbers known from theory, such as the entropy of a source or the largest stable learning rate."""

    def training_loss(self, train: TrainSpec | None) -> PerSample:
        """Return the loss to minimize. Evaluation uses the plain loss, so that trials can be compared."""
        if train is None or not train.label_smoothing:
            return self.loss
        assert self.smoothed is not None
        return self.smoothed(train.label_smoothing)

    def on(self, device: torch.device) -> Workload:
        return replace(self, train=self.train.on(device), test=self.test.on(device))
