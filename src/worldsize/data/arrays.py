"""Binary image files as arrays: the idx format of MNIST and Fashion-MNIST, and CIFAR-10's batches.

idx: two zero bytes, one byte for the type (8: uint8), one for the number of axes, the length of each axis as a
big-endian uint32, then the values row by row. https://yann.lecun.com/exdb/mnist

CIFAR-10's binary batches: a label byte, then 1,024 red, 1,024 green and 1,024 blue bytes, row by row.
"""

from __future__ import annotations

import gzip
import io
import math
import struct
import zlib
from pathlib import Path

import numpy as np
import numpy.typing as npt

from worldsize.errors import DataError

UINT8 = 0x08
SIDE = 28
MNIST_CLASSES = 10
PIECE_BYTES = 1 << 20

Arrays = tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64], npt.NDArray[np.uint8], npt.NDArray[np.int64]]
"""Training images and labels, test images and labels."""


def read_mnist(folder: Path) -> Arrays:
    """Read the four official files, gzipped or not. Images are N x 28 x 28; labels are int64, as losses expect them."""
    return (*_read_idx_part(folder, "train"), *_read_idx_part(folder, "t10k"))


def read_idx(path: Path) -> npt.NDArray[np.uint8]:
    """Read the array in one idx file, decompressed if its name ends in .gz."""
    try:
        with gzip.open(path, "rb") if path.suffix == ".gz" else path.open("rb") as file:
            return _parse(file, path)
    except FileNotFoundError as error:
        raise DataError(f"{path} does not exist; `worldsize data fetch` downloads a data set") from error
    except gzip.BadGzipFile as error:
        raise DataError(
            f"{path} is not a gzip file ({error}); fetch it again, or drop .gz from its name if it is already unpacked"
        ) from error
    except (EOFError, zlib.error) as error:
        raise DataError(f"{path} is cut short or damaged ({error}); fetch it again") from error
    except OSError as error:
        raise DataError(f"{path} cannot be read ({error.strerror}); fix that or fetch it again") from error


def _parse(file: gzip.GzipFile | io.BufferedReader, path: Path) -> npt.NDArray[np.uint8]:
    head = file.read(4)
    if len(head) < 4 or head[:2] != b"\0\0" or head[3] == 0:
        raise DataError(
            f"{path} starts with {head.hex(' ') or 'nothing'}; an idx file starts with 00 00, its type and its number "
            "of axes: fetch it again"
        )
    if head[2] != UINT8:
        raise DataError(f"{path} has values of type 0x{head[2]:02x}, but only 0x08 (uint8) is supported; convert it")
    lengths = file.read(4 * head[3])
    if len(lengths) < 4 * head[3]:
        raise DataError(f"{path} ends within its header of {head[3]} axes; fetch it again")
    shape = struct.unpack(f">{head[3]}I", lengths)
    expected = math.prod(shape)
    values = bytearray()
    # In pieces, and stopping one byte too late: neither the size in the header nor the compressed data can be trusted.
    while len(values) <= expected and (piece := file.read(min(PIECE_BYTES, expected + 1 - len(values)))):
        values += piece
    if len(values) != expected:
        actual = "more" if len(values) > expected else f"{len(values):,}"
        raise DataError(
            f"{path} declares {' x '.join(map(str, shape))} = {expected:,} bytes but contains {actual}; fetch it again"
        )
    return np.frombuffer(values, np.uint8).reshape(shape)


