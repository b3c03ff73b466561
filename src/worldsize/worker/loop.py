"""The training loop, the same for every workload, strategy and device. It can be read from top to bottom.

`run_steps` is the loop. `train` calls it epoch by epoch, evaluates in between and asks `ending` whether to stop.
`worker/probe.py` calls it for short blocks of steps, and `worker/largest_batch.py` for one batch size after another.
`clock` times every step of every rank; `phases` times everything above the step.
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
from worldsize.worker.measure.step_clock import (
    COMMUNICATION,
    COPY,
    DATA,
    FORWARD,
    OPTIMIZER,
    REST,
    CpuStepClock,
    Phases,
)
from worldsize.worker.models.transfer import unfreeze
from worldsize.worker.parallel.gradient_noise import NoiseMeter
from worldsize.worker.parallel.shards import Share, epoch_shares, evaluation_share, split_into_micro_batches
from worldsize.worker.parallel.strategy import Strategy
from worldsize.worker.parallel.team import Team
from worldsize.worker.workloads.base import Data, Workload, batch

SEGMENT_STEPS = 100
"""Number of steps between loss checks; ranks exchange only gradients in between."""
EVALUATION_BATCH = 500
"""Maximum batch in evaluation. The other limit is four training batches: without gradients, they take about as much
memory as one batch with gradients."""


@dataclass(kw_only=True)
class Trainer:
    """Everything that one rank needs to train one trial."""

    trial: TrialSpec
    workload: Workload
    team: Team
    strategy: Strategy
    """The model, wrapped for training on several ranks, and its optimizer."""
    lr: Callable[[int], float]
    ending: Ending
    clock: CpuStepClock
    phases: Phases
    journal: Journal
    augmentation_rng: torch.Generator
    """A separate random stream for each rank and epoch."""
    losses: list[npt.NDArray[np.float32]] = field(default_factory=list)
    """Loss of every step, averaged over ranks; one array per call of `run_steps`."""
    noise: NoiseMeter = field(default_factory=NoiseMeter)
    step: int = 0
    samples: int = 0
    left_out: tuple[str, ...] = ()
    """Pretrained weights that were not loaded, and why."""

    def autocast(self) -> AbstractContextManager[object]:
        enabled = self.trial.precision == "bf16"
        return torch.autocast(self.team.device.type, dtype=torch.bfloat16, enabled=enabled)

    def shares(self, epoch: int) -> Iterator[Share]:
        trial, team = self.trial, self.team
        self.augmentation_rng = generator_for(trial.seed, team.rank, epoch)
        batch = trial.batch_per_worker * trial.accumulation
        return epoch_shares(len(self.workload.train), team.workers, team.rank, batch, trial.seed, epoch)


@dataclass(frozen=True, kw_only=True)
class Result:
    outcome: Outcome = "finished"
    epochs: tuple[Epoch, ...] = ()
    diverged_at_step: int | None = None
    precision_reached: bool | None = None
    warmup_steps: int = 0
    blocks: npt.NDArray[np.float64] | None = None
    """The measured blocks of a probe, with the columns BLOCKS."""
    exposed: npt.NDArray[np.uint32] | None = None
    """Steps with and without the exchange of gradients, from a probe with several workers."""
    tries: tuple[Try, ...] = ()
    """The tries of a search for the largest batch."""
    spans_of_tries: dict[int, npt.NDArray[np.uint32]] = field(default_factory=dict)
    """Spans of the tries that fit, by batch per worker."""


def run_steps(trainer: Trainer, shares: Iterable[Share], *, exchange: bool = True) -> npt.NDArray[np.float32]:
    """Run one step per share. Return the loss of each step: the mean over the samples of its global batch.

    `exchange=False` skips the exchange of gradients, to measure its cost. Only probes use it, at a learning rate of 0,
    so the models of all ranks stay equal.
    """
    trial, workload, team = trainer.trial, trainer.workload, trainer.team
    strategy, clock = trainer.strategy, trainer.clock
    loss_per_sample = workload.training_loss(trial.train)
    clip_norm = trial.train.clip_norm if trial.train else None
    losses: list[Tensor] = []
    strategy.on_last_gradient(clock.ready)
    clock.start()
    for share in shares:
        for group in strategy.optimizer.param_groups:
            group["lr"] = trainer.lr(trainer.step)
        micro_batches = split_into_micro_batches(share, trial.batch_per_worker, team.workers)
        micro_batch_losses = []
        clock.mark(REST)
        for micro_batch in micro_batches:
            samples = workload.train.take(torch.from_numpy(micro_batch.indices))
            clock.mark(DATA)
            inputs, targets = workload.train.place(samples, team.device)
            clock.mark(COPY)
            inputs = augment(workload.prepare(inputs), workload.augment, trainer.augmentation_rng)
            with strategy.exchange(last=micro_batch is micro_batches[-1] and exchange):
                with trainer.autocast():
                    sample_losses = loss_per_sample(strategy.model(inputs), targets)
                # Gradients are averaged over ranks. With this scale, that average is the mean over the global batch,
                # even if it is partial and ranks hold unequal shares. A rank with a borrowed sample adds exactly zero.
                loss = sample_losses.sum() * (team.workers / micro_batch.total if micro_batch.own else 0.0)
                clock.mark(FORWARD)
                loss.backward()
                clock.mark_backward()
            trainer.noise.micro_batch_done(micro_batch)
            micro_batch_losses.append(loss.detach())
        trainer.noise.step_done(share)
        if clip_norm is not None:
            strategy.clip(clip_norm)
        strategy.optimizer.step()
        strategy.optimizer.zero_grad()
        clock.mark(OPTIMIZER)
        if strategy.after_step(trainer.step + 1):
            clock.mark(COMMUNICATION)
        losses.append(sum(micro_batch_losses[1:], start=micro_batch_losses[0]))
        clock.end_step()
        trainer.step += 1
        trainer.samples += share.total
        trainer.journal.step(trainer.step, trial.global_batch)
    trainer.noise.read_out()
    pooled = team.sum(torch.stack(losses).float()) / team.workers
    trainer.losses.append(pooled.cpu().numpy())
    return trainer.losses[-1]


def train(trainer: Trainer) -> Result:
    """Train epoch by epoch and evaluate after each. End early if the loss explodes or `ending` decides to."""
    assert trainer.trial.train is not None
    samples = len(trainer.workload.train)
    steps_left = trainer.trial.train.total_steps(samples, trainer.trial.global_batch)
    warmup_steps = min(trainer.strategy.warmup_steps, steps_left // 2)
    epochs: list[Epoch] = []
    trainer.journal.say("start", steps=steps_left, steps_per_epoch=steps_per_epoch(samples, trainer.trial.global_batch))
    while steps_left:
        trainer.phases.enter("training")
        if epochs and len(epochs) == trainer.trial.workload.unfreeze_epoch:
            unfreeze(trainer.strategy.module)
            trainer.strategy.rebuild_wrapper()  # gradients of more parameters must be averaged now
        shares = trainer.shares(len(epochs))
        losses: list[npt.NDArray[np.float32]] = []
        samples_before = trainer.samples
        while segment := list(itertools.islice(shares, min(SEGMENT_STEPS, steps_left))):
            losses.append(run_steps(trainer, segment))
            steps_left -= len(segment)
            if (step := diverged_at(np.concatenate(trainer.losses))) is not None:
                return Result(
                    outcome="diverged", epochs=tuple(epochs), diverged_at_step=step, warmup_steps=warmup_steps
                )
        train_s = trainer.phases.enter("evaluation")
        model = trainer.strategy.full_model()
        test_metrics, test_samples = evaluate(trainer, model, trainer.workload.test)
        train_metrics, _ = evaluate(trainer, model, trainer.workload.train, max_samples=test_samples)
        evaluation_s = trainer.phases.enter("gaps")
        if not test_metrics:  # the last update broke the model, and no later step would show it
            return Result(
                outcome="diverged", epochs=tuple(epochs), diverged_at_step=trainer.step, warmup_steps=warmup_steps
            )
        epochs.append(
            Epoch(
                epoch=len(epochs),
                steps=sum(map(len, losses)),
                samples=trainer.samples - samples_before,
                train_loss=_mean_loss(
                    np.concatenate(losses), trainer.samples - samples_before, trainer.trial.global_batch
                ),
                test=test_metrics,
                train=train_metrics,
                test_samples=test_samples,
                train_s=train_s,
                evaluation_s=evaluation_s,
            )
        )
        trainer.journal.say("epoch", **epochs[-1].model_dump(mode="json"))
        # Rank 0 decides for all: two ranks that decide separately could disagree.
        outcome = OUTCOMES[trainer.team.from_first(OUTCOMES.index(trainer.ending.after(epochs)))]
        if outcome is not None:
            return Result(outcome=outcome, epochs=tuple(epochs), warmup_steps=warmup_steps)
    return Result(epochs=tuple(epochs), warmup_steps=warmup_steps)


@torch.no_grad()
def evaluate(
    trainer: Trainer, model: nn.Module, data: Data, max_samples: int | None = None
) -> tuple[dict[str, float], int]:
    """Return loss and metrics ({} if one is not finite), and the number of samples.

    `max_samples` are spread evenly over the data. Each sample counts once, on one rank.
    """
    workload, team = trainer.workload, trainer.team
    measures = {"loss": workload.loss, **workload.measures}
    sums = torch.zeros(len(measures) + 1, dtype=torch.float64, device=team.device)
    count = min(max_samples or len(data), len(data))
    positions = evaluation_share(count, team.workers, team.rank) * len(data) // count
    model.eval()
    for indices in torch.from_numpy(positions).split(min(EVALUATION_BATCH, 4 * trainer.trial.batch_per_worker)):
        trainer.journal.alive("evaluation")
        inputs, targets = batch(data, indices, team.device)
        with trainer.autocast():
            outputs = model(workload.prepare(inputs)).float()
        values = [measure(outputs, targets).double().sum() for measure in measures.values()]
        sums += torch.stack([*values, sums.new_tensor(len(indices))])
    model.train()
    *totals, counted = team.sum(sums).tolist()
    if counted != count:
        raise RuntimeError(f"evaluation counted {counted:.0f} samples instead of {count}")
    means = {name: total / counted for name, total in zip(measures, totals, strict=True)}
    if not all(map(math.isfinite, means.values())):
        return {}, count
    return workload.summary(means), count


def _mean_loss(losses: npt.NDArray[np.float32], samples: int, global_batch: int) -> float:
    """Return the mean over samples. The last step of an epoch may have fewer samples than the others."""
    weights = np.full(len(losses), global_batch, dtype=np.float64)
    weights[-1] = samples - global_batch * (len(losses) - 1)
    return float(np.average(losses, weights=weights))
