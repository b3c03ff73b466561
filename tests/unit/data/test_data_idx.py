"""idx files: MNIST as published, and every way in which a file can be wrong."""

from __future__ import annotations

import gzip
import struct
from contextlib import suppress
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import worldsize
from tests.small_data import DIGITS, idx_bytes
from worldsize.data.arrays import read_idx, read_mnist
from worldsize.errors import DataError


def write_mnist(folder: Path, *, images: int = 5, labels: int = 5, label: int = 3, side: int = 28) -> None:
    for part in ("train", "t10k"):
        pixels = np.arange(images * side * side, dtype=np.uint64).astype(np.uint8).reshape(images, side, side)
        (folder / f"{part}-images-idx3-ubyte.gz").write_bytes(gzip.compress(idx_bytes(pixels)))
        (folder / f"{part}-labels-idx1-ubyte").write_bytes(idx_bytes(np.full(labels, label, np.uint8)))


def test_the_official_files_are_read(small_data: Path) -> None:
    """All four packed, under their official names, with digits of MNIST."""
    train_images, train_labels, test_images, test_labels = read_mnist(small_data / "mnist")
    assert train_images.shape == (DIGITS["train"], 28, 28)
    assert test_images.shape == (DIGITS["t10k"], 28, 28)
    assert train_images.dtype == np.uint8
    assert train_labels.dtype == np.int64
    with np.load(Path(worldsize.__file__).parent / "worker" / "workloads" / "digits.npz") as stored:
        assert np.array_equal(train_images, stored["train_images"][: DIGITS["train"]])
        assert np.array_equal(train_labels, stored["train_labels"][: DIGITS["train"]])
        assert np.array_equal(test_images, stored["test_images"][: DIGITS["t10k"]])
        assert np.array_equal(test_labels, stored["test_labels"][: DIGITS["t10k"]])


@pytest.mark.long
def test_mnist_as_published(data_folder: Path) -> None:
    train_images, train_labels, test_images, test_labels = read_mnist(data_folder / "mnist")
    assert train_images.shape == (60_000, 28, 28)
    assert test_images.shape == (10_000, 28, 28)
    assert train_images.dtype == np.uint8
    assert train_labels.dtype == np.int64
    assert train_labels[:10].tolist() == [5, 0, 4, 1, 9, 2, 1, 3, 1, 4]
    assert test_labels[:10].tolist() == [7, 2, 1, 0, 4, 1, 4, 9, 5, 9]
    assert np.bincount(train_labels).tolist() == [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949]
    assert train_images.mean() / 255 == pytest.approx(0.1307, abs=1e-4)


@settings(max_examples=50, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(hnp.arrays(np.uint8, hnp.array_shapes(max_dims=4, max_side=6, min_side=0)), st.booleans())
def test_what_was_written_is_read(tmp_path: Path, array: npt.NDArray[np.uint8], packed: bool) -> None:
    path = tmp_path / ("x-idx-ubyte.gz" if packed else "x-idx-ubyte")
    path.write_bytes(gzip.compress(idx_bytes(array), 1) if packed else idx_bytes(array))
    found = read_idx(path)
    assert found.shape == array.shape
    assert np.array_equal(found, array)


@settings(max_examples=100, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.binary(max_size=80), st.sampled_from(["x.gz", "x"]))
def test_any_bytes_are_read_or_refused(tmp_path: Path, content: bytes, name: str) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    found = None
    with suppress(DataError):
        found = read_idx(path)
    assert found is None or (name == "x" and idx_bytes(found) == content)


def test_missing_file(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"x\.gz does not exist; `worldsize data fetch`"):
        read_idx(tmp_path / "x.gz")
    with pytest.raises(DataError, match=r"neither train-images-idx3-ubyte\.gz nor train-images-idx3-ubyte;"):
        read_mnist(tmp_path)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("x.gz", b"<html>not found</html>", "is not a gzip file"),
        ("x.gz", gzip.compress(idx_bytes(np.zeros(5000, np.uint8)), mtime=0)[:-12], "is cut short or damaged"),
        ("x.gz", b"", "starts with nothing"),
        ("x", b"<html>", "starts with 3c 68 74 6d"),
        ("x", b"\0\0\x08\0", "starts with 00 00 08 00"),
        ("x", b"\0\0\x0d\x01" + struct.pack(">I", 1) + b"abcd", "type 0x0d, but only 0x08"),
        ("x", b"\0\0\x08\x03" + struct.pack(">I", 1), "ends within its header of 3 axes"),
        ("x", idx_bytes(np.zeros((4, 3), np.uint8))[:-1], "declares 4 x 3 = 12 bytes but contains 11"),
        ("x", idx_bytes(np.zeros((4, 3), np.uint8)) + b"!", "declares 4 x 3 = 12 bytes but contains more"),
        ("x", b"\0\0\x08\x03" + b"\xff" * 12 + b"abc", "but contains 3; fetch"),
    ],
)
def test_damaged_files(tmp_path: Path, name: str, content: bytes, message: str) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError, match=message):
        read_idx(tmp_path / name)


def test_a_damaged_middle_of_a_gzip_file(tmp_path: Path) -> None:
    content = bytearray(gzip.compress(idx_bytes(np.random.default_rng(0).integers(0, 256, 5000, np.uint8))))
    content[2000:2100] = bytes(100)
    (tmp_path / "x.gz").write_bytes(content)
    with pytest.raises(DataError, match=r"x\.gz"):
        read_idx(tmp_path / "x.gz")


def test_a_packed_flood_is_not_unpacked(tmp_path: Path) -> None:
    """64 MB of zeros behind a header that announces 10: one byte too many is read, no more."""
    (tmp_path / "x.gz").write_bytes(gzip.compress(idx_bytes(np.zeros(10, np.uint8)) + bytes(64 << 20)))
    with pytest.raises(DataError, match="= 10 bytes but contains more"):
        read_idx(tmp_path / "x.gz")


def test_a_folder_in_place_of_a_file(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"cannot be read \(Is a directory\)"):
        read_idx(tmp_path)


def test_packed_and_unpacked_files_may_be_mixed(tmp_path: Path) -> None:
    write_mnist(tmp_path)
    train_images, train_labels, _, test_labels = read_mnist(tmp_path)
    assert train_images.shape == (5, 28, 28)
    assert train_labels.tolist() == test_labels.tolist() == [3] * 5


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"side": 27}, r"shape \(5, 27, 27\); MNIST has N x 28 x 28"),
        ({"labels": 4}, r"labels of shape \(4,\) for 5 images in train-images-idx3-ubyte\.gz"),
        ({"label": 10}, r"train-labels-idx1-ubyte has the label 10 \(number 0\); labels are 0 to 9"),
        ({"images": 0, "labels": 0}, "has no images"),
    ],
)
def test_files_that_do_not_make_an_mnist(tmp_path: Path, wrong: dict[str, int], message: str) -> None:
    write_mnist(tmp_path, **wrong)
    with pytest.raises(DataError, match=message):
        read_mnist(tmp_path)
