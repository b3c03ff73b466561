"""The shape of a workload."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

ON_DEVICE_BYTES = 2 * 1024**3
"""Data up to this size lives on the GPU, so that no step waits for a copy."""


@dataclass(frozen=True, kw_only=True)
class Split:
    inputs: Tensor
    """As stored (images as uint8); `Workload.prepare` turns a batch of them into what the model takes."""
    targets: Tensor

    def __len__(self) -> int:
        return len(self.targets)

    def on(self, device: torch.device) -> Split:
        size = self.inputs.nbytes + self.targets.nbytes
        if device.type != "cuda" or size > ON_DEVICE_BYTES:
            return self
        return Split(inputs=self.inputs.to(device), targets=self.targets.to(device))

    def batch(self, indices: Tensor, device: torch.device) -> tuple[Tensor, Tensor]:
        indices = indices.to(self.inputs.device, non_blocking=True)
        inputs, targets = self.inputs[indices], self.targets[indices]
        return inputs.to(device, non_blocking=True), targets.to(device, non_blocking=True)


@dataclass(frozen=True, kw_only=True)
class Workload:
    train: Split
    test: Split
    build_model: Callable[[], nn.Module]
    prepare: Callable[[Tensor], Tensor]
    loss: Callable[[Tensor, Tensor], Tensor]
    """One value a sample: the loop weights them, so that partial batches count by their samples."""
    metrics: dict[str, Callable[[Tensor, Tensor], Tensor]]
    """One value a sample each; the metric is their mean."""

    def on(self, device: torch.device) -> Workload:
        return replace(self, train=self.train.on(device), test=self.test.on(device))
