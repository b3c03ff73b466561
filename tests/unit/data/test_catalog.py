"""What the driver knows of workloads: counts without decoding, and what does not fit."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from worldsize.data.catalog import METRICS, WORKLOADS, Entry, facts_of, metric_bounds, workload_problem
from worldsize.errors import DataError, InputError
from worldsize.machine import Machine
from worldsize.spec.file import builtin_studies
from worldsize.spec.workload import WorkloadSpec
from worldsize.study.study import Study

MACHINE = Machine(cores=16, gpus=0)


def workload(name: str, **fields: Any) -> WorkloadSpec:
    return WorkloadSpec(name=name, **fields)


@pytest.mark.parametrize("entry", WORKLOADS.values(), ids=WORKLOADS)
def test_the_table_of_metrics_has_all_that_workloads_measure(entry: Entry) -> None:
    assert {entry.metric, *entry.metrics} <= set(METRICS)


def test_bounds_of_a_metric() -> None:
    assert metric_bounds("accuracy") == (0.0, 1.0)
    assert metric_bounds("r2") == (-math.inf, 1.0)
    assert metric_bounds("loss") == metric_bounds("one of my own") == (-math.inf, math.inf)


@pytest.mark.parametrize(
    ("spec", "train", "test"),
    [
        (workload("mnist"), 60_000, 10_000),
        (workload("image-folder", path="fruits-fresh-rotten"), 144, 36),
        (workload("image-folder", path="caltech101-subset"), 160, 240),
        (workload("image-folder", path="caltech101-subset/test"), 200, 40),
        (workload("steering", path="donkeycar-steering/steering.csv"), 192, 48),
        (workload("steering", path="donkeycar-steering/steering.csv", test_fraction=0.5), 120, 120),
        (workload("gpt", data_options={"length": 10_000, "context": 50}), 159, 39),
        (workload("linear", data_options={"samples": 77}), 77, 77),
    ],
)
def test_samples_are_counted(spec: WorkloadSpec, train: int, test: int, small_data: Path) -> None:
    facts = facts_of(spec, small_data)
    assert (facts.train_samples, facts.test_samples) == (train, test)


@pytest.mark.long
@pytest.mark.parametrize(
    ("spec", "train", "test"),
    [
        (workload("image-folder", path="fruits-fresh-rotten"), 1_920, 480),
        (workload("image-folder", path="caltech101-subset"), 960, 240),
        (workload("steering", path="donkeycar-steering/steering.csv"), 2_400, 600),
        (workload("steering", path="donkeycar-steering/steering.csv", test_fraction=0.5), 1_500, 1_500),
    ],
)
def test_samples_of_real_data_are_counted(spec: WorkloadSpec, train: int, test: int, data_folder: Path) -> None:
    facts = facts_of(spec, data_folder)
    assert (facts.train_samples, facts.test_samples) == (train, test)


def test_another_model_is_said(tmp_path: Path) -> None:
    assert facts_of(workload("digits"), tmp_path).title.endswith("inside the package; small CNN")
    assert facts_of(workload("digits", model="mlp"), tmp_path).title.endswith("inside the package; mlp")
    assert facts_of(workload("linear", model="mlp"), tmp_path).title.endswith("rate is known; mlp")


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        (workload("mnits"), 'Did you mean "mnist"?'),
        (workload("image-folder"), "needs `path`"),
        (workload("mnist", path="x"), "path='x' does not apply to the workload mnist"),
        (workload("gpt", image_size=64), "image_size=64 does not apply to the workload gpt"),
        (workload("mnist", test_fraction=0.3), "test_fraction=0.3 does not apply"),
        (workload("mine:task", model="cnn"), "model='cnn' does not apply to the workload mine:task"),
        (workload("linear", augment={"shift": 0.1}), "does not apply to the workload linear"),
    ],
)
def test_what_does_not_fit_is_said(spec: WorkloadSpec, said: str) -> None:
    assert said in (workload_problem(spec) or "")


def test_what_fits_is_not_complained_about() -> None:
    assert all(
        workload_problem(workload(name, **dict.fromkeys(entry.needs, "x"))) is None for name, entry in WORKLOADS.items()
    )


def test_a_missing_folder_is_a_data_error(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="--data FOLDER or WORLDSIZE_DATA"):
        facts_of(workload("image-folder", path="nowhere"), tmp_path)


def test_a_workload_of_ones_own_that_fails_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(DataError, match="no_such_module:task could not be created"):
        facts_of(workload("no_such_module:task"), tmp_path)


@pytest.mark.parametrize("name", builtin_studies())
def test_every_built_in_study_says_what_it_asks_and_has_a_small_version(
    name: str, small_data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WORLDSIZE_DATA", str(small_data))
    assert_it_asks_and_has_a_small_version(name)


@pytest.mark.long
@pytest.mark.parametrize("name", builtin_studies())
def test_every_built_in_study_can_be_planned_on_real_data(
    name: str, data_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WORLDSIZE_DATA", str(data_folder))
    assert_it_asks_and_has_a_small_version(name)


def assert_it_asks_and_has_a_small_version(name: str) -> None:
    first = builtin_studies()[name].read_text().splitlines()[0]
    assert first.startswith("# ")
    assert any(word in first for word in ("minute", "seconds"))
    full, small = (Study(name, machine=MACHINE, small=version) for version in (False, True))
    assert small.spec.name == f"{name}-small"
    assert len(small.plan.trials) <= len(full.plan.trials)


def test_small_needs_small_values() -> None:
    text = "name: a\nworkload: digits\naxes: {workers: [1], batch_per_worker: [8]}\n"
    file = Study.from_text(text, machine=MACHINE)
    assert file.spec.small == {}
    from worldsize.spec.file import StudyFile

    with pytest.raises(InputError, match="has no `small:` values"):
        StudyFile(text, "a.yaml").apply_small()


def test_pretraining_comes_first_and_its_weights_are_used(small_data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLDSIZE_DATA", str(small_data))
    assert_pretraining_comes_first()


@pytest.mark.long
def test_pretraining_comes_first_on_real_data(data_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLDSIZE_DATA", str(data_folder))
    assert_pretraining_comes_first()


def assert_pretraining_comes_first() -> None:
    plan = Study("fruit-transfer", machine=MACHINE).plan
    assert plan.launches[0].kind == "pretrain"
    trained = [trial for trial in plan.trials.values() if trial.kind == "train"]
    weights = {trial.id.split("-")[4]: trial.workload.pretrained for trial in trained}
    assert weights == {"pretrained": "trials/0000-pretrain/weights.pt", "scratch": None}
    assert {trial.start: trial.variant.rpartition(", ")[2] for trial in trained} == {
        "pretrained": "pretrained",
        "scratch": "from scratch",
    }
    assert {trial.start for trial in plan.trials.values() if trial.kind != "train"} == {None}
    assert plan.trials["0000-pretrain"].train is not None
    assert plan.trials["0000-pretrain"].train.save_weights
