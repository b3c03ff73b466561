"""gpt: the next byte of any text, or of a Markov source whose entropy is known: the loss then has a known floor."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional as F

from worldsize.data.folders import find_path
from worldsize.data.text import TextOptions, read_text
from worldsize.spec import WorkloadSpec
from worldsize.worker import models
from worldsize.worker.workloads import Places, Workload
from worldsize.worker.workloads.base import OfEach, Windows

BYTES = 256


def load(spec: WorkloadSpec, places: Places) -> Workload:
    options = TextOptions.of(spec)
    train, test = read_text(find_path(spec, places.data) if spec.path else None, options, spec.test_share)
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
        known={} if spec.path else {"entropy_bits": options.entropy_bits()},
    )


def next_byte_loss(smoothing: float) -> OfEach:
    """Mean over the bytes of each window, in nats."""

    def of_each(outputs: Tensor, targets: Tensor) -> Tensor:
        of_bytes = F.cross_entropy(
            outputs.flatten(0, 1), targets.flatten(), reduction="none", label_smoothing=smoothing
        )
        return of_bytes.view(targets.shape).mean(1)

    return of_each
