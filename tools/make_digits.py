#!/usr/bin/env python3
"""Draw the embedded `digits` from the official MNIST files.

    python tools/make_digits.py MNIST_FOLDER     (the folder with train-images-idx3-ubyte.gz and its three companions)

1,200 training and 200 test images of each digit, drawn without replacement with a fixed seed, then shuffled.
"""

import gzip
import sys
from pathlib import Path

import numpy as np
import numpy.typing as npt

SEED = 20260101
TRAIN_PER_DIGIT, TEST_PER_DIGIT = 1_200, 200
TARGET = Path(__file__).parents[1] / "src" / "worldsize" / "worker" / "workloads" / "digits.npz"

Arrays = dict[str, npt.NDArray[np.uint8]]


def read_idx(path: Path) -> npt.NDArray[np.uint8]:
    """idx: two zero bytes, the type (8 = uint8), the number of dimensions, their sizes, the values."""
    with gzip.open(path) as file:
        content = file.read()
    dimensions = content[3]
    shape = np.frombuffer(content, ">u4", dimensions, offset=4)
    return np.frombuffer(content, np.uint8, offset=4 + 4 * dimensions).reshape(shape)


def draw(folder: Path) -> Arrays:
    rng = np.random.default_rng(SEED)
    arrays: Arrays = {}
    for split, prefix, each in (("train", "train", TRAIN_PER_DIGIT), ("test", "t10k", TEST_PER_DIGIT)):
        images = read_idx(folder / f"{prefix}-images-idx3-ubyte.gz")
        labels = read_idx(folder / f"{prefix}-labels-idx1-ubyte.gz")
        chosen = np.concatenate(
            [rng.choice(np.flatnonzero(labels == digit), each, replace=False) for digit in range(10)]
        )
        rng.shuffle(chosen)
        arrays[f"{split}_images"], arrays[f"{split}_labels"] = images[chosen], labels[chosen]
    return arrays


if __name__ == "__main__":
    np.savez_compressed(TARGET, **draw(Path(sys.argv[1])))
    print(f"{TARGET}: {TARGET.stat().st_size / 1e6:.2f} MB")
