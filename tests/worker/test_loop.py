"""The loop in one process: what it counts, weights, notices and repeats."""

from __future__ import annotations

from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
import torch
from torch import nn

from worldsize.folder.record import SPANS
from worldsize.spec.optimizer import OptimizerName, OptimizerSpec
from worldsize.spec.study import ProbeSpec, TrialSpec
from worldsize.spec.training import PlateauSpec, TrainSpec, UntilSpec
from worldsize.spec.workload import WorkloadSpec
from worldsize.worker.ending import Ending
from worldsize.worker.journal import Journal
from worldsize.worker.loop import Trainer, evaluate, run_steps, train
from worldsize.worker.measure.step_clock import CpuStepClock, Phases
from worldsize.worker.optimizers import lr_of_step
from worldsize.worker.parallel import make_strategy
from worldsize.worker.parallel.shards import epoch_shares
from worldsize.worker.parallel.team import Team
from worldsize.worker.probe import median_precision, timed_steps, whole_batches
from worldsize.worker.workloads.base import Split, Workload, batch

SAMPLES, TEST_SAMPLES = 103, 37


def squares() -> Workload:
    """y = sum(x) with a linear model: small enough to check by hand."""
    rng = np.random.default_rng(0)

    def split(samples: int) -> Split:
        inputs = torch.from_numpy(rng.normal(size=(samples, 4)).astype(np.float32))
        return Split(inputs=inputs, targets=inputs.sum(1, keepdim=True))

    return Workload(
        train=split(SAMPLES),
        test=split(TEST_SAMPLES),
        build_model=lambda: nn.Linear(4, 1),
        prepare=lambda inputs: inputs,
        loss=lambda outputs, targets: (outputs - targets).square().mean(1),
        measures={"close": lambda outputs, targets: ((outputs - targets).abs() < 0.1).float().squeeze(1)},
    )


def trainer(
    tmp_path: Path,
    *,
    workload: Workload | None = None,
    spec: WorkloadSpec | None = None,
    rate: float = 0.05,
    search_curves: list[list[float]] | None = None,
    **changes: Any,
) -> Trainer:
    fields: dict[str, Any] = {
        "id": "t",
        "kind": "train",
        "workload": spec or WorkloadSpec(name="squares"),
        "workers": 1,
        "batch_per_worker": 10,
        "scaling": "weak",
        "optimizer": OptimizerSpec(lr=rate),
        "strategy": "ddp",
        "precision": "fp32",
        "peak_lr": rate,
        "repeat": 0,
        "seed": 3,
        "threads_per_worker": 1,
        "train": TrainSpec(epochs=2),
        **changes,
    }
    trial = TrialSpec(**fields)
    workload = workload or squares()
    torch.manual_seed(trial.seed)
    model = workload.build_model()
    team = Team(rank=0, workers=1, device=torch.device("cpu"), group=None)
    return Trainer(
        trial=trial,
        workload=workload,
        team=team,
        strategy=make_strategy(trial.strategy, trial.optimizer, model, team),
        ending=Ending(train=trial.train, search_curves=search_curves),
        lr=lr_of_step(trial, len(workload.train)),
        clock=CpuStepClock(),
        phases=Phases("preparation"),
        journal=Journal(tmp_path / "events.jsonl", tmp_path / "stop"),
        augmentation_rng=torch.Generator(),
    )


def test_an_epoch_counts_every_sample_once(tmp_path: Path) -> None:
    here = trainer(tmp_path)
    result = train(here)
    assert [(epoch.steps, epoch.samples, epoch.test_samples) for epoch in result.epochs] == [
        (11, SAMPLES, TEST_SAMPLES)
    ] * 2
    assert here.samples == 2 * SAMPLES
    assert here.clock.spans().shape == (22, len(SPANS))
    assert result.epochs[1].train_loss < result.epochs[0].train_loss  # type: ignore[operator]
    assert result.epochs[1].test["loss"] < result.epochs[0].test["loss"]


def test_steps_may_end_inside_an_epoch(tmp_path: Path) -> None:
    result = train(trainer(tmp_path, train=TrainSpec(steps=15)))
    assert [(epoch.steps, epoch.samples) for epoch in result.epochs] == [(11, SAMPLES), (4, 40)]


def test_the_train_loss_is_the_mean_over_samples(tmp_path: Path) -> None:
    here = trainer(tmp_path, rate=1e-12, train=TrainSpec(epochs=1))
    result = train(here)
    whole = here.workload.loss(here.strategy.module(here.workload.train.inputs), here.workload.train.targets)
    assert result.epochs[0].train_loss == pytest.approx(float(whole.detach().mean()), rel=1e-5)


