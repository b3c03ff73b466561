"""One driver a study, on this host judged by its process, on another by its heartbeat."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from worldsize.errors import DamagedError, StoreError
from worldsize.folder.files import read_model
from worldsize.folder.lock import LockFile, lock_holder, study_lock
from worldsize.machine import process_started_at, same_process


def write_lock(folder: Path, **changes: object) -> None:
    holder = {
        "host": os.uname().nodename,
        "pid": os.getpid(),
        "started_at": process_started_at(os.getpid()),
        "heartbeat_at": time.time(),
        **changes,
    }
    (folder / "lock.json").write_text(json.dumps(holder))


def test_the_second_driver_is_refused_and_told_the_holder(tmp_path: Path) -> None:
    with study_lock(tmp_path):
        with pytest.raises(StoreError, match=f"pid {os.getpid()} on"), study_lock(tmp_path):
            pass
        assert lock_holder(tmp_path) is not None
    assert lock_holder(tmp_path) is None
    with study_lock(tmp_path):
        pass


def test_a_pid_used_again_is_not_the_holder(tmp_path: Path) -> None:
    write_lock(tmp_path, started_at=1.0)
    with study_lock(tmp_path):
        pass


def test_another_host_is_judged_by_its_heartbeat(tmp_path: Path) -> None:
    write_lock(tmp_path, host="elsewhere")
    with pytest.raises(StoreError, match="on elsewhere"), study_lock(tmp_path):
        pass
    with study_lock(tmp_path, take_over=True):
        pass
    write_lock(tmp_path, host="elsewhere", heartbeat_at=time.time() - 3600)
    with study_lock(tmp_path):
        pass


def test_the_file_says_who_holds_it(tmp_path: Path) -> None:
    with study_lock(tmp_path):
        holder = read_model(tmp_path / "lock.json", LockFile)
        assert holder == lock_holder(tmp_path)
        assert (holder.host, holder.pid, holder.started_at) == holder.owner
        assert same_process(holder.pid, holder.started_at)
    assert not (tmp_path / "lock.json").exists()


@pytest.mark.parametrize("changes", [{"pid": 0}, {"pid": "1"}, {"host": None}, {"heartbeat_at": None}, {"more": 1}])
def test_a_lock_that_nobody_wrote_is_damaged_and_holds_nothing(tmp_path: Path, changes: dict[str, object]) -> None:
    write_lock(tmp_path, **changes)
    with pytest.raises(DamagedError, match=rf"lock\.json is damaged or of another version .*{next(iter(changes))}"):
        read_model(tmp_path / "lock.json", LockFile)
    assert lock_holder(tmp_path) is None


@pytest.mark.parametrize("text", ["", "{", "[]", "{}"])
def test_a_garbled_lock_is_no_holder(tmp_path: Path, text: str) -> None:
    (tmp_path / "lock.json").write_text(text)
    with study_lock(tmp_path):
        pass


RACE = """\
import os, sys
from pathlib import Path
from worldsize.errors import StoreError
from worldsize.folder.lock import study_lock

gate, opened = os.pipe()
done, ended = os.pipe()
for _ in range(20):
    if os.fork():
        continue
    os.close(opened), os.close(ended)
    os.read(gate, 1)  # nothing: it returns when the first process has closed the other end
    try:
        with study_lock(Path(sys.argv[1])):
            os.write(1, b"won\\n")
            os.read(done, 1)
    except StoreError:
        os.write(1, b"refused\\n")
    os._exit(0)
os.close(opened)
sys.stdin.readline()
"""
"""Imports once and forks: 20 fresh interpreters take seconds. All of them wait at the gate; the winner waits for us."""


def test_of_twenty_starts_at_once_one_wins(tmp_path: Path) -> None:
    race = subprocess.Popen(
        [sys.executable, "-c", RACE, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert race.stdout is not None
    said = [race.stdout.readline().strip() for _ in range(20)]
    race.communicate("done\n")
    assert sorted(said) == ["refused"] * 19 + ["won"]
