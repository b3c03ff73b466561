"""Every rank holds the model: DDP, compressed exchanges, ZeRO."""

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
    """Watches for the last gradient of a backward: at first on every parameter, then on the one that came last.

    Autograd runs a parameter's own hooks before those with which DistributedDataParallel starts an exchange.
    """

    def __init__(self, module: nn.Module, tell: Callable[[], None]) -> None:
        self.tell = tell
        learning = [parameter for parameter in module.parameters() if parameter.requires_grad]
        self._handles = {each: each.register_post_accumulate_grad_hook(self._arrived) for each in learning}
        self._waiting = set(learning)

    def remove(self) -> None:
        for handle in self._handles.values():
            handle.remove()

    def _arrived(self, parameter: Tensor) -> None:
        self.tell()
        if self._waiting:
            self._waiting.discard(parameter)
            if not self._waiting:
                for other, handle in self._handles.items():
                    if other is not parameter:
                        handle.remove()


class Replicated(Strategy):
    """Every rank holds the model; gradients are averaged while backward still runs. ZeRO shares out the optimiser."""

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
        self.rewrap()

    def exchange(self, *, last: bool) -> AbstractContextManager[None]:
        return nullcontext() if last else self.model.no_sync()

    @property
    def warmup_steps(self) -> int:
        """PowerSGD sends whole gradients at first."""
        return self._spec.start_step + 2 if self._spec.name == "powersgd" else super().warmup_steps

    def whole(self) -> nn.Module:
        self.team.share_buffers(self.module)
        return self.module

    def when_ready(self, tell: Callable[[], None]) -> None:
        if self._watch is None:
            self._watch = LastGradient(self.module, tell)
        self._watch.tell = tell  # another batch of a search has laps of its own

    @property
    def can_train_alone(self) -> bool:
        return True

    def watch_exchange(self) -> None:
        # Private: where it is gone, torch's figures are missing, and nothing else.
        with suppress(AttributeError, RuntimeError):
            self.model._set_ddp_runtime_logging_sample_rate(1)

    def exchange_facts(self) -> dict[str, float]:
        learning = [parameter for parameter in self.module.parameters() if parameter.requires_grad]
        facts = {"bytes": float(sum(parameter.numel() * parameter.element_size() for parameter in learning))}
        with suppress(AttributeError, KeyError, RuntimeError, TypeError):
            seen = self.model._get_ddp_logging_data()
            facts["total_s"] = seen["avg_backward_comm_time"] * 1e-9
            facts["overlap_s"] = seen["avg_backward_compute_comm_overlap_time"] * 1e-9
        return facts

    def rewrap(self) -> None:
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
                # Under its own name torch refuses it where NCCL is missing, though gloo adds bf16 as well.
                self.model.register_comm_hook(group, lambda to, bucket: default_hooks.bf16_compress_hook(to, bucket))
            case "powersgd":
                state = PowerSGDState(
                    group, matrix_approximation_rank=self._spec.rank, start_powerSGD_iter=self._spec.start_step
                )
                self.model.register_comm_hook(state, lambda kept, bucket: _power_sgd_bucket_by_bucket(kept, bucket))


def _power_sgd_bucket_by_bucket(state: PowerSGDState, bucket: Any) -> torch.futures.Future[Tensor]:
    """torch's hook exchanges twice a bucket, the second time from a callback. With several buckets under way, gloo's
    ranks may then exchange in different orders and mix up what they receive; so each bucket is waited for."""
    future = powerSGD_hook(state, bucket)
    future.wait()
    return future


def zero_optimizer(spec: OptimizerSpec, module: nn.Module, team: Team) -> optim.Optimizer:
    """Each rank keeps the state of some parameters, steps those, and sends them to the others."""
    with warnings.catch_warnings():
        # torch compiles other optimisers as it imports this one, and warns of its own compiler. Imported here, because
        # that takes a third of a second, which no other strategy should wait for.
        warnings.filterwarnings("ignore", message=r"`torch\.jit\.", category=DeprecationWarning)
        from torch.distributed.optim import ZeroRedundancyOptimizer

    recipe = optimizer_recipe(spec, module, device=team.device)
    return ZeroRedundancyOptimizer(
        recipe.groups, recipe.kind, process_group=team.group, parameters_as_bucket_view=True, **recipe.options
    )
