"""This machine: the cores and GPUs that workers can use, its processes and regular files. Does not import torch."""

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

    def device(self, requested: Literal["auto", "cpu", "cuda"]) -> Literal["cpu", "cuda"]:
        if requested == "auto":
            return "cuda" if self.gpus else "cpu"
        return requested

    def capacity(self, device: Literal["cpu", "cuda"], threads: int) -> int:
        """Return the number of workers that fit without sharing a core or a GPU."""
        return self.gpus if device == "cuda" else max(self.cores // threads, 1)


def this_machine() -> Machine:
    return Machine(cores=len(os.sched_getaffinity(0)), gpus=visible_gpus())


def visible_gpus() -> int:
    """Return the number of GPUs according to NVML, minus those that CUDA_VISIBLE_DEVICES hides."""
    import pynvml

    try:
        pynvml.nvmlInit()
        count = int(pynvml.nvmlDeviceGetCount())
        pynvml.nvmlShutdown()
    except pynvml.NVMLError:  # no driver, no library: no GPU
        return 0
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is None:
        return count
    return min(count, len([gpu for gpu in visible.split(",") if gpu.strip() not in ("", "-1")]))


PR_SET_PDEATHSIG = 1


def tie_to_parent(parent: int | None = None) -> None:
    """Kill this process when its parent ends for any reason. Linux only; survives exec.

    The kernel watches the thread that forked, so children must be started from the main thread.
    """
    if sys.platform != "linux":
        return
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if parent is not None and os.getppid() != parent:  # the parent ended before the call
        os._exit(1)


def process_started_at(pid: int) -> float | None:
    """Return the start time of a process. Pids are reused; pid and start time together identify a process."""
    import psutil

    try:
        return float(psutil.Process(pid).create_time())
    except psutil.Error:
        return None


def same_process(pid: int, started_at: float) -> bool:
    actual = process_started_at(pid)
    return actual is not None and abs(actual - started_at) < 0.5


MOST_TEXT_BYTES = 2**28
"""Size limit of files that are read at once: JSON, events, logs."""


def open_regular(path: Path, *, follow: bool = False) -> BufferedReader:
    """Open a regular file for reading. A pipe would block, a device might never end, and a link might lead elsewhere.
    `follow` allows links, for files that the user names."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | (0 if follow else os.O_NOFOLLOW))
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise DamagedError(f"{path} is a link; replace it with the file itself") from error
        raise
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise DamagedError(f"{path} is not a plain file; replace it with one, or remove it")
    return os.fdopen(descriptor, "rb")


def read_regular(path: Path, *, most: int = MOST_TEXT_BYTES, follow: bool = False) -> bytes:
    """Read a regular file. Every file of a study folder is read with this function."""
    with open_regular(path, follow=follow) as file:
        size = os.fstat(file.fileno()).st_size
        if size > most:
            raise DamagedError(f"{path} has {size:,} bytes; the limit is {most:,} bytes. Shorten or remove the file")
        return file.read(size)
