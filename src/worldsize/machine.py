"""What this machine offers to workers: cores this process may use, and GPUs. No torch."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, kw_only=True)
class Machine:
    cores: int
    gpus: int

    def device(self, wanted: Literal["auto", "cpu", "cuda"]) -> Literal["cpu", "cuda"]:
        if wanted == "auto":
            return "cuda" if self.gpus else "cpu"
        return wanted

    def places(self, device: Literal["cpu", "cuda"], threads: int) -> int:
        """How many workers fit without sharing a core or a GPU."""
        return self.gpus if device == "cuda" else max(self.cores // threads, 1)


def this_machine() -> Machine:
    return Machine(cores=len(os.sched_getaffinity(0)), gpus=visible_gpus())


def visible_gpus() -> int:
    """GPUs that NVML counts, less what CUDA_VISIBLE_DEVICES hides."""
    import pynvml

    try:
        pynvml.nvmlInit()
        count = int(pynvml.nvmlDeviceGetCount())
        pynvml.nvmlShutdown()
    except pynvml.NVMLError:  # no driver, no library: no GPU
        return 0
    chosen = os.environ.get("CUDA_VISIBLE_DEVICES")
    if chosen is None:
        return count
    return min(count, len([part for part in chosen.split(",") if part.strip() not in ("", "-1")]))
