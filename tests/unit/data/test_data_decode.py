"""One image to pixels: what comes out upright, cropped and RGB, and what is refused."""

from __future__ import annotations

import io
import struct
import subprocess
import sys
import zlib
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image, ImageOps

from worldsize.data.decode import MAX_PIXELS, Chunk, Output, center_box, decode_chunk, decode_image, read_file
from worldsize.errors import DataError

RED, GREEN, BLUE, GRAY = (255, 0, 0), (0, 255, 0), (0, 0, 255), (128, 128, 128)


def encoded(image: Image.Image, form: str = "PNG", **options: object) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, form, **options)
    return buffer.getvalue()


def pixels(content: bytes, height: int, width: int) -> npt.NDArray[np.uint8]:
    return np.frombuffer(decode_image(content, height, width), np.uint8).reshape(height, width, 3)


def quarters() -> Image.Image:
    """Red, green over blue, gray: 40 x 20, so that every turn can be told."""
    image = Image.new("RGB", (40, 20))
    for place, color in (((0, 0), RED), ((20, 0), GREEN), ((0, 10), BLUE), ((20, 10), GRAY)):
        image.paste(color, (*place, place[0] + 20, place[1] + 10))
    return image


def corners(array: npt.NDArray[np.uint8]) -> list[tuple[int, ...]]:
    return [tuple(map(int, array[y, x])) for y, x in ((0, 0), (0, -1), (-1, 0), (-1, -1))]


def bmp_header(width: int, height: int) -> bytes:
    return b"BM" + struct.pack("<IHHI", 54, 0, 0, 54) + struct.pack("<IiiHHIIiiII", 40, width, height, 1, 24, *[0] * 6)


def damaged_exif() -> bytes:
    plain = encoded(quarters(), "JPEG", quality=95, subsampling=0)
    payload = b"Exif\0\0" + b"XX*\0garbage"
    return plain[:2] + b"\xff\xe1" + struct.pack(">H", len(payload) + 2) + payload + plain[2:]


def test_the_center_is_cropped() -> None:
    image = Image.new("RGB", (60, 20), RED)
    image.paste(GREEN, (20, 0, 40, 20))
    assert (pixels(encoded(image), 20, 20) == GREEN).all()
    assert (pixels(encoded(image.rotate(90, expand=True)), 10, 10)[1:-1] == GREEN).all()


def test_a_frame_keeps_its_proportions() -> None:
    assert corners(pixels(encoded(quarters()), 10, 20)) == [RED, GREEN, BLUE, GRAY]


def test_small_images_grow() -> None:
    assert (pixels(encoded(Image.new("RGB", (1, 1), BLUE)), 7, 9) == BLUE).all()


def test_shrinking_averages() -> None:
    """A fine chessboard becomes gray: every pixel counts, none is picked."""
    board = (np.indices((64, 64)).sum(axis=0) % 2 * 255).astype(np.uint8)
    found = pixels(encoded(Image.fromarray(board)), 8, 8).astype(float)
    assert abs(found - 127.5).max() < 10


def test_a_large_jpeg_is_close_to_full_decoding() -> None:
    """Decoding at a fraction of the size must not show: the difference to the long way is small."""
    random = np.random.default_rng(0)
    picture = Image.fromarray(random.integers(0, 256, (9, 12, 3), np.uint8)).resize(
        (800, 600), Image.Resampling.BICUBIC
    )
    content = encoded(picture, "JPEG", quality=92)
    whole = Image.open(io.BytesIO(content))
    long_way = np.asarray(whole.resize((64, 64), Image.Resampling.BILINEAR, box=(100, 0, 700, 600)), float)
    assert abs(pixels(content, 64, 64) - long_way).mean() < 1.5


@pytest.mark.parametrize(
    ("orientation", "expected"),
    [
        (1, [RED, GREEN, BLUE, GRAY]),
        (2, [GREEN, RED, GRAY, BLUE]),
        (3, [GRAY, BLUE, GREEN, RED]),
        (4, [BLUE, GRAY, RED, GREEN]),
        (5, [RED, BLUE, GREEN, GRAY]),
        (6, [BLUE, RED, GRAY, GREEN]),
        (7, [GRAY, GREEN, BLUE, RED]),
        (8, [GREEN, GRAY, RED, BLUE]),
        (99, [RED, GREEN, BLUE, GRAY]),
    ],
)
def test_exif_says_which_side_is_up(orientation: int, expected: list[tuple[int, ...]]) -> None:
    exif = Image.Exif()
    exif[0x0112] = orientation
    height, width = (20, 10) if 5 <= orientation <= 8 else (10, 20)
    assert corners(pixels(encoded(quarters(), exif=exif.tobytes()), height, width)) == expected


def test_a_readable_side_counts_where_another_tag_is_damaged() -> None:
    """Pillow's own exif_transpose fails here: it writes all tags back."""
    exif = Image.Exif()
    exif[0x010F] = "Maker"
    exif[0x0112] = 3
    damaged = exif.tobytes().replace(bytes.fromhex("010f0002"), bytes.fromhex("011c0002"))
    image = quarters()
    image.info["exif"] = damaged
    with pytest.raises(struct.error):
        ImageOps.exif_transpose(image)
    intact = Image.Exif()
    intact[0x0112] = 3
    turned = pixels(encoded(quarters(), exif=damaged), 10, 20)
    assert corners(turned) == corners(pixels(encoded(quarters(), exif=intact.tobytes()), 10, 20))
    assert corners(turned) != corners(pixels(encoded(quarters()), 10, 20))


def test_damaged_exif_does_not_cost_the_image() -> None:
    found = pixels(damaged_exif(), 10, 20)
    assert abs(found[0, 0].astype(int) - RED).max() < 30


