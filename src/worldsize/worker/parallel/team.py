"""Groups of ranks: all ranks of a launch, the ranks of one trial, and a store for short messages between them."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed import PrefixStore  # type: ignore[attr-defined]  # missing in the type hints
from torch.distributed.rendezvous import rendezvous

from worldsize.errors import InputError

GROUP_TIMEOUT = timedelta(minutes=30)
"""Longer than the driver's own timeout: the driver ends a launch that hangs and reports where it hung."""
IDLE_TIMEOUT = timedelta(days=7)
"""How long a rank may wait for a trial of other ranks."""


@dataclass(frozen=True, kw_only=True)
class Team:
    """The ranks that run one trial."""

    rank: int
    workers: int
    device: torch.device
    group: dist.ProcessGroup | None

    def sum(self, tensor: Tensor) -> Tensor:
        """Sum over all ranks, in place."""
        if self.workers > 1:
            dist.all_reduce(tensor, group=self.group)
        return tensor

    def max(self, values: Sequence[float]) -> list[float]:
        """Return the maximum of each value over all ranks."""
        tensor = torch.tensor(values, dtype=torch.float64, device=self.device)
        if self.workers > 1:
            dist.all_reduce(tensor, dist.ReduceOp.MAX, group=self.group)
        return tensor.tolist()

    def barrier(self) -> None:
        if self.workers > 1:
            dist.barrier(group=self.group)

    def from_first(self, value: int) -> int:
        """Return rank 0's value on every rank."""
        if self.workers == 1:
            return value
        tensor = torch.tensor([value], device=self.device)
        dist.broadcast(tensor, src=0, group=self.group)
        return int(tensor.item())

    def share_buffers(self, model: nn.Module) -> None:
        """Copy rank 0's buffers to all ranks. Their batch-norm statistics differ, but evaluation needs one model."""
        if self.workers > 1:
            for buffer in model.buffers():
                dist.broadcast(buffer, src=0, group=self.group)


class Crew:
    """All ranks of a launch. A trial of n workers runs on ranks 0 to n-1 while the others wait for a message."""

    def __init__(self, device: str, backend: str, counts: list[int]) -> None:
        self.rank, self.workers = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        local_rank = int(os.environ.get("LOCAL_RANK", self.rank))
        self.device = torch.device("cpu")
        if device == "cuda":
            if not torch.cuda.is_available():
                raise InputError(f"device=cuda, but this torch ({torch.__version__}) sees no GPU; use `device: cpu`")
            self.device = torch.device("cuda", local_rank % torch.cuda.device_count())
            torch.cuda.set_device(self.device)
        self.store, _, _ = next(rendezvous("env://", self.rank, self.workers, timeout=GROUP_TIMEOUT))
        dist.init_process_group(
            backend,
            store=PrefixStore("group", self.store),
            rank=self.rank,
            world_size=self.workers,
            timeout=GROUP_TIMEOUT,
            device_id=self.device if backend == "nccl" else None,
        )
        # Every rank must take part in creating each group, even if it is not a member, and in the same order.
        self._announced = 0
        self._groups = {n: dist.new_group(list(range(n))) for n in counts if 1 < n < self.workers}

    def team(self, workers: int) -> Team | None:
        """Return the team of a trial with this many workers, or None if this rank is not in it."""
        if self.rank >= workers:
            return None
        return Team(rank=self.rank, workers=workers, device=self.device, group=self._groups.get(workers))

    @property
    def ranks_sharing_memory(self) -> int:
        """Number of ranks on this host, or on this GPU."""
        on_host = int(os.environ.get("LOCAL_WORLD_SIZE", self.workers))
        return -(-on_host // torch.cuda.device_count()) if self.device.type == "cuda" else on_host

    def publish(self, key: str, value: str) -> None:
        self.store.set(key, value)

    def wait_for(self, key: str) -> str:
        """Wait until a rank publishes the key, without using CPU, and return its value."""
        self.store.wait([key], IDLE_TIMEOUT)
        return bytes(self.store.get(key)).decode()

    def announce(self, text: str | None) -> str:
        """Pass a text of rank 0 to all ranks; the others wait for it. All ranks must call this in the same order."""
        self._announced += 1
        key = f"announced/{self._announced}"
        if self.rank == 0:
            self.publish(key, text or "")
        return self.wait_for(key)

    def leave(self) -> None:
        dist.destroy_process_group()
