"""What is trained: data, model, loss, metric. One file a workload; `load` finds it by name."""

from __future__ import annotations

from importlib import import_module

from worldsize.worker.workloads.base import Workload

__all__ = ["Workload", "load"]


def load(name: str) -> Workload:
    """The module of that name in this folder; `catalog.py` has checked that it is there."""
    module = import_module(f"worldsize.worker.workloads.{name.replace('-', '_')}")
    workload: Workload = module.load()
    return workload
