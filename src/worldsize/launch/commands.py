"""The commands that start workers, as pure functions that return argv lists and environments."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

LARGEST_MMAP_THRESHOLD = 32 * 1024**2
"""glibc refuses more."""


def torchrun_command(folder: Path, launch_id: str, workers: int, python: str = sys.executable) -> list[str]:
    """--standalone finds a free port by itself."""
    return [
        *(python, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={workers}"),
        *("-m", "worldsize.worker", str(folder), launch_id),
    ]


def worker_environment(base: Mapping[str, str], threads: int, cpu_limit_gb: float | None = None) -> dict[str, str]:
    """Threads are fixed before torch is imported, or its pools would be made for all cores.

    Under a limit of a CPU worker's memory, glibc's allocator is pinned down, or what fits would depend on what was
    allocated before: it moves the size from which on memory goes back to the system when it is freed, and where an
    allocation fails it tries a second arena, which keeps what it once took.
    """
    fixed = {"OMP_NUM_THREADS": str(threads), "MKL_NUM_THREADS": str(threads), "PYTHONUNBUFFERED": "1"}
    if cpu_limit_gb is not None:
        threshold = min(int(cpu_limit_gb * 1e9) // 512, LARGEST_MMAP_THRESHOLD)
        fixed |= {"MALLOC_ARENA_MAX": "1", "MALLOC_MMAP_THRESHOLD_": str(threshold)}
    return {**base, **fixed}


def backend_for(device: Literal["cpu", "cuda"], workers: int, gpus: int) -> Literal["gloo", "nccl"]:
    """NCCL refuses two ranks on one GPU; gloo moves GPU gradients through the host and works."""
    return "nccl" if device == "cuda" and workers <= gpus else "gloo"
