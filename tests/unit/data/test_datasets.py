"""What the catalogue promises, and how missing and damaged files are told apart and named."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path, PurePosixPath
from urllib.parse import urlsplit

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from worldsize.data import sets as datasets
from worldsize.data.sets import (
    DATASETS,
    SUMS_NAME,
    DataFile,
    DataSet,
    cache_root,
    data_root,
    dataset_named,
    find_fault,
    missing_or_damaged,
    require,
    status,
)
from worldsize.errors import DataError

CONTENT = bytes(range(256)) * 4


def described(path: str, content: bytes) -> DataFile:
    return DataFile(path=path, size_bytes=len(content), sha256=hashlib.sha256(content).hexdigest())


TINY = DataSet(
    name="tiny",
    title="two files",
    license="CC0",
    source="this test",
    files=(described("tiny/a.bin", CONTENT), described("tiny/b.bin", CONTENT[::-1])),
    archive=described("tiny/packed.tar.gz", b"packed"),
)


def put(root: Path, path: str, content: bytes) -> Path:
    target = root / path
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_bytes(content)
    return target


@pytest.fixture
def whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A data folder with the tiny set in it, which is the only one in the catalogue."""
    monkeypatch.setattr(datasets, "DATASETS", {"tiny": TINY})
    put(tmp_path, "tiny/a.bin", CONTENT)
    put(tmp_path, "tiny/b.bin", CONTENT[::-1])
    return tmp_path


@pytest.fixture
def mnist_copy(data_folder: Path, tmp_path: Path) -> Path:
    shutil.copytree(data_folder / "mnist", tmp_path / "mnist", copy_function=shutil.copyfile)
    (tmp_path / "mnist").chmod(0o755)
    return tmp_path


def emptied(root: Path) -> Path:
    shutil.rmtree(root / "tiny")
    return root


def no_reading(_path: Path) -> str:
    raise AssertionError("the file was read")


def test_a_whole_set_has_no_fault(whole: Path) -> None:
    assert missing_or_damaged(TINY, whole, deep=True) == []
    require("tiny", whole)
    assert {row.name: row.state for row in status(whole)} == {"tiny": "present"}


@pytest.mark.long
def test_the_real_mnist_is_whole(mnist_copy: Path) -> None:
    assert missing_or_damaged(DATASETS["mnist"], mnist_copy, deep=True) == []
    require("mnist", mnist_copy)
    assert {row.name: row.state for row in status(mnist_copy)}["mnist"] == "present"


def test_one_flipped_byte_is_named_with_both_checksums(whole: Path) -> None:
    assert_flipped_byte_is_named(TINY, whole, at=500)


@pytest.mark.long
def test_one_flipped_byte_of_the_real_mnist_is_named_with_both_checksums(mnist_copy: Path) -> None:
    assert_flipped_byte_is_named(DATASETS["mnist"], mnist_copy, at=5_000_000)


def assert_flipped_byte_is_named(dataset: DataSet, root: Path, at: int) -> None:
    path = root / dataset.files[0].path
    content = bytearray(path.read_bytes())
    content[at] ^= 1
    path.write_bytes(content)
    with pytest.raises(DataError) as caught:
        require(dataset.name, root)
    message = str(caught.value)
    assert "\n" not in message
    assert str(path) in message
    assert dataset.files[0].sha256 in message
    assert hashlib.sha256(content).hexdigest() in message
    for remedy in (f"`worldsize data fetch {dataset.name}`", "--data FOLDER", "WORLDSIZE_DATA", "login node"):
        assert remedy in message


@settings(max_examples=30, deadline=None)
@given(
    damage=st.one_of(
        st.tuples(st.integers(0, len(CONTENT) - 1), st.integers(1, 255)).map(
            lambda flip: CONTENT[: flip[0]] + bytes([CONTENT[flip[0]] ^ flip[1]]) + CONTENT[flip[0] + 1 :]
        ),
        st.integers(0, len(CONTENT) - 1).map(lambda length: CONTENT[:length]),
        st.binary(min_size=1, max_size=9).map(lambda tail: CONTENT + tail),
    )
)
def test_any_damage_is_found(damage: bytes) -> None:
    with tempfile.TemporaryDirectory() as folder:
        put(Path(folder), "tiny/a.bin", damage)
        fault = find_fault(TINY.files[0], Path(folder), deep=True)
        assert fault is not None
        assert fault.kind == "damaged"
        assert TINY.files[0].sha256 in fault.text
        assert hashlib.sha256(damage).hexdigest() in fault.text


