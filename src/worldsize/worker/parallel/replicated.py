"""Strategies in which every rank holds the full model: DDP, compressed exchanges and ZeRO."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext, suppress
from typing import Any

import torch
from torch import Tensor, nn, optim
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook import PowerSGDState, powerSGD_hook
from torch.nn.parallel import DistributedDataParallel

from worldsize.spec.optimizer import OptimizerSpec
from worldsize.spec.training import StrategySpec
from worldsize.worker.optimizers import optimizer_recipe
from worldsize.worker.parallel.gradient_noise import NoiseMeter
from worldsize.worker.parallel.strategy import Strategy
from worldsize.worker.parallel.team import Team


class LastGradient:
    """Calls back at the last gradient of each backward.

    In the first backward it calls back at every gradient, and learns which parameter is last. Autograd runs a
    parameter's own hooks before the hooks with which DistributedDataParallel starts an exchange.
    """

    def __init__(self, module: nn.Module, callback: Callable[[], None]) -> None:
        self.callback = callback
        trainable = [parameter for parameter in module.parameters() if parameter.requires_grad]
        self._handles = {
            parameter: parameter.register_post_accumulate_grad_hook(self._arrived) for parameter in trainable
        }
        self._waiting = set(trainable)

    def remove(self) -> None:
        for handle in self._handles.values():
            handle.remove()

    def _arrived(self, parameter: Tensor) -> None:
        self.callback()
        if self._waiting:
            self._waiting.discard(parameter)
            if not self._waiting:
                for other, handle in self._handles.items():
                    if other is not parameter:
                        handle.remove()


class Replicated(Strategy):
    """Every rank holds the full model. Gradients are averaged while backward still runs. ZeRO shards the optimizer."""

    model: DistributedDataParallel

    def __init__(
        self,
        spec: StrategySpec,
        module: nn.Module,
        optimizer: optim.Optimizer,
        team: Team,
        noise: NoiseMeter,
    ) -> None:
        super().__init__(module, optimizer, team)
        self._spec, self._noise = spec, noise
        self._watch: LastGradient | None = None
        self.rebuild_wrapper()

    def exchange(self, *, last: bool) -> AbstractContextManager[None]:
        return nullcontext() if last else self.model.no_sync()

    @property
    def warmup_steps(self) -> int:
        """Number of first steps that differ from the later ones: PowerSGD begins with full gradients."""
        return self._spec.start_step + 2 if self._spec.name == "powersgd" else super().warmup_steps

    def full_model(self) -> nn.Module:
        self.team.share_buffers(self.module)
        return self.module

    def on_last_gradient(self, callback: Callable[[], None]) -> None:
        if self._watch is None:
            self._watch = LastGradient(self.module, callback)
        self._watch.callback = callback  # each batch size of a search has its own clock

    @property
    def can_skip_exchange(self) -> bool:
        return True

    def watch_exchange(self) -> None:
        # This function is private. If it is missing, only torch's own timings are missing.
        with suppress(AttributeError, RuntimeError):
            self.model._set_ddp_runtime_logging_sample_rate(1)

    def exchange_facts(self) -> dict[str, float]:
        trainable = [parameter for parameter in self.module.parameters() if parameter.requires_grad]
        facts = {"bytes": float(sum(parameter.numel() * parameter.element_size() for parameter in trainable))}
        with suppress(AttributeError, KeyError, RuntimeError, TypeError):
            timings = self.model._get_ddp_logging_data()
            facts["total_s"] = timings["avg_backward_comm_time"] * 1e-9
            facts["overlap_s"] = timings["avg_backward_compute_comm_overlap_time"] * 1e-9
        return facts

    def rebuild_wrapper(self) -> None:
        if self._watch is not None:
            self._watch.remove()
            self._watch = None
        devices = [self.team.device] if self.team.device.type == "cuda" else None
        self.model = DistributedDataParallel(
            self.module,
            device_ids=devices,
            process_group=self.team.group,
            gradient_as_bucket_view=True,
            bucket_cap_mb=self._spec.bucket_mb,
        )
        group = self.team.group
        match self._spec.name:
            case "ddp":
                self._noise.watch(self.model)
            case "fp16-compression":
                self.model.register_comm_hook(group, default_hooks.fp16_compress_hook)
            case "bf16-compression":
                # Without NCCL, torch rejects this hook by its name, although gloo can add bf16 too. Hence the lambda.
                self.model.register_comm_hook(
                    group, lambda group, bucket: default_hooks.bf16_compress_hook(group, bucket)
                )
            case "powersgd":
                state = PowerSGDState(
                    group, matrix_approximation_rank=self._spec.rank, start_powerSGD_iter=self._spec.start_step
                )
                self.model.register_comm_hook(state, lambda state, bucket: _power_sgd_bucket_by_bucket(state, bucket))


def _power_sgd_bucket_by_bucket(state: PowerSGDState, bucket: Any) -> torch.futures.Future[Tensor]:
    """Run torch's PowerSGD hook and wait for it.

    The hook exchanges twice per bucket, the second time from a callback. With several buckets in flight, ranks may then
    exchange in different orders, and gloo would mix up the messages.
    """
    future = powerSGD_hook(state, bucket)
    future.wait()
    return future


def zero_optimizer(spec: OptimizerSpec, module: nn.Module, team: Team) -> optim.Optimizer:
    """Return ZeRO's optimizer: each rank keeps the state of some parameters, updates them and sends them to all."""
    with warnings.catch_warnings():
        # During this import, torch compiles other optimizers and warns about its own compiler. The import is not at the
        # top of the file because it takes a third of a second, which only this strategy needs.
        warnings.filterwarnings("ignore", message=r"`torch\.jit\.", category=DeprecationWarning)
        from torch.distributed.optim import ZeroRedundancyOptimizer

    recipe = optimizer_recipe(spec, module, device=team.device)
    return ZeroRedundancyOptimizer(
        recipe.groups, recipe.kind, process_group=team.group, parameters_as_bucket_view=True, **recipe.options
    )
