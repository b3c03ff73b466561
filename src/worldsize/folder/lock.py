"""One driver per study: a heartbeat file with host, pid and start time.

A holder on this host is judged by its process, one on another host by its heartbeat: study folders live on shared file
systems, where a pid means nothing.
"""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock

from worldsize.errors import StoreError
from worldsize.folder.files import Pid, read_model, write_model
from worldsize.machine import process_started_at, same_process
from worldsize.spec.base import Frozen

HEARTBEAT_S = 10.0
STALE_S = 60.0


class LockFile(Frozen):
    """lock.json: who runs the study."""

    host: str
    pid: Pid
    started_at: float
    """When the process started: with it, a pid identifies one process forever."""
    heartbeat_at: float

    @property
    def owner(self) -> tuple[str, int, float]:
        """What stays the same from heartbeat to heartbeat."""
        return self.host, self.pid, self.started_at


@contextmanager
def study_lock(folder: Path, *, take_over: bool = False) -> Iterator[None]:
    """Held by the driver while it runs the study. Refuses when a living driver holds it."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "lock.json"
    mine = LockFile(
        host=socket.gethostname(),
        pid=os.getpid(),
        started_at=process_started_at(os.getpid()) or 0.0,
        heartbeat_at=time.time(),
    )
    # The file lock covers only reading and writing lock.json, so that one of many simultaneous starts wins.
    guard = folder / ".lock.guard"
    if guard.is_symlink():
        raise StoreError(f"{guard} is a link, and what it leads to would be emptied; remove it")
    with FileLock(guard):
        holder = _read(path)
        if holder is not None and not take_over and _alive(holder):
            raise StoreError(
                f"{folder} is being run by pid {holder.pid} on {holder.host}; wait for it, watch it with "
                f"`worldsize status {folder}`, or use --take-over if you know that it is gone"
            )
        write_model(path, mine)
    done = threading.Event()
    beating = threading.Thread(target=_beat, args=(path, mine, done), daemon=True)
    beating.start()
    try:
        yield
    finally:
        done.set()
        beating.join()
        holder = _read(path)
        if holder is not None and holder.owner == mine.owner:
            path.unlink(missing_ok=True)


def lock_holder(folder: Path) -> LockFile | None:
    """The living driver of this study, if there is one."""
    holder = _read(folder / "lock.json")
    return holder if holder is not None and _alive(holder) else None


def _beat(path: Path, mine: LockFile, done: threading.Event) -> None:
    while not done.wait(HEARTBEAT_S):
        holder = _read(path)
        if holder is not None and holder.owner != mine.owner:  # taken over
            return
        try:
            write_model(path, mine.model_copy(update={"heartbeat_at": time.time()}))
        except OSError:  # a full disk: the next beat may succeed
            continue


def _read(path: Path) -> LockFile | None:
    """None also for a file that worldsize did not write."""
    try:
        return read_model(path, LockFile)
    except (OSError, ValueError):
        return None


def _alive(holder: LockFile) -> bool:
    if holder.host == socket.gethostname():
        return same_process(holder.pid, holder.started_at)
    return time.time() - holder.heartbeat_at < STALE_S
