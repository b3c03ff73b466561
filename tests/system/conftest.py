"""Small studies for the system tests, and helpers that look at their processes and records."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.system.ranks import run_trials
from tests.system.trials import CURVES, NOISE
from worldsize.folder.study_folder import StudyFolder

PLANTED = Path(__file__).parent / "planted"
SMALL = """\
name: small
workload: digits
axes:
  workers: [1, 2]
  batch_per_worker: [16]
  optimizer: [{name: sgd, lr: 0.05, momentum: 0.9}]
probe: {max_seconds: 0.2, repeats: 2}
train: {steps: 30}
repeats: 1
interconnect_probe_s: 0
oversubscribe: true
"""
"""Two launches of 2 probes, then one training trial each on 1 and 2 workers."""

Start = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "small.yaml").write_text(SMALL)
    return tmp_path / "study"


@pytest.fixture
def start(folder: Path) -> Start:
    return starter(folder)


def starter(folder: Path) -> Start:
    """Return a function that starts `worldsize run` on the small study. It can plant a `fault` in the workers."""

    def begin(*options: str, fault: str = "", **popen: object) -> subprocess.Popen[str]:
        environment = dict(os.environ)
        if fault:
            environment |= {
                "PLANTED": fault,
                "PLANTED_MARKER": str(folder.parent / "planted"),
                "PYTHONPATH": os.pathsep.join([str(PLANTED), environment.get("PYTHONPATH", "")]),
            }
        command = [
            sys.executable,
            "-m",
            "worldsize.cli.main",
            "run",
            str(folder.parent / "small.yaml"),
            "--dir",
            str(folder),
        ]
        settings = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True, "env": environment, **popen}
        # Handle SIGINT as in a terminal, even if the tests run in the background, where it is ignored.
        settings["preexec_fn"] = lambda: signal.signal(signal.SIGINT, signal.SIG_DFL)
        return subprocess.Popen([*command, *options], **settings)  # type: ignore[call-overload,no-any-return]

    return begin


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory) -> StudyFolder:
    """The trials of `trials.py`, all in one launch, without a driver."""
    return run_trials(tmp_path_factory.mktemp("trained"), [*CURVES.values(), *NOISE.values()])


@pytest.fixture(scope="session")
def whole_quickstart(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """The quickstart exactly as a newcomer runs it: almost a minute, once for all tests of the long tier."""
    folder = tmp_path_factory.mktemp("runs") / "quickstart"
    return folder, run_quickstart(folder)


def run_quickstart(folder: Path, *options: str) -> dict[str, Any]:
    command = [sys.executable, "-m", "worldsize.cli.main", "run", "--json", "--dir", str(folder), *options]
    answer = subprocess.run(command, capture_output=True, text=True, check=False)
    assert answer.returncode == 0, answer.stderr
    output: dict[str, Any] = json.loads(answer.stdout)
    return output


def wait_for(condition: Callable[[], bool], seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "waited too long"
        time.sleep(0.02)


def processes_of(folder: Path) -> list[psutil.Process]:
    """Return the running processes that were started for this study."""
    processes = []
    for process in psutil.process_iter():
        try:
            if process.status() != psutil.STATUS_ZOMBIE and str(folder) in " ".join(process.cmdline()):
                processes.append(process)
        except psutil.Error:
            continue
    return processes


def records(folder: Path) -> dict[str, int]:
    """Return the modification time of each record, by trial."""
    return {path.parent.name: path.stat().st_mtime_ns for path in folder.glob("trials/*/record.json")}
