"""The embedded data: what it says it is."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import torch

from worldsize.catalog import WORKLOADS
from worldsize.spec import WorkloadSpec
from worldsize.worker import workloads
from worldsize.worker.workloads import digits
from worldsize.worker.workloads.base import Split

ROOT = Path(__file__).parents[2]
FILE = Path(digits.__file__).with_name("digits.npz")


def load() -> tuple[workloads.Workload, Split, Split]:
    workload = workloads.load(WorkloadSpec(name="digits"), workloads.Places(data=Path(), cache=Path()))
    assert isinstance(workload.train, Split)
    assert isinstance(workload.test, Split)
    return workload, workload.train, workload.test


def test_it_is_the_stated_draw_from_mnist(data_folder: Path) -> None:
    sys.path.insert(0, str(ROOT / "tools"))
    try:
        import make_digits
    finally:
        sys.path.pop(0)
    with np.load(FILE, allow_pickle=False) as stored:
        drawn = make_digits.draw(data_folder / "mnist")
        assert set(stored) == set(drawn)
        for name, array in drawn.items():
            assert np.array_equal(stored[name], array), name


def test_it_is_small_even_and_what_the_catalogue_says() -> None:
    assert FILE.stat().st_size < 3_000_000
    assert FILE.with_name("digits.LICENSE.md").is_file()
    (workload, train, test), facts = load(), WORKLOADS["digits"].facts
    assert (len(train), len(test)) == (facts.train_samples, facts.test_samples)
    assert torch.bincount(train.targets).tolist() == [1_200] * 10
    assert torch.bincount(test.targets).tolist() == [200] * 10
    assert train.inputs.shape[1:] == (28, 28)
    assert facts.metric in workload.measures


def test_no_training_image_is_a_test_image() -> None:
    _, train, test = load()
    seen = {image.numpy().tobytes() for image in train.inputs}
    assert not any(image.numpy().tobytes() in seen for image in test.inputs)


def test_inputs_are_normalised() -> None:
    workload, train, _ = load()
    inputs = workload.prepare(train.inputs)
    assert inputs.shape[1:] == (1, 28, 28)
    assert abs(float(inputs.mean())) < 0.05
    assert abs(float(inputs.std()) - 1) < 0.05