def _read_idx_part(folder: Path, part: str) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64]]:
    images_file = _find_idx(folder, f"{part}-images-idx3-ubyte")
    labels_file = _find_idx(folder, f"{part}-labels-idx1-ubyte")
    images, labels = read_idx(images_file), read_idx(labels_file)
    if images.ndim != 3 or images.shape[1:] != (SIDE, SIDE):
        raise DataError(
            f"{images_file} has an array of shape {images.shape}; MNIST has N x {SIDE} x {SIDE}: fetch it again"
        )
    if labels.shape != images.shape[:1]:
        raise DataError(
            f"{labels_file} has labels of shape {labels.shape} for {len(images):,} images in {images_file.name}; "
            "each image needs one label: fetch both again"
        )
    if not len(labels):
        raise DataError(f"{images_file} has no images; fetch it again")
    if labels.max() >= MNIST_CLASSES:
        index = int(np.argmax(labels >= MNIST_CLASSES))
        raise DataError(
            f"{labels_file} has the label {labels[index]} (number {index:,}); labels are 0 to {MNIST_CLASSES - 1}: "
            "fetch it again"
        )
    return images, labels.astype(np.int64)


def _find_idx(folder: Path, name: str) -> Path:
    """Find a file. Prefer the gzipped one: it has a checksum, and interrupted decompression leaves a partial file."""
    for path in (folder / f"{name}.gz", folder / name):
        if path.is_file():
            return path
    raise DataError(
        f"{folder} has neither {name}.gz nor {name}; `worldsize data fetch` downloads the four files of the data set"
    )


FOLDER = "cifar-10-batches-bin"
TRAIN_FILES = tuple(f"data_batch_{number}.bin" for number in range(1, 6))
TEST_FILES = ("test_batch.bin",)
RECORDS = 10_000
SHAPE = (3, 32, 32)
PIXELS = 3 * 32 * 32
CIFAR_CLASSES = 10


def read_cifar10(folder: Path) -> Arrays:
    """Read images N x 3 x 32 x 32 and int64 labels from batches in the folder or in its usual subfolder."""
    batches = _find_batches(folder)
    return (*_read_cifar_part(batches, TRAIN_FILES), *_read_cifar_part(batches, TEST_FILES))


def _find_batches(folder: Path) -> Path:
    for candidate in (folder, folder / FOLDER, folder / "cifar10" / FOLDER):
        if any((candidate / name).is_file() for name in TRAIN_FILES + TEST_FILES):
            return candidate
    raise DataError(
        f"{folder} has no CIFAR-10 batches ({TRAIN_FILES[0]} and five more files, or a folder {FOLDER}); "
        "`worldsize data fetch` downloads them"
    )


def _read_cifar_part(folder: Path, names: tuple[str, ...]) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64]]:
    # Filled batch by batch: concatenating five arrays would need twice the memory.
    images = np.empty((len(names) * RECORDS, *SHAPE), np.uint8)
    labels = np.empty(len(names) * RECORDS, np.int64)
    for number, name in enumerate(names):
        rows = slice(number * RECORDS, (number + 1) * RECORDS)
        records = _read_batch(folder / name)
        labels[rows] = records[:, 0]
        images[rows] = records[:, 1:].reshape(-1, *SHAPE)
    return images, labels


def _read_batch(path: Path) -> npt.NDArray[np.uint8]:
    try:
        content = np.fromfile(path, np.uint8)
    except FileNotFoundError as error:
        raise DataError(
            f"{path} does not exist; all of {', '.join(TRAIN_FILES + TEST_FILES)} are needed: fetch the data set again"
        ) from error
    except OSError as error:
        raise DataError(f"{path} cannot be read ({error.strerror}); fix that or fetch the data set again") from error
    records, extra_bytes = divmod(len(content), 1 + PIXELS)
    if extra_bytes or records != RECORDS:
        raise DataError(
            f"{path} has {len(content):,} bytes; a batch is {RECORDS:,} records of {1 + PIXELS:,} bytes: "
            "fetch the data set again"
        )
    batch = content.reshape(RECORDS, 1 + PIXELS)
    if batch[:, 0].max() >= CIFAR_CLASSES:
        index = int(np.argmax(batch[:, 0] >= CIFAR_CLASSES))
        raise DataError(
            f"{path} has the label {batch[index, 0]} (record {index:,}); labels are 0 to {CIFAR_CLASSES - 1}: "
            "fetch the data set again"
        )
    return batch
