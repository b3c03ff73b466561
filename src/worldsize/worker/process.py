"""The process of a rank: its output in a file of its own, its failure written down."""

from __future__ import annotations

import faulthandler
import io
import os
import signal
import sys
import time
import traceback
from contextlib import suppress
from pathlib import Path

from worldsize.store import TRIAL_MARK, is_disk_full, write_json
from worldsize.worker.journal import EXIT_STOPPED


def redirect_output(path: Path) -> None:
    """Descriptors, not sys.stdout alone: what native code prints as it aborts must be kept too."""
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    for standard in (1, 2):
        os.dup2(descriptor, standard)
    os.close(descriptor)
    assert isinstance(sys.stdout, io.TextIOWrapper)
    sys.stdout.reconfigure(line_buffering=True)
    # The driver sends this signal to a launch that hangs, so that the log says where.
    faulthandler.register(signal.SIGUSR2, all_threads=True)


def stop_file(launch: Path) -> Path:
    """Where this process is told to stop. An attempt of a job has one of its own: a scheduler that lost sight of a node
    may start the next attempt while processes of the last still run there."""
    attempt = os.environ.get("WORLDSIZE_ATTEMPT")
    return launch / (f"stop-{attempt}" if attempt else "stop")


def leave_if_superseded(stop: Path) -> None:
    """Before a record is written: the next attempt has this trial now, and two writers would spoil its files."""
    if stop.exists() and stop.read_text(encoding="utf-8").startswith("superseded"):
        os._exit(EXIT_STOPPED)


def mark_trial(trial_id: str) -> None:
    print(f"{TRIAL_MARK}{trial_id}", flush=True)


def write_failure(
    path: Path, rank: int, trial_id: str | None, step: int | None, error: BaseException, *, out_of_memory: bool
) -> None:
    """The driver reads these after the launch and blames the earliest. On a full disk, what still fits is written: the
    driver sees for itself that it is full."""
    text = str(error).strip() or "no message"
    failure = {
        "rank": rank,
        "trial": trial_id,
        "step": step,
        "at": time.time(),
        "type": type(error).__name__,
        "out_of_memory": out_of_memory,
        "disk_full": is_disk_full(error),
        "error": text[:2000],
    }
    with suppress(OSError):
        write_json(path, failure)
    with suppress(OSError):
        traceback.print_exc()
        sys.stdout.flush()
        sys.stderr.flush()
