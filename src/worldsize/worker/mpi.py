"""Under mpirun: rank and size from Open MPI's or PMI's variables, and a place to meet in the folder of the launch.

MPI starts the processes and nothing else: they talk through gloo or NCCL, as everywhere.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from worldsize.errors import LaunchError
from worldsize.store import read_json, write_json

VARIABLES = (
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK"),
    ("PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID"),
)
"""Open MPI; MPICH, Intel MPI and whatever else speaks PMI."""
RUNS = ("PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid", "PMI_JOBID", "PMI_KVSNAME", "PMI_PORT")
"""What all ranks of one mpirun share, and the next has anew."""
MEETING_S = 300.0


def place(
    environ: Mapping[str, str],
    launch: Path,
    *,
    sleep: Callable[[float], None] = time.sleep,
    now: Callable[[], float] = time.monotonic,
) -> dict[str, str]:
    """What torchrun would have said; nothing where it has."""
    names = next((names for names in VARIABLES if names[0] in environ and names[1] in environ), None)
    if "RANK" in environ or names is None:
        return {}
    rank, size, local_rank = names
    found = {"RANK": environ[rank], "WORLD_SIZE": environ[size], "LOCAL_RANK": environ.get(local_rank, environ[rank])}
    if "MASTER_ADDR" in environ and "MASTER_PORT" in environ:
        return found
    run = next((environ[name] for name in RUNS if name in environ), "")
    return found | _meet(launch / "meeting.json", run, first=found["RANK"] == "0", sleep=sleep, now=now)


def _meet(
    path: Path, run: str, *, first: bool, sleep: Callable[[float], None], now: Callable[[], float]
) -> dict[str, str]:
    """Rank 0 says where its store will be; the file of an earlier run names that run, and is waited out."""
    if first:
        with socket.socket() as probe:
            probe.bind(("", 0))
            port = probe.getsockname()[1]
        write_json(path, {"run": run, "MASTER_ADDR": socket.gethostname(), "MASTER_PORT": str(port)})
    deadline = now() + MEETING_S
    while True:
        try:
            told = read_json(path)
        except FileNotFoundError:
            told = {}
        if told.get("run") == run:
            return {name: told[name] for name in ("MASTER_ADDR", "MASTER_PORT")}
        if now() > deadline:
            raise LaunchError(
                f"rank 0 did not say in {path} where to meet, for {MEETING_S:.0f} s; is the folder shared?"
            )
        sleep(0.1)
