"""Studies and commands that run something again read back to what was run."""

from __future__ import annotations

from pathlib import Path
from typing import get_args

import pytest

from tests.made import Made, study_set, write_study
from worldsize.answer.reruns import recommended_study, rerun_command, short_optimizer
from worldsize.machine import Machine
from worldsize.plan.plan import make_plan
from worldsize.spec.file import StudyFile
from worldsize.spec.optimizer import USUAL_MOMENTUM, OptimizerName, OptimizerSpec

HERE = Machine(cores=8, gpus=0)
TRANSFER = """\
name: transfer
workload: digits
pretrain: {workload: digits, batch_per_worker: 64, optimizer: sgd, epochs: 1}
axes: {workers: [1, 2], batch_per_worker: [32], weights: [pretrained, scratch]}
train: {epochs: 1}
repeats: 2
"""
ADAPTIVE = """\
name: adaptive
workload: digits
axes: {workers: auto, batch_per_worker: [32, 64]}
"""


@pytest.mark.parametrize("name", get_args(OptimizerName))
@pytest.mark.parametrize("momentum", [None, 0.0, 0.5])
def test_a_short_optimizer_reads_back_the_same(name: str, momentum: float | None) -> None:
    if momentum is not None and (name not in USUAL_MOMENTUM or (not momentum and name in ("momentum", "nesterov"))):
        momentum = None  # it has none, or needs one
    optimizer = OptimizerSpec.model_validate({"name": name} | ({} if momentum is None else {"momentum": momentum}))
    trial = next(iter(make_plan(study_set(ADAPTIVE, machine=HERE).spec).trials.values()))
    short = short_optimizer(trial.model_copy(update={"optimizer": optimizer}))
    assert OptimizerSpec.model_validate(short) == optimizer


@pytest.mark.parametrize("text", [TRANSFER, ADAPTIVE + "train: {epochs: 1}\n"])
def test_the_command_of_every_trial_can_be_planned(text: str, tmp_path: Path) -> None:
    results = write_study(tmp_path, text, Made(times=lambda trial: {"forward": 0.01 + 1e-4 * trial.workers}), HERE)
    stored = (tmp_path / "study.yaml").read_text()
    everything = make_plan(results.spec.model_copy(update={"adaptive": False}))  # also what later rounds would train
    for trial in everything.trials.values():
        words = rerun_command(results, trial)
        assignments = [words[index + 1] for index, word in enumerate(words) if word == "--set"]
        plan = study_set(stored, *assignments, machine=HERE).plan
        if trial.kind != "pretrain":
            (again,) = (other for other in plan.trials.values() if other.kind == trial.kind)
            assert again.setting == trial.setting


@pytest.mark.parametrize("text", [TRANSFER, ADAPTIVE])
def test_a_recommended_study_is_one_setting_that_can_be_planned(text: str, tmp_path: Path) -> None:
    results = write_study(tmp_path, text, Made(times=lambda trial: {"forward": 0.01 + 1e-4 * trial.workers}), HERE)
    row = results.answer.row
    assert row is not None
    recommended = recommended_study(results)
    assert recommended is not None
    again = StudyFile(recommended, "recommended").spec()
    assert again.axes.workers == (row.setting.workers,)
    assert not again.adaptive
    assert len(again.starts) == 1
    assert study_set(recommended, machine=HERE).plan.trials
