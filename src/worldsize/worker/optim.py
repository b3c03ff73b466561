"""Optimisers, and the rate of each step."""

from __future__ import annotations

import math
from collections.abc import Callable

from torch import nn, optim

from worldsize.spec import OptimizerSpec, TrialSpec, steps_per_epoch


def make_optimizer(spec: OptimizerSpec, model: nn.Module) -> optim.Optimizer:
    parameters = list(model.parameters())  # frozen ones too: they have no gradient until they are unfrozen
    match spec.name:
        case "sgd":
            return optim.SGD(parameters, lr=spec.rate, momentum=spec.momentum, weight_decay=spec.weight_decay)
        case "adam":
            return optim.Adam(parameters, lr=spec.rate, weight_decay=spec.weight_decay)
        case "adamw":
            return optim.AdamW(parameters, lr=spec.rate, weight_decay=spec.weight_decay)


def rate_of_step(trial: TrialSpec, samples: int) -> Callable[[int], float]:
    """Up in a straight line from the base rate to the scaled one (Goyal et al. 2017), then the schedule.

    cosine: rate = peak * (1 + cos(pi * t)) / 2, with t from 0 after the warm-up to 1 at the last step.
    """
    base, peak = trial.optimizer.rate, trial.peak_rate
    if trial.train is None:
        return lambda _: peak
    warmup_steps = trial.train.warmup_epochs * steps_per_epoch(samples, trial.global_batch)
    falling_steps = max(trial.train.total_steps(samples, trial.global_batch) - warmup_steps, 1)
    falls = trial.train.schedule == "cosine"

    def rate(step: int) -> float:
        if step + 1 < warmup_steps:
            return base + (peak - base) * (step + 1) / warmup_steps
        passed = min((step + 1 - warmup_steps) / falling_steps, 1.0)
        return peak * (1 + math.cos(math.pi * passed)) / 2 if falls else peak

    return rate
