"""The search for the largest batch: each rank rehearses a try by itself, all agree, and it is timed like a probe.

A rank that runs out of memory inside an exchange leaves the others waiting. So what may fail is done where nobody
waits: forward and backward of the bare model, with nothing exchanged. One flag per rank then decides whether to go on.

The next try is a pure function of the earlier ones: batches double until one does not fit, then the gap between the
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
from worldsize.worker.loop import Result, Trainer, run_steps
from worldsize.worker.measure.memory import free_memory, is_out_of_memory, peak_bytes, reset_peak
from worldsize.worker.measure.step_clock import step_clock_for
from worldsize.worker.probe import timed_steps, whole_batches
from worldsize.worker.workloads.base import batch

CLOSE = 0.05
"""A gap below this share of the batch ends the search; throughput within this share of the best is as good."""


def next_batch(tries: Sequence[Try], spec: LargestSpec, room: int) -> int | None:
    """None: the search is over. `room` is the largest batch per worker for which the data have enough samples."""
    top = min(room, spec.max or room)
    fitting = [attempt for attempt in tries if attempt.outcome == "finished"]
    largest = max((attempt.batch_per_worker for attempt in fitting), default=LEAST - 1)
    too_large = min((attempt.batch_per_worker for attempt in tries if attempt.outcome == "out_of_memory"), default=None)
    if too_large is not None:
        # The gap is at least one sample: below a batch of 20, that is more than 5 %.
        return (largest + too_large) // 2 if too_large - largest > max(1.0, CLOSE * largest) else None
    if not tries:
        return min(spec.first, top)
    if largest >= top or (spec.stop_early and no_longer_rises(fitting)):
        return None
    return min(2 * largest, top)


def no_longer_rises(doubled: Sequence[Try]) -> bool:
    """Whether the last two gain less than 5 % over the best before them; a single one may be a hiccup."""
    paces = [attempt.samples_per_s or 0.0 for attempt in doubled]
    return len(paces) > 2 and max(paces[-2:]) < (1 + CLOSE) * max(paces[:-2])


FIRST_STEPS = 2
"""Steps with a small batch: the first creates the optimizer state, the second the final gradient buckets."""
WARMUP_STEPS = 2
"""Per try, after its rehearsal."""
LEAST_GPU_S = 1.0
"""Shortest try on a GPU: the GPU's own utilization meter looks back that far."""
RESERVED_BYTES = 8 * 1024**2
MOST_RESERVED_BYTES = 64 * 1024**2


def search(trainer: Trainer, spec: ProbeSpec, largest: LargestSpec) -> Result:
    """Tries batches until the largest that fits is known. Rank 0 chooses the next one."""
    trial, team = trainer.trial, trainer.team
    room = len(trainer.workload.train) // (trial.workers * trial.accumulation)
    trainer.journal.say("start", seconds=spec.max_seconds)
    trainer.phases.enter("warm-up")
    trainer.trial = trial.model_copy(update={"batch_per_worker": LEAST})
    run_steps(trainer, itertools.islice(whole_batches(trainer), FIRST_STEPS))
    trainer.losses = []
    tries: list[Try] = []
    spans: dict[int, npt.NDArray[np.uint32]] = {}
    while size := team.from_first(next_batch(tries, largest, room) or 0):
        trainer.trial = trial.model_copy(update={"batch_per_worker": size})
        tries.append(_try_batch(trainer, spec))
        if tries[-1].outcome == "finished":
            spans[size] = trainer.clock.spans()
        trainer.journal.say("try", **tries[-1].model_dump(mode="json"))
    trainer.trial = trial
    trainer.phases.enter("gaps")
    fits = any(attempt.outcome == "finished" for attempt in tries)
    return Result(outcome="finished" if fits else "out_of_memory", tries=tuple(tries), spans_of_tries=spans)


def _try_batch(trainer: Trainer, spec: ProbeSpec) -> Try:
    """Tries the batch of `trainer.trial`, on all ranks or on none."""
    team, size = trainer.team, trainer.trial.batch_per_worker
    trainer.phases.enter("preparation")
    trainer.journal.say("trying", batch_per_worker=size)
    trainer.clock = step_clock_for(team.device)
    free_memory(team.device)
    reset_peak(team.device)
    fits = _rehearse(trainer)
    # Only now: neither an error nor a frame of the rehearsal still holds on to anything.
    trainer.strategy.optimizer.zero_grad()
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
    step_s, reached = timed_steps(trainer, whole_batches(trainer), spec, WARMUP_STEPS, least_s)
    (memory,) = team.max([peak_bytes(team.device)])
    return Try(
        batch_per_worker=size,
        outcome="finished",
        samples_per_s=trainer.trial.global_batch / float(np.median(step_s)),
        precision_reached=reached,
        memory_bytes=memory,
        timed_from=timed_from,
        timed_until=time.time(),
        warmup_steps=WARMUP_STEPS,
    )


def _rehearse(trainer: Trainer) -> bool:
    """Forward and backward of the bare model, as in a step. False: this rank ran out of memory.

    Not through DistributedDataParallel, even without its exchange: it broadcasts buffers in forward.
    """
    trial, workload, device = trainer.trial, trainer.workload, trainer.team.device
    module, loss_per_sample = trainer.strategy.module, workload.training_loss(None)
    indices = torch.arange(trial.batch_per_worker)
    try:
        reserved = torch.empty(reserved_bytes(trainer), dtype=torch.uint8, device=device)
        for _ in range(2):  # the second finds what the step before leaves to every step
            if trial.accumulation == 1:
                trainer.strategy.optimizer.zero_grad()
            inputs, targets = batch(workload.train, indices, device)
            inputs = augment(workload.prepare(inputs), workload.augment, trainer.augmentation_rng)
            with trainer.autocast():
                loss = loss_per_sample(module(inputs), targets).mean()
            loss.backward()
        float(loss.detach())  # a GPU runs behind the program: this waits for its errors
        del reserved
    except Exception as error:
        if not is_out_of_memory(error):
            raise
        return False
    return True


def reserved_bytes(trainer: Trainer) -> int:
    """Memory that a rehearsal leaves free, for the exchange of a real step and for Python itself."""
    learning = [parameter for parameter in trainer.strategy.module.parameters() if parameter.requires_grad]
    gradients = sum(parameter.numel() * parameter.element_size() for parameter in learning)
    return min(MOST_RESERVED_BYTES, RESERVED_BYTES + (2 * gradients if trainer.team.workers > 1 else 0))
