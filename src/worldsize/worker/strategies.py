"""How the ranks of a trial work together: what they exchange, when, and who keeps what.

`make_strategy` takes a bare model and gives the loop what it trains: the model to call, its optimiser, and the moments
at which ranks talk. Averaged gradients are those of the mean loss over ranks, whatever the strategy.
"""

from __future__ import annotations

import copy
import warnings
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn, optim
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook import PowerSGDState, powerSGD_hook
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

from worldsize.optimizer_spec import OptimizerSpec
from worldsize.train_spec import StrategySpec
from worldsize.worker.noise import NoiseMeter
from worldsize.worker.optim import make_optimizer, optimizer_recipe
from worldsize.worker.parallel import Team


class Strategy:
    """One worker needs nothing: its step is the step that people would run alone."""

    model: nn.Module
    """What the loop calls."""

    def __init__(self, module: nn.Module, optimizer: optim.Optimizer, team: Team) -> None:
        self.model = self.module = module
        self.optimizer = optimizer
        self.team = team

    @property
    def warmup_steps(self) -> int:
        """The first steps, which are not like the others."""
        return 5

    def exchange(self, *, last: bool) -> AbstractContextManager[None]:
        """Around forward and backward of one micro-batch: gradients are exchanged with the last one of a step only."""
        del last
        return nullcontext()

    def clip(self, norm: float) -> None:
        """The gradient of the whole model, not of this rank's part, is scaled down to `norm`."""
        nn.utils.clip_grad_norm_(self.module.parameters(), norm)

    def when_ready(self, tell: Callable[[], None]) -> None:
        """Has `tell` called in each backward when the last gradient of this rank is there, before it waits for others.

        A strategy that exchanges in no such place never calls it.
        """

    @property
    def can_train_alone(self) -> bool:
        """Whether a step without any exchange is the same work: what the difference of the two measures."""
        return False

    def watch_exchange(self) -> None:
        """From here on torch, where it can, times the exchanges of every step, not of every hundredth."""

    def exchange_facts(self) -> dict[str, float]:
        """Bytes of gradients that a step exchanges, and what torch timed of it: total and overlapped with backward."""
        return {}

    def after_step(self, step: int) -> bool:
        """`step` steps have been made. Whether something was exchanged."""
        del step
        return False

    def whole(self) -> nn.Module:
        """The model that the ranks agree on, to evaluate and to save. All of them ask for it together."""
        return self.module

    def rewrap(self) -> None:
        """After parameters were unfrozen: their gradients must be exchanged from now on."""


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


def make_strategy(
    spec: StrategySpec, optimizer: OptimizerSpec, module: nn.Module, team: Team, noise: NoiseMeter | None = None
) -> Strategy:
    """For the bare model of a trial; every rank of the team calls it."""
    noise = noise or NoiseMeter()
    if team.workers == 1:
        return Strategy(module, make_optimizer(optimizer, module, device=team.device), team)
    # Before batch norm learns of the group, which cannot be copied.
    plain = copy.deepcopy(module).cpu() if spec.name in ("fsdp", "local-sgd") else module
    if spec.sync_batch_norm:
        module = nn.SyncBatchNorm.convert_sync_batchnorm(module, team.group)
    match spec.name:
        case "fsdp":
            _shard(module, team)
            return Sharded(plain, module, make_optimizer(optimizer, module, device=team.device), team)
        case "local-sgd":
            _start_equal(module, team)
            return LocalSgd(spec.every, plain, module, make_optimizer(optimizer, module, device=team.device), team)
        case "zero":
            return Replicated(spec, module, _zero_optimizer(optimizer, module, team), team, noise)
        case _:
            return Replicated(spec, module, make_optimizer(optimizer, module, device=team.device), team, noise)


def _zero_optimizer(spec: OptimizerSpec, module: nn.Module, team: Team) -> optim.Optimizer:
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


def _shard(module: nn.Module, team: Team) -> None:
    """Block by block, in place: what is gathered at a time is one block; the root takes what lies outside of them."""
    module.to(memory_format=torch.contiguous_format)  # type: ignore[call-overload]  # FSDP refuses channels_last
    _start_equal(module, team)
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


def _start_equal(module: nn.Module, team: Team) -> None:
    """With the first rank's weights, as DistributedDataParallel does by itself."""
    for tensor in _tensors(module):
        dist.broadcast(tensor, src=0, group=team.group)


def _tensors(module: nn.Module) -> list[Tensor]:
    return [tensor.detach() for tensor in (*module.parameters(), *module.buffers())]
