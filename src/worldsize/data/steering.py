"""Camera frames and steering angles, from a CSV with the columns `image` and `angle`.

The split is by time: neighboring frames are nearly identical, so a random split would test on training data.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from worldsize.data.cache import DecodeRequest, OnProgress, Skipped, Source, decode_once, list_some
from worldsize.errors import DataError

COLUMNS = ("image", "angle")
MAX_ANGLE = float(np.finfo(np.float32).max)


@dataclass(frozen=True, kw_only=True)
class Steering:
    train: npt.NDArray[np.uint8]
    """N x height x width x 3, memory-mapped; writing to it changes a private copy, never the file."""
    train_angles: npt.NDArray[np.float32]
    test: npt.NDArray[np.uint8]
    test_angles: npt.NDArray[np.float32]
    skipped: list[Skipped]
    """Name and reason of every frame that is missing or could not be decoded."""
    content_sha256: str
    """sha256 over the names and bytes of the frames, without the angles."""


class FrameRow(NamedTuple):
    line: int
    image: str
    angle: float


def read_steering(
    table: Path,
    size: tuple[int, int],
    cache: Path,
    *,
    test_fraction: float = 0.2,
    workers: int | None = None,
    on_progress: OnProgress | None = None,
) -> Steering:
    """Read frames at height x width. The first rows are for training, the last `test_fraction` for testing.

    Image paths are relative to the table's folder or to its subfolder images/.
    """
    if not 0 < test_fraction < 1:
        raise DataError(
            f"test_fraction={test_fraction} leaves one part empty; use a number between 0 and 1, such as 0.2"
        )
    rows = read_rows(table)
    sources, angles, missing = _find_images(table, rows)
    _check_enough(table, rows, missing)
    request = DecodeRequest(sources=sources, height=size[0], width=size[1])
    decoded = decode_once(request, cache, workers=workers, on_progress=on_progress)
    skipped = missing + decoded.skipped
    _check_enough(table, rows, skipped)
    kept_angles = np.array(angles, np.float32)[decoded.kept]
    rows_kept = len(kept_angles)
    border = rows_kept - min(max(round(rows_kept * test_fraction), 1), rows_kept - 1)
    return Steering(
        train=decoded.images[:border],
        train_angles=kept_angles[:border],
        test=decoded.images[border:],
        test_angles=kept_angles[border:],
        skipped=skipped,
        content_sha256=decoded.content_sha256,
    )


def read_rows(table: Path) -> list[FrameRow]:
    """Read and check the image and angle of every row, in order."""
    try:
        # utf-8-sig: spreadsheets put a byte order mark before the first column name.
        with table.open(encoding="utf-8-sig", newline="") as file:
            rows = list(_parse(file, table))
    except UnicodeDecodeError as error:
        raise DataError(f"{table} is not a text file in UTF-8 ({error.reason}); save it as UTF-8") from error
    except OSError as error:
        raise DataError(
            f"{table} cannot be read ({error.strerror}); give a CSV with the columns image, angle"
        ) from error
    if len(rows) < 2:
        raise DataError(f"{table} has {len(rows)} rows after its header; it needs at least 2, to train and to test")
    return rows


def _parse(file: Iterable[str], table: Path) -> Iterator[FrameRow]:
    lines = csv.reader(file)
    try:
        header = [name.strip() for name in next(lines, [])]
        image_at, angle_at = _columns(header, table)
        for fields in lines:
            line = lines.line_num
            if not fields:
                continue
            if [field.strip() for field in fields] == header:
                raise DataError(f"{table}, line {line}: this line repeats the header; remove it")
            if len(fields) <= max(image_at, angle_at):
                raise DataError(
                    f"{table}, line {line}: {len(fields)} fields, but the header has {len(header)}; fix or remove it"
                )
            if not fields[image_at].strip():
                raise DataError(f"{table}, line {line}: image is empty; name a file or remove the row")
            yield FrameRow(line, fields[image_at].strip(), _angle(fields[angle_at], table, line))
    except csv.Error as error:
        raise DataError(f"{table}, line {lines.line_num}: not CSV ({error}); fix the line") from error


def _columns(header: list[str], table: Path) -> tuple[int, int]:
    if not any(header):
        raise DataError(f"{table}, line 1 is empty; it must name the columns, including image and angle")
    for name in COLUMNS:
        if header.count(name) != 1:
            problem = "is missing" if name not in header else f"occurs {header.count(name)} times"
            raise DataError(
                f"{table}, line 1: the column {name!r} {problem} (found: {', '.join(header)}); "
                "name one column image and one angle, separated by commas"
            )
    return header.index("image"), header.index("angle")


def _angle(text: str, table: Path, line: int) -> float:
    try:
        angle = float(text)
    except ValueError as error:
        raise DataError(f"{table}, line {line}: angle={text!r} is not a number; fix or remove the row") from error
    if not math.isfinite(angle) or abs(angle) > MAX_ANGLE:
        raise DataError(f"{table}, line {line}: angle={text} is not a finite number; fix or remove the row")
    return angle


def _find_images(table: Path, rows: list[FrameRow]) -> tuple[list[Source], list[float], list[Skipped]]:
    sources, angles, missing = [], [], []
    for row in rows:
        for path in (table.parent / row.image, table.parent / "images" / row.image):
            if path.is_file():
                status = path.stat()
                sources.append(Source(row.image, str(path), status.st_size, status.st_mtime_ns))
                angles.append(row.angle)
                break
        else:
            missing.append((row.image, f"no such file (line {row.line})"))
    return sources, angles, missing


def _check_enough(table: Path, rows: list[FrameRow], skipped: list[Skipped]) -> None:
    if len(skipped) > len(rows) / 2 or len(rows) - len(skipped) < 2:
        raise DataError(
            f"{len(skipped):,} of the {len(rows):,} images in {table} cannot be used ({list_some(skipped)}); at least "
            "half of them, and no fewer than 2, must be. Image paths are relative to the table's folder or its images/"
        )
