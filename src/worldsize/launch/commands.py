"""Commands that start workers. Pure functions build the argument lists and the environments."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

LARGEST_MMAP_THRESHOLD = 32 * 1024**2
"""Maximum that glibc accepts, in bytes."""
KEEP_FREED_MEMORY = {
    "MALLOC_TRIM_THRESHOLD_": str(4 * 1024**3),
    "MALLOC_TOP_PAD_": str(256 * 1024**2),
}
"""Settings with which glibc keeps freed memory in the process, and requests it from the system in large pieces."""
NEW_GLIBC = (2, 35)
"""From this version on, any size can be the threshold above which a block is requested from the system by itself, and
memory can have large pages."""
LARGE_PAGES = "glibc.malloc.hugetlb=1"
"""Lets the system back this memory with large pages at once, instead of merging small ones while steps are timed."""


def torchrun_command(folder: Path, launch_id: str, workers: int, python: str = sys.executable) -> list[str]:
    """Return the torchrun command for one machine. `--standalone` finds a free port."""
    return [
        *(python, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={workers}"),
        *("-m", "worldsize.worker", str(folder), launch_id),
    ]


def node_commands(
    folder: Path, launch_id: str, per_node: int, hosts: Sequence[str], *, port: int, python: str = sys.executable
) -> list[list[str]]:
    """Return one torchrun command per host. They meet at the first host.

    Each command has the address of its own host, so no host name needs to resolve.
    """
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
    """Return the mpirun command, with only the options that Open MPI, MPICH and Intel MPI share.

    Other settings are in `mpi_environment`.
    """
    return ["mpirun", "-np", str(workers), python, "-m", "worldsize.worker", str(folder), launch_id]


def mpi_environment(*, root: bool, oversubscribe: bool) -> dict[str, str]:
    """Return settings for Open MPI 4 (OMPI) and 5 (PRTE); other MPIs ignore them.

    Without them, Open MPI would bind each rank with all its threads to one core.
    """
    settings = {"OMPI_MCA_hwloc_base_binding_policy": "none", "PRTE_MCA_hwloc_default_binding_policy": "none"}
    if root:
        settings |= {
            f"{prefix}_ALLOW_RUN_AS_ROOT{suffix}": "1" for prefix in ("OMPI", "PRTE") for suffix in ("", "_CONFIRM")
        }
    if oversubscribe:
        settings |= {
            "OMPI_MCA_rmaps_base_oversubscribe": "1",
            "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe",
        }
    return settings


def worker_environment(
    threads: int, cpu_limit_gb: float | None = None, *, keep_freed_memory: bool = True, tunables: str = ""
) -> dict[str, str]:
    """Return the variables that a worker needs in addition to the inherited environment.

    `tunables`: the inherited value of GLIBC_TUNABLES, to which ours are added. Thread counts must be set before torch
    is imported; otherwise its thread pools have one thread per core.
    """
    variables = {"OMP_NUM_THREADS": str(threads), "MKL_NUM_THREADS": str(threads), "PYTHONUNBUFFERED": "1"}
    return variables | _allocator(cpu_limit_gb, keep_freed_memory, tunables)


def _allocator(cpu_limit_gb: float | None, keep_freed_memory: bool, tunables: str) -> dict[str, str]:
    """Return settings of glibc's allocator.

    By default, glibc returns large blocks to the system when they are freed, and each step of training requests them
    again: thousands of page faults per step, a different number in every process. `KEEP_FREED_MEMORY` avoids them.

    With a memory limit on the CPU, freed memory must go back, and what fits must not depend on earlier allocations.
    But glibc adapts the size above which it returns memory, and after a failed allocation it tries a second arena,
    which keeps its memory. Both settings are therefore fixed.
    """
    if cpu_limit_gb is not None:
        threshold = min(int(cpu_limit_gb * 1e9) // 512, LARGEST_MMAP_THRESHOLD)
        return {"MALLOC_ARENA_MAX": "1", "MALLOC_MMAP_THRESHOLD_": str(threshold)}
    if not keep_freed_memory:
        return {}
    if glibc_version() < NEW_GLIBC:
        return {**KEEP_FREED_MEMORY, "MALLOC_MMAP_THRESHOLD_": str(LARGEST_MMAP_THRESHOLD)}
    return {
        **KEEP_FREED_MEMORY,
        "MALLOC_MMAP_THRESHOLD_": str(2 * 1024**3),
        "GLIBC_TUNABLES": ":".join(filter(None, [tunables, LARGE_PAGES])),
    }


def glibc_version() -> tuple[int, ...]:
    """Return the version of glibc, or (0,) on a system without it."""
    try:
        words = (os.confstr("CS_GNU_LIBC_VERSION") or "").split()
    except (ValueError, OSError):
        return (0,)
    return tuple(int(part) for part in words[-1].split(".")) if words else (0,)


def backend_for(device: Literal["cpu", "cuda"], workers: int, gpus: int) -> Literal["gloo", "nccl"]:
    """Return the backend for collectives. NCCL refuses two ranks on one GPU; gloo works by copying through the host."""
    return "nccl" if device == "cuda" and workers <= gpus else "gloo"
