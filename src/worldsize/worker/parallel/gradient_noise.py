"""Square norms of gradients, of parts of a batch and of the whole, from which the gradient noise scale follows.

A part is what one worker computes, or one micro-batch where there is one worker. Nothing is sent for it: each rank
stores its own norms, and whoever reads them puts the ranks side by side (`analysis/learning/noise_scale.py`). No step
waits for a number either: norms stay on the device until the loop stops anyway.
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
    """Switched off: asked at the same moments as the others, it does nothing."""

    def watch(self, model: DistributedDataParallel) -> None:
        """From now on this is the model whose ranks exchange gradients."""

    def part_done(self, part: Share) -> None:
        """After backward of each micro-batch."""

    def step_done(self, share: Share) -> None:
        """After the last of them, before anything changes the gradients or forgets them."""

    def read_out(self) -> None:
        """Where the loop stops anyway."""

    def rows(self) -> npt.NDArray[np.float32]:
        """One row a step: a column for each part of this rank, then one for the whole batch. NaN: partial batch."""
        return np.zeros((0, 0), dtype=np.float32)


class _Recording(NoiseMeter):
    def __init__(self, trial: TrialSpec, team: Team, parts: int) -> None:
        self._team = team
        self._global_batch = trial.global_batch
        self._unknown = torch.full((parts + 1,), torch.nan, device=team.device)
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
        # The parts of a partial batch may be unequal, so that its norms belong to other batch sizes.
        full = share.total == self._global_batch
        self._steps.append(torch.stack([*parts, whole]) if full else self._unknown)

    def _unscaled(self, square: Tensor, part: Share) -> Tensor:
        """The loop multiplies the sum of losses by workers / total, so that an average over ranks is the mean over the
        global batch. The mean over the part's own samples has total / (workers * own) times that gradient."""
        return square * (part.total / (self._team.workers * max(part.own, 1))) ** 2


class RankNoise(_Recording):
    """Several workers: each is a part. DDP's buckets are looked at before they are averaged, and after backward."""

    def __init__(self, trial: TrialSpec, team: Team) -> None:
        super().__init__(trial, team, parts=1)
        self._buckets: list[Tensor] = []
        self._own: list[Tensor] = []

    def watch(self, model: DistributedDataParallel) -> None:
        # torch reads the hook's annotations, and takes the strings that they are here for wrong ones.
        model.register_comm_hook(self._team.group, lambda group, bucket: self._average(group, bucket))

    def _average(self, group: dist.ProcessGroup | None, bucket: Any) -> torch.futures.Future[Tensor]:
        gradients = bucket.buffer()
        self._own.append(_square(gradients))
        self._buckets.append(gradients)
        whole = group or dist.group.WORLD
        assert whole is not None
        return allreduce_hook(whole, bucket)

    def step_done(self, share: Share) -> None:
        # The buckets hold averages now. Not in the hook's own callback, which runs on another stream of the GPU.
        own, whole = _total(self._own), _total(map(_square, self._buckets))
        self._add(share, [self._unscaled(own, share)], whole)
        self._own.clear()
        self._buckets.clear()


class PartNoise(_Recording):
    """One worker: each micro-batch is a part. Gradients add up, so its own is what they grew by: one copy of them."""

    def __init__(self, trial: TrialSpec, team: Team, module: nn.Module) -> None:
        super().__init__(trial, team, parts=trial.accumulation)
        self._module = module
        self._flat = torch.empty(0)
        self._views: dict[nn.Parameter, Tensor] = {}
        """Into `_flat`: the gradients so far."""
        self._parts: list[Tensor] = []

    def part_done(self, part: Share) -> None:
        if not self._parts:
            self._begin()
        pairs = [(view, parameter.grad) for parameter, view in self._views.items() if parameter.grad is not None]
        before, now = map(list, zip(*pairs, strict=True))
        torch._foreach_sub_(before, now)
        self._parts.append(self._unscaled(_square(self._flat), part))
        torch._foreach_copy_(before, now)

    def step_done(self, share: Share) -> None:
        self._add(share, self._parts, _square(self._flat))
        self._parts = []

    def _begin(self) -> None:
        learning = [parameter for parameter in self._module.parameters() if parameter.requires_grad]
        if len(learning) == len(self._views):
            self._flat.zero_()
            return
        # The first step, or the first after layers were unfrozen.
        sizes = [parameter.numel() for parameter in learning]
        self._flat = torch.zeros(sum(sizes), device=self._team.device)
        pieces = zip(learning, self._flat.split(sizes), strict=True)
        self._views = {parameter: piece.view(parameter.shape) for parameter, piece in pieces}


def meter_for(trial: TrialSpec, module: nn.Module, team: Team) -> NoiseMeter:
    """Off unless it was asked for, and where a batch has no parts: one worker without accumulation."""
    if trial.train is None or not trial.train.noise_scale:
        return NoiseMeter()
    if team.workers > 1:
        assert trial.strategy.name == "ddp"  # others are refused before anything runs
        return RankNoise(trial, team)
    return PartNoise(trial, team, module) if trial.accumulation > 1 else NoiseMeter()


def _square(flat: Tensor) -> Tensor:
    """|x|^2 of a vector. On a CPU torch's norms are off by 4e-4 of six million elements, a dot product by 2e-5."""
    flat = flat.detach().float()
    return torch.dot(flat, flat)


def _total(squares: Iterable[Tensor]) -> Tensor:
    return torch.stack(list(squares)).sum()