def test_the_shallow_check_sees_the_size_and_reads_nothing(whole: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(datasets, "file_sha256", no_reading)
    put(whole, "tiny/a.bin", bytes(len(CONTENT)))
    assert missing_or_damaged(TINY, whole, deep=False) == []
    put(whole, "tiny/a.bin", CONTENT[:-1])
    (fault,) = missing_or_damaged(TINY, whole, deep=False)
    assert fault.file == TINY.files[0]
    assert fault.text == f"{whole}/tiny/a.bin is damaged: 1,024 bytes expected, 1,023 bytes found"


def test_what_is_missing_is_named_and_counted(whole: Path) -> None:
    emptied(whole)
    with pytest.raises(DataError, match=r"tiny/a\.bin is missing \(and 1 more of its files\); .*data fetch tiny"):
        require("tiny", whole)


def test_a_file_that_cannot_be_read_is_an_answer_too(whole: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def denied(_path: Path) -> str:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(datasets, "file_sha256", denied)
    with pytest.raises(DataError, match=r"tiny/a\.bin cannot be read: Permission denied"):
        require("tiny", whole)


@pytest.mark.parametrize(("name", "advice"), [("minst", 'Did you mean "mnist"?'), ("imagenet", "Choose one of: mnist")])
def test_an_unknown_name_gets_the_known_ones(name: str, advice: str, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=re.escape(advice)):
        require(name, tmp_path)


def test_a_checked_file_is_not_read_again_until_it_changes(whole: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    require("tiny", whole)
    with monkeypatch.context() as patch:
        patch.setattr(datasets, "file_sha256", no_reading)
        require("tiny", whole)
        with pytest.raises(AssertionError):
            missing_or_damaged(TINY, whole, deep=True, cached=False)
    path = put(whole, "tiny/a.bin", bytes(len(CONTENT)))
    os.utime(path, ns=(0, 1))
    assert [fault.file for fault in missing_or_damaged(TINY, whole, deep=True)] == [TINY.files[0]]
    path.write_bytes(CONTENT)
    os.utime(path, ns=(0, 2))
    require("tiny", whole)


@pytest.mark.parametrize("content", [b"", b"[1]", b"{cut", b'{"a.bin": 3}', b'{"a.bin": {"sha256": "0"}}'])
def test_damaged_notes_are_ignored(whole: Path, content: bytes) -> None:
    put(whole, f"tiny/{SUMS_NAME}", content)
    require("tiny", whole)


def test_a_folder_nobody_may_write_stays_as_it_is(whole: Path) -> None:
    (whole / "tiny").chmod(0o555)
    require("tiny", whole)
    assert {path.name for path in (whole / "tiny").iterdir()} == {"a.bin", "b.bin"}
    (whole / "tiny").chmod(0o755)


def test_notes_that_cannot_be_written_are_no_fault(whole: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_path: Path, _value: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(datasets, "write_json", full)
    require("tiny", whole)


@pytest.mark.parametrize(
    ("change", "state"),
    [
        (lambda _root: None, "present"),
        (emptied, "missing"),
        (lambda root: put(root, "tiny/a.bin", b""), "damaged"),
        (lambda root: (root / "tiny/a.bin").unlink(), "partial"),
        (lambda root: put(emptied(root), "tiny/a.bin.part", b"1"), "partial"),
        (lambda root: put(emptied(root), "tiny/packed.tar.gz.part", b"1"), "partial"),
        (lambda root: put(emptied(root), "tiny/packed.tar.gz", b"packed"), "partial"),
    ],
)
def test_status_says_how_much_is_there(whole: Path, change: Callable[[Path], object], state: str) -> None:
    change(whole)
    (row,) = status(whole)
    assert (row.name, row.title, row.license, row.size_bytes) == ("tiny", "two files", "CC0", 2_048)
    assert row.state == state


def test_data_root_takes_the_option_then_the_variable_then_the_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", "/var/cache/me")
    monkeypatch.setenv("WORLDSIZE_DATA", "~/sets")
    monkeypatch.chdir(tmp_path)
    assert data_root(Path("here")) == tmp_path / "here"
    assert data_root() == tmp_path / "sets"
    monkeypatch.setenv("WORLDSIZE_DATA", "")
    assert data_root() == Path("/var/cache/me/worldsize/data")
    monkeypatch.setenv("XDG_CACHE_HOME", "relative/is/ignored")
    assert data_root() == tmp_path / ".cache/worldsize/data"
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert data_root() == tmp_path / ".cache/worldsize/data"


def test_decoded_images_are_kept_in_the_same_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", "/var/cache/me")
    monkeypatch.setenv("WORLDSIZE_CACHE", "mine")
    assert cache_root() == tmp_path / "mine"
    monkeypatch.delenv("WORLDSIZE_CACHE")
    assert cache_root() == Path("/var/cache/me/worldsize/decoded")
    monkeypatch.setenv("XDG_CACHE_HOME", "relative/is/ignored")
    assert cache_root() == tmp_path / ".cache/worldsize/decoded"
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert cache_root() == tmp_path / ".cache/worldsize/decoded"


@pytest.mark.parametrize("name", DATASETS)
def test_the_catalogue_is_consistent(name: str) -> None:
    dataset = dataset_named(name)
    assert dataset.name == name
    downloads = [dataset.archive] if dataset.archive else list(dataset.files)
    for file in (*dataset.files, *downloads):
        path = PurePosixPath(file.path)
        assert path.parts[0] == name
        assert ".." not in path.parts
        assert re.fullmatch("[0-9a-f]{64}", file.sha256)
        assert file.size_bytes > 0
    for file in downloads:
        assert file.urls
        for url in file.urls:
            assert urlsplit(url).scheme in ("http", "https")
            assert url.endswith(f"/{PurePosixPath(file.path).name}")
    everything = [*dataset.files, *downloads]
    assert len({file.sha256 for file in everything}) == len(set(everything))
    assert len({file.path for file in everything}) == len({replace(file, sha256="") for file in everything})
