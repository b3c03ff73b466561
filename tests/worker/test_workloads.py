"""Every workload: what it loads, that it learns, and what it says when it cannot."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.small_data import CIFAR_RECORDS
from tests.worker.test_loop import trainer
from worldsize.data.text import TextOptions, read_text
from worldsize.errors import DataError, InputError
from worldsize.spec.optimizer import OptimizerSpec
from worldsize.spec.training import TrainSpec
from worldsize.spec.workload import WorkloadSpec
from worldsize.worker import workloads
from worldsize.worker.loop import train
from worldsize.worker.models.transfer import freeze
from worldsize.worker.workloads.base import batch
from worldsize.worker.workloads.images import Normalize
from worldsize.worker.workloads.steering import regression_metrics
from worldsize.worker.workloads.text import Windows

SMALL: dict[str, dict[str, Any]] = {
    "digits": {},
    "mnist": {},
    "image-folder": {"path": "fruits-fresh-rotten", "image_size": 32, "model": "cnn"},
    "steering": {"path": "donkeycar-steering/steering.csv", "image_size": 48},
    "gpt": {"data_options": {"length": 60_000, "context": 32}, "model_options": {"layers": 1, "width": 32, "heads": 2}},
    "linear": {"data_options": {"samples": 100}},
}


def load(name: str, data: Path, cache: Path, **fields: Any) -> workloads.Workload:
    return workloads.load(WorkloadSpec(name=name, **fields), workloads.DataFolders(data=data, cache=cache))


@pytest.mark.parametrize("name", SMALL)
def test_it_learns(name: str, small_data: Path, tmp_path: Path) -> None:
    assert_it_learns(name, small_data, tmp_path)


@pytest.mark.long
@pytest.mark.parametrize("name", ["mnist", "image-folder", "steering"])
def test_it_learns_on_real_data(name: str, data_folder: Path, tmp_path: Path) -> None:
    assert_it_learns(name, data_folder, tmp_path)


def assert_it_learns(name: str, data: Path, tmp_path: Path) -> None:
    workload = load(name, data, tmp_path / "cache", **SMALL[name])
    optimizer = OptimizerSpec(name="adam", lr=0.003)
    here = trainer(
        tmp_path,
        workload=workload,
        optimizer=optimizer,
        peak_lr=0.003,
        batch_per_worker=32,
        train=TrainSpec(steps=40),
    )
    # Evaluations of whole test sets are for studies; here the losses of the steps tell.
    here.workload = replace(workload, test=_few(workload.test))
    result = train(here)
    losses = np.concatenate(here.losses)
    assert losses[-10:].mean() < losses[:5].mean()
    assert result.epochs[-1].test.keys() >= {"loss"}
    assert result.epochs[-1].train.keys() == result.epochs[-1].test.keys()


def _few(data: Any) -> Any:
    if isinstance(data, Windows):
        return Windows(tokens=data.tokens[: 20 * data.context + 1], context=data.context)
    return type(data)(inputs=data.inputs[:20], targets=data.targets[:20])


def test_cifar10_is_read(small_data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("worldsize.data.arrays.RECORDS", CIFAR_RECORDS)
    assert_cifar10_is_read(load("cifar10", small_data, tmp_path), train=500, test=100, every=1)


@pytest.mark.long
def test_cifar10_is_read_whole(whole_data_folder: Path, tmp_path: Path) -> None:
    assert_cifar10_is_read(load("cifar10", whole_data_folder, tmp_path), train=50_000, test=10_000, every=50)


def assert_cifar10_is_read(workload: workloads.Workload, *, train: int, test: int, every: int) -> None:
    assert (len(workload.train), len(workload.test)) == (train, test)
    inputs, labels = batch(workload.train, torch.arange(0, train, every), torch.device("cpu"))
    prepared = workload.prepare(inputs)
    assert prepared.shape == (train // every, 3, 32, 32)
    assert torch.allclose(prepared.mean((0, 2, 3)), torch.zeros(3), atol=0.1)
    assert set(labels.tolist()) == set(range(10))


def test_augmentation_changes_what_is_trained_on_and_not_what_is_tested(tmp_path: Path) -> None:
    def losses(**fields: Any) -> tuple[list[float], float]:
        workload = load("digits", tmp_path, tmp_path, **fields)
        here = trainer(tmp_path, workload=workload, train=TrainSpec(steps=3), rate=1e-9)
        here.workload = replace(workload, test=_few(workload.test))
        test = train(here).epochs[0].test["loss"]
        return np.concatenate(here.losses).tolist(), test

    plain, moved, again = losses(), losses(augment={"shift": 0.2}), losses(augment={"shift": 0.2})
    assert moved[0] == again[0] != plain[0]
    assert moved[1] == pytest.approx(plain[1], rel=1e-5)


def test_the_backbone_stands_still_until_it_is_unfrozen(tmp_path: Path) -> None:
    spec = WorkloadSpec(name="digits", model="cnn", freeze="backbone", unfreeze_epoch=1)
    workload = workloads.load(spec, workloads.DataFolders(data=tmp_path, cache=tmp_path))
    few = replace(workload, train=_few(workload.train), test=_few(workload.test))
    seen = {}
    for epochs in (1, 2):
        here = trainer(tmp_path, workload=few, spec=spec, train=TrainSpec(epochs=epochs))
        freeze(here.strategy.module, "backbone")
        before = {name: values.clone() for name, values in here.strategy.module.state_dict().items()}
        train(here)
        after = here.strategy.module.state_dict()
        seen[epochs] = {name.split(".")[0] for name in after if not torch.equal(before[name], after[name])}
    assert seen == {1: {"head"}, 2: {"head", "trunk"}}


def test_windows_do_not_overlap_and_targets_are_the_next_byte() -> None:
    data = Windows(tokens=torch.arange(21, dtype=torch.uint8), context=5)
    inputs, targets = batch(data, torch.tensor([0, 3]), torch.device("cpu"))
    assert len(data) == 4
    assert inputs.tolist() == [[0, 1, 2, 3, 4], [15, 16, 17, 18, 19]]
    assert torch.equal(targets, inputs + 1)


def test_a_text_file_is_read_as_bytes_and_its_end_is_the_test(tmp_path: Path) -> None:
    (tmp_path / "text").write_bytes(bytes(range(250)) * 4)
    train_part, test_part = read_text(tmp_path / "text", TextOptions(context=10), 0.1)
    assert (len(train_part), len(test_part)) == (900, 100)
    assert bytes(test_part) == (tmp_path / "text").read_bytes()[900:]
    with pytest.raises(DataError, match="too short for a training and a test window of 600 bytes"):
        read_text(tmp_path / "text", TextOptions(context=600), 0.1)


def test_regression_metrics_by_hand() -> None:
    outputs, angles = np.array([0.0, 1.0, 2.0]), np.array([0.0, 2.0, 4.0])
    means = {
        "loss": float(((outputs - angles) ** 2).mean()),
        "absolute": float(np.abs(outputs - angles).mean()),
        "angle": float(angles.mean()),
        "angle_squared": float((angles**2).mean()),
    }
    found = regression_metrics(means)
    assert found["mae"] == 1.0
    assert found["rmse"] == pytest.approx(math.sqrt(5 / 3))
    assert found["r2"] == pytest.approx(1 - 5 / 8)


@pytest.mark.parametrize("layout", ["gray", "channels-first", "channels-last"])
def test_normalizing_gives_channels_first(layout: Any) -> None:
    shape = {"gray": (4, 6, 6), "channels-first": (4, 3, 6, 6), "channels-last": (4, 6, 6, 3)}[layout]
    images = torch.randint(0, 256, shape, dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    channels = 1 if layout == "gray" else 3
    prepared = Normalize([0.5] * channels, [0.25] * channels, layout)(images)
    assert prepared.shape == (4, channels, 6, 6)
    assert float(prepared.min()) >= -2.01
    assert float(prepared.max()) <= 2.01


def test_unknown_options_name_the_nearest(tmp_path: Path) -> None:
    with pytest.raises(
        InputError, match=r'workload.data_options.contxt=3 of gpt: unknown option. Did you mean "context"'
    ):
        load("gpt", tmp_path, tmp_path, data_options={"contxt": 3})
    with pytest.raises(InputError, match="condition_number"):
        load("linear", tmp_path, tmp_path, data_options={"condition_number": 0.5})


def test_a_path_that_is_not_there_is_named_with_where_it_was_looked_for(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"path='nowhere' .*tried .*nowhere"):
        load("image-folder", tmp_path, tmp_path, path="nowhere")


OWN = """
import torch
from torch import nn
def good():
    data = (torch.zeros(10, 3), torch.zeros(10))
    return {"model": nn.Linear(3, 1), "train": data, "test": data,
            "loss": lambda outputs, targets: (outputs.squeeze(1) - targets) ** 2, "metrics": {}}
def averaged():
    return {**good(), "loss": lambda outputs, targets: ((outputs.squeeze(1) - targets) ** 2).mean()}
def lopsided():
    return {**good(), "train": (torch.zeros(10, 3), torch.zeros(9))}
def partial():
    return {"model": None}
"""


@pytest.mark.parametrize(
    ("function", "said"),
    [
        ("averaged", "loss returns shape .* for 2 samples; return one value per sample"),
        ("lopsided", "train must be two tensors"),
        ("partial", "the dict has no loss, metrics, test, train"),
        ("missing", "name a function that Python can import"),
    ],
)
def test_a_workload_of_ones_own_is_checked(
    function: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "mine_checked.py").write_text(OWN)
    monkeypatch.chdir(tmp_path)
    assert len(load("mine_checked:good", tmp_path, tmp_path).train) == 10
    with pytest.raises(InputError, match=said):
        load(f"mine_checked:{function}", tmp_path, tmp_path)
