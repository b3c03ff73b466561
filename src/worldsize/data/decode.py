"""Decode image files to pixels, as a function and as a program for lists of files.

It imports Pillow but neither numpy nor torch: `data/cache.py` starts it once per core and waits for its imports.
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
"""Accepted formats, whatever the file name. Some of Pillow's other readers start programs (EPS)."""
MAX_PIXELS = 89_478_485
"""Pillow's limit for decompression bombs. Larger images are an error, not a warning as in Pillow."""
MAX_FILE_BYTES = 256 * 1024**2
"""Every core reads a whole file into memory at once. No reasonable image is larger."""
ORIENTATION = 0x0112
"""The EXIF tag for the orientation."""
# Not ImageOps.exif_transpose: it also rewrites the other EXIF data and fails if that is damaged, which would leave the
# image unrotated.
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
        # Corrupt EXIF data, odd palettes, large images: only the pixels matter, and users cannot act on the warnings.
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
            except Exception as error:  # a damaged file can raise any kind of error, and none must end the study
                skipped.append((chunk.first_row + number, _reason(error)))
    _write_at(output, chunk.first_row * row_bytes, pixels)
    return DecodedChunk(chunk.first_row, digests, skipped)


def read_file(path: str) -> bytes:
    try:
        with open(path, "rb") as file:  # noqa: PTH123 - a Path per file costs time for nothing
            return file.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        # Not skipped: the cause can be temporary (permissions, a lost mount), but the cache would keep the skip.
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
    """Return the largest centered box with the output's proportions. Resizing it resizes and crops in one pass."""
    box_width = min(image_width, image_height * width / height)
    box_height = min(image_height, image_width * height / width)
    left, top = (image_width - box_width) / 2, (image_height - box_height) / 2
    return left, top, left + box_width, top + box_height


def _rgb(image: Image.Image) -> Image.Image:
    if image.mode.startswith("I"):  # 16-bit gray, which Pillow would clip at 255
        return image.point(lambda value: value * (1 / 256)).convert("L").convert("RGB")
    return image.convert("RGB")


def _upright(image: Image.Image, picture: Image.Image) -> Image.Image:
    """Rotate the picture as the EXIF data of the image says. Damaged EXIF data is ignored: the pixels can be intact."""
    try:
        turn = TURNS.get(image.getexif().get(ORIENTATION, 1))
    except Exception:  # damaged EXIF data can raise any kind of error
        return picture
    return picture if turn is None else picture.transpose(turn)


def _reason(error: Exception) -> str:
    if isinstance(error, UnidentifiedImageError):  # its message contains a memory address
        return f"not an image ({', '.join(FORMATS).lower()})"
    return str(error) or type(error).__name__


def _write_at(output: Output, offset: int, pixels: bytearray) -> None:
    """Write pixels without a memory map. On a full disk, a write raises an error; touching a page kills the process."""
    descriptor = os.open(output.path, os.O_WRONLY)
    try:
        unwritten = memoryview(pixels)
        while unwritten:
            count = os.pwrite(descriptor, unwritten, output.data_at + offset)
            unwritten, offset = unwritten[count:], offset + count
    finally:
        os.close(descriptor)


def main() -> None:
    """Read the output from the arguments and chunks from standard input, and print results: one JSON value per line.

    The program ends when its input ends, so also when the parent is killed. The parent handles interrupts.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # nobody reads the results anymore: end silently
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
