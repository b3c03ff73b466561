"""Probes that share the processes of a launch are measured in turns: in short blocks of steps, in random order.

The speed of a machine changes while it is measured, for seconds at a time. Long measurements one after another would
take such changes for differences between settings. Short blocks that alternate over the whole time meet them alike.

`Schedule` decides on rank 0 which setting runs next, and for how many steps. It starts no process and reads no clock.
"""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from worldsize.spec.study import ProbeSpec

Floats = npt.NDArray[np.float64]

BLOCK_S = {"cpu": 0.1, "cuda": 1.0}
"""Duration of a block. On a GPU it is longer, because the utilization meter averages over about a second. It is shorter
if the time limit leaves no room for enough rounds."""
COLD_STEPS = 1
"""First steps of a block that are recorded but not used: the ranks have just been woken, and their caches are cold."""
LONG_STEP_S = 0.05
"""In longer steps, waking up makes no difference, and no step of a block is left out."""
WARM_S = 0.5
"""Shortest warm-up of each setting, unless that would take a quarter of the time limit."""
FALLING = 0.02
"""The warm-up goes on as long as a block is faster than all blocks before it by more than this."""
STEADY_BLOCKS = 2
"""Blocks in a row that must not be faster, for the warm-up to end."""
MIN_STEPS = 5
"""Steps of each setting that are measured in any case."""
MIN_ROUNDS = 10
"""Rounds before the precision is judged: with fewer, it is uncertain."""
ROOM = 1.5
"""The time limit has room for this many times the fewest rounds."""
BATCHES = 8
STUDENT_95 = {1: 6.31, 2: 2.92, 3: 2.35, 4: 2.13, 5: 2.02, 6: 1.94, 7: 1.89}
"""95 % quantiles of Student's t, by degrees of freedom. (scipy is not imported in the worker.)"""
REPEATED = 0.25
"""Share of the blocks that may be run again because they were disturbed."""
DISTURBED = 0.25
"""A block was disturbed if a rank waited for a core for more than this share of it, or a hypervisor took the CPU."""


@dataclass(frozen=True, kw_only=True)
class Turn:
    """A block of steps of one probe."""

    probe: int
    """Number of the probe in its group."""
    steps: int
    cold_steps: int
    """First steps of the block that do not count."""
    warm_up: bool


@dataclass(kw_only=True)
class _State:
    spec: ProbeSpec
    period: int
    warm_s: float = 0.0
    warm_steps: int = 0
    warm_medians: list[float] = field(default_factory=list)
    step_s: float = 0.0
    measured_s: float = 0.0
    steps: int = 0
    medians: list[float] = field(default_factory=list)

    @property
    def is_warm(self) -> bool:
        if self.warm_steps < self.spec.warmup_steps:
            return False
        if self.warm_s >= self.spec.max_seconds / 2:
            return True
        earlier, last = self.warm_medians[:-STEADY_BLOCKS], self.warm_medians[-STEADY_BLOCKS:]
        is_steady = bool(earlier) and min(last) > (1 - FALLING) * min(earlier)
        return is_steady and self.warm_s >= min(WARM_S, self.spec.max_seconds / 4)

    @property
    def has_time(self) -> bool:
        return self.measured_s < self.spec.max_seconds or self.steps < MIN_STEPS

    @property
    def is_precise(self) -> bool:
        return len(self.medians) >= MIN_ROUNDS and precision(self.medians) <= self.spec.tolerance


class Schedule:
    """The turns of a group of probes, on rank 0. `next` returns a turn, and `report` tells how it went."""

    def __init__(self, specs: Sequence[ProbeSpec], periods: Sequence[int], *, block_s: float, seed: int) -> None:
        """`periods`: how many steps of each probe belong together, because only one of them exchanges gradients."""
        self._states = [_State(spec=spec, period=period) for spec, period in zip(specs, periods, strict=True)]
        longest = min(spec.max_seconds for spec in specs) / (ROOM * MIN_ROUNDS)
        self._block_s, self._rng = min(block_s, longest), random.Random(seed)
        self._queue: list[int] = []
        self._order: list[int] = []
        self._turn: Turn | None = None
        self._blocks = self._repeated = 0

    def next(self) -> Turn | None:
        """Return the next turn, or None when all probes are precise enough or out of time."""
        if not self._queue:
            self._queue = self._round()
        if not self._queue:
            return None
        probe = self._queue.pop(0)
        self._turn = self._turn_of(probe)
        return self._turn

    def report(self, step_s: Floats, *, disturbed: bool = False) -> None:
        """Tell the seconds of each step of the last turn. A block that was disturbed is run again at once, if few
        were."""
        turn = self._turn
        assert turn is not None
        state = self._states[turn.probe]
        kept = step_s[turn.cold_steps :]
        state.step_s = float(np.median(kept))
        if turn.warm_up:
            state.warm_s += float(step_s.sum())
            state.warm_steps += len(step_s)
            state.warm_medians.append(state.step_s)
            return
        self._blocks += 1
        if disturbed and self._repeated < REPEATED * self._blocks:
            self._repeated += 1
            self._queue.insert(0, turn.probe)
            return
        state.measured_s += float(step_s.sum())
        state.steps += len(kept)
        state.medians.append(state.step_s)

    @property
    def reached(self) -> list[bool]:
        """Whether each probe is as precise as its study asks for."""
        return [state.is_precise for state in self._states]

    def _round(self) -> list[int]:
        """Return the probes of the next round. Every second round reverses the order of the one before, so that drift
        within two rounds falls on all probes alike."""
        if cold := [probe for probe, state in enumerate(self._states) if not state.is_warm]:
            return cold
        active = [probe for probe, state in enumerate(self._states) if state.has_time]
        if all(self._states[probe].is_precise for probe in active):
            return []
        if self._order:
            order, self._order = self._order[::-1], []
        else:
            order = list(range(len(self._states)))
            self._rng.shuffle(order)
            self._order = order
        return [probe for probe in order if probe in active]

    def _turn_of(self, probe: int) -> Turn:
        state = self._states[probe]
        if not state.warm_steps:
            return Turn(probe=probe, steps=state.spec.warmup_steps, cold_steps=0, warm_up=True)
        cold_steps = COLD_STEPS if state.step_s < LONG_STEP_S else 0
        seconds = self._block_s
        if not (warm_up := not state.is_warm):
            seconds = min(seconds, max(state.spec.max_seconds - state.measured_s, 0.0))
        periods = max(1, math.ceil(seconds / state.step_s / state.period))
        return Turn(probe=probe, steps=cold_steps + periods * state.period, cold_steps=cold_steps, warm_up=warm_up)


def precision(medians: Sequence[float]) -> float:
    """Return the relative half-width of the 90 % interval of the mean of block medians.

    Neighboring blocks are alike, so the error comes from the means of up to 8 batches of consecutive blocks.
    """
    batches = np.array_split(np.log(medians), min(BATCHES, len(medians) // 2))
    means = [float(batch.mean()) for batch in batches]
    return STUDENT_95[len(means) - 1] * float(np.std(means, ddof=1)) / math.sqrt(len(means))


def was_disturbed(grown: Mapping[str, float], *, cores: int, shares_cores: bool) -> bool:
    """Return whether other work took the core from a rank during a block, from how much its telemetry counters grew.

    `shares_cores`: the ranks have fewer cores than they need, so that they wait for each other. A counter that is not
    available is NaN, and no sign of a disturbance.
    """
    limit_s = DISTURBED * grown["at_s"]
    delayed = grown["process_delay_s"] > limit_s and not shares_cores
    return delayed or grown["host_stolen_s"] / cores > limit_s
