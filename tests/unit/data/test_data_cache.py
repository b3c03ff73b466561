"""The cache of decoded images: once, whole or not at all, and again when anything changes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import psutil
import pytest
import torch
from PIL import Image

from worldsize.data import decode
from worldsize.data.cache import Decoded, DecodeRequest, Source, decode_once
from worldsize.data.images import Images, load_images
from worldsize.errors import DataError

LOAD = """
import sys
from pathlib import Path
from worldsize.data import cache
from worldsize.data.images import load_images
cache.CHUNK_FILES = 4
def tell(done, total):
    print(done, total, flush=True)
    if sys.argv[3:] == ["wait"]:
        sys.stdin.read()
images = load_images(Path(sys.argv[1]), 16, Path(sys.argv[2]), workers=2, on_progress=tell)
print("content", images.content_sha256, flush=True)
"""


@pytest.fixture
def root(tmp_path: Path) -> Path:
    random = np.random.default_rng(0)
    for name in ("a", "b"):
        (tmp_path / "data" / name).mkdir(parents=True)
        for number in range(20):
            pixels = random.integers(0, 256, (20, 24, 3), np.uint8)
            Image.fromarray(pixels).save(tmp_path / "data" / name / f"{number:02}.jpg")
    return tmp_path / "data"


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Every image file that this process reads."""
    files: list[str] = []
    read = decode.read_file
    monkeypatch.setattr(decode, "read_file", lambda path: files.append(path) or read(path))
    return files


@pytest.fixture
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("worldsize.data.cache.CHUNK_FILES", 4)


def entries(cache: Path) -> list[Path]:
    return sorted(path for path in cache.iterdir() if path.name != "decoding.lock")


def same(one: Images, other: Images) -> bool:
    return (
        np.array_equal(one.train, other.train)
        and np.array_equal(one.test, other.test)
        and one.content_sha256 == other.content_sha256
    )


def test_the_second_start_opens_no_image(root: Path, tmp_path: Path, opened: list[str]) -> None:
    first = load_images(root, 16, tmp_path / "cache", workers=1)
    assert len(opened) == 40
    opened.clear()
    progress: list[tuple[int, int]] = []
    second = load_images(root, 16, tmp_path / "cache", workers=1, on_progress=lambda *done: progress.append(done))
    assert (opened, progress) == ([], [])
    assert same(first, second)
    assert isinstance(second.train, np.memmap)


def test_a_cache_that_may_not_be_written_is_read(root: Path, tmp_path: Path) -> None:
    """As one prepared by somebody else on a cluster: no lock is taken, nothing is made."""
    first = load_images(root, 16, tmp_path / "cache", workers=1)
    (tmp_path / "cache" / "decoding.lock").unlink()
    assert same(first, load_images(root, 16, tmp_path / "cache"))
    assert not (tmp_path / "cache" / "decoding.lock").exists()


@pytest.mark.usefixtures("small_chunks")
def test_two_processes_give_what_one_gives(root: Path, tmp_path: Path, opened: list[str]) -> None:
    (root / "a" / "05.jpg").write_bytes(b"no image")
    (root / "b" / "10.jpg").write_bytes((root / "b" / "10.jpg").read_bytes()[:-300])
    one = load_images(root, 16, tmp_path / "one", workers=1)
    opened.clear()
    progress: list[tuple[int, int]] = []
    two = load_images(root, 16, tmp_path / "two", workers=2, on_progress=lambda *done: progress.append(done))
    assert opened == []
    assert same(one, two)
    assert one.skipped == two.skipped
    assert len(one.skipped) == 2
    assert progress == [(done, 40) for done in range(4, 41, 4)]


def test_torch_takes_the_arrays_without_a_warning_and_cannot_change_the_file(root: Path, tmp_path: Path) -> None:
    images = load_images(root, 16, tmp_path / "cache", workers=1)
    before = images.train[0].copy()
    torch.from_numpy(images.train)[0] = 0
    assert np.array_equal(load_images(root, 16, tmp_path / "cache").train[0], before)


def test_what_changes_the_key(root: Path, tmp_path: Path, opened: list[str]) -> None:
    cache = tmp_path / "cache"
    first = load_images(root, 16, cache, workers=1)

    def decoded_again() -> Images:
        opened.clear()
        images = load_images(root, 16, cache, workers=1)
        assert opened
        return images

    # Other pixels in the same number of bytes; the time of last change tells.
    path = root / "a" / "00.jpg"
    content = bytearray(path.read_bytes())
    content[-20] ^= 0x55
    path.write_bytes(content)
    changed = decoded_again()
    assert changed.content_sha256 != first.content_sha256
    # Another length at the old time.
    status = path.stat()
    path.write_bytes(bytes(content) + b"more")
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    decoded_again()
    # Another name, one file less, another size.
    path.rename(root / "a" / "zz.jpg")
    decoded_again()
    (root / "a" / "zz.jpg").unlink()
    decoded_again()
    opened.clear()
    assert load_images(root, 17, cache, workers=1).train.shape[1:] == (17, 17, 3)
    assert len(opened) == 39
    assert len(entries(cache)) == 6


