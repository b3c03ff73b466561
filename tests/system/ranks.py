"""Real ranks for tests: a module started once per rank, or trials run in one launch."""

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
    """Run and check up to three times, because other programs may disturb a measurement. One success is enough."""
    for left in reversed(range(TRIES)):
        attempt = folder / str(left)
        attempt.mkdir()
        run(attempt)
        try:
            check(attempt)
        except AssertionError:
            if not left:
                raise
        else:
            return


def run_ranks(module: str, folder: Path, *args: str, ranks: int = 2, cable: Cable | None = None) -> None:
    """Run `python -m module FOLDER ARGS` once per rank, here or on the nodes of a cable. Warnings are errors."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        rendezvous = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(probe.getsockname()[1])}
    if cable:
        rendezvous = cable.environment()
    command = [sys.executable, "-W", "error", "-m", module, str(folder), *args]
    logs = [folder / f"rank{rank}.log" for rank in range(ranks)]
    processes = []
    for rank, log in enumerate(logs):
        with log.open("wb") as output:
            own = {"WORLD_SIZE": str(ranks), "RANK": str(rank), "OMP_NUM_THREADS": "1"}
            rank_command = cable.nodes[rank].command(command) if cable else command
            environment = {**os.environ, **rendezvous, **own}
            processes.append(subprocess.Popen(rank_command, cwd=ROOT, env=environment, stdout=output, stderr=output))
    try:
        codes = [process.wait(LIMIT_S) for process in processes]
    finally:
        for process in processes:
            process.kill()
            process.wait()
    assert set(codes) == {0}, "\n".join(log.read_text() for log in logs)


def run_trials(path: Path, trials: list[TrialSpec]) -> StudyFolder:
    """Run trials in one launch with as many workers as the largest needs, without a driver."""
    folder = StudyFolder(path)
    for trial in trials:
        write_atomic(folder.trial(trial.id) / "spec.json", trial.model_dump_json().encode())
    workers, names = max(trial.workers for trial in trials), tuple(trial.id for trial in trials)
    folders = {"data": str(path), "cache": str(path)}
    write_launch(folder.launch("0001"), workers=workers, trials=names, launched_at=time.time(), **folders)
    LocalTarget().start(PreparedLaunch.stored(folder, "0001", hang_timeout_s=120), lambda *_: None).wait()
    return folder
