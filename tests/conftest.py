"""Fixtures for all tests: the real data sets, found in one place."""

from __future__ import annotations

import os
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
