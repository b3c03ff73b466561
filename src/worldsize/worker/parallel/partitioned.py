"""Strategies in which ranks hold different weights: shards of a model (FSDP), or models to average (local SGD)."""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
import torch.distributed as dist
from torch import Tensor, nn, optim
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor

from worldsize.worker.parallel.strategy import Strategy
from worldsize.worker.parallel.team import Team


class Partitioned(Strategy, ABC):
    """A strategy in which ranks hold different weights, so the full model is a separate copy, made on request."""

    def __init__(self, plain: nn.Module, module: nn.Module, optimizer: optim.Optimizer, team: Team) -> None:
        super().__init__(module, optimizer, team)
        self._plain = plain
        """The unwrapped model, on the CPU because sharding is meant to save GPU memory."""

    def full_model(self) -> nn.Module:
        plain = copy.deepcopy(self._plain).to(self.team.device)
        with torch.no_grad():
            self._gather(plain)
        return plain

    @abstractmethod
    def _gather(self, plain: nn.Module) -> None:
        """Copy into `plain` the weights and buffers that the ranks agree on."""


class Sharded(Partitioned):
    """FSDP. Each rank keeps a shard of weights, gradients and optimizer state, and gathers blocks as needed."""

    @contextmanager
    def exchange(self, *, last: bool) -> Iterator[None]:
        assert isinstance(self.model, FSDPModule)
        self.model.set_requires_gradient_sync(last)
        yield

    def _gather(self, plain: nn.Module) -> None:
        for target, source in zip(_tensors(plain), _tensors(self.module), strict=True):
            target.copy_(source.full_tensor() if isinstance(source, DTensor) else source)
        self.team.share_buffers(plain)


class LocalSgd(Partitioned):
    """Local SGD. Ranks train separately and average their weights every few steps (`every`)."""

    def __init__(self, every: int, plain: nn.Module, module: nn.Module, optimizer: optim.Optimizer, team: Team) -> None:
        super().__init__(plain, module, optimizer, team)
        self._every = every

    def after_step(self, step: int) -> bool:
        if step % self._every:
            return False
        trainable = [parameter.detach() for parameter in self.module.parameters() if parameter.requires_grad]
        torch._foreach_copy_(trainable, self._averages(trainable))
        return True

    def _gather(self, plain: nn.Module) -> None:
        for target, source in zip(_tensors(plain), _tensors(self.module), strict=True):
            target.copy_(source)
        floating = [tensor for tensor in _tensors(plain) if tensor.is_floating_point()]
        averages = self._averages(floating)
        self.team.share_buffers(plain)  # for integers, such as the batch counter of batch norm, which have no mean
        torch._foreach_copy_(floating, averages)

    def _averages(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """Return the averages over ranks, exchanged in one message."""
        flat = torch.cat([tensor.reshape(-1) for tensor in tensors]) / self.team.workers
        averages = self.team.sum(flat).split([tensor.numel() for tensor in tensors])
        return [average.view(tensor.shape) for average, tensor in zip(averages, tensors, strict=True)]


def shard(module: nn.Module, team: Team) -> None:
    """Shard the module in place, by blocks, which are gathered one at a time. The root has all other parameters."""
    module.to(memory_format=torch.contiguous_format)  # type: ignore[call-overload]  # FSDP refuses channels_last
    broadcast_weights(module, team)
    group = team.group or dist.group.WORLD
    assert group is not None
    mesh = DeviceMesh.from_group(group, team.device.type)
    uses = Counter(parameter for _, parameter in module.named_parameters(remove_duplicate=False))
    for block in _blocks(module):
        inside = Counter(parameter for _, parameter in block.named_parameters(remove_duplicate=False))
        # A parameter that is also used outside the block (a tied embedding) must belong to the root.
        if inside and all(uses[parameter] == count for parameter, count in inside.items()):
            fully_shard(block, mesh=mesh)
    fully_shard(module, mesh=mesh)


def _blocks(module: nn.Module) -> Iterator[nn.Module]:
    """Yield the outermost members of lists and sequences, such as the layers of a transformer."""
    for child in module.children():
        if isinstance(module, nn.ModuleList | nn.Sequential) and not isinstance(child, nn.ModuleList | nn.Sequential):
            yield child
        else:
            yield from _blocks(child)


def broadcast_weights(module: nn.Module, team: Team) -> None:
    """Copy rank 0's weights to all ranks, as DistributedDataParallel does by itself."""
    for tensor in _tensors(module):
        dist.broadcast(tensor, src=0, group=team.group)


def _tensors(module: nn.Module) -> list[Tensor]:
    return [tensor.detach() for tensor in (*module.parameters(), *module.buffers())]
