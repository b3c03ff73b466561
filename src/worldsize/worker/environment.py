"""Where a trial ran: what somebody needs to repeat it, or to see why another machine differs."""

from __future__ import annotations

import os
import platform
import socket
from pathlib import Path
from typing import Any

import numpy as np
import torch

from worldsize import __version__


def environment(device: torch.device, backend: str) -> dict[str, Any]:
    facts: dict[str, Any] = {
        "host": socket.gethostname(),
        "cpu": cpu_model(),
        "cores": len(os.sched_getaffinity(0)),
        "threads": torch.get_num_threads(),
        "device": device.type,
        "backend": backend,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": np.__version__,
        "worldsize": __version__,
        "system": f"{platform.system()} {platform.release()}",
    }
    if device.type == "cuda":
        facts["gpus"] = torch.cuda.device_count()
        facts["gpu"] = torch.cuda.get_device_name(device)
        facts["gpu_memory_gib"] = round(torch.cuda.get_device_properties(device).total_memory / 1024**3, 1)
        facts["cuda"] = torch.version.cuda
        facts["nccl"] = ".".join(str(part) for part in torch.cuda.nccl.version())
    return facts


def cpu_model() -> str:
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        return platform.processor()
    names = [line.partition(":")[2].strip() for line in text.splitlines() if line.startswith("model name")]
    return names[0] if names else platform.machine()
