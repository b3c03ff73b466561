"""A custom workload whose samples take much memory but hardly any time, for studies that run out of memory."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.system.conftest import PLANTED

WIDE = """\
import torch
from torch import nn
from torch.nn.functional import cross_entropy


def task():
    inputs = torch.randn(2048, 16, generator=torch.Generator().manual_seed(0))
    labels = (inputs.sum(1) > 0).long()
    return {
        "model": lambda: nn.Sequential(nn.Linear(16, 65536), nn.ReLU(), nn.Linear(65536, 2)),
        "train": (inputs, labels),
        "test": (inputs[:100], labels[:100]),
        "loss": lambda outputs, labels: cross_entropy(outputs, labels, reduction="none"),
        "metrics": {"accuracy": lambda outputs, labels: (outputs.argmax(1) == labels).float()},
    }
"""
"""Each sample takes 0.8 MB in a step."""
STUDY = """\
name: wide
workload: "wide:task"
axes:
  workers: {workers}
  batch_per_worker: {batches}
  optimizer: [{{name: sgd, lr: {rates}}}]
probe: {{max_seconds: 0.1}}
train: {train}
memory_limit_gb: {limit_gb}
interconnect_probe_s: 0
repeats: 1
oversubscribe: true
skip: {skip}
"""
ROOM = 240e6
"""Bytes that a worker may allocate after its imports: enough for the process group, the model, its gradients and about
120 samples."""


def imported_bytes() -> int:
    """Return how much memory a worker has allocated after its imports."""
    check = (
        "import worldsize.worker.session; from worldsize.worker.measure.memory import allocated_bytes as a; print(a())"
    )
    return int(subprocess.run([sys.executable, "-c", check], check=True, capture_output=True, text=True).stdout)


def run_wide(
    folder: Path,
    limit: float,
    batches: str,
    *,
    workers: str = "[2]",
    rates: str = "0.01",
    train: str = "false",
    skip: str = "[]",
    expected: int = 0,
    **environment: str,
) -> dict[str, Any]:
    """Run the study in `folder`/study and return its JSON output. `expected` is the exit code.

    PYTHONPATH lets the workers find the module that plants faults.
    """
    text = STUDY.format(workers=workers, batches=batches, rates=rates, train=train, skip=skip, limit_gb=limit / 1e9)
    (folder / "wide.py").write_text(WIDE)
    (folder / "wide.yaml").write_text(text)
    command = [sys.executable, "-m", "worldsize.cli.main", "run", "wide.yaml", "--json", "--dir", "study"]
    paths = os.pathsep.join([str(PLANTED), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        command,
        cwd=folder,
        env={**os.environ, "PYTHONPATH": paths, **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == expected, done.stderr
    output: dict[str, Any] = json.loads(done.stdout)
    return output
