"""Probes: steps timed until their median is known well enough, then what exchanging gradients adds to them."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from worldsize.spec.study import ProbeSpec
from worldsize.worker.loop import Course, Result, run_steps
from worldsize.worker.measure.step_clock import laps_for
from worldsize.worker.parallel.shards import Share

PROBE_BLOCK_S = 0.25
PROBE_FIRST_STEPS = 5
PROBE_LEAST_STEPS = 20
"""No fewer tell how well a median is known; where they take too long, the time decides."""
NORMAL_90 = 1.645
BLOCKS = (1, 0, 0, 1, 1, 0, 0, 1)
"""With the exchange of gradients and without: in an order in which drift falls on both alike."""
BLOCK_STEPS = 6
FEW_BLOCK_STEPS = 3
"""Where steps are so long that two blocks of the others would take more than the probe may."""
DROPPED = 2


def probe(course: Course, spec: ProbeSpec) -> Result:
    """Steps, timed; then what exchanging gradients adds to them."""
    stream = whole_batches(course)
    course.journal.say("start", seconds=spec.max_seconds)
    step_s, reached = timed_steps(course, stream, spec, spec.warmup_steps)
    course.phases.enter("exchange")
    exposed = exchange_blocks(course, stream, float(np.median(step_s)), spec.max_seconds)
    course.phases.enter("gaps")
    return Result(precision_reached=reached, warmup_steps=spec.warmup_steps, exposed=exposed)


def whole_batches(course: Course) -> Iterator[Share]:
    """Epoch after epoch, without the smaller batch at the end of each: a large one may be every second."""
    for epoch in itertools.count():
        yield from (share for share in course.shares(epoch) if share.total == course.trial.global_batch)


def timed_steps(
    course: Course, stream: Iterator[Share], spec: ProbeSpec, warmup_steps: int, least_s: float = 0.0
) -> tuple[npt.NDArray[np.float64], bool]:
    """As many steps as the stated precision of their median needs, within the stated time; rank 0 decides for all.

    Returns the seconds of each after the warm-up, and whether the precision was reached. The laps must be new.
    """
    course.phases.enter("warm-up")
    run_steps(course, itertools.islice(stream, warmup_steps))
    course.phases.enter("training")
    steps, reached = PROBE_FIRST_STEPS, False
    while steps := course.team.from_first(steps):
        run_steps(course, itertools.islice(stream, steps))
        step_s = course.laps.seconds()[warmup_steps:]
        means = block_means(step_s, course.trial.strategy.period)
        reached = len(means) >= PROBE_LEAST_STEPS and median_precision(means) <= spec.precision
        so_far_s, one_s = float(step_s.sum()), float(np.median(step_s))
        block = max(PROBE_FIRST_STEPS, round(PROBE_BLOCK_S / one_s))
        left = math.ceil((spec.max_seconds - so_far_s) / one_s)
        steps = 0 if (reached and so_far_s >= least_s) or left <= 0 else min(block, left)
    return step_s, reached


def exchange_blocks(
    course: Course, stream: Iterator[Share], step_s: float, most_s: float
) -> npt.NDArray[np.uint32] | None:
    """Steps with and without the exchange of gradients, in alternating blocks: rows of (exchanged, tenths of us).

    A barrier before each step, outside the clock: the skew of one would land in the next. The first step of a block is
    dropped: DDP broadcasts batch-norm buffers on the first forward after a step that exchanged.
    """
    if not course.strategy.can_train_alone:
        return None
    wanted = len(BLOCKS) if step_s * len(BLOCKS) * BLOCK_STEPS <= most_s else 2
    blocks = BLOCKS[: course.team.from_first(wanted)]
    length = course.team.from_first(BLOCK_STEPS if step_s * len(blocks) * BLOCK_STEPS <= most_s else FEW_BLOCK_STEPS)
    before = (course.laps, course.losses, course.step, course.samples)
    course.laps, course.losses = laps_for(course.team.device), []
    course.strategy.watch_exchange()
    rows: list[int] = []
    for exchanged in blocks:
        for number in range(length):
            course.team.barrier()
            run_steps(course, itertools.islice(stream, 1), alone=not exchanged)
            rows.append(exchanged if number else DROPPED)
    times = course.laps.spans().sum(axis=1)
    course.laps, course.losses, course.step, course.samples = before
    kinds = np.array(rows)
    return np.stack([kinds, times], axis=1)[kinds != DROPPED].astype(np.uint32)


def block_means(step_s: npt.NDArray[np.float64], period: int) -> npt.NDArray[np.float64]:
    """Of `period` steps in a row: where only every period-th one exchanges, single steps do not tell the pace."""
    whole = len(step_s) // period * period
    return np.asarray(step_s[:whole].reshape(-1, period).mean(axis=1))


def median_precision(step_s: npt.NDArray[np.float64]) -> float:
    """Half the 90 % interval of the median, relative, from order statistics: ranks n/2 -+ 1.645 sqrt(n)/2."""
    ordered, n = np.sort(step_s), len(step_s)
    reach = NORMAL_90 * n**0.5 / 2
    low, high = ordered[max(0, int(n / 2 - reach))], ordered[min(n - 1, int(n / 2 + reach))]
    return float((high - low) / 2 / np.median(ordered))
