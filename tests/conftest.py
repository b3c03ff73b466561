"""Fixtures for all tests: small data sets for the short tier, the real data sets for the long tier."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.environment_guard import pytest_runtest_setup, pytest_runtest_teardown  # noqa: F401 (hooks)
from tests.small_data import write_data

BESIDE_THE_CHECKOUT = Path(__file__).parents[2] / "shared" / "data"
PUBLISHED_SERIES = Path(__file__).parent / "data" / "series.csv"


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark tests that need the data sets. Hosted CI runners have none and deselect these tests."""
    for item in items:
        if "data_folder" in getattr(item, "fixturenames", ()):
            item.add_marker("data_sets")


@pytest.fixture(scope="session")
def small_data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Small data sets with the layout of the real ones. Tests must not change them."""
    return write_data(tmp_path_factory.mktemp("small-data"))


@pytest.fixture(scope="session")
def data_folder() -> Path:
    """The folder with the real data sets, for the long tier. If it is missing, tests fail; they are not skipped."""
    folder = Path(os.environ.get("WORLDSIZE_DATA") or BESIDE_THE_CHECKOUT)
    if not (folder / "mnist" / "train-images-idx3-ubyte.gz").is_file():
        message = f"{folder} does not contain the data sets of the long tier; set WORLDSIZE_DATA to their folder"
        pytest.fail(message, pytrace=False)
    return folder


@pytest.fixture(scope="session")
def published_series() -> Path:
    """Scaling tables from public repositories."""
    return PUBLISHED_SERIES


@pytest.fixture(scope="session")
def whole_data_folder(data_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`data_folder` with CIFAR-10's official batches, which are unpacked if necessary."""
    if (data_folder / "cifar10" / "cifar-10-batches-bin").is_dir():
        return data_folder
    unpacked = tmp_path_factory.mktemp("data")
    for entry in data_folder.iterdir():
        if entry.is_dir() and entry.name != "cifar10":
            (unpacked / entry.name).symlink_to(entry)
    unpack = [sys.executable, str(data_folder / "cifar10" / "unpack.py"), str(unpacked / "cifar10")]
    subprocess.run(unpack, check=True, capture_output=True)
    return unpacked
