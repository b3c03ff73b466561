"""Workloads: data, model, loss and metrics. `load` loads a workload by name."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from pathlib import Path

from worldsize.spec.workload import WorkloadSpec
from worldsize.worker.workloads.base import Workload

__all__ = ["DataFolders", "Workload", "load"]

LOADERS = {
    "digits": "images:load_digits",
    "mnist": "images:load_mnist",
    "fashion-mnist": "images:load_mnist",
    "cifar10": "images:load_cifar10",
    "image-folder": "images:load_image_folder",
    "steering": "steering:load",
    "gpt": "text:load",
    "linear": "linear:load",
}
"""The module and the function that load each workload. A module is imported only when it is needed."""


@dataclass(frozen=True, kw_only=True)
class DataFolders:
    """The folders that a workload may read from and write to."""

    data: Path
    cache: Path


def load(spec: WorkloadSpec, folders: DataFolders) -> Workload:
    """Load a workload. The driver has checked its name (`data/catalog.py`)."""
    module, _, function = ("own:load" if spec.own else LOADERS[spec.name]).partition(":")
    workload: Workload = getattr(import_module(f"worldsize.worker.workloads.{module}"), function)(spec, folders)
    return workload
