"""The commands that start workers, as pure functions that return argv lists and environments."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Literal


def torchrun_command(folder: Path, launch_id: str, workers: int, python: str = sys.executable) -> list[str]:
    """--standalone finds a free port by itself."""
    return [
        *(python, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={workers}"),
        *("-m", "worldsize.worker", str(folder), launch_id),
    ]


def worker_environment(base: Mapping[str, str], threads: int) -> dict[str, str]:
    """Threads are fixed before torch is imported, or its pools would be made for all cores."""
    return {**base, "OMP_NUM_THREADS": str(threads), "MKL_NUM_THREADS": str(threads), "PYTHONUNBUFFERED": "1"}


def backend_for(device: Literal["cpu", "cuda"], workers: int, gpus: int) -> Literal["gloo", "nccl"]:
    """NCCL refuses two ranks on one GPU; gloo moves GPU gradients through the host and works."""
    return "nccl" if device == "cuda" and workers <= gpus else "gloo"
