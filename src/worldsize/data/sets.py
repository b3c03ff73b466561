"""The data sets of `worldsize data fetch`: their files, where they are, and whether they are complete.

The size and SHA-256 of every file are known, so damage is found before a study spends hours on it, and addresses need
not be trusted: one of the official ones is plain http, and the MD5 sums that authors publish can be forged.

This module also locates the data folder and the cache of decoded images.
"""

from __future__ import annotations

import hashlib
import os
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, Literal

from worldsize.errors import DataError, did_you_mean, shorten
from worldsize.folder.files import read_json, write_json
from worldsize.spec.workload import WorkloadSpec

SUMS_NAME = ".checksums.json"
"""File beside the data that stores checksums, each with the size and modification time of its file."""


@dataclass(frozen=True, kw_only=True)
class DataFile:
    path: str
    """Path below the data folder, with forward slashes."""
    size_bytes: int
    sha256: str
    urls: tuple[str, ...] = ()
    """Addresses to try, in this order. Empty for a file from the archive of the set."""

    def under(self, root: Path) -> Path:
        return root / PurePosixPath(self.path)

    def part_under(self, root: Path) -> Path:
        """Path of the file while it is downloaded, until it is complete and verified."""
        return self.under(root).with_name(f"{PurePosixPath(self.path).name}.part")


@dataclass(frozen=True, kw_only=True)
class DataSet:
    name: str
    title: str
    license: str
    source: str
    files: tuple[DataFile, ...]
    """Files that a study reads."""
    archive: DataFile | None = None
    """The archive with `files`, if they come packed. Its member names are their paths relative to its folder."""

    @property
    def size_bytes(self) -> int:
        return sum(file.size_bytes for file in self.files)


@dataclass(frozen=True, kw_only=True)
class Fault:
    """A file of a data set that is missing or damaged."""

    file: DataFile
    kind: Literal["missing", "damaged"]
    text: str


@dataclass(frozen=True, kw_only=True)
class DataSetStatus:
    name: str
    title: str
    state: Literal["present", "missing", "damaged", "partial"]
    """partial: some files, the archive or an interrupted download exist."""
    size_bytes: int
    """Size of the complete set."""
    license: str


IDX_NAMES = (
    "train-images-idx3-ubyte.gz",
    "train-labels-idx1-ubyte.gz",
    "t10k-images-idx3-ubyte.gz",
    "t10k-labels-idx1-ubyte.gz",
)


def _idx_files(folder: str, *bases: str, facts: tuple[tuple[int, str], ...]) -> tuple[DataFile, ...]:
    return tuple(
        DataFile(path=f"{folder}/{name}", size_bytes=size, sha256=sha256, urls=tuple(base + name for base in bases))
        for name, (size, sha256) in zip(IDX_NAMES, facts, strict=True)
    )


