"""Probes: time steps until their median is precise enough, then measure what exchanging gradients adds to them."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from worldsize.spec.study import ProbeSpec
from worldsize.worker.loop import Result, Trainer, run_steps
from worldsize.worker.measure.step_clock import step_clock_for
from worldsize.worker.parallel.shards import Share

PROBE_BLOCK_S = 0.25
"""Time between two checks of the precision."""
PROBE_FIRST_STEPS = 5
PROBE_MIN_STEPS = 20
"""With fewer steps, the precision of a median is uncertain. If they take too long, the time limit applies."""
NORMAL_90 = 1.645
BLOCKS = (1, 0, 0, 1, 1, 0, 0, 1)
"""Blocks with (1) and without (0) the exchange of gradients. In this order, drift affects both kinds alike."""
BLOCK_STEPS = 6
FEW_BLOCK_STEPS = 3
"""Used if the steps are so long that two blocks of the usual length would exceed the probe's time limit."""
DROPPED = 2
"""Marks the first step of a block, which is not used."""


def probe(trainer: Trainer, spec: ProbeSpec) -> Result:
    """Time steps, then measure what exchanging gradients adds to them."""
    shares = whole_batches(trainer)
    trainer.journal.say("start", seconds=spec.max_seconds)
    step_s, reached = timed_steps(trainer, shares, spec, spec.warmup_steps)
    trainer.phases.enter("exchange")
    exposed = exchange_blocks(trainer, shares, float(np.median(step_s)), spec.max_seconds)
    trainer.phases.enter("gaps")
    return Result(precision_reached=reached, warmup_steps=spec.warmup_steps, exposed=exposed)


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
    block_count = len(BLOCKS) if step_s * len(BLOCKS) * BLOCK_STEPS <= max_seconds else 2
    blocks = BLOCKS[: trainer.team.from_first(block_count)]
    long_blocks_fit = step_s * len(blocks) * BLOCK_STEPS <= max_seconds
    length = trainer.team.from_first(BLOCK_STEPS if long_blocks_fit else FEW_BLOCK_STEPS)
    state = (trainer.clock, trainer.losses, trainer.step, trainer.samples)
    trainer.clock, trainer.losses = step_clock_for(trainer.team.device), []
    trainer.strategy.watch_exchange()
    kinds: list[int] = []
    for exchanged in blocks:
        for number in range(length):
            trainer.team.barrier()
            run_steps(trainer, itertools.islice(shares, 1), exchange=bool(exchanged))
            kinds.append(exchanged if number else DROPPED)
    times = trainer.clock.spans().sum(axis=1)
    trainer.clock, trainer.losses, trainer.step, trainer.samples = state
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
