"""CIFAR-10's binary batches: a label byte, then 1,024 red, 1,024 green and 1,024 blue bytes, row by row."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt

from worldsize.data.idx import Arrays
from worldsize.errors import DataError

FOLDER = "cifar-10-batches-bin"
TRAIN_FILES = tuple(f"data_batch_{number}.bin" for number in range(1, 6))
TEST_FILES = ("test_batch.bin",)
RECORDS = 10_000
SHAPE = (3, 32, 32)
PIXELS = 3 * 32 * 32
CLASSES = 10


def read_cifar10(folder: Path) -> Arrays:
    """Images N x 3 x 32 x 32; labels int64. The folder holds the batches, or their folder, or cifar10/ with it."""
    batches = _find(folder)
    return (*_read_part(batches, TRAIN_FILES), *_read_part(batches, TEST_FILES))


def _find(folder: Path) -> Path:
    for place in (folder, folder / FOLDER, folder / "cifar10" / FOLDER):
        if any((place / name).is_file() for name in TRAIN_FILES + TEST_FILES):
            return place
    raise DataError(
        f"{folder} holds no CIFAR-10 batches ({TRAIN_FILES[0]} and five more, or {FOLDER} with them); "
        "`worldsize data fetch` downloads them"
    )


def _read_part(folder: Path, names: tuple[str, ...]) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64]]:
    # Filled batch by batch: joining five arrays afterwards would need the memory twice.
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
        raise DataError(f"{path} cannot be read ({error.strerror}); mend that or fetch the data set again") from error
    records, rest = divmod(len(content), 1 + PIXELS)
    if rest or records != RECORDS:
        raise DataError(
            f"{path} has {len(content):,} bytes; a batch is {RECORDS:,} records of {1 + PIXELS:,} bytes: "
            "fetch the data set again"
        )
    batch = content.reshape(RECORDS, 1 + PIXELS)
    if batch[:, 0].max() >= CLASSES:
        place = int(np.argmax(batch[:, 0] >= CLASSES))
        raise DataError(
            f"{path} holds the label {batch[place, 0]} (record {place:,}); labels are 0 to {CLASSES - 1}: "
            "fetch the data set again"
        )
    return batch