def test_ranks_with_unequal_shares_average_to_the_global_gradient(tmp_path: Path) -> None:
    """Three ranks, the last global batch has 1 sample: two of them borrow one with weight 0."""
    alone = trainer(tmp_path, rate=1e-12)
    *_, last = epoch_shares(SAMPLES, 3, 0, 17, 5, 0)
    assert last.total == 1
    gradients = []
    for rank in range(3):
        here = trainer(tmp_path, rate=1e-12)
        here.team = Team(rank=rank, workers=3, device=torch.device("cpu"), group=None)
        here.team = _lonely(here.team)
        *_, share = epoch_shares(SAMPLES, 3, rank, 17, 5, 0)
        here.strategy.optimizer.zero_grad = lambda: None  # type: ignore[method-assign,assignment]
        run_steps(here, [share])
        gradients.append(here.strategy.module.weight.grad.clone())  # type: ignore[union-attr]
    inputs, targets = batch(alone.workload.train, torch.from_numpy(last.indices), torch.device("cpu"))
    alone.workload.loss(alone.strategy.module(inputs), targets).mean().backward()
    assert torch.allclose(torch.stack(gradients).mean(0), alone.strategy.module.weight.grad)  # type: ignore[arg-type]


def _lonely(team: Team) -> Team:
    """A team that cannot talk: sums stay on the rank."""
    return type("Lonely", (Team,), {"sum": lambda _, tensor: tensor})(**vars(team))  # type: ignore[no-any-return]


def test_the_same_seed_gives_the_same_losses_and_another_does_not(tmp_path: Path) -> None:
    def losses(seed: int) -> list[float]:
        here = trainer(tmp_path, seed=seed)
        train(here)
        return [float(loss) for loss in np.concatenate(here.losses)]

    assert losses(1) == losses(1) != losses(2)


def test_divergence_names_its_step(tmp_path: Path) -> None:
    here = trainer(tmp_path, rate=1e18, train=TrainSpec(epochs=50))
    result = train(here)
    losses = np.concatenate(here.losses)
    assert result.diverged_at_step is not None
    assert np.isfinite(losses[: result.diverged_at_step]).all()
    assert not np.isfinite(losses[result.diverged_at_step])
    assert here.step <= 100


def test_a_last_update_that_blows_up_is_no_result(tmp_path: Path) -> None:
    """Its own loss was taken before the update; only the evaluation sees what it did."""
    here = trainer(tmp_path, rate=1e30, train=TrainSpec(steps=1))
    result = train(here)
    assert (result.outcome, result.diverged_at_step, result.epochs) == ("diverged", 1, ())


def test_evaluation_counts_and_averages(tmp_path: Path) -> None:
    here = trainer(tmp_path)
    with torch.no_grad():
        here.strategy.module.weight.fill_(1.0)  # type: ignore[union-attr,operator]
        here.strategy.module.bias.zero_()  # type: ignore[union-attr,operator]
    assert evaluate(here, here.strategy.module, here.workload.test) == (
        {"loss": pytest.approx(0, abs=1e-10), "close": 1.0},
        TEST_SAMPLES,
    )
    assert here.strategy.module.training


def timed(here: Trainer) -> bool:
    """Time steps as a search for the largest batch does; return whether their median is precise."""
    assert here.trial.probe is not None
    _, reached = timed_steps(here, whole_batches(here), here.trial.probe, here.trial.probe.warmup_steps)
    return reached


def test_timing_stops_when_the_median_is_known(tmp_path: Path) -> None:
    now = iter(range(0, 10**12, 1_000_000))
    here = trainer(tmp_path, kind="probe", train=None, probe=ProbeSpec(max_seconds=5))
    here.clock = CpuStepClock(lambda: next(now))  # a reading a millisecond, seven a step
    assert timed(here)
    assert here.step == 5 + 5 + 36  # warm-up, five steps, then a block of a quarter of a second


