"""Probes: time blocks of steps, in turns with other probes, then measure what exchanging gradients adds to a step."""

from __future__ import annotations

import itertools
import math
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from worldsize.folder.record import BLOCKS
from worldsize.spec.study import ProbeSpec
from worldsize.worker.loop import Result, Trainer, run_steps
from worldsize.worker.measure.step_clock import step_clock_for
from worldsize.worker.measure.telemetry import TurnTelemetry
from worldsize.worker.parallel.shards import Share
from worldsize.worker.turns import Turn, was_disturbed

PROBE_BLOCK_S = 0.25
"""Time between two checks of the precision."""
PROBE_FIRST_STEPS = 5
PROBE_MIN_STEPS = 20
"""With fewer steps, the precision of a median is uncertain. If they take too long, the time limit applies."""
NORMAL_90 = 1.645
EXCHANGED = (1, 0, 0, 1, 1, 0, 0, 1)
"""Blocks with (1) and without (0) the exchange of gradients. In this order, drift affects both kinds alike."""
BLOCK_STEPS = 6
FEW_BLOCK_STEPS = 3
"""Used if the steps are so long that two blocks of the usual length would exceed the probe's time limit."""
DROPPED = 2
"""Marks the first step of a block, which is not used."""


@dataclass(kw_only=True)
class Probing:
    """A probe that takes turns with the other probes of its group, as seen by one rank of its team."""

    trainer: Trainer
    telemetry: TurnTelemetry
    shares: Iterator[Share]
    started_at: float
    phases_s: dict[str, float] = field(default_factory=dict)
    """Seconds spent on this probe, by phase."""
    warmup_steps: int = 0
    blocks: list[tuple[float, ...]] = field(default_factory=list)
    """The measured blocks, with the columns BLOCKS."""

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Assign the time in this context to a phase of the launch and of this probe."""
        self.trainer.phases.enter(name)
        yield
        self.phases_s[name] = self.phases_s.get(name, 0.0) + self.trainer.phases.enter("gaps")

    def run(self, turn: Turn) -> tuple[npt.NDArray[np.float64], bool]:
        """Run a turn. Return the seconds of each step on this rank, and whether other work disturbed any rank."""
        trainer, first_step, at_s = self.trainer, self.trainer.step, time.time()
        with self.phase("warm-up" if turn.warm_up else "training"):
            self.telemetry.begin()
            run_steps(trainer, itertools.islice(self.shares, turn.steps))
            grown = self.telemetry.end()
            step_s = trainer.clock.seconds(first_step)
            cores, needed = os.cpu_count() or 1, trainer.team.workers * trainer.trial.threads_per_worker
            flag = was_disturbed(grown, cores=cores, shares_cores=needed > cores)
            (disturbed,) = trainer.team.max([float(flag)])
        if turn.warm_up:
            self.warmup_steps += turn.steps
        else:
            self.blocks.append((first_step, turn.steps, turn.cold_steps, at_s, disturbed))
        return step_s, bool(disturbed)

    def result(self, *, precision_reached: bool | None) -> Result:
        """Measure what the exchange of gradients adds to the steps, and return the result of the probe."""
        spec = self.trainer.trial.probe
        assert spec is not None
        with self.phase("exchange"):
            self.telemetry.begin()
            median_s = float(np.median(self.trainer.clock.seconds(self.warmup_steps)))
            exposed = exchange_blocks(self.trainer, self.shares, median_s, spec.max_seconds)
            self.telemetry.end()
        return Result(
            precision_reached=precision_reached,
            warmup_steps=self.warmup_steps,
            blocks=np.array(self.blocks, dtype=np.float64).reshape(-1, len(BLOCKS)),
            exposed=exposed,
        )


def whole_batches(trainer: Trainer) -> Iterator[Share]:
    """Return the full batches of endless epochs. With large batches, every second batch might be a partial one."""
    for epoch in itertools.count():
        yield from (share for share in trainer.shares(epoch) if share.total == trainer.trial.global_batch)


def timed_steps(
    trainer: Trainer, shares: Iterator[Share], spec: ProbeSpec, warmup_steps: int, min_seconds: float = 0.0
) -> tuple[npt.NDArray[np.float64], bool]:
    """Run as many steps as the precision of their median requires, within the time limit. Rank 0 decides for all.

    Return the seconds of each step after the warm-up, and whether the precision was reached. The clock must be new.
    """
    trainer.phases.enter("warm-up")
    run_steps(trainer, itertools.islice(shares, warmup_steps))
    trainer.phases.enter("training")
    steps, reached = PROBE_FIRST_STEPS, False
    while steps := trainer.team.from_first(steps):
        run_steps(trainer, itertools.islice(shares, steps))
        step_s = trainer.clock.seconds()[warmup_steps:]
        means = block_means(step_s, trainer.trial.strategy.period)
        reached = len(means) >= PROBE_MIN_STEPS and median_precision(means) <= spec.tolerance
        so_far_s, median_s = float(step_s.sum()), float(np.median(step_s))
        block = max(PROBE_FIRST_STEPS, round(PROBE_BLOCK_S / median_s))
        left = math.ceil((spec.max_seconds - so_far_s) / median_s)
        steps = 0 if (reached and so_far_s >= min_seconds) or left <= 0 else min(block, left)
    return step_s, reached


def exchange_blocks(
    trainer: Trainer, shares: Iterator[Share], step_s: float, max_seconds: float
) -> npt.NDArray[np.uint32] | None:
    """Time steps with and without the exchange of gradients, in alternating blocks.

    Return rows of (1 or 0, duration in 0.1 us), or None if the strategy cannot skip the exchange. A barrier before each
    step, outside the clock, keeps the skew of ranks in one step out of the next. The first step of a block is dropped:
    DDP broadcasts batch-norm buffers in the first forward after a step that exchanged.
    """
    if not trainer.strategy.can_skip_exchange:
        return None
    block_count = len(EXCHANGED) if step_s * len(EXCHANGED) * BLOCK_STEPS <= max_seconds else 2
    blocks = EXCHANGED[: trainer.team.from_first(block_count)]
    long_blocks_fit = step_s * len(blocks) * BLOCK_STEPS <= max_seconds
    length = trainer.team.from_first(BLOCK_STEPS if long_blocks_fit else FEW_BLOCK_STEPS)
    state = (trainer.clock, trainer.losses, trainer.step, trainer.samples, trainer.lr)
    trainer.clock, trainer.losses = step_clock_for(trainer.team.device), []
    trainer.lr = lambda _: 0.0  # without the exchange, ranks would learn different models
    trainer.strategy.watch_exchange()
    kinds: list[int] = []
    for exchanged in blocks:
        for number in range(length):
            trainer.team.barrier()
            run_steps(trainer, itertools.islice(shares, 1), exchange=bool(exchanged))
            kinds.append(exchanged if number else DROPPED)
    times = trainer.clock.spans().sum(axis=1)
    trainer.clock, trainer.losses, trainer.step, trainer.samples, trainer.lr = state
    rows = np.stack([np.array(kinds), times], axis=1)
    return rows[rows[:, 0] != DROPPED].astype(np.uint32)


def block_means(step_s: npt.NDArray[np.float64], period: int) -> npt.NDArray[np.float64]:
    """Return means of `period` steps in a row: if only every period-th step exchanges, single steps are not typical."""
    used = len(step_s) // period * period
    return np.asarray(step_s[:used].reshape(-1, period).mean(axis=1))


def median_precision(step_s: npt.NDArray[np.float64]) -> float:
    """Return the relative half-width of the 90 % interval of the median, from ranks n/2 -+ 1.645 sqrt(n)/2."""
    ordered, n = np.sort(step_s), len(step_s)
    half_width = NORMAL_90 * n**0.5 / 2
    low, high = ordered[max(0, int(n / 2 - half_width))], ordered[min(n - 1, int(n / 2 + half_width))]
    return float((high - low) / 2 / np.median(ordered))