DATASETS: dict[str, DataSet] = {
    "mnist": DataSet(
        name="mnist",
        title="handwritten digits, 28x28 gray: 60,000 to train, 10,000 to test",
        license="CC BY-SA 3.0 (as keras.io states; none on the authors' page)",
        source="LeCun, Cortes, Burges: http://yann.lecun.com/exdb/mnist/",
        files=_idx_files(
            "mnist",
            "https://ossci-datasets.s3.amazonaws.com/mnist/",
            "https://storage.googleapis.com/cvdf-datasets/mnist/",
            facts=(
                (9_912_422, "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609"),
                (28_881, "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c"),
                (1_648_877, "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6"),
                (4_542, "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6"),
            ),
        ),
    ),
    "fashion-mnist": DataSet(
        name="fashion-mnist",
        title="articles of clothing, 28x28 gray: 60,000 to train, 10,000 to test",
        license="MIT",
        source="Xiao, Rasul, Vollgraf 2017: https://github.com/zalandoresearch/fashion-mnist",
        files=_idx_files(
            "fashion-mnist",
            "https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/master/data/fashion/",
            "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",
            facts=(
                (26_421_880, "3aede38d61863908ad78613f6a32ed271626dd12800ba2636569512369268a84"),
                (29_515, "a04f17134ac03560a47e3764e11b92fc97de4d1bfaf8ba1a3aa29af54cc90845"),
                (4_422_102, "346e55b948d973a97e58d2351dde16a484bd415d4595297633bb08f03db6a073"),
                (5_148, "67da17c76eaffca5446c3361aaab5c3cd6d1c2608764d35dfb1850b086bf8dd5"),
            ),
        ),
    ),
    "cifar10": DataSet(
        name="cifar10",
        title="photographs of 10 classes, 32x32 color: 50,000 to train, 10,000 to test",
        license="none stated; the authors ask to cite Krizhevsky 2009",
        source="Krizhevsky, Nair, Hinton 2009: https://www.cs.toronto.edu/~kriz/cifar.html",
        files=tuple(
            DataFile(path=f"cifar10/cifar-10-batches-bin/{name}.bin", size_bytes=30_730_000, sha256=sha256)
            for name, sha256 in (
                ("data_batch_1", "cee916563c9f80d84e3cc88e17fdc0941787f1244f00a67874d45b261883ada5"),
                ("data_batch_2", "a591ca11fa1708a91ee40f54b3da4784ccd871ecf2137de63f51ada8b3fa57ed"),
                ("data_batch_3", "bbe8596564c0f86427f876058170b84dac6670ddf06d79402899d93ceea26f67"),
                ("data_batch_4", "014e562d6e23c72197cc727519169a60359f5eccd8945ad5a09d710285ff4e48"),
                ("data_batch_5", "755304fc0b379caeae8c14f0dac912fbc7d6cd469eb67a1029a08a39453a9add"),
                ("test_batch", "8e2eb146ae340b09e24670f29cabc6326dba54da8789dab6768acf480273f65b"),
            )
        ),
        archive=DataFile(
            path="cifar10/cifar-10-binary.tar.gz",
            size_bytes=170_052_171,
            sha256="c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd",
            urls=("https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",),
        ),
    ),
}


def data_root(option: Path | None = None) -> Path:
    """Return the folder with the data sets: `--data FOLDER`, else $WORLDSIZE_DATA, else the user's cache."""
    if option is None and (from_environment := os.environ.get("WORLDSIZE_DATA")):
        option = Path(from_environment)
    if option is not None:
        return option.expanduser().absolute()
    return _user_cache() / "data"


def dataset_named(name: str) -> DataSet:
    if name in DATASETS:
        return DATASETS[name]
    raise DataError(f"no data set is called {shorten(name)}. {did_you_mean(name, DATASETS)}")


def missing_or_damaged(dataset: DataSet, root: Path, *, deep: bool, cached: bool = True) -> list[Fault]:
    """List the files that cannot be used. A shallow check looks at sizes, a deep one at every byte.

    A deep check stores checksums beside the data. They are valid until the size or time of the file changes;
    `cached=False` reads every byte again.
    """
    faults = (find_fault(file, root, deep=deep, cached=cached) for file in dataset.files)
    return [fault for fault in faults if fault is not None]


def find_fault(file: DataFile, root: Path, *, deep: bool, cached: bool = True) -> Fault | None:
    path = file.under(root)
    try:
        if not path.is_file():
            return Fault(file=file, kind="missing", text=f"{path} is missing")
        size = path.stat().st_size
        sha256 = _sum_of(path, cached=cached) if deep else file.sha256
    except OSError as error:
        return Fault(file=file, kind="damaged", text=f"{path} cannot be read: {error.strerror}")
    if (size, sha256) == (file.size_bytes, file.sha256):
        return None
    expected_sum, actual_sum = (f" with sha256 {file.sha256}", f" with sha256 {sha256}") if deep else ("", "")
    text = f"{file.size_bytes:,} bytes{expected_sum} expected, {size:,} bytes{actual_sum} found"
    return Fault(file=file, kind="damaged", text=f"{path} is damaged: {text}")


