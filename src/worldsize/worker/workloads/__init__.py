"""What is trained: data, model, loss, metric. One file a workload; `load` finds it by name."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from pathlib import Path

from worldsize.spec import WorkloadSpec
from worldsize.worker.workloads.base import Workload

__all__ = ["Places", "Workload", "load"]

MODULES = {"mnist": "mnist", "fashion-mnist": "mnist"}
"""Workloads whose module has another name than they have."""


@dataclass(frozen=True, kw_only=True)
class Places:
    """Folders a workload may read from and write to."""

    data: Path
    cache: Path


def load(spec: WorkloadSpec, places: Places) -> Workload:
    """The driver has checked that a built-in name is there (`catalog.py`)."""
    module = "own" if spec.own else MODULES.get(spec.name, spec.name.replace("-", "_"))
    workload: Workload = import_module(f"worldsize.worker.workloads.{module}").load(spec, places)
    return workload
