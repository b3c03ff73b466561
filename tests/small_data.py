"""Write small data sets in the official formats and under the official names, for the short tier.

The digits are real ones from MNIST, which are part of the package. Everything else is generated: image classes differ
in color, and the steering film shows a bright spot.
"""

from __future__ import annotations

import gzip
import struct
from importlib.resources import files
from pathlib import Path

import numpy as np
import numpy.typing as npt
from PIL import Image

from worldsize.data.arrays import FOLDER, TEST_FILES, TRAIN_FILES

DIGITS = {"train": 2_000, "t10k": 500}
CIFAR_RECORDS = 100
"""Records per batch. The official batches have 10,000; tests set `worldsize.data.arrays.RECORDS` to read these."""
FRUITS = [f"{state}{fruit}" for state in ("fresh", "rotten") for fruit in ("apples", "banana", "oranges")]
FRUIT_IMAGES = {"train": 24, "test": 6}
CALTECH = ["Leopards", "Motorbikes", "airplanes", *(f"class{number:02}" for number in range(3, 20))]
CALTECH_IMAGES = {"train": 8, "test": 12}
FRAMES = 240


def idx_bytes(array: npt.NDArray[np.uint8]) -> bytes:
    return bytes([0, 0, 8, array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape) + array.tobytes()


def write_data(folder: Path) -> Path:
    _write_mnist(folder / "mnist")
    _write_cifar10(folder / "cifar10" / FOLDER)
    # Apples are red, bananas yellow and oranges orange; rotten ones are darker.
    colors = [(190, 40, 40), (210, 190, 60), (220, 130, 30), (110, 30, 30), (130, 110, 40), (130, 70, 20)]
    _write_images(folder / "fruits-fresh-rotten", dict(zip(FRUITS, colors, strict=True)), FRUIT_IMAGES, seed=1)
    rng = np.random.default_rng(2)
    drawn = {name: tuple(rng.integers(30, 170, 3).tolist()) for name in CALTECH}
    _write_images(folder / "caltech101-subset", {**drawn, "Motorbikes": (235, 235, 235)}, CALTECH_IMAGES, seed=3)
    _write_steering(folder / "donkeycar-steering")
    return folder


def _write_mnist(folder: Path) -> None:
    folder.mkdir(parents=True)
    with np.load(str(files("worldsize.worker.workloads") / "digits.npz"), allow_pickle=False) as stored:
        for part, name in (("train", "train"), ("t10k", "test")):
            images, labels = stored[f"{name}_images"][: DIGITS[part]], stored[f"{name}_labels"][: DIGITS[part]]
            (folder / f"{part}-images-idx3-ubyte.gz").write_bytes(gzip.compress(idx_bytes(images), 1))
            (folder / f"{part}-labels-idx1-ubyte.gz").write_bytes(gzip.compress(idx_bytes(labels), 1))


def _write_cifar10(folder: Path) -> None:
    """Write pixels with the mean and standard deviation of the real ones per channel, and equally frequent classes."""
    folder.mkdir(parents=True)
    rng = np.random.default_rng(0)
    mean, deviation = np.array([[125.3], [123.0], [113.9]]), np.array([[63.0], [62.1], [66.7]])
    for name in TRAIN_FILES + TEST_FILES:
        pixels = rng.normal(mean, deviation, (CIFAR_RECORDS, 3, 1024)).clip(0, 255).astype(np.uint8)
        labels = (np.arange(CIFAR_RECORDS) % 10).astype(np.uint8)
        records = np.concatenate([labels[:, None], pixels.reshape(CIFAR_RECORDS, -1)], axis=1)
        (folder / name).write_bytes(records.tobytes())


def _write_images(root: Path, colors: dict[str, tuple[int, ...]], counts: dict[str, int], seed: int) -> None:
    """Write JPEG images in landscape format. Those of a class have similar colors."""
    rng = np.random.default_rng(seed)
    for part, count in counts.items():
        for name, color in colors.items():
            (root / part / name).mkdir(parents=True)
            for number in range(count):
                pixels = (np.array(color) + rng.normal(0, 15, (30, 40, 3))).clip(0, 255).astype(np.uint8)
                Image.fromarray(pixels).save(root / part / name / f"{number:03}.jpg", quality=90)


def _write_steering(folder: Path) -> None:
    """Write frames of a bright spot that swings from side to side, with the file names and table of a Donkey Car."""
    (folder / "images").mkdir(parents=True)
    rows, across = ["image,index,timestamp_ms,angle,throttle"], np.arange(64)
    for number in range(FRAMES):
        angle = float(np.sin(2 * np.pi * number / 160))
        bright = 220 * np.exp(-(((across - 32 - 24 * angle) / 6) ** 2)) + 20
        name = f"{number}_cam_image_array_.jpg"
        Image.fromarray(np.tile(bright.astype(np.uint8), (48, 1))).convert("RGB").save(folder / "images" / name)
        rows.append(f"{name},{number},{50 * number},{angle},0.3")
    (folder / "steering.csv").write_text("\n".join(rows) + "\n")
