"""The process of a rank: its output file, its failure report, and its rank and world size.

Under mpirun, rank and world size come from the variables of Open MPI or PMI, and the ranks find rank 0 through the
launch folder. MPI only starts the processes. They communicate through gloo or NCCL, as always.
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
    """Redirect stdout and stderr to a file.

    This redirects the descriptors, not only sys.stdout, to keep what native code prints before it aborts.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    for standard in (1, 2):
        os.dup2(descriptor, standard)
    os.close(descriptor)
    assert isinstance(sys.stdout, io.TextIOWrapper)
    sys.stdout.reconfigure(line_buffering=True)
    # The driver sends this signal to a launch that hangs, so that the log shows where.
    faulthandler.register(signal.SIGUSR2, all_threads=True)


def stop_file(launch: Path) -> Path:
    """Return the path of the file that asks this process to stop.

    Each attempt of a job has its own. A scheduler that lost contact with a node may start the next attempt while
    processes of the last one still run there.
    """
    attempt = os.environ.get("WORLDSIZE_ATTEMPT")
    return launch / (f"stop-{attempt}" if attempt else "stop")


def exit_if_superseded(stop: Path) -> None:
    """Exit if a later attempt of the job runs this trial now, because two writers would corrupt its files."""
    if stop.exists() and stop.read_text(encoding="utf-8").startswith("superseded"):
        os._exit(EXIT_STOPPED)


def mark_trial(trial_id: str) -> None:
    print(f"{TRIAL_MARK}{trial_id}", flush=True)


def write_failure(
    launch: Path, rank: int, trial_id: str | None, step: int | None, error: BaseException, *, out_of_memory: bool
) -> None:
    """Write the failure of this rank. After the launch, the driver blames the rank that failed first.

    On a full disk, as much as fits is written: the driver checks by itself whether the disk is full.
    """
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
"""Variables for rank, size and local rank: of Open MPI, then of PMI (MPICH, Intel MPI and others)."""
RUN_IDS = ("PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid", "PMI_JOBID", "PMI_KVSNAME", "PMI_PORT")
"""Variables that have the same value on all ranks of an mpirun, and another value in the next mpirun."""
MEETING_TIMEOUT_S = 300.0
"""How long ranks wait for the address of rank 0."""


def place(
    environ: Mapping[str, str],
    launch: Path,
    *,
    sleep: Callable[[float], None] = time.sleep,
    now: Callable[[], float] = time.monotonic,
) -> dict[str, str]:
    """Return the variables that torchrun would set, from those of MPI, or {} if they are set or MPI is not used."""
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
    run = next((environ[name] for name in RUN_IDS if name in environ), "")
    return variables | _meet(launch / "meeting.json", run, first=variables["RANK"] == "0", sleep=sleep, now=now)


def _meet(
    path: Path, run: str, *, first: bool, sleep: Callable[[float], None], now: Callable[[], float]
) -> dict[str, str]:
    """Return the address of rank 0. Rank 0 writes it to a file; the others ignore the file of an earlier run."""
    if first:
        with socket.socket() as probe:
            probe.bind(("", 0))
            port = probe.getsockname()[1]
        write_json(path, {"run": run, "MASTER_ADDR": socket.gethostname(), "MASTER_PORT": str(port)})
    deadline = now() + MEETING_TIMEOUT_S
    while True:
        try:
            meeting = read_json(path)
        except FileNotFoundError:
            meeting = {}
        if meeting.get("run") == run:
            return {name: meeting[name] for name in ("MASTER_ADDR", "MASTER_PORT")}
        if now() > deadline:
            raise LaunchError(
                f"rank 0 did not write its address to {path} within {MEETING_TIMEOUT_S:.0f} s; "
                "use a folder that is shared by all nodes"
            )
        sleep(0.1)
