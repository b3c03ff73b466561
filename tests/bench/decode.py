"""Compare ways to decode 10,000 small JPEGs: one process or all cores, and batches from the cache or decoded each time.

python -m tests.bench.decode [--images 10000] [--rounds 4]

Targets: 2 processes on 2 cores are at least 1.7 times as fast as 1, and the cache is at least 5 times as fast as
Pillow. The two sides alternate (ABBA), so that a slower machine affects both. All ratios are printed with their median.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import psutil
from PIL import Image

from worldsize.data.decode import decode_image
from worldsize.data.images import list_images, load_images

CLASSES = 10
SIZE = 64
BATCH = 64
BATCHES = 50
DECODING_TARGET, READING_TARGET = 1.7, 5.0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--images", type=int, default=10_000)
    parser.add_argument("--rounds", type=int, default=4)
    options = parser.parse_args()
    cores = len(os.sched_getaffinity(0))
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder) / "images"
        make_images(root, options.images)
        print(f"{options.images:,} JPEGs of 64 to 100 pixels to {SIZE} x {SIZE}, {cores} cores")
        decoding = compare(
            "1 process",
            lambda: decode_all(root, 1),
            f"{cores} processes",
            lambda: decode_all(root, cores),
            options.rounds,
        )
        reading = compare("decoding each time", *throughput_arms(root, Path(folder) / "cache"), options.rounds)
    return 0 if decoding >= DECODING_TARGET and reading >= READING_TARGET else 1


def make_images(root: Path, count: int) -> None:
    """Write images of smooth noise, which has as much detail as a photograph. JPEG decodes plain colors too fast."""
    random = np.random.default_rng(0)
    for number in range(count):
        height, width = random.integers(64, 101, 2)
        coarse = Image.fromarray(random.integers(0, 256, (12, 12, 3), np.uint8))
        fine = random.integers(-12, 13, (height, width, 3))
        picture = np.asarray(coarse.resize((int(width), int(height)), Image.Resampling.BICUBIC)) + fine
        path = root / f"class{number % CLASSES}" / f"{number:05}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(picture.clip(0, 255).astype(np.uint8)).save(path, quality=88)


def decode_all(root: Path, workers: int) -> float:
    with tempfile.TemporaryDirectory() as cache:
        start = time.perf_counter()
        load_images(root, SIZE, Path(cache), workers=workers)
        return time.perf_counter() - start


def throughput_arms(root: Path, cache: Path) -> tuple[Callable[[], float], str, Callable[[], float]]:
    """Return two ways to load the same random batches: decode them with Pillow, or read them from the memory map."""
    images = load_images(root, SIZE, cache)
    files = [Path(source.path) for source in list_images(root).train]
    order = np.random.default_rng(1).integers(0, len(files), (BATCHES, BATCH))

    def pillow() -> float:
        start = time.perf_counter()
        for batch in order:
            pixels = b"".join(decode_image(files[row].read_bytes(), SIZE, SIZE) for row in batch)
            np.frombuffer(pixels, np.uint8).reshape(BATCH, SIZE, SIZE, 3)
        return time.perf_counter() - start

    def cached() -> float:
        start = time.perf_counter()
        for batch in order:
            np.ascontiguousarray(images.train[batch])
        return time.perf_counter() - start

    return pillow, "batches from the cache", cached


def compare(slow_name: str, slow: Callable[[], float], fast_name: str, fast: Callable[[], float], rounds: int) -> float:
    """Run A, B, B, A in each round, with a ratio for each half. Return the median ratio."""
    ratios, slow_s, fast_s, foreign = [], [], [], []
    for _ in range(rounds):
        for first, second in ((slow, fast), (fast, slow)):
            before = foreign_s()
            times = {arm: arm() for arm in (first, second)}
            foreign.append((foreign_s() - before) / sum(times.values()))
            slow_s.append(times[slow])
            fast_s.append(times[fast])
            ratios.append(times[slow] / times[fast])
    print(f"{slow_name}: {statistics.median(slow_s):.4f} s; {fast_name}: {statistics.median(fast_s):.4f} s")
    print(f"  ratio {statistics.median(ratios):.2f} (lowest {min(ratios):.2f})")
    for ratio, cores in zip(ratios, foreign, strict=True):
        print(f"  {ratio:.2f} while other programs used {max(cores, 0):.2f} cores")
    return statistics.median(ratios)


def foreign_s() -> float:
    """Return the CPU seconds that this machine has spent on other programs, which would distort the ratios."""
    machine, own = psutil.cpu_times(), os.times()
    busy = sum(machine) - machine.idle - machine.iowait - machine.guest - machine.guest_nice
    return float(busy - own.user - own.system - own.children_user - own.children_system)


if __name__ == "__main__":
    sys.exit(main())
