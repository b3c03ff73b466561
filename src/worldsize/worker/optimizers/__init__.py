"""Optimizers, and the learning rate of each step."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn, optim
from torch.distributed.tensor import DTensor

from worldsize.spec.optimizer import OptimizerSpec
from worldsize.spec.study import TrialSpec
from worldsize.spec.training import ScheduleSpec, steps_per_epoch
from worldsize.worker.optimizers.layerwise import Lamb, Lars

FUSED: dict[str, tuple[type[optim.Optimizer], ...]] = {
    "cuda": (optim.SGD, optim.Adam, optim.AdamW),
    "cpu": (optim.Adam, optim.AdamW),
}
"""Optimizers to run as one kernel for all parameters. On a CPU, this at least halves Adam's step, but not SGD's."""
ONE_CYCLE_START, ONE_CYCLE_END = 1 / 25, 1 / 25e4
"""Fractions of the peak learning rate."""


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """The class and arguments of an optimizer, because ZeRO creates its optimizer itself."""

    kind: type[optim.Optimizer]
    groups: list[dict[str, Any]]
    options: dict[str, Any]


def make_optimizer(spec: OptimizerSpec, model: nn.Module, *, device: torch.device) -> optim.Optimizer:
    recipe = optimizer_recipe(spec, model, device=device)
    return recipe.kind(recipe.groups, **recipe.options)


def optimizer_recipe(spec: OptimizerSpec, model: nn.Module, *, device: torch.device) -> Recipe:
    """Put weights into one group, and biases and norms into another, without weight decay and layer-wise factors."""
    kind, options = _kind_of(spec)
    parameters = list(model.parameters())  # with frozen ones, which have no gradient until they are unfrozen
    # DTensor has no rule for torch's fused SGD.
    sharded_sgd = kind is optim.SGD and any(isinstance(parameter, DTensor) for parameter in parameters)
    if kind in FUSED.get(device.type, ()) and not sharded_sgd:
        options["fused"] = True
    weights: dict[str, Any] = {
        "params": [parameter for parameter in parameters if parameter.ndim >= 2],
        "weight_decay": spec.weight_decay,
    }
    others: dict[str, Any] = {
        "params": [parameter for parameter in parameters if parameter.ndim < 2],
        "weight_decay": 0.0,
    }
    if kind in (Lars, Lamb):
        weights["adapt"], others["adapt"] = True, False
    return Recipe(kind=kind, groups=[group for group in (weights, others) if group["params"]], options=options)


def _kind_of(spec: OptimizerSpec) -> tuple[type[optim.Optimizer], dict[str, Any]]:
    match spec.name:
        case "sgd" | "momentum" | "nesterov":
            return optim.SGD, {"lr": spec.lr, "momentum": spec.momentum, "nesterov": spec.name == "nesterov"}
        case "adam":
            return optim.Adam, {"lr": spec.lr}
        case "adamw":
            return optim.AdamW, {"lr": spec.lr}
        case "adadelta":
            return optim.Adadelta, {"lr": spec.lr}
        case "lars":
            return Lars, {"lr": spec.lr, "momentum": spec.momentum, "trust": spec.trust_coefficient}
        case "lamb":
            return Lamb, {"lr": spec.lr}


def lr_of_step(trial: TrialSpec, samples: int) -> Callable[[int], float]:
    """Return the learning rate as a function of the step.

    A linear warm-up from the base rate to the scaled rate (Goyal et al. 2017) comes first, then the schedule. If the
    base rate is not below the scaled rate, the warm-up starts at 0.
    """
    base, peak = trial.optimizer.lr, trial.peak_lr
    if trial.train is None:
        return lambda _: peak
    own_epochs = trial.optimizer.warmup_epochs
    warmup_epochs = trial.train.warmup_epochs if own_epochs is None else own_epochs
    warmup_steps = warmup_epochs * steps_per_epoch(samples, trial.global_batch)
    start = base if base < peak else 0.0
    steps = max(trial.train.total_steps(samples, trial.global_batch) - warmup_steps, 1)
    fraction_of_peak = _schedule_fraction(trial.train.schedule, steps)

    def rate(step: int) -> float:
        if step + 1 < warmup_steps:
            return start + (peak - start) * (step + 1) / warmup_steps
        return peak * fraction_of_peak(step - warmup_steps)

    return rate


def _schedule_fraction(schedule: ScheduleSpec, steps: float) -> Callable[[float], float]:
    """Return the learning rate as a fraction of its peak, given the steps done since the warm-up, of `steps` in total.

    cosine: (1 + cos(pi t)) / 2, with t from 0 after the warm-up to 1 at the last step. one-cycle: half a cosine wave
    up, then one down (Smith 2018, as in torch.optim.lr_scheduler.OneCycleLR).
    """

    def step(done: float) -> float:
        return schedule.factor ** sum(done / steps >= share for share in schedule.at)

    def cosine(done: float) -> float:
        return _half_wave(1.0, 0.0, min((done + 1) / steps, 1.0))

    top, last = schedule.rise * steps - 1, steps - 1

    def one_cycle(done: float) -> float:
        if done < top:
            return _half_wave(ONE_CYCLE_START, 1.0, max(done / top, 0.0))
        return _half_wave(1.0, ONE_CYCLE_END, min((done - top) / (last - top), 1.0))

    match schedule.name:
        case "constant":
            return lambda _: 1.0
        case "step":
            return step
        case "cosine":
            return cosine
        case "one-cycle":
            return one_cycle


def _half_wave(start: float, end: float, passed: float) -> float:
    return end + (start - end) * (1 + math.cos(math.pi * passed)) / 2