def require(name: str, root: Path, *, deep: bool = True) -> None:
    """Check that a set is complete before a study starts; `deep` reads every byte. The DataError says how to fix it."""
    faults = missing_or_damaged(dataset_named(name), root, deep=deep)
    if faults:
        more = f" (and {len(faults) - 1} more of its files)" if len(faults) > 1 else ""
        raise DataError(
            f"data set {name}: {faults[0].text}{more}; fetch it with `worldsize data fetch {name}` (on a cluster, on "
            f"the login node), or give the folder that has it with --data FOLDER or WORLDSIZE_DATA"
        )


def status(root: Path) -> list[DataSetStatus]:
    """One row per data set, for `worldsize data list`."""
    return [
        DataSetStatus(
            name=dataset.name,
            title=dataset.title,
            state=_state(dataset, root),
            size_bytes=dataset.size_bytes,
            license=dataset.license,
        )
        for dataset in DATASETS.values()
    ]


def _state(dataset: DataSet, root: Path) -> Literal["present", "missing", "damaged", "partial"]:
    faults = missing_or_damaged(dataset, root, deep=True)
    if not faults:
        return "present"
    if any(fault.kind == "damaged" for fault in faults):
        return "damaged"
    files = (*dataset.files, *((dataset.archive,) if dataset.archive else ()))
    any_exists = any(path.exists() for file in files for path in (file.under(root), file.part_under(root)))
    return "partial" if any_exists else "missing"


def file_sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def remember_sum(path: Path, sha256: str) -> None:
    """Store a checksum, so that the next check need not read the file. Failures are ignored: they cost only that
    read."""
    folder = path.parent
    # A folder without any write permission is a finished, shared store: even root leaves it unchanged.
    if folder.stat().st_mode & 0o222:
        with suppress(OSError):
            write_json(folder / SUMS_NAME, {**_sums(folder), path.name: {**_identity(path), "sha256": sha256}})


def _sum_of(path: Path, *, cached: bool) -> str:
    stored = _sums(path.parent).get(path.name) if cached else None
    if isinstance(stored, dict) and stored == {**_identity(path), "sha256": stored.get("sha256")}:
        return str(stored["sha256"])
    sha256 = file_sha256(path)
    remember_sum(path, sha256)
    return sha256


def _identity(path: Path) -> dict[str, int]:
    stat = path.stat()
    return {"size_bytes": stat.st_size, "mtime_ns": stat.st_mtime_ns}


def _sums(folder: Path) -> dict[str, Any]:
    try:
        sums = read_json(folder / SUMS_NAME)
    except (OSError, ValueError):
        return {}
    return sums if isinstance(sums, dict) else {}


def find_path(spec: WorkloadSpec, root: Path) -> Path:
    """Find the `path` of a workload, relative to the current folder, then to the data folder."""
    assert spec.path is not None
    candidates = [Path(spec.path).expanduser().absolute(), root / spec.path]
    for candidate in candidates:
        if candidate.exists():
            return candidate
    searched = " and ".join(str(candidate) for candidate in dict.fromkeys(candidates))
    raise DataError(
        f"path={spec.path!r} of the workload {spec.name} does not exist (tried {searched}); correct it, or give the "
        "folder that contains it with --data FOLDER or WORLDSIZE_DATA"
    )


def cache_root() -> Path:
    """Return the folder for decoded images: $WORLDSIZE_CACHE, else the user's cache folder."""
    if from_environment := os.environ.get("WORLDSIZE_CACHE"):
        return Path(from_environment).absolute()
    return _user_cache() / "decoded"


def _user_cache() -> Path:
    """Return our folder in $XDG_CACHE_HOME, or in ~/.cache. XDG requires that a relative path is ignored."""
    cache = Path(os.environ.get("XDG_CACHE_HOME", ""))
    return (cache if cache.is_absolute() else Path.home() / ".cache") / "worldsize"
