"""Frames and steering angles from a table."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image

from tests.small_data import FRAMES
from worldsize.data.steering import Steering, read_rows, read_steering
from worldsize.errors import DataError


def write_table(folder: Path, rows: int = 10, *, inside: str = "images", header: str = "image,index,angle") -> Path:
    """Frame i has the gray value 10 i and the angle i / 10."""
    (folder / inside).mkdir(parents=True, exist_ok=True)
    for number in range(rows):
        Image.new("L", (16, 12), 10 * number).save(folder / inside / f"{number}.png")
    table = folder / "steering.csv"
    table.write_text("\n".join([header, *(f"{number}.png,{number},{number / 10}" for number in range(rows))]) + "\n")
    return table


def read(table: Path, **options: float) -> Steering:
    return read_steering(table, (6, 8), table.parent / "cache", workers=1, **options)


@pytest.mark.parametrize("inside", ["images", "."])
def test_the_first_rows_train_and_the_last_test(tmp_path: Path, inside: str) -> None:
    steering = read(write_table(tmp_path, inside=inside))
    assert steering.train.shape == (8, 6, 8, 3)
    assert steering.train[:, 0, 0, 0].tolist() == [0, 10, 20, 30, 40, 50, 60, 70]
    assert steering.test[:, 0, 0, 0].tolist() == [80, 90]
    assert steering.train_angles.dtype == np.float32
    assert steering.test_angles == pytest.approx([0.8, 0.9])
    assert steering.skipped == []


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.floats(0.001, 0.999))
def test_every_share_leaves_two_parts_in_order(tmp_path: Path, share: float) -> None:
    if not (tmp_path / "steering.csv").exists():
        write_table(tmp_path)
    steering = read(tmp_path / "steering.csv", test_fraction=share)
    assert len(steering.test) == min(max(round(10 * share), 1), 9)
    angles = np.concatenate([steering.train_angles, steering.test_angles])
    assert angles == pytest.approx(np.arange(10) / 10)


@pytest.mark.parametrize("share", [0.0, 1.0, float("nan")])
def test_a_share_must_leave_two_parts(tmp_path: Path, share: float) -> None:
    with pytest.raises(DataError, match="leaves one part empty"):
        read(write_table(tmp_path), test_fraction=share)


def test_a_film(small_data: Path, tmp_path: Path) -> None:
    assert_film_is_read(small_data / "donkeycar-steering" / "steering.csv", FRAMES, tmp_path)


@pytest.mark.long
def test_the_donkey_car(data_folder: Path, tmp_path: Path) -> None:
    assert_film_is_read(data_folder / "donkeycar-steering" / "steering.csv", 3000, tmp_path)


def assert_film_is_read(real: Path, frames: int, tmp_path: Path) -> None:
    """All rows; the first 200 frames decoded, from a table beside links to them."""
    rows = read_rows(real)
    assert len(rows) == frames
    assert rows[0] == (2, "0_cam_image_array_.jpg", 0.0)
    assert all(-1 <= row.angle <= 1 for row in rows)
    (tmp_path / "images").symlink_to(real.parent / "images")
    (tmp_path / "steering.csv").write_text("".join(real.read_text().splitlines(keepends=True)[:201]))
    steering = read_steering(tmp_path / "steering.csv", (30, 40), tmp_path / "cache")
    assert steering.train.shape == (160, 30, 40, 3)
    assert steering.test.shape == (40, 30, 40, 3)
    assert steering.train_angles.tolist() == np.float32([row.angle for row in rows[:160]]).tolist()
    # Frames of a film: neighbors look alike, distant ones do not.
    film = steering.train.astype(float)
    assert abs(film[1:] - film[:-1]).mean() < abs(film[80:] - film[:80]).mean() / 2


def test_missing_and_damaged_frames_are_skipped_with_their_angles(tmp_path: Path) -> None:
    table = write_table(tmp_path)
    (tmp_path / "images" / "2.png").unlink()
    (tmp_path / "images" / "5.png").write_bytes(b"no image")
    steering = read(table)
    assert steering.skipped == [
        ("2.png", "no such file (line 4)"),
        ("5.png", "not an image (jpeg, png, bmp, webp, gif)"),
    ]
    assert np.concatenate([steering.train_angles, steering.test_angles]) == pytest.approx(
        [0, 0.1, 0.3, 0.4, 0.6, 0.7, 0.8, 0.9]
    )
    assert steering.train[:, 0, 0, 0].tolist() == [0, 10, 30, 40, 60, 70]


def test_a_frame_that_appears_later_is_taken(tmp_path: Path) -> None:
    table = write_table(tmp_path)
    frame = tmp_path / "images" / "2.png"
    content = frame.read_bytes()
    frame.unlink()
    assert len(read(table).train) == 7
    frame.write_bytes(content)
    assert len(read(table).train) == 8


def test_other_angles_need_no_decoding(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = write_table(tmp_path)
    read(table)
    monkeypatch.setattr("worldsize.data.decode.read_file", lambda path: pytest.fail(f"{path} was read"))
    table.write_text(table.read_text().replace(",0.9", ",-0.25"))
    assert read(table).test_angles == pytest.approx([0.8, -0.25])


@pytest.mark.parametrize("way", ["missing", "damaged"])
def test_more_than_half_skipped_is_an_error(tmp_path: Path, way: str) -> None:
    table = write_table(tmp_path)
    for number in range(5):
        if way == "missing":
            (tmp_path / "images" / f"{number}.png").unlink()
        else:
            (tmp_path / "images" / f"{number}.png").write_bytes(b"no image")
    assert len(read(table).skipped) == 5
    (tmp_path / "images" / "7.png").unlink()
    with pytest.raises(DataError, match=r"6 of the 10 images in .* cannot be used \('.*; and 3 more\); at least half"):
        read(table)


def test_two_rows_of_which_one_is_missing(tmp_path: Path) -> None:
    table = write_table(tmp_path, rows=2)
    (tmp_path / "images" / "0.png").unlink()
    with pytest.raises(DataError, match="1 of the 2 images"):
        read(table)


def test_odd_but_right_tables(tmp_path: Path) -> None:
    """A mark before the header, spaces, other columns first, Windows line ends, quotes, newlines, a blank line."""
    write_table(tmp_path)
    Image.new("L", (16, 12)).save(tmp_path / "images" / 'né "w"\n,.png')
    table = tmp_path / "steering.csv"
    text = '\ufeffthrottle, angle ,image\r\n0.5,-1e-3,0.png\r\n\r\n,"+.5","né ""w""\n,.png"\r\n'
    table.write_bytes(text.encode())
    steering = read(table)
    assert steering.train_angles.tolist() == np.float32([-1e-3]).tolist()
    assert steering.test_angles.tolist() == [0.5]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "line 1 is empty; it must name the columns"),
        ("\n\n", "line 1 is empty"),
        ("image,angle\n", "has 0 rows after its header"),
        ("image,angle\n0.png,0\n", "has 1 rows after its header"),
        ("image,throttle\n0.png,0\n", r"line 1: the column 'angle' is missing \(found: image, throttle\)"),
        ("0.png,0.1\n1.png,0.2\n", "line 1: the column 'image' is missing"),
        ("image;angle\n0.png;0\n", r"the column 'image' is missing \(found: image;angle\).*separated by commas"),
        ("image,angle,angle\n0.png,0,1\n", "line 1: the column 'angle' occurs 2 times"),
        ("image,angle\n0.png,0\nimage,angle\n1.png,0\n", "line 3: this line repeats the header; remove it"),
        ("image,angle\n0.png,0\n1.png,left\n", "line 3: angle='left' is not a number"),
        ("image,angle\n0.png,0\n1.png,\n", "line 3: angle='' is not a number"),
        ("image,angle\n0.png,NaN\n", "line 2: angle=NaN is not a finite number"),
        ("image,angle\n0.png,-inf\n", "line 2: angle=-inf is not a finite number"),
        ("image,angle\n0.png,1e39\n", "line 2: angle=1e39 is not a finite number"),
        ("image,angle\n0.png\n", "line 2: 1 fields, but the header has 2"),
        ("image,angle\n,0\n", "line 2: image is empty"),
        ('image,angle\n"a\nb",0\n0.png,x\n', "line 4: angle='x'"),
        ("image,angle\n" + "x" * 200_000 + ",0\n", r"line 2: not CSV \(field larger than field limit"),
        ("image,angle\na\0b,0\n\0,1\n", "2 of the 2 images"),
    ],
)
def test_tables_that_are_refused(tmp_path: Path, text: str, message: str) -> None:
    table = tmp_path / "steering.csv"
    table.write_text(text, newline="")
    with pytest.raises(DataError, match=message):
        read(table)


def test_no_table(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"none\.csv cannot be read \(No such file or directory\)"):
        read(tmp_path / "none.csv")
    (tmp_path / "latin.csv").write_bytes(b"image,angle\nn\xe9.png,0\n")
    with pytest.raises(DataError, match="is not a text file in UTF-8"):
        read(tmp_path / "latin.csv")
    Image.new("L", (4, 4)).save(tmp_path / "image.csv", "PNG")
    with pytest.raises(DataError, match="is not a text file in UTF-8"):
        read(tmp_path / "image.csv")
