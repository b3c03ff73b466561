"""Folders of images, one folder per class.

Two layouts: root/train/<class>/* with root/test/<class>/* (or val, validation, valid), or one tree root/<class>/* (or
only root/train/<class>/*), which is split by class with a seed.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from worldsize.data.cache import DecodeRequest, OnProgress, Skipped, Source, decode_once, list_some
from worldsize.errors import DataError

SUFFIXES = (".jpg", ".jpeg", ".png", ".bmp", ".webp")
TEST_FOLDERS = ("test", "val", "validation", "valid")
IGNORED_FOLDERS = ("__MACOSX",)
"""Part of archives made on a Mac; contains no images."""


@dataclass(frozen=True, kw_only=True)
class ImageFolder:
    """The files of a data set, not decoded. The label of a class is its index in `classes`."""

    classes: list[str]
    train: list[Source]
    train_labels: list[int]
    test: list[Source]
    test_labels: list[int]


@dataclass(frozen=True, kw_only=True)
class Images:
    train: npt.NDArray[np.uint8]
    """N x size x size x 3, memory-mapped; writing to it changes a private copy, never the file."""
    train_labels: npt.NDArray[np.int64]
    test: npt.NDArray[np.uint8]
    test_labels: npt.NDArray[np.int64]
    classes: list[str]
    skipped: list[Skipped]
    """Name and reason of every image that could not be decoded."""
    content_sha256: str
    """sha256 over the names and bytes of all files."""


def load_images(
    root: Path,
    size: int,
    cache: Path,
    *,
    workers: int | None = None,
    test_fraction: float = 0.2,
    seed: int = 0,
    on_progress: OnProgress | None = None,
) -> Images:
    """Load all images as size x size squares: short side resized, center cropped. Decoded once, then cached.

    `workers` is the number of decoding processes (None: one per core this process may use). `test_fraction` and `seed`
    apply only to a tree without a test folder.
    """
    folder = list_images(root, test_fraction=test_fraction, seed=seed)
    request = DecodeRequest(sources=folder.train + folder.test, height=size, width=size)
    decoded = decode_once(request, cache, workers=workers, on_progress=on_progress)
    border = int(np.searchsorted(decoded.kept, len(folder.train)))
    labels = np.array(folder.train_labels + folder.test_labels, np.int64)[decoded.kept]
    _check_none_emptied("training", folder.classes, folder.train_labels, labels[:border], folder.train, decoded.skipped)
    _check_none_emptied("test", folder.classes, folder.test_labels, labels[border:], folder.test, decoded.skipped)
    return Images(
        train=decoded.images[:border],
        train_labels=labels[:border],
        test=decoded.images[border:],
        test_labels=labels[border:],
        classes=folder.classes,
        skipped=decoded.skipped,
        content_sha256=decoded.content_sha256,
    )


def list_images(root: Path, *, test_fraction: float = 0.2, seed: int = 0) -> ImageFolder:
    """List the images. Classes and files are sorted by name, so the list is the same on every machine."""
    if not root.is_dir():
        raise DataError(f"{root} is not a folder; give a folder that contains one folder of images per class")
    train_root = root / "train" if _holds_folders(root / "train") else root
    test_root = next((root / name for name in TEST_FOLDERS if _holds_folders(root / name)), None)
    if train_root == root or test_root is None:
        return _split_tree(root, train_root, test_fraction, seed)
    train, test = _list_classes(root, train_root), _list_classes(root, test_root)
    unknown = sorted(test.keys() - train.keys())
    if unknown:
        raise DataError(
            f"{test_root} has the class {unknown[0]!r}, but {train_root} does not; add training images of this class, "
            f"or move {unknown[0]!r} away"
        )
    return _folder(train, test)


def split(names: Sequence[str], share: float, seed: int) -> set[str]:
    """Choose the names for the test part: a share of them, at least one, never all.

    Names are ordered by a hash of seed and name, so library versions do not matter and a new file does not reorder the
    others.
    """
    if not 0 < share < 1:
        raise DataError(f"test_fraction={share} leaves one part empty; use a number between 0 and 1, such as 0.2")
    if len(names) < 2:
        raise DataError(f"{len(names)} image cannot be split into two parts; add images or create a test folder")
    ordered = sorted(names, key=lambda name: hashlib.sha256(f"{seed} {name}".encode(errors="surrogatepass")).digest())
    return set(ordered[: min(max(round(len(names) * share), 1), len(names) - 1)])


def _split_tree(root: Path, tree: Path, share: float, seed: int) -> ImageFolder:
    train: dict[str, list[Source]] = {}
    test: dict[str, list[Source]] = {}
    for name, sources in _list_classes(root, tree).items():
        try:
            chosen = split([source.name for source in sources], share, seed)
        except DataError as error:
            raise DataError(f"the class {name!r} in {tree}: {error}") from error
        train[name] = [source for source in sources if source.name not in chosen]
        test[name] = [source for source in sources if source.name in chosen]
    return _folder(train, test)


def _folder(train: dict[str, list[Source]], test: dict[str, list[Source]]) -> ImageFolder:
    classes = list(train)
    return ImageFolder(
        classes=classes,
        train=[source for name in classes for source in train[name]],
        train_labels=[label for label, name in enumerate(classes) for _ in train[name]],
        test=[source for name in classes for source in test.get(name, ())],
        test_labels=[label for label, name in enumerate(classes) for _ in test.get(name, ())],
    )


def _list_classes(root: Path, tree: Path) -> dict[str, list[Source]]:
    classes = {entry.name: _list_files(root, entry) for entry in _visible(tree) if _is_class(entry)}
    if len(classes) < 2:
        raise DataError(f"{tree} has {len(classes)} folders of images; at least 2 are needed, one folder per class")
    for name, sources in classes.items():
        if not sources:
            raise DataError(
                f"the class {name!r} in {tree} has no images ({', '.join(SUFFIXES)}); add some, or remove the folder"
            )
    return classes


def _list_files(root: Path, folder: os.DirEntry[str]) -> list[Source]:
    sources = []
    class_path = Path(folder.path).relative_to(root).as_posix()
    for entry in _visible(Path(folder.path)):
        if entry.name.lower().endswith(SUFFIXES) and entry.is_file():
            status = entry.stat()
            sources.append(Source(f"{class_path}/{entry.name}", entry.path, status.st_size, status.st_mtime_ns))
    return sources


def _visible(folder: Path) -> list[os.DirEntry[str]]:
    """Entries sorted by name, without hidden ones (including the ._ files of a Mac)."""
    try:
        with os.scandir(folder) as entries:
            return sorted((entry for entry in entries if not entry.name.startswith(".")), key=lambda entry: entry.name)
    except OSError as error:
        raise DataError(f"{folder} cannot be listed ({error.strerror}); fix that, or move the folder away") from error


def _is_class(entry: os.DirEntry[str]) -> bool:
    return entry.is_dir() and entry.name not in IGNORED_FOLDERS


def _holds_folders(path: Path) -> bool:
    """Whether the folder has subfolders. Distinguishes the folder `train` of a split from a class of that name."""
    return path.is_dir() and any(_is_class(entry) for entry in _visible(path))


def _check_none_emptied(
    part: str,
    classes: list[str],
    listed_labels: list[int],
    decoded_labels: npt.NDArray[np.int64],
    sources: list[Source],
    skipped: list[Skipped],
) -> None:
    emptied = set(listed_labels) - set(decoded_labels.tolist())
    if emptied:
        emptied_label = min(emptied)
        labeled_sources = zip(sources, listed_labels, strict=True)
        files = {source.name for source, label in labeled_sources if label == emptied_label}
        bad = [(name, reason) for name, reason in skipped if name in files]
        raise DataError(
            f"no {part} image of the class {classes[emptied_label]!r} can be decoded ({list_some(bad)}); "
            "replace or remove these files"
        )
