"""Make sure that only one driver runs a study: a lock file with host, pid, start time and heartbeat.

A driver on this host is alive if its process is. One on another host, which shares the file system, is alive if its
heartbeat is recent.
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
"""Time between two heartbeats."""
STALE_S = 60.0
"""Age of the last heartbeat above which a driver on another host counts as dead."""


class LockFile(Frozen):
    """lock.json: the driver that runs the study."""

    host: str
    pid: Pid
    started_at: float
    """Start time of the process. A pid can be reused, but pid and start time together are unique."""
    heartbeat_at: float

    @property
    def owner(self) -> tuple[str, int, float]:
        """Identity of the driver, without its heartbeat."""
        return self.host, self.pid, self.started_at


@contextmanager
def study_lock(folder: Path, *, take_over: bool = False) -> Iterator[None]:
    """Lock the study while the driver runs it. Raises StoreError if another driver that is alive holds the lock."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "lock.json"
    mine = LockFile(
        host=socket.gethostname(),
        pid=os.getpid(),
        started_at=process_started_at(os.getpid()) or 0.0,
        heartbeat_at=time.time(),
    )
    # The file lock is held only while lock.json is read and written: of several simultaneous starts, one wins.
    guard = folder / ".lock.guard"
    if guard.is_symlink():
        raise StoreError(f"{guard} is a link, and locking would empty its target; remove it")
    with FileLock(guard):
        holder = _read(path)
        if holder is not None and not take_over and _alive(holder):
            raise StoreError(
                f"{folder} is being run by pid {holder.pid} on {holder.host}; wait for it, watch it with "
                f"`worldsize status {folder}`, or use --take-over if you know that it has ended"
            )
        write_model(path, mine)
    done = threading.Event()
    heartbeat = threading.Thread(target=_keep_beating, args=(path, mine, done), daemon=True)
    heartbeat.start()
    try:
        yield
    finally:
        done.set()
        heartbeat.join()
        holder = _read(path)
        if holder is not None and holder.owner == mine.owner:
            path.unlink(missing_ok=True)


def lock_holder(folder: Path) -> LockFile | None:
    """Return the driver that runs this study, or None."""
    holder = _read(folder / "lock.json")
    return holder if holder is not None and _alive(holder) else None


def _keep_beating(path: Path, mine: LockFile, done: threading.Event) -> None:
    while not done.wait(HEARTBEAT_S):
        holder = _read(path)
        if holder is not None and holder.owner != mine.owner:  # another driver has taken over
            return
        try:
            write_model(path, mine.model_copy(update={"heartbeat_at": time.time()}))
        except OSError:  # the disk can be full for a moment
            continue


def _read(path: Path) -> LockFile | None:
    """Return the lock file, or None if it is missing or damaged."""
    try:
        return read_model(path, LockFile)
    except (OSError, ValueError):
        return None


def _alive(holder: LockFile) -> bool:
    if holder.host == socket.gethostname():
        return same_process(holder.pid, holder.started_at)
    return time.time() - holder.heartbeat_at < STALE_S
