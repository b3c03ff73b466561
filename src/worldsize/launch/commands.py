"""The commands that start workers, as pure functions that return argv lists and environments."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

LARGEST_MMAP_THRESHOLD = 32 * 1024**2
"""The largest that glibc accepts."""


def torchrun_command(folder: Path, launch_id: str, workers: int, python: str = sys.executable) -> list[str]:
    """--standalone finds a free port by itself."""
    return [
        *(python, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={workers}"),
        *("-m", "worldsize.worker", str(folder), launch_id),
    ]


def node_commands(
    folder: Path, launch_id: str, per_node: int, hosts: Sequence[str], *, port: int, python: str = sys.executable
) -> list[list[str]]:
    """torchrun for each host, by its own address: they meet on the first, and none asks what its name resolves to."""
    return [
        [
            *(python, "-m", "torch.distributed.run", f"--nnodes={len(hosts)}", f"--nproc-per-node={per_node}"),
            *("--max-restarts=0", "--rdzv-backend=c10d", f"--rdzv-id={launch_id}"),
            *(f"--rdzv-endpoint={hosts[0]}:{port}", f"--rdzv-conf=is_host={int(index == 0)}", f"--local-addr={host}"),
            *("-m", "worldsize.worker", str(folder), launch_id),
        ]
        for index, host in enumerate(hosts)
    ]


def mpirun_command(folder: Path, launch_id: str, workers: int, python: str = sys.executable) -> list[str]:
    """Only options that Open MPI, MPICH and Intel MPI share. The environment says the rest."""
    return ["mpirun", "-np", str(workers), python, "-m", "worldsize.worker", str(folder), launch_id]


def mpi_environment(*, root: bool, oversubscribe: bool) -> dict[str, str]:
    """Keeps Open MPI 4 (OMPI) and 5 (PRTE) from binding a rank, with all its threads, to one core. Others ignore it."""
    wanted = {"OMPI_MCA_hwloc_base_binding_policy": "none", "PRTE_MCA_hwloc_default_binding_policy": "none"}
    if root:
        wanted |= {f"{kind}_ALLOW_RUN_AS_ROOT{more}": "1" for kind in ("OMPI", "PRTE") for more in ("", "_CONFIRM")}
    if oversubscribe:
        wanted |= {
            "OMPI_MCA_rmaps_base_oversubscribe": "1",
            "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe",
        }
    return wanted


def worker_environment(threads: int, cpu_limit_gb: float | None = None) -> dict[str, str]:
    """What a worker needs in its environment besides what is there.

    Threads are fixed before torch is imported, or its pools would be made for all cores. Under a limit on a CPU
    worker's memory, glibc's allocator is pinned down, or what fits would depend on what was allocated before: it moves
    the size from which on memory goes back to the system when it is freed, and where an allocation fails it tries a
    second arena, which keeps what it once took.
    """
    fixed = {"OMP_NUM_THREADS": str(threads), "MKL_NUM_THREADS": str(threads), "PYTHONUNBUFFERED": "1"}
    if cpu_limit_gb is not None:
        threshold = min(int(cpu_limit_gb * 1e9) // 512, LARGEST_MMAP_THRESHOLD)
        fixed |= {"MALLOC_ARENA_MAX": "1", "MALLOC_MMAP_THRESHOLD_": str(threshold)}
    return fixed


def backend_for(device: Literal["cpu", "cuda"], workers: int, gpus: int) -> Literal["gloo", "nccl"]:
    """NCCL refuses two ranks on one GPU; gloo moves GPU gradients through the host and works."""
    return "nccl" if device == "cuda" and workers <= gpus else "gloo"
