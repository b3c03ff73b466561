"""Memory of one rank: limit it, measure its peak, free it, and recognize out-of-memory errors.

On a CPU the limit is RLIMIT_DATA: the memory that a process allocates for itself, without mapped files. An allocation
beyond it raises an error and the process survives; without the limit, the system would kill it. Processes with a limit
are started with an allocator that returns freed memory to the system (`launch/commands.py`).
"""

from __future__ import annotations

import ctypes
import gc
import re
import resource
from pathlib import Path

import psutil
import torch

from worldsize.errors import InputError

STATUS = Path("/proc/self/status")
PEAK_RESET = Path("/proc/self/clear_refs")
WORKING_ROOM = 32 * 1024**2
"""Bytes beyond what a process uses before it trains. With no room at all, Python itself could not continue."""
OUT_OF_MEMORY_TEXT = re.compile(
    r"can't allocate memory|DefaultCPUAllocator|out of memory|std::bad_alloc|_STATUS_ALLOC_FAILED", re.IGNORECASE
)
"""Messages of torch's allocators, C++, cuDNN and cuBLAS. Not all of them have their own error type."""


def is_out_of_memory(error: BaseException) -> bool:
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    return isinstance(error, RuntimeError) and OUT_OF_MEMORY_TEXT.search(str(error)) is not None


def limit_memory(limit_gb: float | None, device: torch.device) -> None:
    """Limit the memory of this rank from now on. Raise InputError if the limit leaves no room to train."""
    if limit_gb is None:
        return
    limit = int(limit_gb * 1e9)
    if device.type == "cuda":
        total = torch.cuda.get_device_properties(device).total_memory
        if limit > total:
            raise InputError(
                f"memory_limit_gb={limit_gb:g} is more than the {total / 1e9:.4g} GB of the GPU; use less, or remove it"
            )
        torch.cuda.set_per_process_memory_fraction(limit / total, device)
        return
    gc.collect()
    needed = allocated_bytes() + WORKING_ROOM
    if limit < needed:
        raise InputError(
            f"memory_limit_gb={limit_gb:g} is less than the {needed / 1e9:.2g} GB that a worker with torch needs "
            "before it trains; use more"
        )
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    if hard != resource.RLIM_INFINITY:
        limit = min(limit, hard)  # the user's shell or a scheduler may have set a lower limit
    resource.setrlimit(resource.RLIMIT_DATA, (limit, hard))


def free_memory(device: torch.device) -> None:
    """Return unused memory to the system, so that the next trial has as much as in a new process."""
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()
    else:
        ctypes.CDLL(None).malloc_trim(0)


def free_bytes(device: torch.device, sharing: int) -> float:
    """Return the memory that this rank can still use if `sharing` ranks share what is free, within its limit."""
    if device.type == "cuda":
        return float(torch.cuda.mem_get_info(device)[0]) / sharing
    free: float = psutil.virtual_memory().available / sharing
    limit, _ = resource.getrlimit(resource.RLIMIT_DATA)
    return free if limit == resource.RLIM_INFINITY else min(free, limit - allocated_bytes())


def allocated_bytes() -> int:
    """Return the bytes that RLIMIT_DATA counts."""
    return _status_bytes("VmData")


def reset_peak(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    else:
        PEAK_RESET.write_text("5")


def peak_bytes(device: torch.device) -> float:
    """Return the peak since `reset_peak`: of tensors on a GPU, of the whole process on a CPU."""
    if device.type == "cuda":
        return float(torch.cuda.max_memory_allocated(device))
    return float(_status_bytes("VmHWM"))


def _status_bytes(name: str) -> int:
    line = next(line for line in STATUS.read_text(encoding="ascii").splitlines() if line.startswith(f"{name}:"))
    return int(line.split()[1]) * 1024
