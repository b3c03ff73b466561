"""The guard of os.environ fails the test that leaves it changed, and no other."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
SUITE = """\
import os
import pytest

@pytest.fixture(scope="module")
def careless():
    os.environ["LEFT_BY_A_FIXTURE"] = "1"

def test_with_a_careless_fixture(careless):
    assert os.environ["LEFT_BY_A_FIXTURE"]

def test_after_it():
    assert "LEFT_BY_A_FIXTURE" not in os.environ

def test_careless_itself():
    os.environ["CHANGED_BY_A_TEST"] = "now"
    del os.environ["REMOVED_BY_A_TEST"]

def test_what_it_changed_is_put_back():
    assert (os.environ["CHANGED_BY_A_TEST"], os.environ["REMOVED_BY_A_TEST"]) == ("before", "kept")

def test_careful(monkeypatch):
    monkeypatch.setenv("CHANGED_BY_A_TEST", "now")
    monkeypatch.delenv("REMOVED_BY_A_TEST")
"""


def test_only_who_leaves_the_environment_changed_fails(tmp_path: Path) -> None:
    (tmp_path / "test_suite.py").write_text(SUITE)
    command = [sys.executable, "-m", "pytest", "-p", "tests.environment_guard", "-p", "no:cacheprovider", str(tmp_path)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "CHANGED_BY_A_TEST": "before", "REMOVED_BY_A_TEST": "kept"}
    found = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert found.returncode == 1
    said = [line for line in found.stdout.splitlines() if "teardown" in line or line.startswith("os.environ")]
    assert [line.strip("_ ") for line in said] == [
        "ERROR at teardown of test_with_a_careless_fixture",
        "os.environ was left changed: LEFT_BY_A_FIXTURE; set variables with monkeypatch.setenv",
        "ERROR at teardown of test_careless_itself",
        "os.environ was left changed: CHANGED_BY_A_TEST, REMOVED_BY_A_TEST; set variables with monkeypatch.setenv",
    ]
    assert "5 passed, 2 errors" in found.stdout
