"""One driver a study, on this host judged by its process, on another by its heartbeat."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from worldsize.errors import StoreError
from worldsize.lock import lock_holder, process_started_at, study_lock


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


@pytest.mark.parametrize("text", ["", "{", "[]", "{}"])
def test_a_garbled_lock_is_no_holder(tmp_path: Path, text: str) -> None:
    (tmp_path / "lock.json").write_text(text)
    with study_lock(tmp_path):
        pass


def test_of_twenty_starts_at_once_one_wins(tmp_path: Path) -> None:
    code = (
        "import sys, time\nfrom pathlib import Path\nfrom worldsize.errors import StoreError\n"
        "from worldsize.lock import study_lock\n"
        "print('ready', flush=True); sys.stdin.readline()\n"
        "try:\n    with study_lock(Path(sys.argv[1])):\n        print('won', flush=True); sys.stdin.readline()\n"
        "except StoreError:\n    print('refused', flush=True)\n"
    )
    starts = [
        subprocess.Popen(
            [sys.executable, "-c", code, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        for _ in range(20)
    ]
    for start in starts:
        assert start.stdout is not None
        assert start.stdout.readline() == "ready\n"
    for start in starts:
        assert start.stdin is not None
        start.stdin.write("go\n")
        start.stdin.flush()
    said = [start.stdout.readline().strip() for start in starts if start.stdout]
    for start in starts:
        start.communicate("done\n")
    assert sorted(said) == ["refused"] * 19 + ["won"]
