"""Folders of images: which files, which part, which class."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image

from tests.small_data import FRUIT_IMAGES, FRUITS
from worldsize.data.images import ImageFolder, list_images, load_images, split
from worldsize.errors import DataError

ODD_NAMES = [
    "\N{HANGUL SYLLABLE GA} café",
    "new\nline",
    "quo\"te's",
    "-rf *",
    "per%20cent",
    os.fsdecode(b"not-utf8-\xff"),
]


def save(path: Path, color: tuple[int, int, int] = (200, 0, 0)) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (12, 10), color).save(path)


def names(folder: ImageFolder) -> tuple[list[str], list[str]]:
    return [source.name for source in folder.train], [source.name for source in folder.test]


# Listing


@pytest.mark.parametrize("test_folder", ["test", "val", "validation", "valid"])
def test_two_trees(tmp_path: Path, test_folder: str) -> None:
    for name in (
        "train/b/2.png",
        "train/b/10.JPG",
        "train/a/x.jpeg",
        f"{test_folder}/b/y.webp",
        f"{test_folder}/a/z.bmp",
    ):
        save(tmp_path / name)
    folder = list_images(tmp_path)
    assert folder.classes == ["a", "b"]
    assert names(folder) == (
        ["train/a/x.jpeg", "train/b/10.JPG", "train/b/2.png"],
        [f"{test_folder}/a/z.bmp", f"{test_folder}/b/y.webp"],
    )
    assert (folder.train_labels, folder.test_labels) == ([0, 1, 1], [0, 1])


def test_hidden_files_and_other_files_are_left_out(tmp_path: Path) -> None:
    for name in ("a/1.png", "a/2.png", "b/1.png", "b/2.png", "a/.hidden.png", ".git/x.png", "__MACOSX/a/1.png"):
        save(tmp_path / name)
    for name in ("a/notes.txt", "index.csv", "a/._1.png"):
        (tmp_path / name).write_text("no image")
    (tmp_path / "a" / "folder.png").mkdir()
    os.mkfifo(tmp_path / "a" / "pipe.jpg")
    (tmp_path / "a" / "dangling.jpg").symlink_to("nowhere.jpg")
    train, test = names(list_images(tmp_path))
    assert sorted(train + test) == ["a/1.png", "a/2.png", "b/1.png", "b/2.png"]


def test_a_class_may_be_called_train_or_test(tmp_path: Path) -> None:
    for name in ("train/1.png", "train/2.png", "test/1.png", "test/2.png", "bus/1.png", "bus/2.png"):
        save(tmp_path / name)
    folder = list_images(tmp_path)
    assert folder.classes == ["bus", "test", "train"]
    assert len(folder.test) == 3


def test_a_train_folder_alone_is_split(tmp_path: Path) -> None:
    for name in ("train/a/1.png", "train/a/2.png", "train/b/1.png", "train/b/2.png"):
        save(tmp_path / name)
    (tmp_path / "test").mkdir()
    save(tmp_path / "test" / "unlabeled.png")
    folder = list_images(tmp_path)
    assert folder.classes == ["a", "b"]
    assert folder.test_labels == [0, 1]


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ([], r"has 0 folders of images; at least 2 are needed"),
        (["1.png", "2.png"], "has 0 folders of images"),
        (["a/1.png", "a/2.png"], "has 1 folders of images"),
        (
            ["a/1.png", "a/2.png", "b/1.png"],
            r"class 'b' in .*: 1 image cannot be split into two parts; add images or create",
        ),
        (["a/1.png", "a/2.png", "b/readme.txt"], r"class 'b' in .* has no images \(\.jpg, .*\); add some"),
        (
            ["train/a/1.png", "train/b/1.png", "test/a/1.png", "test/c/1.png"],
            "has the class 'c', but .*train does not",
        ),
    ],
)
def test_folders_that_are_no_data_set(tmp_path: Path, files: list[str], message: str) -> None:
    for name in files:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    with pytest.raises(DataError, match=message):
        list_images(tmp_path)


def test_no_folder(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="nowhere is not a folder"):
        list_images(tmp_path / "nowhere")


# The split

file_names = st.lists(st.text(min_size=1), min_size=2, max_size=60, unique=True)
shares = st.floats(0.001, 0.999)


@settings(max_examples=40)
@given(file_names, shares, st.integers(0, 2**40))
def test_the_split_has_the_share_and_leaves_no_part_empty(files: list[str], share: float, seed: int) -> None:
    chosen = split(files, share, seed)
    assert chosen < set(files)
    assert len(chosen) == min(max(round(len(files) * share), 1), len(files) - 1)
    assert chosen == split(files[::-1], share, seed)


@settings(max_examples=40)
@given(file_names, shares, st.text(min_size=1))
def test_a_new_file_moves_one_other_at_most(files: list[str], share: float, new: str) -> None:
    before, after = split(files, share, 0), split([*files, new] if new not in files else files, share, 0)
    assert len(before - after) <= 1
    assert len(after - before - {new}) <= 1


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.integers(2, 12), min_size=2, max_size=4), shares, st.integers(0, 9))
def test_a_tree_is_split_by_class(
    tmp_path_factory: pytest.TempPathFactory, counts: list[int], share: float, seed: int
) -> None:
    root = tmp_path_factory.mktemp("tree")
    for label, count in enumerate(counts):
        (root / f"class{label}").mkdir()
        for number in range(count):
            (root / f"class{label}" / f"{number}.png").touch()
    folder = list_images(root, test_fraction=share, seed=seed)
    train, test = names(folder)
    assert not set(train) & set(test)
    assert len(train) + len(test) == sum(counts)
    for label, count in enumerate(counts):
        assert folder.test_labels.count(label) == min(max(round(count * share), 1), count - 1)
        assert folder.train_labels.count(label) == count - folder.test_labels.count(label)
    for sources, labels in ((train, folder.train_labels), (test, folder.test_labels)):
        assert [f"class{label}" for label in labels] == [name.split("/")[0] for name in sources]
    assert folder == list_images(root, test_fraction=share, seed=seed)


def test_another_seed_splits_otherwise() -> None:
    files = [f"{number}.png" for number in range(100)]
    assert split(files, 0.2, 0) != split(files, 0.2, 1)
    assert sorted(split(files[:10], 0.3, 7)) == ["0.png", "6.png", "7.png"]  # the same for ever, on every machine


@pytest.mark.parametrize("share", [0.0, 1.0, -0.2, 20.0, float("nan")])
def test_a_share_must_leave_two_parts(tmp_path: Path, share: float) -> None:
    for name in ("a/1.png", "a/2.png", "b/1.png", "b/2.png"):
        save(tmp_path / name)
    with pytest.raises(DataError, match="leaves one part empty; use a number between 0 and 1"):
        list_images(tmp_path, test_fraction=share)


# Loading


def test_images_and_labels_fit_together(tmp_path: Path) -> None:
    """Each class has its color; a damaged image in the middle must not shift the labels of those behind it."""
    colors = {"blue": (0, 0, 250), "green": (0, 250, 0), "red": (250, 0, 0)}
    for name, color in colors.items():
        for number in range(6):
            save(tmp_path / "train" / name / f"{number}.png", color)
        save(tmp_path / "test" / name / "0.png", color)
        save(tmp_path / "test" / name / "1.png", color)
    (tmp_path / "train" / "blue" / "3.png").write_bytes(b"no image")
    (tmp_path / "train" / "red" / "0.png").write_bytes(b"")
    (tmp_path / "test" / "green" / "1.png").write_bytes(b"no image")
    images = load_images(tmp_path, 8, tmp_path / "cache", workers=1)
    assert images.classes == ["blue", "green", "red"]
    assert images.train.shape == (16, 8, 8, 3)
    assert images.test.shape == (5, 8, 8, 3)
    assert images.train_labels.dtype == np.int64
    for part, labels in ((images.train, images.train_labels), (images.test, images.test_labels)):
        assert (part == np.array(list(colors.values()), np.uint8)[labels][:, None, None]).all()
    assert [name for name, _ in images.skipped] == ["train/blue/3.png", "train/red/0.png", "test/green/1.png"]
    assert images.skipped[1][1] == "the file is empty"


@pytest.mark.parametrize("workers", [1, 2])
def test_odd_names(tmp_path: Path, workers: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("worldsize.data.cache.CHUNK_FILES", 5)
    for name in ODD_NAMES:
        save(tmp_path / "data" / name / f"{name}.png")
        for number in range(3):
            save(tmp_path / "data" / name / f"{number}.png")
    (tmp_path / "data" / "new\nline" / 'bad "one"\n.png').write_text("no image")
    images = load_images(tmp_path / "data", 4, tmp_path / "cache" / ODD_NAMES[0], workers=workers, test_fraction=0.4)
    assert images.classes == sorted(ODD_NAMES)
    assert len(images.train) + len(images.test) == 4 * len(ODD_NAMES)
    assert images.skipped == [('new\nline/bad "one"\n.png', "not an image (jpeg, png, bmp, webp, gif)")]


@pytest.mark.parametrize(("part", "named"), [("train", "training"), ("test", "test")])
def test_a_class_left_empty_is_an_error(tmp_path: Path, part: str, named: str) -> None:
    for name in ("train/a/1.png", "train/b/1.png", "test/a/1.png", "test/b/1.png"):
        save(tmp_path / name)
    for number in range(1, 6):
        (tmp_path / part / "b" / f"{number}.png").write_text("no image")
    message = rf"no {named} image of the class 'b' can be decoded \('{part}/b/1\.png': not an image .*; and 2 more\)"
    for _ in range(2):  # decoded, then from the cache
        with pytest.raises(DataError, match=message):
            load_images(tmp_path, 4, tmp_path / "cache", workers=1)


def test_no_image_at_all(tmp_path: Path) -> None:
    for name in ("a/1.png", "a/2.png", "b/1.png", "b/2.png"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("no image")
    with pytest.raises(DataError, match=r"none of the 4 images can be decoded \('"):
        load_images(tmp_path, 4, tmp_path / "cache", workers=1)
    assert [path.name for path in (tmp_path / "cache").iterdir()] == ["decoding.lock"]


@pytest.mark.parametrize("size", [0, -3])
def test_a_size_of_nothing(tmp_path: Path, size: int) -> None:
    for name in ("a/1.png", "a/2.png", "b/1.png", "b/2.png"):
        save(tmp_path / name)
    with pytest.raises(DataError, match=rf"image size {size} x {size} is too small; use at least 1"):
        load_images(tmp_path, size, tmp_path / "cache")


def test_two_trees_of_jpeg(small_data: Path, tmp_path: Path) -> None:
    assert_fruits_are_read(small_data, 6 * FRUIT_IMAGES["train"], 6 * FRUIT_IMAGES["test"], 6, tmp_path)


@pytest.mark.long
def test_the_fruits(data_folder: Path, tmp_path: Path) -> None:
    assert_fruits_are_read(data_folder, 1920, 480, 40, tmp_path)


def assert_fruits_are_read(data: Path, train: int, test: int, each: int, tmp_path: Path) -> None:
    """The first `each` of each class, linked, by as many processes as there are cores."""
    folder = list_images(data / "fruits-fresh-rotten")
    assert (len(folder.train), len(folder.test)) == (train, test)
    assert folder.classes == FRUITS
    for sources in (folder.train, folder.test):
        for label in range(6):
            start = label * len(sources) // 6
            for source in sources[start : start + each]:
                link = tmp_path / "data" / source.name
                link.parent.mkdir(parents=True, exist_ok=True)
                link.symlink_to(source.path)
    images = load_images(tmp_path / "data", 32, tmp_path / "cache")
    assert images.train.shape == images.test.shape == (6 * each, 32, 32, 3)
    assert images.skipped == []
    assert np.bincount(images.train_labels).tolist() == [each] * 6
    # Bananas are yellow: far more red and green than blue, more so than apples.
    excess = [images.train[images.train_labels == label].astype(float).mean(axis=(0, 1, 2)) for label in range(6)]
    assert excess[1][:2].min() - excess[1][2] > 30


def test_one_tree_of_many_classes(small_data: Path, tmp_path: Path) -> None:
    assert_caltech_is_read(small_data, tmp_path)


@pytest.mark.long
def test_caltech(data_folder: Path, tmp_path: Path) -> None:
    assert_caltech_is_read(data_folder, tmp_path)


def assert_caltech_is_read(data: Path, tmp_path: Path) -> None:
    """The test part alone, as one tree of 20 classes, split here."""
    images = load_images(data / "caltech101-subset" / "test", 24, tmp_path / "cache", test_fraction=0.25)
    assert images.train.shape == (180, 24, 24, 3)
    assert np.bincount(images.train_labels).tolist() == [9] * 20
    assert np.bincount(images.test_labels).tolist() == [3] * 20
    assert images.classes[:3] == ["Leopards", "Motorbikes", "airplanes"]
    assert images.skipped == []
    # Motorbikes of this set are photographed on white.
    assert images.train[images.train_labels == 1].mean() > images.train[images.train_labels == 0].mean() + 30


def test_none_of_this_imports_torch() -> None:
    modules = ", ".join(f"worldsize.data.{name}" for name in ("arrays", "images", "steering"))
    code = f"import sys, {modules}; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout.strip() == "False"
