"""The process of a rank: it writes its output to its own file, and records its failure.

Under mpirun, rank and size come from Open MPI's or PMI's variables, and ranks find rank 0 through the launch folder.

MPI only starts the processes: they communicate through gloo or NCCL, as always.
"""

from __future__ import annotations

import faulthandler
import io
import os
import signal
import socket
import sys
import time
import traceback
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path

from worldsize.errors import LaunchError
from worldsize.folder.files import is_disk_full, read_json, write_json
from worldsize.folder.launches import LaunchFolder, RankFailure
from worldsize.folder.study_folder import TRIAL_MARK
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
    """The file that asks this process to stop. Each attempt of a job has its own: a scheduler that lost sight of a node
    may start the next attempt while processes of the last one still run there."""
    attempt = os.environ.get("WORLDSIZE_ATTEMPT")
    return launch / (f"stop-{attempt}" if attempt else "stop")


def leave_if_superseded(stop: Path) -> None:
    """Before a record is written: the next attempt has this trial now, and two writers would spoil its files."""
    if stop.exists() and stop.read_text(encoding="utf-8").startswith("superseded"):
        os._exit(EXIT_STOPPED)


def mark_trial(trial_id: str) -> None:
    print(f"{TRIAL_MARK}{trial_id}", flush=True)


def write_failure(
    launch: Path, rank: int, trial_id: str | None, step: int | None, error: BaseException, *, out_of_memory: bool
) -> None:
    """The driver reads these after the launch and blames the earliest. On a full disk, whatever still fits is written:
    the driver sees for itself that the disk is full."""
    text = str(error).strip() or "no message"
    failure = RankFailure(
        rank=rank,
        trial=trial_id,
        step=step,
        at=time.time(),
        type=type(error).__name__,
        error=text[:2000].encode(errors="backslashreplace").decode(),  # file names may not be valid Unicode
        out_of_memory=out_of_memory,
        disk_full=is_disk_full(error),
    )
    with suppress(OSError):
        LaunchFolder(launch).write(failure)
    with suppress(OSError):
        traceback.print_exc()
        sys.stdout.flush()
        sys.stderr.flush()


VARIABLES = (
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK"),
    ("PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID"),
)
"""Rank, size and local rank: Open MPI; MPICH, Intel MPI and everything else that uses PMI."""
RUNS = ("PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid", "PMI_JOBID", "PMI_KVSNAME", "PMI_PORT")
"""Variables that are equal on all ranks of one mpirun and different in the next."""
MEETING_S = 300.0


def place(
    environ: Mapping[str, str],
    launch: Path,
    *,
    sleep: Callable[[float], None] = time.sleep,
    now: Callable[[], float] = time.monotonic,
) -> dict[str, str]:
    """The variables that torchrun would have set; empty if it has."""
    names = next((names for names in VARIABLES if names[0] in environ and names[1] in environ), None)
    if "RANK" in environ or names is None:
        return {}
    rank, size, local_rank = names
    variables = {
        "RANK": environ[rank],
        "WORLD_SIZE": environ[size],
        "LOCAL_RANK": environ.get(local_rank, environ[rank]),
    }
    if "MASTER_ADDR" in environ and "MASTER_PORT" in environ:
        return variables
    run = next((environ[name] for name in RUNS if name in environ), "")
    return variables | _meet(launch / "meeting.json", run, first=variables["RANK"] == "0", sleep=sleep, now=now)


def _meet(
    path: Path, run: str, *, first: bool, sleep: Callable[[float], None], now: Callable[[], float]
) -> dict[str, str]:
    """Rank 0 writes the address of its store; the others ignore a file that an earlier run left behind."""
    if first:
        with socket.socket() as probe:
            probe.bind(("", 0))
            port = probe.getsockname()[1]
        write_json(path, {"run": run, "MASTER_ADDR": socket.gethostname(), "MASTER_PORT": str(port)})
    deadline = now() + MEETING_S
    while True:
        try:
            meeting = read_json(path)
        except FileNotFoundError:
            meeting = {}
        if meeting.get("run") == run:
            return {name: meeting[name] for name in ("MASTER_ADDR", "MASTER_PORT")}
        if now() > deadline:
            raise LaunchError(
                f"rank 0 did not say in {path} where to meet, for {MEETING_S:.0f} s; is the folder shared?"
            )
        sleep(0.1)