def test_timing_stops_when_its_time_is_up(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    ticks = iter(np.cumsum(rng.lognormal(17, 1.5, 10_000)).astype(int).tolist())  # steps of about 24 ms, wildly uneven
    here = trainer(tmp_path, kind="probe", train=None, probe=ProbeSpec(max_seconds=2, tolerance=0.001))
    here.clock = CpuStepClock(lambda: next(ticks))
    assert not timed(here)
    assert 2 <= here.clock.seconds()[5:].sum() < 5


def test_timing_of_long_steps_takes_no_more_of_them_than_its_time_holds(tmp_path: Path) -> None:
    now = iter(range(0, 10**13, 40_000_000))
    here = trainer(tmp_path, kind="probe", train=None, probe=ProbeSpec(max_seconds=1.5))
    here.clock = CpuStepClock(lambda: next(now))  # a reading every 40 ms, seven a step
    timed(here)
    assert here.step == 5 + 5 + 1  # warm-up, five steps of 0.28 s, and one for the 0.1 s that are left


def test_precision_is_that_of_a_median() -> None:
    rng = np.random.default_rng(1)
    spread = [float(np.median(rng.normal(1, 0.1, 400))) for _ in range(300)]
    said = np.mean([median_precision(rng.normal(1, 0.1, 400)) for _ in range(50)])
    assert said == pytest.approx(1.645 * float(np.std(spread)), rel=0.25)


def test_bf16_is_another_arithmetic(tmp_path: Path) -> None:
    exact, rough = trainer(tmp_path), trainer(tmp_path, precision="bf16")
    train(exact)
    train(rough)
    difference = np.abs(np.concatenate(exact.losses) - np.concatenate(rough.losses))
    assert 0 < difference.max() < 0.1


LR_OF_SQUARES = {"momentum": 0.02, "nesterov": 0.02, "adadelta": 20.0, "lamb": 0.1}


@pytest.mark.parametrize("name", get_args(OptimizerName))
def test_every_optimizer_learns(tmp_path: Path, name: str) -> None:
    rate = LR_OF_SQUARES.get(name, 0.05)
    options = (
        {"trust_coefficient": 0.2} if name == "lars" else {}
    )  # a bias alone takes whole steps, and this model is half one
    optimizer = OptimizerSpec(name=name, lr=rate, **options)  # type: ignore[arg-type]
    epochs = train(trainer(tmp_path, optimizer=optimizer, peak_lr=rate, train=TrainSpec(epochs=6))).epochs
    assert epochs[-1].test["loss"] < 0.3 * epochs[0].test["loss"]


def test_parts_of_a_batch_add_up_to_it(tmp_path: Path) -> None:
    """103 samples in batches of 20: the last one has 3, and no second part."""

    def losses(batch: int, parts: int) -> list[float]:
        here = trainer(tmp_path, batch_per_worker=batch, accumulation=parts)
        train(here)
        return [float(loss) for loss in np.concatenate(here.losses)]

    whole = losses(20, 1)
    assert losses(10, 2) == pytest.approx(whole, rel=1e-5)
    assert losses(7, 3) != pytest.approx(whole, rel=1e-5)  # 21 samples a step


def test_clipping_bounds_the_gradient(tmp_path: Path) -> None:
    here = trainer(tmp_path, rate=1.0, train=TrainSpec(steps=1, clip_norm=0.01))
    before = torch.cat([p.detach().flatten() for p in here.strategy.module.parameters()])
    train(here)
    moved = torch.cat([p.detach().flatten() for p in here.strategy.module.parameters()]) - before
    assert float(moved.norm()) == pytest.approx(0.01, rel=1e-3)


def test_training_stops_at_its_target(tmp_path: Path) -> None:
    target = UntilSpec(metric="loss", at_most=0.1, max_epochs=50)
    result = train(trainer(tmp_path, train=TrainSpec(until=target)))
    assert result.outcome == "finished"
    assert result.epochs[-1].test["loss"] <= 0.1 < result.epochs[-2].test["loss"]
    assert len(result.epochs) < 50


def test_a_target_that_is_not_reached_ends_at_the_limit(tmp_path: Path) -> None:
    result = train(trainer(tmp_path, train=TrainSpec(until=UntilSpec(metric="loss", at_most=-1.0, max_epochs=3))))
    assert (result.outcome, len(result.epochs)) == ("finished", 3)


def test_a_plateau_ends_training(tmp_path: Path) -> None:
    here = trainer(tmp_path, rate=1e-12, train=TrainSpec(epochs=50, plateau=PlateauSpec(patience=3)))
    result = train(here)
    assert (result.outcome, len(result.epochs)) == ("plateaued", 4)


def test_a_hopeless_trial_of_a_search_is_stopped(tmp_path: Path) -> None:
    search_curves = [[1e-3] * 8 for _ in range(3)]
    here = trainer(tmp_path, rate=1e-12, search_curves=search_curves, train=TrainSpec(epochs=8))
    here.ending.planned_epochs = 8
    result = train(here)
    assert result.outcome == "stopped"
    assert len(result.epochs) == 2  # a quarter of its epochs is granted to every trial


def test_the_rate_rises_in_a_line_and_stays(tmp_path: Path) -> None:
    trial = trainer(tmp_path, peak_lr=0.45, train=TrainSpec(epochs=9, warmup_epochs=1), batch_per_worker=26).trial
    rate = lr_of_step(trial, SAMPLES)  # 4 steps an epoch
    assert [rate(step) for step in range(6)] == pytest.approx([0.15, 0.25, 0.35, 0.45, 0.45, 0.45])


def test_the_cosine_schedule_falls_from_the_peak_to_nothing(tmp_path: Path) -> None:
    schedule = TrainSpec(epochs=3, warmup_epochs=1, schedule="cosine")
    trial = trainer(tmp_path, peak_lr=0.4, rate=0.4, train=schedule, batch_per_worker=26).trial
    rates = [lr_of_step(trial, SAMPLES)(step) for step in range(12)]  # 4 steps of warm-up, 8 that fall
    assert rates[:4] == pytest.approx([0.1, 0.2, 0.3, 0.4])  # from 0: the base rate is no lower
    assert rates[7] == pytest.approx(0.2)
    assert rates[11] == pytest.approx(0)
    assert rates[3:] == sorted(rates[3:], reverse=True)
