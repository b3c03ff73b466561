"""The training loop. One for every workload, strategy and device, readable from top to bottom.

`run_steps` is the loop; `train` calls it epoch by epoch, evaluates in between and asks `ending` whether that is enough;
`probe` calls it until the median step time is known well enough; `worker/largest_batch.py` does so with batch after
batch. Times are taken by `laps` (every step, every rank) and `phases` (above the step).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from worldsize.folder.record import Epoch, Outcome, Try
from worldsize.spec.study import TrialSpec
from worldsize.spec.training import steps_per_epoch
from worldsize.worker.augment import augment, generator_for
from worldsize.worker.ending import OUTCOMES, Ending, diverged_at
from worldsize.worker.journal import Journal
from worldsize.worker.measure.step_clock import COMMUNICATION, COPY, DATA, FORWARD, OPTIMIZER, REST, CpuLaps, Phases
from worldsize.worker.models.transfer import unfreeze
from worldsize.worker.parallel.gradient_noise import NoiseMeter
from worldsize.worker.parallel.shards import Share, epoch_shares, evaluation_share, micro_batches
from worldsize.worker.parallel.strategy import Strategy
from worldsize.worker.parallel.team import Team
from worldsize.worker.workloads.base import Data, Workload, batch

SEGMENT_STEPS = 100
"""So many steps run without the ranks talking about anything but gradients; then losses are pooled and looked at."""
EVALUATION_BATCH = 500
"""At most; and at most four training batches, which take about as much memory without gradients as one with."""


@dataclass(kw_only=True)
class Course:
    """Everything one trial trains with, on one rank."""

    trial: TrialSpec
    workload: Workload
    team: Team
    strategy: Strategy
    """The model as ranks train it together, and its optimiser."""
    rate: Callable[[int], float]
    ending: Ending
    laps: CpuLaps
    phases: Phases
    journal: Journal
    draws: torch.Generator
    """Of augmentation: a stream of its own for every rank and epoch."""
    losses: list[npt.NDArray[np.float32]] = field(default_factory=list)
    """Of every step, pooled over ranks."""
    noise: NoiseMeter = field(default_factory=NoiseMeter)
    step: int = 0
    samples: int = 0

    def autocast(self) -> AbstractContextManager[object]:
        enabled = self.trial.precision == "bf16"
        return torch.autocast(self.team.device.type, dtype=torch.bfloat16, enabled=enabled)

    def shares(self, epoch: int) -> Iterator[Share]:
        trial, team = self.trial, self.team
        self.draws = generator_for(trial.seed, team.rank, epoch)
        batch = trial.batch_per_worker * trial.accumulation
        return epoch_shares(len(self.workload.train), team.workers, team.rank, batch, trial.seed, epoch)


@dataclass(frozen=True, kw_only=True)
class Result:
    outcome: Outcome = "finished"
    epochs: tuple[Epoch, ...] = ()
    diverged_at_step: int | None = None
    precision_reached: bool | None = None
    warmup_steps: int = 0
    exposed: npt.NDArray[np.uint32] | None = None
    """Of a probe of several workers: steps with and without the exchange of gradients."""
    tries: tuple[Try, ...] = ()
    """Of a search for the largest batch."""
    spans_of_tries: dict[int, npt.NDArray[np.uint32]] = field(default_factory=dict)
    """Of those that fit, by batch a worker."""


def run_steps(course: Course, shares: Iterable[Share], *, alone: bool = False) -> npt.NDArray[np.float32]:
    """One step a share. Returns the loss of each step: the mean over the samples of its global batch.

    `alone` leaves out the exchange of gradients, which tells what it costs; ranks must then not move (rate 0).
    """
    trial, workload, team = course.trial, course.workload, course.team
    strategy, laps = course.strategy, course.laps
    loss_of_each = workload.training_loss(trial.train)
    clip_norm = trial.train.clip_norm if trial.train else None
    losses: list[Tensor] = []
    strategy.when_ready(laps.ready)
    laps.start()
    for share in shares:
        for group in strategy.optimizer.param_groups:
            group["lr"] = course.rate(course.step)
        parts = micro_batches(share, trial.batch_per_worker, team.workers)
        step_loss = []
        laps.mark(REST)
        for part in parts:
            taken = workload.train.take(torch.from_numpy(part.indices))
            laps.mark(DATA)
            inputs, targets = workload.train.place(taken, team.device)
            laps.mark(COPY)
            inputs = augment(workload.prepare(inputs), workload.augment, course.draws)
            with strategy.exchange(last=part is parts[-1] and not alone):
                with course.autocast():
                    of_each = loss_of_each(strategy.model(inputs), targets)
                # Gradients are averaged over ranks. Scaled so, that average is the mean over the global batch, also for
                # a partial one whose ranks hold unequal shares; a rank with a borrowed sample adds exactly nothing.
                loss = of_each.sum() * (team.workers / part.total if part.own else 0.0)
                laps.mark(FORWARD)
                loss.backward()
                laps.mark_backward()
            course.noise.part_done(part)
            step_loss.append(loss.detach())
        course.noise.step_done(share)
        if clip_norm is not None:
            strategy.clip(clip_norm)
        strategy.optimizer.step()
        strategy.optimizer.zero_grad()
        laps.mark(OPTIMIZER)
        if strategy.after_step(course.step + 1):
            laps.mark(COMMUNICATION)
        losses.append(sum(step_loss[1:], start=step_loss[0]))
        laps.lap()
        course.step += 1
        course.samples += share.total
        course.journal.step(course.step, trial.global_batch)
    course.noise.read_out()
    pooled = team.sum(torch.stack(losses).float()) / team.workers
    course.losses.append(pooled.cpu().numpy())
    return course.losses[-1]


def train(course: Course) -> Result:
    """Epochs of steps, each followed by an evaluation; ends early when the loss explodes, or `ending` says so."""
    assert course.trial.train is not None
    samples = len(course.workload.train)
    steps_left = course.trial.train.total_steps(samples, course.trial.global_batch)
    warmup_steps = min(course.strategy.warmup_steps, steps_left // 2)
    epochs: list[Epoch] = []
    course.journal.say("start", steps=steps_left, steps_per_epoch=steps_per_epoch(samples, course.trial.global_batch))
    while steps_left:
        course.phases.enter("training")
        if epochs and len(epochs) == course.trial.workload.unfreeze_epoch:
            unfreeze(course.strategy.module)
            course.strategy.rewrap()  # gradients of more parameters must be averaged now
        shares = course.shares(len(epochs))
        losses: list[npt.NDArray[np.float32]] = []
        before = course.samples
        while segment := list(itertools.islice(shares, min(SEGMENT_STEPS, steps_left))):
            losses.append(run_steps(course, segment))
            steps_left -= len(segment)
            if (step := diverged_at(np.concatenate(course.losses))) is not None:
                return Result(
                    outcome="diverged", epochs=tuple(epochs), diverged_at_step=step, warmup_steps=warmup_steps
                )
        train_s = course.phases.enter("evaluation")
        module = course.strategy.whole()
        metrics, counted = evaluate(course, module, course.workload.test)
        on_training, _ = evaluate(course, module, course.workload.train, most=counted)
        evaluation_s = course.phases.enter("gaps")
        if not metrics:  # the last update blew the model up, and no further step would tell
            return Result(
                outcome="diverged", epochs=tuple(epochs), diverged_at_step=course.step, warmup_steps=warmup_steps
            )
        epochs.append(
            Epoch(
                epoch=len(epochs),
                steps=sum(map(len, losses)),
                samples=course.samples - before,
                train_loss=_mean_loss(np.concatenate(losses), course.samples - before, course.trial.global_batch),
                test=metrics,
                train=on_training,
                test_samples=counted,
                train_s=train_s,
                evaluation_s=evaluation_s,
            )
        )
        course.journal.say("epoch", **epochs[-1].model_dump(mode="json"))
        # Rank 0 decides for all: a decision taken twice could be two decisions.
        outcome = OUTCOMES[course.team.from_first(OUTCOMES.index(course.ending.after(epochs)))]
        if outcome is not None:
            return Result(outcome=outcome, epochs=tuple(epochs), warmup_steps=warmup_steps)
    return Result(epochs=tuple(epochs), warmup_steps=warmup_steps)


@torch.no_grad()
def evaluate(course: Course, module: nn.Module, data: Data, most: int | None = None) -> tuple[dict[str, float], int]:
    """Loss and metrics on the data, or on `most` samples spread evenly over it; each is counted once, on one rank."""
    workload, team = course.workload, course.team
    of_each = {"loss": workload.loss, **workload.measures}
    sums = torch.zeros(len(of_each) + 1, dtype=torch.float64, device=team.device)
    wanted = min(most or len(data), len(data))
    places = evaluation_share(wanted, team.workers, team.rank) * len(data) // wanted
    module.eval()
    for indices in torch.from_numpy(places).split(min(EVALUATION_BATCH, 4 * course.trial.batch_per_worker)):
        course.journal.alive("evaluation")
        inputs, targets = batch(data, indices, team.device)
        with course.autocast():
            outputs = module(workload.prepare(inputs)).float()
        values = [measure(outputs, targets).double().sum() for measure in of_each.values()]
        sums += torch.stack([*values, sums.new_tensor(len(indices))])
    module.train()
    *totals, counted = team.sum(sums).tolist()
    if counted != wanted:
        raise RuntimeError(f"evaluation counted {counted:.0f} samples of {wanted}")
    means = {name: total / counted for name, total in zip(of_each, totals, strict=True)}
    if not all(map(math.isfinite, means.values())):
        return {}, wanted
    return workload.summary(means), wanted


def _mean_loss(losses: npt.NDArray[np.float32], samples: int, global_batch: int) -> float:
    """Mean over samples: the last step of an epoch may have fewer than the others."""
    weights = np.full(len(losses), global_batch, dtype=np.float64)
    weights[-1] = samples - global_batch * (len(losses) - 1)
    return float(np.average(losses, weights=weights))
