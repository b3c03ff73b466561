"""Launches on this machine: torchrun as a child that cannot outlive us, followed until its trials have records."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from worldsize.launch.commands import torchrun_command, worker_environment
from worldsize.launch.follow import Follower
from worldsize.lock import process_started_at, same_process
from worldsize.store import StudyFolder, read_json, write_json
from worldsize.tether import tie_to_parent

POLL_S = 0.1
STOP_GRACE_S = 3.0


@dataclass(frozen=True, kw_only=True)
class LaunchEnd:
    wall_s: float
    returncode: int | None
    hung: bool
    interrupted: bool
    patience_s: float
    last_step: int | None


def run_launch(
    folder: StudyFolder,
    launch_id: str,
    *,
    workers: int,
    threads: int,
    cpu_limit_gb: float | None = None,
    trials: Sequence[str],
    hang_timeout_s: float,
    on_event: Callable[[str, dict[str, Any]], None],
) -> LaunchEnd:
    """Starts the processes, passes on what they say, returns when all of them are gone."""
    path = folder.launch(launch_id)
    follower = Follower(folder, path, list(trials), hang_timeout_s)
    started = time.monotonic()
    with (path / "torchrun.log").open("ab") as log:
        process = subprocess.Popen(
            torchrun_command(folder.path, launch_id, workers),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            env=worker_environment(os.environ, threads, cpu_limit_gb),
            start_new_session=True,  # a Ctrl-C in the terminal is ours to pass on
            preexec_fn=tie_to_parent,
        )
    write_json(path / "process.json", {"pid": process.pid, "started_at": process_started_at(process.pid)})
    hung = interrupted = False
    try:
        while process.poll() is None and not hung:
            for trial_id, event in follower.events():
                on_event(trial_id, event)
            hung = follower.hung()
            time.sleep(POLL_S)
    except KeyboardInterrupt:
        interrupted = True
        _stop(process, path)
    finally:
        if hung:
            _dump_stacks(process)
        if process.poll() is None:
            end_tree(process.pid)
        process.wait()
    for trial_id, event in follower.events():
        on_event(trial_id, event)
    return LaunchEnd(
        wall_s=time.monotonic() - started,
        returncode=process.returncode,
        hung=hung,
        interrupted=interrupted,
        patience_s=follower.patience_s(),
        last_step=follower.last_step,
    )


def end_tree(pid: int) -> None:
    """Ends a process and all it started, at once. Ranks are sessions of their own, so the group is not enough."""
    try:
        root = psutil.Process(pid)
        family = [root, *root.children(recursive=True)]
    except psutil.NoSuchProcess:
        return
    for member in family:
        try:
            member.kill()
        except psutil.NoSuchProcess:
            continue
    psutil.wait_procs(family, timeout=10)


def end_leftovers(folder: StudyFolder) -> list[str]:
    """Launches that outlived a killed driver, where nothing ties a child to its parent: known by pid and start time."""
    ended = []
    for launch in folder.launches():
        if (launch / "end.json").exists() or not (launch / "process.json").exists():
            continue
        process = read_json(launch / "process.json")
        if process["started_at"] is not None and same_process(process["pid"], process["started_at"]):
            end_tree(process["pid"])
            ended.append(launch.name)
    return ended


def _stop(process: subprocess.Popen[bytes], path: Path) -> None:
    """Asks rank 0 to stop at a step. A second Ctrl-C, or a rank that does not answer, ends the waiting."""
    try:
        (path / "stop").touch()
        process.wait(STOP_GRACE_S)
    except (KeyboardInterrupt, subprocess.TimeoutExpired, OSError):
        return


def _dump_stacks(process: subprocess.Popen[bytes]) -> None:
    """Every rank writes where it stands into its log; a stopped one cannot."""
    try:
        ranks = psutil.Process(process.pid).children()
    except psutil.NoSuchProcess:
        return
    for rank in ranks:
        try:
            rank.send_signal(signal.SIGUSR2)
        except psutil.NoSuchProcess:
            continue
    time.sleep(0.5)
