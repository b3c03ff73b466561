"""Fixtures for all tests: the real data sets, found in one place."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

BESIDE_THE_CHECKOUT = Path(__file__).parents[2] / "shared" / "data"


@pytest.fixture(scope="session")
def data_folder() -> Path:
    """The folder with the real data sets. Without it tests fail, they do not skip: set WORLDSIZE_DATA."""
    folder = Path(os.environ.get("WORLDSIZE_DATA", BESIDE_THE_CHECKOUT))
    if not (folder / "mnist" / "train-images-idx3-ubyte.gz").is_file():
        pytest.fail(f"the data sets for the tests are not in {folder}; set WORLDSIZE_DATA to their folder")
    os.environ["WORLDSIZE_DATA"] = str(folder)
    return folder


@pytest.fixture(scope="session")
def published_series(data_folder: Path) -> Path:
    """Scaling tables from public repositories, beside the data sets; without them tests fail, they do not skip."""
    path = data_folder.parent / "validation" / "series.csv"
    if not path.is_file():
        pytest.fail(f"the published scaling series are not at {path}; set WORLDSIZE_DATA to the folder beside theirs")
    return path


@pytest.fixture(scope="session")
def whole_data_folder(data_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same with CIFAR-10's official batches, restored where the folder holds them packed."""
    if (data_folder / "cifar10" / "cifar-10-batches-bin").is_dir():
        return data_folder
    whole = tmp_path_factory.mktemp("data")
    for entry in data_folder.iterdir():
        if entry.is_dir() and entry.name != "cifar10":
            (whole / entry.name).symlink_to(entry)
    restore = [sys.executable, str(data_folder / "cifar10" / "unpack.py"), str(whole / "cifar10")]
    subprocess.run(restore, check=True, capture_output=True)
    return whole
