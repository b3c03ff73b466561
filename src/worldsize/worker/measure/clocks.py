"""How far the clocks of ranks are apart, by ping-pong: what one rank saw can be laid beside what another saw."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.distributed as dist

ROUNDS = 100
"""Delays are skewed: of many round trips, one or two are undisturbed."""


@dataclass(frozen=True, kw_only=True)
class ClockOffset:
    """A rank's clock plus `offset_ns` is rank 0's, give or take `uncertainty_ns`, at the time of the measurement."""

    offset_ns: int
    uncertainty_ns: int


def clock_offsets(
    rank: int,
    workers: int,
    device: torch.device,
    *,
    budget_s: float = 1.0,
    now_ns: Callable[[], int] = time.perf_counter_ns,
) -> tuple[ClockOffset, ...]:
    """Called by every rank of the default group; all get the offsets of all, by rank. Rank 0's is 0 by definition.

    Ranks take turns with rank 0; each has an equal share of the box, or ROUNDS round trips, whichever ends first.
    """
    if workers == 1:
        return (ClockOffset(offset_ns=0, uncertainty_ns=0),)
    # gloo sends from the host's memory alone, and that is the nearer to its clock.
    device = device if dist.get_backend() == "nccl" else torch.device("cpu")
    found = torch.zeros(workers, 2, dtype=torch.int64, device=device)
    if rank == 0:
        for other in range(1, workers):
            _answer(other, device, now_ns)
    else:
        offset = _ask(device, round(budget_s * 1e9 / (workers - 1)), now_ns)
        found[rank] = torch.tensor([offset.offset_ns, offset.uncertainty_ns])
    dist.all_reduce(found)
    return tuple(ClockOffset(offset_ns=offset, uncertainty_ns=reach) for offset, reach in found.tolist())


def offset_of(t0: int, t1: int, t2: int, t3: int) -> ClockOffset:
    """NTP: offset = ((t1 - t0) + (t2 - t3)) / 2, and it is off by at most delay / 2, delay = (t3 - t0) - (t2 - t1).

    Asked at t0 and answered at t3 on this clock; heard at t1 and answered at t2 on the other.
    """
    delay = (t3 - t0) - (t2 - t1)
    return ClockOffset(offset_ns=((t1 - t0) + (t2 - t3)) // 2, uncertainty_ns=-(-delay // 2))


def _ask(device: torch.device, share_ns: int, now_ns: Callable[[], int]) -> ClockOffset:
    more, last = (torch.tensor([word], dtype=torch.int64, device=device) for word in (1, 0))
    answer = torch.zeros(2, dtype=torch.int64, device=device)
    best: ClockOffset | None = None
    end = None
    for number in range(ROUNDS):
        t0 = now_ns()
        # The first round trip waits until rank 0 is done with others: the share begins after it.
        ends = number == ROUNDS - 1 or (end is not None and t0 >= end)
        dist.send(last if ends else more, dst=0)
        dist.recv(answer, src=0)
        t1, t2 = answer.tolist()  # on a GPU, this waits for it
        t3 = now_ns()
        seen = offset_of(t0, t1, t2, t3)
        if best is None or seen.uncertainty_ns < best.uncertainty_ns:
            best = seen
        if ends:
            break
        end = end or t3 + share_ns
    assert best is not None
    return best


def _answer(other: int, device: torch.device, now_ns: Callable[[], int]) -> None:
    question = torch.zeros(1, dtype=torch.int64, device=device)
    more = True
    while more:
        dist.recv(question, src=other)
        more = bool(question.item())
        t1 = now_ns()
        dist.send(torch.tensor([t1, now_ns()], dtype=torch.int64, device=device), dst=other)
