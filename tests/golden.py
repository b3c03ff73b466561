"""The complete output of four studies as JSON: three simulated from known laws, and one that was really run.

`tests/unit/test_golden.py` checks that a change does not alter these files by accident. `python -m tests.golden` writes
them again; read the diff before you commit it.
"""

from __future__ import annotations

import contextlib
import dataclasses
import io
import json
import shutil
import tempfile
from pathlib import Path
from typing import Any

from tests.made import Made, write_study
from worldsize.answer.evidence import Evidence
from worldsize.answer.results import load
from worldsize.cli.main import app
from worldsize.machine import Machine
from worldsize.report.pages import figures, tables
from worldsize.report.write.tables import to_csv
from worldsize.spec.study import TrialSpec

DATA = Path(__file__).parent / "data"
GOLDEN = DATA / "golden"
QUICKSTART = DATA / "quickstart"
"""A small quickstart study from version 0.1 on two cores, without its report."""

SCALING = """\
name: scaling
workload: digits
axes: {workers: [1, 2, 4, 8], batch_per_worker: [32, 128], optimizer: [{name: momentum, lr: 0.05}]}
train: {epochs: 4}
repeats: 3
"""
OPTIMIZERS = """\
name: optimizers
workload: digits
axes:
  workers: [1, 2]
  batch_per_worker: [64]
  optimizer: [{name: sgd, lr: [0.02, 0.1, 3.0]}, {name: adam, lr: [0.001, 0.01]}]
train: {until: {metric: accuracy, at_least: 0.9, max_epochs: 8}}
repeats: 2
"""
PLACES = """\
name: places
workload: digits
axes: {workers: [1, 2, 4], global_batch: [64], strategy: [ddp, fp16-compression]}
train: {epochs: 2}
repeats: 2
run_on:
- {name: t4, slurm: {partition: t4, nodes: 2, workers_per_node: 2}}
- {name: v100, slurm: {partition: v100, workers_per_node: 4}}
"""


def _scaling(trial: TrialSpec) -> dict[str, float]:
    compute = 1e-3 + 1e-4 * trial.batch_per_worker
    exchange = 0.0 if trial.workers == 1 else 1e-3 + 4e-4 * trial.workers
    return {"data": 2e-4, "forward": compute / 3, "backward": 2 * compute / 3, "communication": exchange}


def _places(trial: TrialSpec) -> dict[str, float]:
    speed = 5.0 if trial.place == "v100" else 1.0
    exchange = (0.0 if trial.workers == 1 else 2e-3) / (2 if trial.strategy.name == "fp16-compression" else 1)
    return {"forward": 2e-4 * trial.batch_per_worker / speed, "communication": exchange, "rest": 5e-4}


STUDIES: dict[str, tuple[str, Made]] = {
    "scaling": (
        SCALING,
        Made(
            times=_scaling,
            rank_noise=0.02,
            accuracy=lambda trial, steps: 0.98 - 0.5 / (1 + steps / 40) - 0.02 * (trial.global_batch > 512),
            telemetry={"process_cpu_s": 0.95, "process_memory_bytes": 4e8, "host_cpu_s": 2.0, "host_stolen_s": 0.01},
            failing=("0020",),
        ),
    ),
    "scaling-slower": (SCALING, Made(times=lambda trial: {**_scaling(trial), "rest": 1e-3}, noise=0.02)),
    "optimizers": (
        OPTIMIZERS,
        Made(
            times=lambda trial: {"forward": 0.004, "communication": 0.001 * (trial.workers - 1)},
            accuracy=lambda trial, steps: 0.97 - 0.6 / (1 + steps * min(trial.peak_lr * 8, 1) / 150),
            largest_rate=1.0,
        ),
    ),
    "places": (PLACES, Made(times=_places, gradient_bytes=4e7)),
}


def produce(name: str) -> dict[str, Any]:
    """Return the output of a study by command, with its tables and figures."""
    with tempfile.TemporaryDirectory() as scratch, contextlib.chdir(scratch):
        _write(name)
        output = {
            "report": _json("report", name, "--json"),
            "predict": _json("predict", name, "--workers", "2,16,64", "--price", "2", "--json"),
        }
        if name == "scaling":
            _write("scaling-slower")
            output["compare"] = _json("compare", name, "scaling-slower", "--json")
        evidence = Evidence(load(name))
        output["tables"] = {table.key: to_csv(table).splitlines() for table in tables(evidence)}
        output["figures"] = {figure.key: _plain(figure) for figure in figures(evidence)}
        return output


GOLDEN_STUDIES = ("scaling", "optimizers", "places", "quickstart")


def _write(name: str) -> None:
    if name == "quickstart":
        shutil.copytree(QUICKSTART, name)
        return
    text, made = STUDIES[name]
    write_study(Path(name), text, made, Machine(cores=16, gpus=0))


def _json(*arguments: str) -> Any:
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed), contextlib.suppress(SystemExit):
        app(list(arguments), standalone_mode=False)
    return json.loads(printed.getvalue())


def _plain(value: Any) -> Any:
    """Convert dataclasses to values that JSON has."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
        return {"is": type(value).__name__, **{key: _plain(inner) for key, inner in fields.items()}}
    if isinstance(value, dict):
        return {str(key): _plain(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(inner) for inner in value]
    return value if value is None or isinstance(value, bool | int | float | str) else str(value)


def path_of(name: str) -> Path:
    return GOLDEN / f"{name}.json"


if __name__ == "__main__":
    for study in GOLDEN_STUDIES:
        path_of(study).write_text(json.dumps(produce(study), indent=1, allow_nan=False) + "\n", encoding="utf-8")
        print(path_of(study))
