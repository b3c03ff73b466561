"""Optimisers, and the rate of each step."""

from __future__ import annotations

from collections.abc import Callable

from torch import nn, optim

from worldsize.spec import OptimizerSpec, TrialSpec, steps_per_epoch


def make_optimizer(spec: OptimizerSpec, model: nn.Module) -> optim.Optimizer:
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    match spec.name:
        case "sgd":
            return optim.SGD(parameters, lr=spec.rate, momentum=spec.momentum, weight_decay=spec.weight_decay)
        case "adam":
            return optim.Adam(parameters, lr=spec.rate, weight_decay=spec.weight_decay)
        case "adamw":
            return optim.AdamW(parameters, lr=spec.rate, weight_decay=spec.weight_decay)


def rate_of_step(trial: TrialSpec, samples: int) -> Callable[[int], float]:
    """Goyal et al. 2017: from the base rate up to the scaled one in a straight line, then constant."""
    base, peak = trial.optimizer.rate, trial.peak_rate
    warmup_epochs = trial.train.warmup_epochs if trial.train else 0.0
    warmup_steps = warmup_epochs * steps_per_epoch(samples, trial.global_batch)

    def rate(step: int) -> float:
        return base + (peak - base) * (step + 1) / warmup_steps if step + 1 < warmup_steps else peak

    return rate
