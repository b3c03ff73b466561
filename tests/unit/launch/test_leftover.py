"""Launches that outlived their driver: real processes, known by pid and start time."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from worldsize.folder.launches import LaunchFolder, ProcessFile
from worldsize.launch.local import end_leftover, end_tree
from worldsize.machine import process_started_at

SLEEPER = "import time; time.sleep(600)"
PARENT = f"""
import subprocess, sys
child = subprocess.Popen([sys.executable, "-c", {SLEEPER!r}], start_new_session=True)  # as ranks are
print(child.pid, flush=True)
child.wait()
"""


@pytest.fixture
def family() -> Iterator[tuple[int, int]]:
    """The pids of a process and of one that it started."""
    with subprocess.Popen([sys.executable, "-c", PARENT], stdout=subprocess.PIPE, text=True) as parent:
        try:
            assert parent.stdout is not None
            yield parent.pid, int(parent.stdout.readline())
        finally:
            if parent.poll() is None:
                end_tree(parent.pid)


def is_running(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def test_what_a_driver_left_running_is_ended_with_all_it_started(tmp_path: Path, family: tuple[int, int]) -> None:
    pid, child = family
    LaunchFolder(tmp_path).write(ProcessFile(pid=pid, started_at=process_started_at(pid)))
    assert is_running(pid)
    assert is_running(child)
    assert end_leftover(LaunchFolder(tmp_path))
    assert not is_running(pid)
    assert not is_running(child)
    assert not end_leftover(LaunchFolder(tmp_path))  # there is nothing left to end


@pytest.mark.parametrize("earlier_s", [3600.0, None])
def test_another_process_with_the_same_pid_is_left_alone(
    tmp_path: Path, family: tuple[int, int], earlier_s: float | None
) -> None:
    """The launch began earlier under this pid and is gone; or nobody knows when it began."""
    pid, child = family
    started_at = process_started_at(pid)
    assert started_at is not None
    known = None if earlier_s is None else started_at - earlier_s
    LaunchFolder(tmp_path).write(ProcessFile(pid=pid, started_at=known))
    assert not end_leftover(LaunchFolder(tmp_path))
    assert is_running(pid)
    assert is_running(child)


def test_a_launch_without_a_process_has_nothing_to_end(tmp_path: Path) -> None:
    assert not end_leftover(LaunchFolder(tmp_path))
