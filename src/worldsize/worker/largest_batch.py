"""The search for the largest batch: every try is rehearsed on each rank alone, agreed on, and measured as a probe is.

A rank that runs out of memory inside an exchange leaves the others waiting. So what may fail is done where nobody
waits: forward and backward of the bare model, with nothing exchanged. A flag a rank then tells all whether to go on.

What is tried next is a pure function of what was tried: batches double until one does not fit, then the gap between the
largest that fits and the smallest that does not is halved until it is 5 % of the batch.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch

from worldsize.folder.record import Try
from worldsize.spec.study import LEAST, LargestSpec, ProbeSpec
from worldsize.worker.augment import augment
from worldsize.worker.loop import Course, Result, run_steps
from worldsize.worker.measure.memory import free_memory, is_out_of_memory, peak_bytes, reset_peak
from worldsize.worker.measure.step_clock import laps_for
from worldsize.worker.probe import timed_steps, whole_batches
from worldsize.worker.workloads.base import batch

CLOSE = 0.05
"""A gap of this share of the batch is closed enough; throughput within this share of the best is as good."""


def next_batch(tries: Sequence[Try], spec: LargestSpec, room: int) -> int | None:
    """None: the search is over. `room` is the largest batch a worker that the data have samples for."""
    top = min(room, spec.most or room)
    fitting = [each for each in tries if each.outcome == "finished"]
    largest = max((each.batch_per_worker for each in fitting), default=LEAST - 1)
    too_large = min((each.batch_per_worker for each in tries if each.outcome == "out_of_memory"), default=None)
    if too_large is not None:
        # The largest is less than what failed by a whole sample at least: below 20 that is more than 5 %.
        return (largest + too_large) // 2 if too_large - largest > max(1.0, CLOSE * largest) else None
    if not tries:
        return min(spec.start, top)
    if largest >= top or (spec.stop_early and no_longer_rises(fitting)):
        return None
    return min(2 * largest, top)


def no_longer_rises(doubled: Sequence[Try]) -> bool:
    """Whether the last two bring less than 5 % over the best before them; one alone may be a hiccup of the machine."""
    paces = [each.samples_per_s or 0.0 for each in doubled]
    return len(paces) > 2 and max(paces[-2:]) < (1 + CLOSE) * max(paces[:-2])


FIRST_STEPS = 2
"""Of a small batch: the first makes the state of the optimiser, the second the final buckets of gradients."""
WARMUP_STEPS = 2
"""Of a try: its rehearsal was the first."""
LEAST_GPU_S = 1.0
"""Of a try on a GPU: its own meter of how busy it is looks back that far."""
HELD_BACK = 8 * 1024**2
MOST_HELD_BACK = 64 * 1024**2


def search(course: Course, spec: ProbeSpec, largest: LargestSpec) -> Result:
    """Tries batches until the largest that fits is known. Rank 0 says which is next."""
    trial, team = course.trial, course.team
    room = len(course.workload.train) // (trial.workers * trial.accumulation)
    course.journal.say("start", seconds=spec.max_seconds)
    course.phases.enter("warm-up")
    course.trial = trial.model_copy(update={"batch_per_worker": LEAST})
    run_steps(course, itertools.islice(whole_batches(course), FIRST_STEPS))
    course.losses = []
    tries: list[Try] = []
    spans: dict[int, npt.NDArray[np.uint32]] = {}
    while size := team.from_first(next_batch(tries, largest, room) or 0):
        course.trial = trial.model_copy(update={"batch_per_worker": size})
        tries.append(_tried(course, spec))
        if tries[-1].outcome == "finished":
            spans[size] = course.laps.spans()
        course.journal.say("try", **tries[-1].model_dump(mode="json"))
    course.trial = trial
    course.phases.enter("gaps")
    fits = any(each.outcome == "finished" for each in tries)
    return Result(outcome="finished" if fits else "out_of_memory", tries=tuple(tries), spans_of_tries=spans)


def _tried(course: Course, spec: ProbeSpec) -> Try:
    """The batch of `course.trial`, on all ranks or on none."""
    team, size = course.team, course.trial.batch_per_worker
    course.phases.enter("preparation")
    course.journal.say("trying", batch_per_worker=size)
    course.laps = laps_for(team.device)
    free_memory(team.device)
    reset_peak(team.device)
    fits = _rehearsed(course)
    # Here, where neither an error nor a frame of the rehearsal holds on to anything.
    course.strategy.optimizer.zero_grad()
    peak = peak_bytes(team.device)
    free_memory(team.device)
    flags = team.max([float(not fits and rank == team.rank) for rank in range(team.workers)])
    if any(flags):
        (memory,) = team.max([peak])
        ranks = tuple(rank for rank, flag in enumerate(flags) if flag)
        return Try(batch_per_worker=size, outcome="out_of_memory", ranks=ranks, memory_bytes=memory)
    reset_peak(team.device)
    timed_from = time.time()
    least_s = LEAST_GPU_S if team.device.type == "cuda" else 0.0
    step_s, reached = timed_steps(course, whole_batches(course), spec, WARMUP_STEPS, least_s)
    (memory,) = team.max([peak_bytes(team.device)])
    return Try(
        batch_per_worker=size,
        outcome="finished",
        samples_per_s=course.trial.global_batch / float(np.median(step_s)),
        precision_reached=reached,
        memory_bytes=memory,
        timed_from=timed_from,
        timed_until=time.time(),
        warmup_steps=WARMUP_STEPS,
    )


def _rehearsed(course: Course) -> bool:
    """Forward and backward of the bare model, as a step has them. False: this rank is out of memory.

    Not through DistributedDataParallel, even without its exchange: it broadcasts buffers in forward.
    """
    trial, workload, device = course.trial, course.workload, course.team.device
    module, loss_of_each = course.strategy.module, workload.training_loss(None)
    indices = torch.arange(trial.batch_per_worker)
    try:
        held = torch.empty(held_back(course), dtype=torch.uint8, device=device)
        for _ in range(2):  # the second finds what a step finds of the one before
            if trial.accumulation == 1:
                course.strategy.optimizer.zero_grad()
            inputs, targets = batch(workload.train, indices, device)
            inputs = augment(workload.prepare(inputs), workload.augment, course.draws)
            with course.autocast():
                loss = loss_of_each(module(inputs), targets).mean()
            loss.backward()
        float(loss.detach())  # a GPU works ahead: what it has to say, it says by now
        del held
    except Exception as error:
        if not is_out_of_memory(error):
            raise
        return False
    return True


def held_back(course: Course) -> int:
    """Bytes that a rehearsal leaves free: what the exchange of a real step takes for itself, and Python's own needs."""
    learning = [parameter for parameter in course.strategy.module.parameters() if parameter.requires_grad]
    gradients = sum(parameter.numel() * parameter.element_size() for parameter in learning)
    return min(MOST_HELD_BACK, HELD_BACK + (2 * gradients if course.team.workers > 1 else 0))
