"""n workers with batch b follow the loss curve of one worker with batch n*b: the promise of data parallelism."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from tests.system.ranks import run_trials
from worldsize.optimizer_spec import OptimizerSpec
from worldsize.spec import TrialSpec, WorkloadSpec
from worldsize.train_spec import TrainSpec

STEPS, GLOBAL_BATCH = 20, 64


def trial(workers: int) -> TrialSpec:
    return TrialSpec(
        id=f"000{workers}-w{workers}",
        kind="train",
        workload=WorkloadSpec(name="digits"),
        workers=workers,
        batch_per_worker=GLOBAL_BATCH // workers,
        scaling="strong",
        optimizer=OptimizerSpec(rate=0.05, momentum=0.9),
        strategy="ddp",
        precision="fp32",
        peak_rate=0.05,
        repeat=0,
        seed=0,
        threads=1,
        train=TrainSpec(steps=STEPS),
    )


def test_curves_agree_on_sub_groups_of_one_launch(tmp_path: Path) -> None:
    trials = [trial(workers) for workers in (2, 1, 4)]
    folder = run_trials(tmp_path, trials)
    losses = {each.workers: np.load(folder.trial(each.id) / "losses.npy") for each in trials}
    assert len(losses[1]) == STEPS
    assert losses[1][0] - losses[1][-1] > 0.3  # it learns: equal curves of a dead model would prove nothing
    for workers in (2, 4):
        assert np.abs(losses[workers] - losses[1]).max() < 1e-4
    records = {each.workers: folder.record(each.id) for each in trials}
    accuracies = {record.metrics["accuracy"] for record in records.values() if record}
    assert max(accuracies) - min(accuracies) <= 0.001
    assert all(record is not None and record.epochs[0].test_samples == 2_000 for record in records.values())
