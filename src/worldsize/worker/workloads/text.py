"""gpt: predict the next byte of a text, or of a Markov source, whose known entropy is a lower bound of the loss."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Self

import torch
from torch import Tensor
from torch.nn import functional as F

from worldsize.data.sets import find_path
from worldsize.data.text import TextOptions, read_text
from worldsize.spec.workload import WorkloadSpec
from worldsize.worker import models
from worldsize.worker.workloads import DataFolders
from worldsize.worker.workloads.base import ON_DEVICE_BYTES, PerSample, Workload


@dataclass(frozen=True, kw_only=True)
class Windows:
    """A text, cut into windows that do not overlap. The target of each byte is the next byte."""

    tokens: Tensor
    """The bytes of the text, as uint8."""
    context: int

    def __len__(self) -> int:
        return (len(self.tokens) - 1) // self.context

    def on(self, device: torch.device) -> Self:
        if device.type != "cuda" or self.tokens.nbytes > ON_DEVICE_BYTES:
            return self
        return replace(self, tokens=self.tokens.to(device))

    def take(self, indices: Tensor) -> tuple[Tensor, ...]:
        starts = indices.to(self.tokens.device, non_blocking=True)[:, None] * self.context
        return (self.tokens[starts + torch.arange(self.context + 1, device=self.tokens.device)],)

    def place(self, samples: tuple[Tensor, ...], device: torch.device) -> tuple[Tensor, Tensor]:
        tokens = samples[0].to(device, non_blocking=True).long()
        return tokens[:, :-1], tokens[:, 1:]


BYTES = 256
"""Number of classes."""


def load(spec: WorkloadSpec, folders: DataFolders) -> Workload:
    options = TextOptions.of(spec)
    train, test = read_text(find_path(spec, folders.data) if spec.path else None, options, spec.test_fraction)
    return Workload(
        train=Windows(tokens=torch.tensor(train), context=options.context),
        test=Windows(tokens=torch.tensor(test), context=options.context),
        build_model=lambda: models.build(
            spec.model or "decoder", classes=BYTES, channels=1, size=(1, options.context), **spec.model_options
        ),
        prepare=lambda tokens: tokens,
        loss=next_byte_loss(0.0),
        smoothed=next_byte_loss,
        summary=lambda means: {**means, "bits_per_byte": means["loss"] / math.log(2)},
        theory={} if spec.path else {"entropy_bits": options.entropy_bits()},
    )


def next_byte_loss(smoothing: float) -> PerSample:
    """Return the loss: the mean over the bytes of each window, in nats."""

    def per_sample(outputs: Tensor, targets: Tensor) -> Tensor:
        byte_losses = F.cross_entropy(
            outputs.flatten(0, 1), targets.flatten(), reduction="none", label_smoothing=smoothing
        )
        return byte_losses.view(targets.shape).mean(1)

    return per_sample
