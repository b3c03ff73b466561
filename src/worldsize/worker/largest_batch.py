"""The search for the largest batch. Each rank rehearses a batch alone; if it fits on all, it is timed like a probe.

A rank that runs out of memory inside an exchange would leave the others waiting. So the rehearsal exchanges nothing: it
is forward and backward of the bare model. Afterward, one flag per rank decides whether to go on.

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
"""The search ends at a gap below this fraction of the batch. A throughput gain below this fraction does not count."""


def next_batch(tries: Sequence[Try], spec: LargestSpec, room: int) -> int | None:
    """Return the next batch to try, or None if the search is over. `room` is the largest that the data can fill."""
    limit = min(room, spec.max or room)
    fitting = [attempt for attempt in tries if attempt.outcome == "finished"]
    largest = max((attempt.batch_per_worker for attempt in fitting), default=LEAST - 1)
    too_large = min((attempt.batch_per_worker for attempt in tries if attempt.outcome == "out_of_memory"), default=None)
    if too_large is not None:
        # The gap is at least one sample: below a batch of 20, that is more than 5 %.
        return (largest + too_large) // 2 if too_large - largest > max(1.0, CLOSE * largest) else None
    if not tries:
        return min(spec.first, limit)
    if largest >= limit or (spec.stop_early and no_longer_rises(fitting)):
        return None
    return min(2 * largest, limit)


def no_longer_rises(tries: Sequence[Try]) -> bool:
    """Whether the last two tries gain less than 5 % over the best before them. A single slow try can be a hiccup."""
    rates = [attempt.samples_per_s or 0.0 for attempt in tries]
    return len(rates) > 2 and max(rates[-2:]) < (1 + CLOSE) * max(rates[:-2])


FIRST_STEPS = 2
"""Steps with a small batch: the first creates the optimizer state, the second the final gradient buckets."""
WARMUP_STEPS = 2
"""Warm-up steps of each try, after its rehearsal."""
MIN_GPU_S = 1.0
"""Minimum duration of a try on a GPU, because the GPU's utilization meter averages over about this long."""
RESERVED_BYTES = 8 * 1024**2
MAX_RESERVED_BYTES = 64 * 1024**2


def search(trainer: Trainer, spec: ProbeSpec, largest: LargestSpec) -> Result:
    """Try batches until the largest that fits is known. Rank 0 chooses the next one."""
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
    """Try the batch of `trainer.trial`. Time it only if it fits on all ranks."""
    team, size = trainer.team, trainer.trial.batch_per_worker
    trainer.phases.enter("preparation")
    trainer.journal.say("trying", batch_per_worker=size)
    trainer.clock = step_clock_for(team.device)
    free_memory(team.device)
    reset_peak(team.device)
    fits = _rehearse(trainer)
    # Free memory only now, when no exception or stack frame of the rehearsal holds tensors anymore.
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
    min_seconds = MIN_GPU_S if team.device.type == "cuda" else 0.0
    step_s, reached = timed_steps(trainer, whole_batches(trainer), spec, WARMUP_STEPS, min_seconds)
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
    """Run forward and backward of the bare model, as in a step. Return False if this rank runs out of memory.

    DistributedDataParallel cannot be used, even without its exchange, because it broadcasts buffers in forward.
    """
    trial, workload, device = trainer.trial, trainer.workload, trainer.team.device
    module, loss_per_sample = trainer.strategy.module, workload.training_loss(None)
    indices = torch.arange(trial.batch_per_worker)
    try:
        reserved = torch.empty(reserved_bytes(trainer), dtype=torch.uint8, device=device)
        for _ in range(2):  # the second includes memory that each step leaves for the next
            if trial.accumulation == 1:
                trainer.strategy.optimizer.zero_grad()
            inputs, targets = batch(workload.train, indices, device)
            inputs = augment(workload.prepare(inputs), workload.augment, trainer.augmentation_rng)
            with trainer.autocast():
                loss = loss_per_sample(module(inputs), targets).mean()
            loss.backward()
        float(loss.detach())  # a GPU runs asynchronously: wait for its errors
        del reserved
    except Exception as error:
        if not is_out_of_memory(error):
            raise
        return False
    return True


def reserved_bytes(trainer: Trainer) -> int:
    """Return the memory that a rehearsal leaves free, for the exchange of a real step and for Python itself."""
    trainable = [parameter for parameter in trainer.strategy.module.parameters() if parameter.requires_grad]
    gradients = sum(parameter.numel() * parameter.element_size() for parameter in trainable)
    return min(MAX_RESERVED_BYTES, RESERVED_BYTES + (2 * gradients if trainer.team.workers > 1 else 0))
