"""The embedded data: what it says it is."""

from __future__ import annotations

import hashlib
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch

from worldsize.data.catalog import facts_of
from worldsize.spec.workload import WorkloadSpec
from worldsize.worker import workloads
from worldsize.worker.workloads import images as digits
from worldsize.worker.workloads.base import Split

ROOT = Path(__file__).parents[2]
FILE = Path(digits.__file__).with_name("digits.npz")


def load() -> tuple[workloads.Workload, Split, Split]:
    workload = workloads.load(WorkloadSpec(name="digits"), workloads.DataFolders(data=Path(), cache=Path()))
    assert isinstance(workload.train, Split)
    assert isinstance(workload.test, Split)
    return workload, workload.train, workload.test


@pytest.fixture
def make_digits(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(ROOT / "tools")
    import make_digits

    return make_digits  # type: ignore[no-any-return]


@pytest.mark.long
def test_it_is_the_stated_draw_from_mnist(make_digits: ModuleType, data_folder: Path) -> None:
    with np.load(FILE, allow_pickle=False) as stored:
        drawn = make_digits.draw(data_folder / "mnist")
        assert set(stored) == set(drawn)
        for name, array in drawn.items():
            assert np.array_equal(stored[name], array), name


def test_it_holds_what_was_drawn() -> None:
    """What the draw from MNIST gives, which the long tier repeats."""
    with np.load(FILE, allow_pickle=False) as stored:
        sums = {name: hashlib.sha256(stored[name].tobytes()).hexdigest()[:16] for name in stored}
    assert sums == {
        "train_images": "316b003b670d5d8a",
        "train_labels": "de3eae5c4f9beb23",
        "test_images": "793f10cc9f908de0",
        "test_labels": "10e2641b06d5ff42",
    }


def test_a_draw_is_even_repeatable_and_without_replacement(
    make_digits: ModuleType, small_data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(make_digits, "TRAIN_PER_DIGIT", 120)
    monkeypatch.setattr(make_digits, "TEST_PER_DIGIT", 20)
    drawn, again = make_digits.draw(small_data / "mnist"), make_digits.draw(small_data / "mnist")
    assert drawn.keys() == again.keys()
    assert all(np.array_equal(drawn[name], again[name]) for name in drawn)
    for part, file, each in (("train", "train", 120), ("test", "t10k", 20)):
        assert np.bincount(drawn[f"{part}_labels"]).tolist() == [each] * 10
        images = make_digits.read_idx(small_data / "mnist" / f"{file}-images-idx3-ubyte.gz")
        labels = make_digits.read_idx(small_data / "mnist" / f"{file}-labels-idx1-ubyte.gz")
        known = {image.tobytes(): label for image, label in zip(images, labels, strict=True)}
        found = [image.tobytes() for image in drawn[f"{part}_images"]]
        assert len(set(found)) == len(found)
        assert [known[image] for image in found] == drawn[f"{part}_labels"].tolist()


def test_it_is_small_even_and_what_the_catalogue_says() -> None:
    assert FILE.stat().st_size < 3_000_000
    assert FILE.with_name("digits.LICENSE.md").is_file()
    (workload, train, test), facts = load(), facts_of(WorkloadSpec(name="digits"), Path())
    assert (len(train), len(test)) == (facts.train_samples, facts.test_samples)
    assert torch.bincount(train.targets).tolist() == [1_200] * 10
    assert torch.bincount(test.targets).tolist() == [200] * 10
    assert train.inputs.shape[1:] == (28, 28)
    assert facts.metric in workload.measures


def test_no_training_image_is_a_test_image() -> None:
    _, train, test = load()
    seen = {image.numpy().tobytes() for image in train.inputs}
    assert not any(image.numpy().tobytes() in seen for image in test.inputs)


def test_inputs_are_normalized() -> None:
    workload, train, _ = load()
    inputs = workload.prepare(train.inputs)
    assert inputs.shape[1:] == (1, 28, 28)
    assert abs(float(inputs.mean())) < 0.05
    assert abs(float(inputs.std()) - 1) < 0.05
