"""This machine: the cores and GPUs that workers may use, and the processes and plain files on it. No torch."""

from __future__ import annotations

import ctypes
import errno
import os
import signal
import stat
import sys
from dataclasses import dataclass
from io import BufferedReader
from pathlib import Path
from typing import Literal

from worldsize.errors import DamagedError


@dataclass(frozen=True, kw_only=True)
class Machine:
    cores: int
    gpus: int

    def device(self, wanted: Literal["auto", "cpu", "cuda"]) -> Literal["cpu", "cuda"]:
        if wanted == "auto":
            return "cuda" if self.gpus else "cpu"
        return wanted

    def capacity(self, device: Literal["cpu", "cuda"], threads: int) -> int:
        """How many workers fit without sharing a core or a GPU."""
        return self.gpus if device == "cuda" else max(self.cores // threads, 1)


def this_machine() -> Machine:
    return Machine(cores=len(os.sched_getaffinity(0)), gpus=visible_gpus())


def visible_gpus() -> int:
    """GPUs that NVML counts, less what CUDA_VISIBLE_DEVICES hides."""
    import pynvml

    try:
        pynvml.nvmlInit()
        count = int(pynvml.nvmlDeviceGetCount())
        pynvml.nvmlShutdown()
    except pynvml.NVMLError:  # no driver, no library: no GPU
        return 0
    chosen = os.environ.get("CUDA_VISIBLE_DEVICES")
    if chosen is None:
        return count
    return min(count, len([part for part in chosen.split(",") if part.strip() not in ("", "-1")]))


PR_SET_PDEATHSIG = 1


def tie_to_parent(parent: int | None = None) -> None:
    """This process is killed when its parent ends, however that ends. Linux only; it survives exec.

    The tie follows the thread that forked, so children are started from the main thread.
    """
    if sys.platform != "linux":
        return
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if parent is not None and os.getppid() != parent:  # it ended before the tie was made
        os._exit(1)


def process_started_at(pid: int) -> float | None:
    """A pid is used again; with its start time it identifies one process forever."""
    import psutil

    try:
        return float(psutil.Process(pid).create_time())
    except psutil.Error:
        return None


def same_process(pid: int, started_at: float) -> bool:
    found = process_started_at(pid)
    return found is not None and abs(found - started_at) < 0.5


MOST_TEXT_BYTES = 2**28
"""The most for a file that is read whole: JSON, events, logs."""


def open_regular(path: Path, *, follow: bool = False) -> BufferedReader:
    """A plain file, open to be read: a pipe would be waited for, a device read without end, a link leads elsewhere.
    `follow` is for files that the user names."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | (0 if follow else os.O_NOFOLLOW))
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise DamagedError(f"{path} is a link; put the file itself in its place") from error
        raise
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise DamagedError(f"{path} is not a plain file; put one in its place, or remove it")
    return os.fdopen(descriptor, "rb")


def read_regular(path: Path, *, most: int = MOST_TEXT_BYTES, follow: bool = False) -> bytes:
    """The content of a plain file, which every file of a study folder is read with."""
    with open_regular(path, follow=follow) as file:
        size = os.fstat(file.fileno()).st_size
        if size > most:
            raise DamagedError(
                f"{path} has {size:,} bytes, and such a file may have at most {most:,}; shorten or remove it"
            )
        return file.read(size)