@pytest.mark.parametrize("mode", ["1", "L", "LA", "P", "RGB", "RGBA", "CMYK", "I;16"])
def test_every_mode_becomes_rgb(mode: str) -> None:
    gray = Image.new("L", (16, 16), 255 if mode == "1" else 200)
    if mode == "I;16":
        image = Image.fromarray(np.full((16, 16), 200 * 256, np.uint16))
    elif mode == "P":
        image = gray.convert("RGB").quantize(4)
    else:
        image = gray.convert("RGB").convert(mode)
    found = pixels(encoded(image, "JPEG" if mode == "CMYK" else "PNG"), 8, 8)
    assert abs(found.astype(int) - (255 if mode == "1" else 200)).max() <= 3


@pytest.mark.parametrize("form", ["JPEG", "PNG", "BMP", "WEBP", "GIF"])
def test_every_format(form: str) -> None:
    found = pixels(encoded(Image.new("RGB", (20, 20), GRAY), form), 8, 8)
    assert abs(found.astype(int) - 128).max() <= 3


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "the file is empty"),
        (b"<html>404</html>", "not an image (jpeg, png, bmp, webp, gif)"),
        (b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n", "not an image (jpeg, png, bmp, webp, gif)"),
        (encoded(quarters(), "JPEG")[:-200], "truncated"),
        (encoded(quarters(), "PNG")[:60], "truncated"),
        (bmp_header(10_000, 10_000), f"10000 x 10000 pixels; at most {MAX_PIXELS:,} are decoded"),
        (bmp_header(60_000, 60_000), "decompression bomb"),
    ],
)
def test_what_is_no_image_is_skipped_with_a_reason(tmp_path: Path, content: bytes, reason: str) -> None:
    """Between two good ones, which are kept. Pillow's warnings stay inside: here they would be errors."""
    files = [tmp_path / name for name in ("before.png", "bad.png", "after.png")]
    for path, data in zip(files, (encoded(Image.new("RGB", (9, 9), RED)), content, damaged_exif()), strict=True):
        path.write_bytes(data)
    target = Output(str(tmp_path / "rows"), 5, 4, 4)
    Path(target.path).touch()
    answer = decode_chunk(target, Chunk(1, [str(path) for path in files]))
    assert [row for row, _ in answer.skipped] == [2]
    assert reason in answer.skipped[0][1]
    assert len(answer.digests) == 3
    written = np.frombuffer(Path(target.path).read_bytes(), np.uint8, offset=5).reshape(4, 4, 4, 3)
    assert (written[1] == RED).all()
    assert not written[2].any()
    assert written[3].any()


def test_a_png_that_unpacks_to_more_than_it_says() -> None:
    """IDAT of 100 MB behind a header of 2 x 2 pixels: the rest is ignored or refused, never a crash."""

    def block(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", 2, 2, 8, 2, 0, 0, 0)
    flood = zlib.compress(bytes(100_000_000), 1)
    content = b"\x89PNG\r\n\x1a\n" + block(b"IHDR", header) + block(b"IDAT", flood) + block(b"IEND", b"")
    assert len(decode_image(content, 4, 4)) == 4 * 4 * 3


def test_a_file_too_large_is_not_read_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("worldsize.data.decode.MAX_FILE_BYTES", 1000)
    (tmp_path / "large.bmp").write_bytes(encoded(Image.new("RGB", (200, 200)), "BMP"))
    content = read_file(str(tmp_path / "large.bmp"))
    assert len(content) == 1001
    with pytest.raises(ValueError, match="more than 1,000 bytes"):
        decode_image(content, 4, 4)


def test_a_file_that_cannot_be_read_is_an_error(tmp_path: Path) -> None:
    """Not a skip, which the cache would keep after the reason has passed."""
    (tmp_path / "rows").touch()
    with pytest.raises(DataError, match=r"gone\.jpg' cannot be read \(No such file or directory\)"):
        decode_chunk(Output(str(tmp_path / "rows"), 0, 4, 4), Chunk(0, [str(tmp_path / "gone.jpg")]))


@given(*[st.integers(1, 5000)] * 4)
def test_the_box_is_centerd_inside_and_in_proportion(
    image_width: int, image_height: int, height: int, width: int
) -> None:
    left, top, right, bottom = center_box(image_width, image_height, height, width)
    assert left >= 0
    assert top >= 0
    assert (left, top) == pytest.approx((image_width - right, image_height - bottom), abs=1e-6)
    assert (right - left) * height == pytest.approx((bottom - top) * width)
    assert right - left == pytest.approx(image_width) or bottom - top == pytest.approx(image_height)


@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_damaged_bytes_are_decoded_or_skipped(tmp_path: Path, data: st.DataObject) -> None:
    form = data.draw(st.sampled_from(["JPEG", "PNG", "BMP", "WEBP", "GIF"]))
    content = bytearray(encoded(quarters(), form))
    for _ in range(data.draw(st.integers(1, 5))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    (tmp_path / "x.jpg").write_bytes(content[: data.draw(st.integers(1, len(content)))])
    (tmp_path / "rows").touch()
    answer = decode_chunk(Output(str(tmp_path / "rows"), 0, 6, 5), Chunk(0, [str(tmp_path / "x.jpg")]))
    assert all(row == 0 and reason for row, reason in answer.skipped)
    assert (tmp_path / "rows").stat().st_size == 6 * 5 * 3


def test_the_program_imports_neither_numpy_nor_torch() -> None:
    """It starts once a core; what it imports is waited for."""
    code = "import sys, worldsize.data.decode; print({'numpy', 'torch', 'pydantic'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout.strip() == "set()"
