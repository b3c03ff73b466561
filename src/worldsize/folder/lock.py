"""One driver a study: a heartbeat file with host, pid and start time.

A holder on this host is judged by its process, one on another host by its heartbeat: study folders live on shared file
systems, where no pid says anything.
"""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from filelock import FileLock

from worldsize.errors import StoreError
from worldsize.folder.files import read_json, write_json
from worldsize.machine import process_started_at, same_process

HEARTBEAT_S = 10.0
STALE_S = 60.0


@contextmanager
def study_lock(folder: Path, *, take_over: bool = False) -> Iterator[None]:
    """Held by the driver while it runs the study. Refuses when a living driver holds it."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "lock.json"
    mine = {
        "host": socket.gethostname(),
        "pid": os.getpid(),
        "started_at": process_started_at(os.getpid()),
        "heartbeat_at": time.time(),
    }
    # The file lock covers only the moment of looking and writing, so that of many starts at once one wins.
    guard = folder / ".lock.guard"
    if guard.is_symlink():
        raise StoreError(f"{guard} is a link, and what it leads to would be emptied; remove it")
    with FileLock(guard):
        holder = _read(path)
        if holder is not None and not take_over and _alive(holder):
            raise StoreError(
                f"{folder} is being run by pid {holder['pid']} on {holder['host']}; wait for it, watch it with "
                f"`worldsize status {folder}`, or use --take-over if you know that it is gone"
            )
        write_json(path, mine)
    done = threading.Event()
    beating = threading.Thread(target=_beat, args=(path, mine, done), daemon=True)
    beating.start()
    try:
        yield
    finally:
        done.set()
        beating.join()
        if _owner(_read(path)) == _owner(mine):
            path.unlink(missing_ok=True)


def lock_holder(folder: Path) -> dict[str, Any] | None:
    """The living driver of this study, if there is one."""
    holder = _read(folder / "lock.json")
    return holder if holder is not None and _alive(holder) else None


def _beat(path: Path, mine: dict[str, Any], done: threading.Event) -> None:
    while not done.wait(HEARTBEAT_S):
        holder = _read(path)
        if holder is not None and _owner(holder) != _owner(mine):  # taken over
            return
        try:
            write_json(path, {**mine, "heartbeat_at": time.time()})
        except OSError:  # a full disk: the next beat may succeed
            continue


def _owner(holder: dict[str, Any] | None) -> tuple[Any, ...] | None:
    return None if holder is None else (holder["host"], holder["pid"], holder["started_at"])


def _read(path: Path) -> dict[str, Any] | None:
    try:
        holder: dict[str, Any] = read_json(path)
    except (OSError, ValueError):
        return None
    kinds = {"host": str, "pid": int, "started_at": int | float, "heartbeat_at": int | float}
    known = isinstance(holder, dict) and all(isinstance(holder.get(name), kind) for name, kind in kinds.items())
    return holder if known and 0 < holder["pid"] < 2**31 else None


def _alive(holder: dict[str, Any]) -> bool:
    if holder["host"] == socket.gethostname():
        return same_process(int(holder["pid"]), float(holder["started_at"]))
    return time.time() - float(holder["heartbeat_at"]) < STALE_S
