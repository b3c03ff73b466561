"""The embedded data: what it says it is."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import torch

from worldsize.catalog import WORKLOADS
from worldsize.worker import workloads
from worldsize.worker.workloads import digits

ROOT = Path(__file__).parents[2]
FILE = Path(digits.__file__).with_name("digits.npz")


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
    workload, facts = workloads.load("digits"), WORKLOADS["digits"]
    assert (len(workload.train), len(workload.test)) == (facts.train_samples, facts.test_samples)
    assert torch.bincount(workload.train.targets).tolist() == [1_200] * 10
    assert torch.bincount(workload.test.targets).tolist() == [200] * 10
    assert workload.train.inputs.shape[1:] == (28, 28)
    assert facts.metric in workload.metrics


def test_no_training_image_is_a_test_image() -> None:
    workload = workloads.load("digits")
    train = {image.numpy().tobytes() for image in workload.train.inputs}
    assert not any(image.numpy().tobytes() in train for image in workload.test.inputs)


def test_inputs_are_normalised() -> None:
    workload = workloads.load("digits")
    inputs = workload.prepare(workload.train.inputs)
    assert inputs.shape[1:] == (1, 28, 28)
    assert abs(float(inputs.mean())) < 0.05
    assert abs(float(inputs.std()) - 1) < 0.05
