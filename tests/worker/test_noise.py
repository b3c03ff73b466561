"""Square norms of gradients in one process: those of each micro-batch and of the whole batch, whatever else happens."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from tests.worker.test_loop import SAMPLES, trainer
from worldsize.spec.study import TrialSpec
from worldsize.spec.training import TrainSpec
from worldsize.worker.loop import Trainer, run_steps, train
from worldsize.worker.parallel.gradient_noise import MicroBatchNoise, NoiseMeter, meter_for
from worldsize.worker.workloads.base import batch


def metered(tmp_path: Path, **changes: object) -> Trainer:
    here = trainer(tmp_path, batch_per_worker=5, accumulation=4, **changes)  # type: ignore[arg-type]
    here.noise = meter_for(here.trial, here.strategy.module, here.team)
    return here


def square_norm(here: Trainer, indices: np.ndarray) -> float:
    """Of the mean gradient over some samples, as anybody would compute it."""
    inputs, targets = batch(here.workload.train, torch.from_numpy(indices), here.team.device)
    loss = here.workload.loss(here.strategy.module(inputs), targets).mean()
    gradients = torch.autograd.grad(loss, list(here.strategy.module.parameters()))
    return float(sum(gradient.square().sum() for gradient in gradients))


@pytest.mark.parametrize("clip_norm", [None, 1e-3])
def test_norms_are_those_of_mean_gradients(tmp_path: Path, clip_norm: float | None) -> None:
    here = metered(tmp_path, rate=1e-12, train=TrainSpec(epochs=1, measure_noise_scale=True, clip_norm=clip_norm))
    shares = list(here.shares(0))
    expected = [
        [*(square_norm(here, part) for part in share.indices.reshape(4, 5)), square_norm(here, share.indices)]
        for share in shares[:-1]
    ]
    run_steps(here, shares)
    rows = here.noise.rows()
    assert rows.dtype == np.float32
    assert rows[:-1] == pytest.approx(np.array(expected), rel=1e-4)
    assert np.isnan(rows[-1]).all()  # 3 of 20 samples


def test_rows_go_on_over_epochs_and_segments(tmp_path: Path) -> None:
    here = metered(tmp_path, train=TrainSpec(epochs=3, measure_noise_scale=True))
    train(here)
    per_epoch = -(-SAMPLES // 20)
    assert here.noise.rows().shape == (3 * per_epoch, 5)
    assert np.isnan(here.noise.rows()[:, 0]).sum() == 3


def test_measuring_changes_no_bit(tmp_path: Path) -> None:
    on, off = metered(tmp_path, train=TrainSpec(epochs=2, measure_noise_scale=True)), metered(tmp_path)
    train(on)
    train(off)
    assert np.array_equal(np.concatenate(on.losses), np.concatenate(off.losses))
    assert off.noise.rows().shape == (0, 0)


def test_what_is_unfrozen_later_counts_from_then_on(tmp_path: Path) -> None:
    here = metered(tmp_path, rate=1e-12, train=TrainSpec(epochs=1, measure_noise_scale=True))
    weight, bias = here.strategy.module.parameters()
    weight.requires_grad_(False)
    shares = list(here.shares(0))[:2]
    run_steps(here, shares[:1])
    weight.requires_grad_(True)
    run_steps(here, shares[1:])
    frozen, whole = here.noise.rows()[:, -1]
    inputs, targets = batch(here.workload.train, torch.from_numpy(shares[0].indices), here.team.device)
    loss = here.workload.loss(here.strategy.module(inputs), targets).mean()
    assert frozen == pytest.approx(float(torch.autograd.grad(loss, bias)[0].square()), rel=1e-4)
    assert whole == pytest.approx(square_norm(here, shares[1].indices), rel=1e-4)


def test_it_is_off_unless_there_is_something_to_compare(tmp_path: Path) -> None:
    here = trainer(tmp_path)

    def kind(trial: TrialSpec) -> type[NoiseMeter]:
        return type(meter_for(trial, here.strategy.module, here.team))

    asked = TrainSpec(epochs=1, measure_noise_scale=True)
    assert kind(trainer(tmp_path, accumulation=2).trial) is NoiseMeter
    assert kind(trainer(tmp_path, train=asked).trial) is NoiseMeter
    assert kind(trainer(tmp_path, train=asked, accumulation=2).trial) is MicroBatchNoise
