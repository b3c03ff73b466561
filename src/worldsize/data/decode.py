"""Decode image files to pixels, as a function and as a program for lists of files.

Imports Pillow but neither numpy nor torch: `data/cache.py` starts this file once per core and waits for its imports.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import signal
import sys
import warnings
from typing import NamedTuple

from PIL import Image, UnidentifiedImageError

from worldsize.errors import DataError

FORMATS = ("JPEG", "PNG", "BMP", "WEBP", "GIF")
"""Accepted formats, whatever the name of the file: some of Pillow's other readers start programs (EPS)."""
MAX_PIXELS = 89_478_485
"""Pillow's own limit for decompression bombs; here an error instead of a warning."""
MAX_FILE_BYTES = 256 * 1024**2
"""Every core reads a whole file into memory at the same time; no reasonable image is larger."""
ORIENTATION = 0x0112
"""The EXIF tag for the orientation."""
# ImageOps.exif_transpose also rewrites the rest of the EXIF data and fails if that is damaged: the image would stay
# unrotated.
TURNS = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}


class Output(NamedTuple):
    """Where to write the pixels: rows of height x width x 3 bytes in an existing file."""

    path: str
    data_at: int
    """Bytes before the first row: the header of the .npy file."""
    height: int
    width: int


class Chunk(NamedTuple):
    first_row: int
    files: list[str]


class DecodedChunk(NamedTuple):
    first_row: int
    digests: list[str]
    """sha256 of each file."""
    skipped: list[tuple[int, str]]
    """Row and reason of each skipped file; its pixels are zero."""


def decode_chunk(output: Output, chunk: Chunk) -> DecodedChunk:
    """Decode the files into their rows. A damaged image is skipped; a file that cannot be read is an error."""
    row_bytes = output.height * output.width * 3
    pixels = bytearray(len(chunk.files) * row_bytes)
    digests: list[str] = []
    skipped: list[tuple[int, str]] = []
    with warnings.catch_warnings():
        # Corrupt EXIF, odd palettes, large pictures: only the pixels matter, and the user cannot act on these warnings.
        warnings.simplefilter("ignore")
        for number, file in enumerate(chunk.files):
            content = read_file(file)
            digests.append(hashlib.sha256(content).hexdigest())
            try:
                pixels[number * row_bytes : (number + 1) * row_bytes] = decode_image(
                    content, output.height, output.width
                )
            except MemoryError:
                raise
            except Exception as error:  # damaged files raise almost any kind of error, and none may end the study
                skipped.append((chunk.first_row + number, _reason(error)))
    _write_at(output, chunk.first_row * row_bytes, pixels)
    return DecodedChunk(chunk.first_row, digests, skipped)


def read_file(path: str) -> bytes:
    try:
        with open(path, "rb") as file:  # noqa: PTH123 - a Path for each of 10,000 files is time for nothing
            return file.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        # Not skipped: the reason may pass (permissions, a lost mount), and a kept skip would outlive it.
        raise DataError(f"{path!r} cannot be read ({error.strerror}); fix that, or move the file away") from error


def decode_image(content: bytes, height: int, width: int) -> bytes:
    """Resize the short side and crop the center, upright, in RGB: height x width x 3 bytes."""
    if not content:
        raise ValueError("the file is empty")
    if len(content) > MAX_FILE_BYTES:
        raise ValueError(f"the file has more than {MAX_FILE_BYTES:,} bytes")
    with Image.open(io.BytesIO(content), formats=FORMATS) as image:
        if image.width * image.height > MAX_PIXELS:
            raise ValueError(f"{image.width} x {image.height} pixels; at most {MAX_PIXELS:,} are decoded")
        # A JPEG is decoded at the nearest 1/2, 1/4 or 1/8 that still covers the output, whichever side is up.
        side = max(height, width)
        image.draft("RGB", (side, side))
        picture = _upright(image, _rgb(image))
        box = center_box(picture.width, picture.height, height, width)
        return picture.resize((width, height), Image.Resampling.BILINEAR, box=box).tobytes()


def center_box(image_width: int, image_height: int, height: int, width: int) -> tuple[float, float, float, float]:
    """The largest centered part with the output's proportions: resizing it is resizing and cropping in one pass."""
    box_width = min(image_width, image_height * width / height)
    box_height = min(image_height, image_width * height / width)
    left, top = (image_width - box_width) / 2, (image_height - box_height) / 2
    return left, top, left + box_width, top + box_height


def _rgb(image: Image.Image) -> Image.Image:
    if image.mode.startswith("I"):  # 16-bit gray, which Pillow would clip at 255
        return image.point(lambda value: value * (1 / 256)).convert("L").convert("RGB")
    return image.convert("RGB")


def _upright(image: Image.Image, picture: Image.Image) -> Image.Image:
    """Rotate the picture as the EXIF data of the image say. Damaged EXIF data are ignored: the pixels may be right."""
    try:
        turn = TURNS.get(image.getexif().get(ORIENTATION, 1))
    except Exception:  # damaged EXIF raises almost any kind of error
        return picture
    return picture if turn is None else picture.transpose(turn)


def _reason(error: Exception) -> str:
    if isinstance(error, UnidentifiedImageError):  # its message contains a memory address
        return f"not an image ({', '.join(FORMATS).lower()})"
    return str(error) or type(error).__name__


def _write_at(output: Output, offset: int, pixels: bytearray) -> None:
    """Write pixels without a memory map: on a full disk, a write is an error, but touching a page kills the process."""
    descriptor = os.open(output.path, os.O_WRONLY)
    try:
        rest = memoryview(pixels)
        while rest:
            written = os.pwrite(descriptor, rest, output.data_at + offset)
            rest, offset = rest[written:], offset + written
    finally:
        os.close(descriptor)


def main() -> None:
    """Take the output as argument, chunks on standard input, results on standard output: one JSON per line.

    Ends with its input, and so also when the parent is killed. The parent handles interrupts.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # nobody is left to read the answer: end silently
    output = Output(*json.loads(sys.argv[1]))
    for line in sys.stdin:
        reply: dict[str, object]
        try:
            reply = {"answer": decode_chunk(output, Chunk(*json.loads(line)))}
        except (DataError, OSError) as error:
            reply = {"error": str(error)}
        print(json.dumps(reply), flush=True)


if __name__ == "__main__":
    main()
