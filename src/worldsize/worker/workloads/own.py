"""A user's own workload: `workload: package.module:function`.

The function returns a dict with `model` (a module, or a function that returns one), `train` and `test` (inputs and
targets, two tensors each), `loss` (a function of outputs and targets that returns one value per sample), and `metrics`
(a dict of such functions by name).

The driver does not import torch. To learn the size of such a workload, it runs this module as a program:

python -m worldsize.worker.workloads.own '{"name": "mine:task"}' DATA_FOLDER
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Mapping
from copy import deepcopy
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from worldsize.data.sets import cache_root
from worldsize.errors import InputError, WorldsizeError
from worldsize.spec.workload import WorkloadSpec
from worldsize.worker.workloads import DataFolders
from worldsize.worker.workloads.base import PerSample, Split, Workload, batch

KEYS = {"model", "train", "test", "loss", "metrics"}
OPTIONAL = {"prepare", "higher_is_better"}


def load(spec: WorkloadSpec, folders: DataFolders) -> Workload:
    del folders
    described = describe(spec)
    model, loss = described["model"], described["loss"]
    workload = Workload(
        train=_split(spec, "train", described["train"]),
        test=_split(spec, "test", described["test"]),
        build_model=_builder(model),
        prepare=described.get("prepare", lambda inputs: inputs),
        loss=loss,
        measures=dict(described["metrics"]),
        augment=spec.augment,
    )
    _try_out(spec, workload)
    return workload


def describe(spec: WorkloadSpec) -> dict[str, Any]:
    """Import the function (from the current folder first), call it, and check the keys of its result."""
    module, _, name = spec.name.partition(":")
    sys.path.insert(0, str(Path.cwd()))
    try:
        function = getattr(import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise InputError(
            f"workload {spec.name}: {error}; name a function that Python can import from this folder, "
            "as package.module:function"
        ) from error
    finally:
        sys.path.pop(0)
    described = function(**spec.data_options)
    if not isinstance(described, Mapping) or not described.keys() >= KEYS:
        problem = (
            f"the dict has no {', '.join(sorted(KEYS - set(described)))}"
            if isinstance(described, Mapping)
            else f"it returned a {type(described).__name__}"
        )
        raise InputError(f"workload {spec.name}: {problem}; return a dict with {', '.join(sorted(KEYS))}")
    unknown = set(described) - KEYS - OPTIONAL
    if unknown:
        raise InputError(f"workload {spec.name}: unknown key {sorted(unknown)[0]!r}; remove it from the dict")
    return dict(described)


def _builder(model: Any) -> Callable[[], nn.Module]:
    """Return a function that builds the model. A module is copied, so that each trial starts with the same weights."""
    if isinstance(model, nn.Module):
        return lambda: deepcopy(model)
    builder: Callable[[], nn.Module] = model
    return builder


def _split(spec: WorkloadSpec, name: str, pair: Any) -> Split:
    try:
        inputs, targets = pair
        if not (isinstance(inputs, Tensor) and isinstance(targets, Tensor) and len(inputs) == len(targets) > 0):
            raise ValueError
    except (TypeError, ValueError) as error:
        raise InputError(
            f"workload {spec.name}: {name} must be two tensors, inputs and targets, with one row per sample each"
        ) from error
    return Split(inputs=inputs, targets=targets)


@torch.no_grad()
def _try_out(spec: WorkloadSpec, workload: Workload) -> None:
    """Run two samples through model, loss and metrics. A loss that is averaged already would be weighted wrongly."""
    inputs, targets = batch(workload.test, torch.tensor([0, len(workload.test) - 1]), torch.device("cpu"))
    outputs = workload.build_model().eval()(workload.prepare(inputs))
    measures: dict[str, PerSample] = {"loss": workload.loss, **workload.measures}
    for name, measure in measures.items():
        values = measure(outputs, targets)
        if values.shape != (2,):
            raise InputError(
                f"workload {spec.name}: {name} returns shape {tuple(values.shape)} for 2 samples; return one value per "
                'sample, for example with cross_entropy(..., reduction="none")'
            )


def main() -> None:
    spec = WorkloadSpec.model_validate_json(sys.argv[1])
    os.environ["WORLDSIZE_DATA"] = sys.argv[2]  # for the user's function, as in a launch
    workload = load(spec, DataFolders(data=Path(sys.argv[2]), cache=cache_root()))
    described = describe(spec)
    parameters = sum(parameter.numel() for parameter in workload.build_model().parameters())
    facts = {
        "title": f"your own {spec.name}",
        "train_samples": len(workload.train),
        "test_samples": len(workload.test),
        "metric": next(iter(workload.measures), "loss"),
        "metrics": ["loss", *workload.measures],
        "higher_is_better": bool(described.get("higher_is_better", bool(workload.measures))),
        # Six FLOP per parameter and sample: correct for dense layers, a first guess for others.
        "train_flop_per_sample": 6.0 * parameters,
    }
    print(json.dumps(facts))


if __name__ == "__main__":
    try:
        main()
    except WorldsizeError as error:
        sys.exit(str(error))
