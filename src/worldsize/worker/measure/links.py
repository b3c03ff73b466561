"""Time all-reduces of 1 KB to 64 MB within a time budget, inside a node and across nodes separately.

Sizes and groups take turns in rounds, so that drift of the machine affects all of them alike. Rank 0 chooses the next
turn. The raw times are stored; `analysis/speed/network.py` computes latency and bandwidth from them.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from worldsize.folder.launches import LinkSweep, LinkTimes

SIZES = tuple(1024 * 4**power for power in range(9))
"""Message sizes in bytes: 1 KB, 4 KB, ... 64 MB."""
ROUNDS = 30
"""Maximum number of rounds. More would not help; fast links reach it long before the budget is used up."""
MIN_ROUNDS = 5
"""A new size is tried only if this many repetitions of it, by all kinds of groups, fit into the remaining budget."""


@dataclass(frozen=True, kw_only=True)
class LinkGroups:
    """Groups of one kind. Groups of kind `inside` run at the same time, each in its own node."""

    kind: Literal["inside", "across", "all"]
    groups: tuple[tuple[int, ...], ...]
    """The ranks of each group."""


class Turn(NamedTuple):
    """One all-reduce, given by indexes into the links and into SIZES."""

    link: int
    size: int


def links_of(hosts: Sequence[str]) -> tuple[LinkGroups, ...]:
    """Return what can be measured among ranks on these hosts.

    Kinds with the same ranks are measured once, under the first name: `inside` on one host, `across` if every host has
    one rank.
    """
    nodes: dict[str, list[int]] = {}
    for rank, host in enumerate(hosts):
        nodes.setdefault(host, []).append(rank)
    candidates: tuple[tuple[Literal["inside", "across", "all"], list[tuple[int, ...]]], ...] = (
        ("inside", [tuple(ranks) for ranks in nodes.values()]),
        ("across", [tuple(ranks[0] for ranks in nodes.values())]),
        ("all", [tuple(range(len(hosts)))]),
    )
    links: list[LinkGroups] = []
    for kind, groups in candidates:
        several = tuple(ranks for ranks in groups if len(ranks) > 1)
        if several and all(link.groups != several for link in links):
            links.append(LinkGroups(kind=kind, groups=several))
    return tuple(links)


class SweepPlan:
    """Chooses the next turn by the cost of earlier ones. Used only on rank 0.

    The first round increases the size until the next one would not fit; later rounds alternate in direction. Near the
    end of the budget, only turns that still fit are chosen, so at most one misjudged repetition can exceed it.
    """

    def __init__(self, links: int, budget_s: float) -> None:
        self._links, self._budget_s = links, budget_s
        self._costs: dict[Turn, float] = {}
        self._round = 0
        self._queue = deque(Turn(link, size) for size in range(len(SIZES)) for link in range(links))

    def cost(self, turn: Turn, seconds: float) -> None:
        """Store the wall time of a turn, including coordination and waiting."""
        self._costs[turn] = seconds

    def next(self, elapsed_s: float) -> Turn | None:
        """Return the next turn, or None if the budget is used up or there are enough rounds."""
        left_s = self._budget_s - elapsed_s
        # Search the rest of this round and one full round: if nothing in it fits, nothing will.
        for _ in range(2):
            while self._queue:
                turn = self._queue.popleft()
                if self._fits(turn, left_s):
                    return turn
            self._round += 1
            if self._round == ROUNDS:
                break
            tried = sorted(self._costs, key=lambda turn: (turn.size, turn.link), reverse=self._round % 2 == 1)
            self._queue.extend(tried)
        return None

    def _fits(self, turn: Turn, left_s: float) -> bool:
        if turn in self._costs:
            return self._costs[turn] <= left_s
        return MIN_ROUNDS * self._links * self._predicted(turn) <= left_s

    def _predicted(self, turn: Turn) -> float:
        """Extrapolate t(4x) = t(x) + 4 (t(x) - t(x/4)), linear in x. Clamp it to t(x) ... 4 t(x) because of noise."""
        if turn.size == 0:
            return 0.0
        before = self._costs.get(Turn(turn.link, turn.size - 1), float("inf"))
        if turn.size == 1:
            return before
        earlier = self._costs.get(Turn(turn.link, turn.size - 2), before)
        return min(max(before + 4 * (before - earlier), before), 4 * before)


def measure_links(
    rank: int,
    hosts: Sequence[str],
    device: torch.device,
    *,
    budget_s: float = 3.0,
    now: Callable[[], float] = time.perf_counter,
) -> LinkSweep | None:
    """Measure the links between ranks. Return the same result on every rank, or None with one worker.

    Every rank of a launch must call this, with the host of each rank. It needs the default process group and destroys
    the groups that it creates. The budget covers the all-reduces, not the creation and connection of groups before.
    """
    links = links_of(hosts)
    if not links:
        return None
    # Every rank must take part in creating each group, even if it is not a member, and in the same order.
    subgroups = {
        ranks: dist.new_group(list(ranks)) for link in links for ranks in link.groups if len(ranks) < len(hosts)
    }
    buffer = torch.zeros(SIZES[-1] // 4, dtype=torch.float32, device=device)
    own_numbers = [next((number for number, ranks in enumerate(link.groups) if rank in ranks), None) for link in links]
    own_groups = [
        None if number is None else subgroups.get(link.groups[number])
        for link, number in zip(links, own_numbers, strict=True)
    ]
    for number, group in zip(own_numbers, own_groups, strict=True):
        if number is not None:
            dist.all_reduce(buffer[:1], group=group)  # the first use of a group connects its ranks
    max_over_ranks = _MaxOverRanks(device)
    max_over_ranks([0.0])  # also connects all ranks to each other
    seconds: dict[Turn, list[list[float]]] = {}
    plan, began = SweepPlan(len(links), budget_s), now()
    while True:
        asked = now()
        turn = plan.next(asked - began) if rank == 0 else None
        own_code = 0 if turn is None else 1 + turn.link * len(SIZES) + turn.size
        # Send rank 0's choice to all ranks. No rank starts its clock before all have arrived.
        code, elapsed_s = max_over_ranks([float(own_code), asked - began if rank == 0 else 0.0])
        if code == 0:
            break
        turn = Turn(*divmod(int(code) - 1, len(SIZES)))
        slowest, number = [0.0] * len(links[turn.link].groups), own_numbers[turn.link]
        if number is not None:
            slowest[number] = _all_reduce_s(buffer[: SIZES[turn.size] // 4], own_groups[turn.link], now)
        seconds.setdefault(turn, []).append(max_over_ranks(slowest))
        plan.cost(turn, now() - asked)
    for group in subgroups.values():
        dist.destroy_process_group(group)
    return LinkSweep(budget_s=budget_s, took_s=elapsed_s, times=_in_order(links, hosts, seconds))


class _MaxOverRanks:
    """Element-wise maximum over ranks. Also a barrier: no rank continues before all have arrived."""

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def __call__(self, values: list[float]) -> list[float]:
        tensor = torch.tensor(values, dtype=torch.float64, device=self._device)
        dist.all_reduce(tensor, op=dist.ReduceOp.MAX)
        return [float(value) for value in tensor.tolist()]


def _all_reduce_s(tensor: Tensor, group: dist.ProcessGroup | None, now: Callable[[], float]) -> float:
    """Return the seconds of one all-reduce. A GPU times it itself, because the host notices the end too late."""
    if tensor.device.type != "cuda":
        began = now()
        dist.all_reduce(tensor, group=group)
        return now() - began
    first, last = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    first.record()
    dist.all_reduce(tensor, group=group)
    last.record()
    last.synchronize()
    return first.elapsed_time(last) / 1e3


def _in_order(
    links: Sequence[LinkGroups], hosts: Sequence[str], seconds: dict[Turn, list[list[float]]]
) -> tuple[LinkTimes, ...]:
    return tuple(
        LinkTimes(
            kind=links[turn.link].kind,
            host=hosts[ranks[0]] if links[turn.link].kind == "inside" else None,
            workers=len(ranks),
            size_bytes=SIZES[turn.size],
            seconds=tuple(repetition[number] for repetition in seconds[turn]),
        )
        for turn in sorted(seconds)
        for number, ranks in enumerate(links[turn.link].groups)
    )
