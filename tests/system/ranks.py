"""Real ranks for tests: a module started once a rank, or trials run in one launch."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from tests.made import write_launch
from tests.system.netns import Cable
from worldsize.folder.files import write_atomic
from worldsize.folder.study_folder import StudyFolder
from worldsize.launch.local import LocalTarget
from worldsize.launch.target import PreparedLaunch
from worldsize.spec.study import TrialSpec

ROOT = Path(__file__).parents[2]
LIMIT_S = 240
TRIES = 3


def tried(folder: Path, run: Callable[[Path], None], check: Callable[[Path], None]) -> None:
    """Others may use this machine at any time: what is there must be found in one of three tries."""
    for left in reversed(range(TRIES)):
        here = folder / str(left)
        here.mkdir()
        run(here)
        try:
            check(here)
        except AssertionError:
            if not left:
                raise
        else:
            return


def run_ranks(module: str, folder: Path, *args: str, ranks: int = 2, cable: Cable | None = None) -> None:
    """`python -m module FOLDER ARGS` once a rank, on this machine or over the cable. Their warnings are errors."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        meeting = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(probe.getsockname()[1])}
    if cable:
        meeting = cable.environment()
    command = [sys.executable, "-W", "error", "-m", module, str(folder), *args]
    logs = [folder / f"rank{rank}.log" for rank in range(ranks)]
    processes = []
    for rank, log in enumerate(logs):
        with log.open("wb") as output:
            place = {"WORLD_SIZE": str(ranks), "RANK": str(rank), "OMP_NUM_THREADS": "1"}
            where = cable.nodes[rank].command(command) if cable else command
            environment = {**os.environ, **meeting, **place}
            processes.append(subprocess.Popen(where, cwd=ROOT, env=environment, stdout=output, stderr=output))
    try:
        codes = [process.wait(LIMIT_S) for process in processes]
    finally:
        for process in processes:
            process.kill()
            process.wait()
    assert set(codes) == {0}, "\n".join(log.read_text() for log in logs)


def run_trials(path: Path, trials: list[TrialSpec]) -> StudyFolder:
    """All of them in one launch at the largest count, without a driver."""
    folder = StudyFolder(path)
    for each in trials:
        write_atomic(folder.trial(each.id) / "spec.json", each.model_dump_json().encode())
    places = {"data": str(path), "cache": str(path), "launched_at": time.time()}
    workers, names = max(each.workers for each in trials), tuple(each.id for each in trials)
    write_launch(folder.launch("0001"), workers=workers, trials=names, **places)
    LocalTarget().start(PreparedLaunch.stored(folder, "0001", hang_timeout_s=120), lambda *_: None).wait()
    return folder
