"""Ranks that hold different weights: shards of one model (FSDP), or models averaged now and then (local SGD)."""

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


class Apart(Strategy, ABC):
    """Ranks hold different weights, so the whole model is another one, made when it is asked for."""

    def __init__(self, plain: nn.Module, module: nn.Module, optimizer: optim.Optimizer, team: Team) -> None:
        super().__init__(module, optimizer, team)
        self._plain = plain
        """As it was before; on the CPU, since a GPU's memory is what sharding saves."""

    def whole(self) -> nn.Module:
        plain = copy.deepcopy(self._plain).to(self.team.device)
        with torch.no_grad():
            self._gather(plain)
        return plain

    @abstractmethod
    def _gather(self, plain: nn.Module) -> None:
        """Into it go the weights and buffers that the ranks agree on."""


class Sharded(Apart):
    """FSDP: each rank keeps a part of weights, gradients and optimiser, and sees a block whole while it computes it."""

    @contextmanager
    def exchange(self, *, last: bool) -> Iterator[None]:
        assert isinstance(self.model, FSDPModule)
        self.model.set_requires_gradient_sync(last)
        yield

    def _gather(self, plain: nn.Module) -> None:
        for target, source in zip(_tensors(plain), _tensors(self.module), strict=True):
            target.copy_(source.full_tensor() if isinstance(source, DTensor) else source)
        self.team.share_buffers(plain)


class LocalSgd(Apart):
    """Ranks train alone and average their weights every so many steps."""

    def __init__(self, every: int, plain: nn.Module, module: nn.Module, optimizer: optim.Optimizer, team: Team) -> None:
        super().__init__(plain, module, optimizer, team)
        self._every = every

    def after_step(self, step: int) -> bool:
        if step % self._every:
            return False
        learning = [parameter.detach() for parameter in self.module.parameters() if parameter.requires_grad]
        torch._foreach_copy_(learning, self._averages(learning))
        return True

    def _gather(self, plain: nn.Module) -> None:
        for target, source in zip(_tensors(plain), _tensors(self.module), strict=True):
            target.copy_(source)
        real = [tensor for tensor in _tensors(plain) if tensor.is_floating_point()]
        averages = self._averages(real)
        self.team.share_buffers(plain)  # for whole numbers, such as batch norm's count of batches, which have no mean
        torch._foreach_copy_(real, averages)

    def _averages(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """Over ranks, in one message."""
        flat = torch.cat([tensor.reshape(-1) for tensor in tensors]) / self.team.workers
        parts = self.team.sum(flat).split([tensor.numel() for tensor in tensors])
        return [part.view(tensor.shape) for part, tensor in zip(parts, tensors, strict=True)]


def shard(module: nn.Module, team: Team) -> None:
    """Block by block, in place: what is gathered at a time is one block; the root takes what lies outside of them."""
    module.to(memory_format=torch.contiguous_format)  # type: ignore[call-overload]  # FSDP refuses channels_last
    start_equal(module, team)
    group = team.group or dist.group.WORLD
    assert group is not None
    mesh = DeviceMesh.from_group(group, team.device.type)
    uses = Counter(parameter for _, parameter in module.named_parameters(remove_duplicate=False))
    for block in _blocks(module):
        inside = Counter(parameter for _, parameter in block.named_parameters(remove_duplicate=False))
        # One that is used outside too (a tied embedding) must belong to what holds all its uses: the root.
        if inside and all(uses[parameter] == count for parameter, count in inside.items()):
            fully_shard(block, mesh=mesh)
    fully_shard(module, mesh=mesh)


def _blocks(module: nn.Module) -> Iterator[nn.Module]:
    """The outermost members of lists and sequences: the layers of a transformer, the stages of a CNN."""
    for child in module.children():
        if isinstance(module, nn.ModuleList | nn.Sequential) and not isinstance(child, nn.ModuleList | nn.Sequential):
            yield child
        else:
            yield from _blocks(child)


def start_equal(module: nn.Module, team: Team) -> None:
    """With the first rank's weights, as DistributedDataParallel does by itself."""
    for tensor in _tensors(module):
        dist.broadcast(tensor, src=0, group=team.group)


def _tensors(module: nn.Module) -> list[Tensor]:
    return [tensor.detach() for tensor in (*module.parameters(), *module.buffers())]
