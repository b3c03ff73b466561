"""Processes that cannot outlive the one that started them."""

from __future__ import annotations

import ctypes
import os
import signal
import sys

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
