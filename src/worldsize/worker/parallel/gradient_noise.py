"""Squared gradient norms of the whole batch and of its parts, from which the gradient noise scale is computed.

A part is the share of one worker or, with one worker, a micro-batch. This sends no messages: each rank stores its own
norms, and `analysis/learning/noise_scale.py` combines them. No step waits for a norm: norms stay on the device until
the loop stops anyway.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.nn.parallel import DistributedDataParallel

from worldsize.spec.study import TrialSpec
from worldsize.worker.parallel.shards import Share
from worldsize.worker.parallel.team import Team


class NoiseMeter:
    """A meter that does nothing, and the interface of the others."""

    def watch(self, model: DistributedDataParallel) -> None:
        """Called with the wrapped model whenever it is created."""

    def micro_batch_done(self, micro_batch: Share) -> None:
        """Called after backward of each micro-batch."""

    def step_done(self, share: Share) -> None:
        """Called after the last micro-batch, before anything changes or clears the gradients."""

    def read_out(self) -> None:
        """Called where the loop stops anyway."""

    def rows(self) -> npt.NDArray[np.float32]:
        """Return a row per step: a column per part of this rank and one for the whole batch, NaN in a partial batch."""
        return np.zeros((0, 0), dtype=np.float32)


class _Recording(NoiseMeter):
    def __init__(self, trial: TrialSpec, team: Team, parts: int) -> None:
        self._team = team
        self._global_batch = trial.global_batch
        self._nan_row = torch.full((parts + 1,), torch.nan, device=team.device)
        self._steps: list[Tensor] = []
        self._read: list[npt.NDArray[np.float32]] = [np.zeros((0, parts + 1), dtype=np.float32)]

    def read_out(self) -> None:
        if self._steps:
            self._read.append(torch.stack(self._steps).cpu().numpy())
            self._steps.clear()

    def rows(self) -> npt.NDArray[np.float32]:
        self.read_out()
        return np.concatenate(self._read)

    def _add(self, share: Share, parts: list[Tensor], whole: Tensor) -> None:
        # A partial batch has a different size, and its parts may be unequal, so its norms are not comparable.
        full = share.total == self._global_batch
        self._steps.append(torch.stack([*parts, whole]) if full else self._nan_row)

    def _unscaled(self, square: Tensor, share: Share) -> Tensor:
        """Return the squared norm of the mean gradient over the share's own samples.

        The loop multiplies the sum of losses by workers / total, so that the average over ranks is the mean over the
        global batch. The mean gradient of the share is total / (workers * own) times the resulting gradient.
        """
        return square * (share.total / (self._team.workers * max(share.own, 1))) ** 2


class RankNoise(_Recording):
    """The meter for several workers, each a part. Reads DDP's buckets before they are averaged, and after backward."""

    def __init__(self, trial: TrialSpec, team: Team) -> None:
        super().__init__(trial, team, parts=1)
        self._buckets: list[Tensor] = []
        self._own: list[Tensor] = []

    def watch(self, model: DistributedDataParallel) -> None:
        # torch rejects annotations that are strings, as all are in this module. A lambda has no annotations.
        model.register_comm_hook(self._team.group, lambda group, bucket: self._average(group, bucket))

    def _average(self, group: dist.ProcessGroup | None, bucket: Any) -> torch.futures.Future[Tensor]:
        gradients = bucket.buffer()
        self._own.append(_square(gradients))
        self._buckets.append(gradients)
        group = group or dist.group.WORLD
        assert group is not None
        return allreduce_hook(group, bucket)

    def step_done(self, share: Share) -> None:
        # The buckets hold averages now. The hook's own callback is no alternative: it runs on another GPU stream.
        own, whole = _total(self._own), _total(map(_square, self._buckets))
        self._add(share, [self._unscaled(own, share)], whole)
        self._own.clear()
        self._buckets.clear()


class MicroBatchNoise(_Recording):
    """The meter for one worker. Each micro-batch is a part; its gradient is the increase of the accumulated one."""

    def __init__(self, trial: TrialSpec, team: Team, module: nn.Module) -> None:
        super().__init__(trial, team, parts=trial.accumulation)
        self._module = module
        self._flat = torch.empty(0)
        self._views: dict[nn.Parameter, Tensor] = {}
        """Views into `_flat`, which holds the gradients accumulated before the current micro-batch."""
        self._parts: list[Tensor] = []

    def micro_batch_done(self, micro_batch: Share) -> None:
        if not self._parts:
            self._begin()
        pairs = [(view, parameter.grad) for parameter, view in self._views.items() if parameter.grad is not None]
        before, now = map(list, zip(*pairs, strict=True))
        torch._foreach_sub_(before, now)
        self._parts.append(self._unscaled(_square(self._flat), micro_batch))
        torch._foreach_copy_(before, now)

    def step_done(self, share: Share) -> None:
        self._add(share, self._parts, _square(self._flat))
        self._parts = []

    def _begin(self) -> None:
        trainable = [parameter for parameter in self._module.parameters() if parameter.requires_grad]
        if len(trainable) == len(self._views):
            self._flat.zero_()
            return
        # This is the first step, or the first after layers were unfrozen.
        sizes = [parameter.numel() for parameter in trainable]
        self._flat = torch.zeros(sum(sizes), device=self._team.device)
        pieces = zip(trainable, self._flat.split(sizes), strict=True)
        self._views = {parameter: piece.view(parameter.shape) for parameter, piece in pieces}


def meter_for(trial: TrialSpec, module: nn.Module, team: Team) -> NoiseMeter:
    """Return a meter. It does nothing if not requested, or if a batch has no parts (one worker, no accumulation)."""
    if trial.train is None or not trial.train.measure_noise_scale:
        return NoiseMeter()
    if team.workers > 1:
        assert trial.strategy.name == "ddp"  # other strategies are rejected before anything runs
        return RankNoise(trial, team)
    return MicroBatchNoise(trial, team, module) if trial.accumulation > 1 else NoiseMeter()


def _square(flat: Tensor) -> Tensor:
    """Return |x|^2. On a CPU, with six million elements, the error of torch's norms is 4e-4, of a dot product 2e-5."""
    flat = flat.detach().float()
    return torch.dot(flat, flat)


def _total(squares: Iterable[Tensor]) -> Tensor:
    return torch.stack(list(squares)).sum()