def test_the_content_does_not_depend_on_place_or_time(root: Path, tmp_path: Path) -> None:
    first = load_images(root, 16, tmp_path / "cache", workers=1)
    for path in root.rglob("*.jpg"):
        os.utime(path, ns=(0, 0))
    moved = root.rename(tmp_path / "elsewhere")
    assert same(first, load_images(moved, 16, tmp_path / "cache", workers=1))


@pytest.mark.usefixtures("small_chunks")
@pytest.mark.parametrize("workers", [1, 2])
def test_an_interrupted_decoding_leaves_nothing(root: Path, tmp_path: Path, workers: int) -> None:
    def interrupt(done: int, total: int) -> None:
        assert total == 40
        if done >= 20:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        load_images(root, 16, tmp_path / "cache", workers=workers, on_progress=interrupt)
    assert entries(tmp_path / "cache") == []
    assert len(load_images(root, 16, tmp_path / "cache", workers=workers).train) == 32


def test_a_killed_decoding_leaves_no_entry_and_no_process(root: Path, tmp_path: Path) -> None:
    """kill -9 in the middle: its processes end, and the next start clears away and decodes."""
    cache = tmp_path / "cache"
    command = [sys.executable, "-c", LOAD, root, cache, "wait"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as loading:
        assert loading.stdout is not None
        assert loading.stdout.readline() == "4 40\n"
        decoding = psutil.Process(loading.pid).children()
        loading.kill()
    assert len(decoding) == 2
    assert psutil.wait_procs(decoding, timeout=30)[1] == []
    assert [path.name.partition("@")[0] for path in entries(cache)] == [".decoding"]
    assert len(load_images(root, 16, cache, workers=1).train) == 32
    assert [path.name.partition("-")[0] for path in entries(cache)] == ["16x16"]


def test_of_several_processes_one_decodes(root: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-c", LOAD, root, tmp_path / "cache"]
    ranks = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(3)]
    said = [rank.communicate()[0].splitlines() for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0, 0, 0]
    assert sorted(len(lines) for lines in said) == [1, 1, 11]
    assert len({lines[-1] for lines in said}) == 1
    assert len(entries(tmp_path / "cache")) == 1


@pytest.mark.parametrize("damage", ["short", "empty", "gone", "other", "index", "index-kind"])
def test_a_damaged_entry_is_made_anew(root: Path, tmp_path: Path, damage: str) -> None:
    first = load_images(root, 16, tmp_path / "cache", workers=1)
    wanted = np.array(first.train)
    (entry,) = entries(tmp_path / "cache")
    array, index = entry / "images.npy", entry / "index.json"
    match damage:
        case "short":
            os.truncate(array, array.stat().st_size - 1)
        case "empty":
            os.truncate(array, 0)
        case "gone":
            array.unlink()
        case "other":
            np.save(array, np.zeros((3, 16, 16, 3), np.uint8))
        case "index":
            index.write_text(index.read_text()[:20])
        case "index-kind":
            index.write_text("[]")
    assert np.array_equal(load_images(root, 16, tmp_path / "cache", workers=1).train, wanted)
    assert entries(tmp_path / "cache") == [entry]


def test_the_entry_is_plain(root: Path, tmp_path: Path) -> None:
    """numpy's own format without pickle, and JSON that says what was left out."""
    (root / "b" / "19.jpg").write_bytes(b"no image")
    images = load_images(root, 16, tmp_path / "cache", workers=1)
    (entry,) = entries(tmp_path / "cache")
    array = np.load(entry / "images.npy", allow_pickle=False)
    assert array.shape == (39, 16, 16, 3)
    assert np.array_equal(array[: len(images.train)], images.train)
    index = json.loads((entry / "index.json").read_text())
    assert index["files"] == 40
    assert [reason for _, reason in index["skipped"]] == ["not an image (jpeg, png, bmp, webp, gif)"]


def test_a_cache_that_cannot_be_made(root: Path, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(DataError, match=r"cannot store 0 MB of decoded images in .*file \(.*\); free some space"):
        load_images(root, 16, tmp_path / "file", workers=1)


@pytest.mark.usefixtures("small_chunks")
@pytest.mark.parametrize("workers", [1, 2])
def test_a_file_that_vanishes_is_named(root: Path, tmp_path: Path, workers: int) -> None:
    def request() -> Decoded:
        sources = [Source(path.name, str(path), 1, 1) for path in sorted(root.rglob("*.jpg"))]
        (root / "b" / "07.jpg").unlink(missing_ok=True)
        return decode_once(DecodeRequest(sources=sources, height=8, width=8), tmp_path / "cache", workers=workers)

    with pytest.raises(DataError, match=r"b/07\.jpg' cannot be read \(No such file or directory\)"):
        request()
    assert entries(tmp_path / "cache") == []
    assert len(request().images) == 39


@pytest.mark.usefixtures("small_chunks")
def test_a_decoding_process_that_dies_is_an_error(root: Path, tmp_path: Path) -> None:
    def kill_one(done: int, total: int) -> None:
        assert total == 40
        if done == 4:
            decoding = [child for child in psutil.Process().children() if decode.__name__ in child.cmdline()]
            assert len(decoding) == 2
            decoding[0].kill()

    with pytest.raises(DataError, match=r"an image decoding process ended with code -9; if memory ran out"):
        load_images(root, 16, tmp_path / "cache", workers=2, on_progress=kill_one)
    assert entries(tmp_path / "cache") == []
