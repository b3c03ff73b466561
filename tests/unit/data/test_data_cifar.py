"""CIFAR-10's binary batches: the real ones, and batches that are not."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.small_data import CIFAR_RECORDS
from worldsize.data.arrays import FOLDER, TEST_FILES, TRAIN_FILES, read_cifar10
from worldsize.errors import DataError

RECORD = 1 + 3 * 32 * 32


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Batches of 20 records: the rules are the same, and nobody waits for 184 MB of zeros."""
    monkeypatch.setattr("worldsize.data.arrays.RECORDS", 20)


def write_batches(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name in TRAIN_FILES + TEST_FILES:
        (folder / name).write_bytes(bytes(RECORD * 20))


def test_every_batch_is_read_in_order(small_data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("worldsize.data.arrays.RECORDS", CIFAR_RECORDS)
    train_images, train_labels, test_images, test_labels = read_cifar10(small_data / "cifar10")
    assert train_images.shape == (500, 3, 32, 32)
    assert test_images.shape == (100, 3, 32, 32)
    assert (train_images.dtype, train_labels.dtype) == (np.uint8, np.int64)
    assert np.bincount(train_labels).tolist() == [50] * 10
    assert np.bincount(test_labels).tolist() == [10] * 10
    for images, labels, names in (
        (train_images, train_labels, TRAIN_FILES),
        (test_images, test_labels, TEST_FILES),
    ):
        written = b"".join((small_data / "cifar10" / FOLDER / name).read_bytes() for name in names)
        records = zip(labels, images, strict=True)
        assert b"".join(bytes([label]) + image.tobytes() for label, image in records) == written


@pytest.mark.long
def test_cifar10_as_published(whole_data_folder: Path) -> None:
    unpacked = whole_data_folder / "cifar10"
    train_images, train_labels, test_images, test_labels = read_cifar10(unpacked)
    assert train_images.shape == (50_000, 3, 32, 32)
    assert test_images.shape == (10_000, 3, 32, 32)
    assert (train_images.dtype, train_labels.dtype) == (np.uint8, np.int64)
    assert np.bincount(train_labels).tolist() == [5000] * 10
    assert np.bincount(test_labels).tolist() == [1000] * 10
    assert train_labels[:8].tolist() == [6, 9, 9, 4, 1, 1, 2, 7]  # a frog, two trucks, a deer, ...
    # The known means of the training pixels: red, green, blue in this order.
    assert train_images.mean(axis=(0, 2, 3)) / 255 == pytest.approx([0.4914, 0.4822, 0.4465], abs=1e-4)
    first = (unpacked / "cifar-10-batches-bin" / "test_batch.bin").read_bytes()[:RECORD]
    assert bytes([int(test_labels[0])]) + test_images[0].tobytes() == first


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("inside", ["", "cifar-10-batches-bin", "cifar10/cifar-10-batches-bin"])
def test_the_folder_may_be_given_at_three_levels(tmp_path: Path, inside: str) -> None:
    write_batches(tmp_path / inside)
    with (tmp_path / inside / "data_batch_2.bin").open("r+b") as file:
        file.write(bytes([7, 1, 2]))
    train_images, train_labels, _, test_labels = read_cifar10(tmp_path)
    assert train_labels[20] == 7
    assert train_images[20, 0, 0, :3].tolist() == [1, 2, 0]
    assert test_labels.sum() == 0


@pytest.mark.usefixtures("small")
def test_no_batches(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"has no CIFAR-10 batches .*; `worldsize data fetch`"):
        read_cifar10(tmp_path)


@pytest.mark.usefixtures("small")
def test_one_batch_missing(tmp_path: Path) -> None:
    write_batches(tmp_path)
    (tmp_path / "data_batch_4.bin").unlink()
    with pytest.raises(DataError, match=r"data_batch_4\.bin does not exist; all of data_batch_1\.bin, .* are needed"):
        read_cifar10(tmp_path)


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("length", [0, RECORD * 20 - 1, RECORD * 19, RECORD * 21])
def test_a_batch_of_another_length(tmp_path: Path, length: int) -> None:
    write_batches(tmp_path)
    with (tmp_path / "data_batch_3.bin").open("r+b") as file:
        file.truncate(length)
    with pytest.raises(DataError, match=rf"data_batch_3\.bin has {length:,} bytes; a batch is 20 records"):
        read_cifar10(tmp_path)


@pytest.mark.usefixtures("small")
def test_a_label_out_of_range(tmp_path: Path) -> None:
    write_batches(tmp_path)
    with (tmp_path / "test_batch.bin").open("r+b") as file:
        file.seek(17 * RECORD)
        file.write(b"\x0a")
    with pytest.raises(DataError, match=r"test_batch\.bin has the label 10 \(record 17\); labels are 0 to 9"):
        read_cifar10(tmp_path)


@pytest.mark.usefixtures("small")
def test_a_folder_in_place_of_a_batch(tmp_path: Path) -> None:
    write_batches(tmp_path)
    (tmp_path / "data_batch_1.bin").unlink()
    (tmp_path / "data_batch_1.bin").mkdir()
    with pytest.raises(DataError, match=r"data_batch_1\.bin cannot be read \(Is a directory\)"):
        read_cifar10(tmp_path)
