"""How to rerun a study: configuration and command of every trial, and the recommended study as a file to copy."""

from __future__ import annotations

import io
import json
import shlex
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

from ruamel.yaml import YAML

from worldsize.analysis.speed.scaling import ScalingRow
from worldsize.answer.results import Results
from worldsize.folder.launches import launch_folders
from worldsize.folder.record import TrialRecord
from worldsize.spec.optimizer import USUAL_MOMENTUM
from worldsize.spec.setting import Setting
from worldsize.spec.study import TrialSpec

HIDDEN = {"id", "kind", "repeat", "seed", "search", "scaling", "start"}
"""Fields of a trial that are shown elsewhere, or are the same in all trials."""


@dataclass(frozen=True, kw_only=True)
class TrialRun:
    trial: TrialSpec
    record: TrialRecord | None
    outcome: str
    """The outcome in its record; `left` if it has not run, `damaged` if its record cannot be read."""
    configuration: Mapping[str, Any]
    """Fields that differ from the other trials, with dotted names."""
    command: str
    """The command that runs only this trial again."""
    environment: int | None
    """Index into `TrialRuns.environments`."""


@dataclass(frozen=True, kw_only=True)
class TrialRuns:
    runs: tuple[TrialRun, ...]
    common: Mapping[str, Any]
    """Configuration that all trials share."""
    environments: tuple[Mapping[str, Any], ...]
    """The distinct environments."""


def trial_runs(results: Results) -> TrialRuns:
    """Return all trials, and the configuration they share."""
    environments: dict[str, int] = {}
    runs = []
    common = _common(results)
    for trial_id, trial in results.trials.items():
        record = results.records.get(trial_id)
        environment = None
        if record is not None and record.environment:
            key = json.dumps(record.environment, sort_keys=True)
            environment = environments.setdefault(key, len(environments))
        runs.append(
            TrialRun(
                trial=trial,
                record=record,
                outcome=record.outcome if record else "damaged" if trial_id in results.damaged else "left",
                configuration={key: value for key, value in _own_fields(trial).items() if common.get(key) != value},
                command=shlex.join(rerun_command(results, trial)),
                environment=environment,
            )
        )
    return TrialRuns(runs=tuple(runs), common=common, environments=tuple(json.loads(key) for key in environments))


USUAL_PASS_S = 30.0


def pass_s(results: Results) -> float:
    """Return the wall time of one more repeat of the probes, start of the processes included, as far as it is known."""
    passes: list[float] = []
    for launch in launch_folders(results.folder):
        prepared, end = launch.launch, launch.end
        if prepared is None or end is None or prepared.kind != "probe" or end.culprit is not None:
            continue
        repeats = {results.trials[name].repeat for name in prepared.trials if name in results.trials}
        passes.append(end.wall_s / max(len(repeats), 1))
    return sum(passes) / len(passes) if passes else USUAL_PASS_S


def _common(results: Results) -> dict[str, Any]:
    """Return the configuration shared by all trials."""
    configurations = [_own_fields(trial) for trial in results.trials.values() if trial.kind != "pretrain"]
    if not configurations:
        return {}
    counts = Counter(key for configuration in configurations for key in configuration)
    return {
        key: value
        for key, value in configurations[0].items()
        if counts[key] == len(configurations) and all(other[key] == value for other in configurations)
    }


def _own_fields(trial: TrialSpec) -> dict[str, Any]:
    """Return the configuration of a trial as fields with dotted names, without defaults."""
    return dict(_leaves(trial.model_dump(mode="json", exclude_defaults=True, exclude=HIDDEN), ""))


def _leaves(tree: Mapping[str, Any], path: str) -> Iterator[tuple[str, Any]]:
    for key, value in tree.items():
        if isinstance(value, Mapping) and value:
            yield from _leaves(value, f"{path}{key}.")
        else:
            yield f"{path}{key}", value


def rerun_command(results: Results, trial: TrialSpec) -> list[str]:
    """Return the command that runs only this trial, in its own folder: the study with each axis at a single value."""
    if trial.kind == "pretrain":
        return ["worldsize", "run", str(results.folder.study_file), "--dir", f"runs/{trial.id}"]
    axes = results.spec.axes
    weak = trial.scaling == "weak"
    batch = trial.batch_per_worker if weak else trial.global_batch
    values: dict[str, Any] = {
        "axes.workers": [trial.workers],
        "axes.batch_per_worker" if weak else "axes.global_batch": [batch],
        "axes.accumulation": [trial.accumulation],
        "axes.optimizer": [short_optimizer(trial)],
        "axes.strategy": [trial.strategy.model_dump(mode="json", exclude_defaults=True) or trial.strategy.name],
        "axes.precision": [trial.precision],
        "axes.weights": ["pretrained" if trial.workload.pretrained else "scratch"] if axes.weights else None,
        "axes.seed": [trial.seed],
        "repeats": 1,
        "skip": [],
    }
    if trial.kind == "probe":
        values |= {"train": False, "probe.repeats": 1}
    else:
        values |= {"probe": False, "adaptive": False}
    changes = {key: value for key, value in values.items() if _differs(results, key, value)}
    assignments = [f"{key}={json.dumps(value)}" for key, value in changes.items()]
    command = ["worldsize", "run", str(results.folder.study_file), "--dir", f"runs/{trial.id}"]
    command += ["--on", trial.place] if trial.place else []
    return command + [word for assignment in assignments for word in ("--set", assignment)]


def _differs(results: Results, key: str, value: Any) -> bool:
    """Whether the value differs from the study. Commands list only differences, to be short."""
    node: Any = results.spec
    for part in key.split("."):
        node = getattr(node, part, None)
    if value is False:
        return node not in (None, False)
    if key == "axes.seed":
        return bool(list(results.spec.seeds) != value)
    if key in ("axes.optimizer", "axes.strategy"):
        return len(node) > 1 or (key == "axes.optimizer" and len(list(islice(node[0].settings(), 2))) > 1)
    return bool((list(node) if isinstance(node, tuple) else node) != value)


def recommended_study(results: Results) -> str | None:
    """Return the recommended setting as a study file without defaults; None if nothing was measured."""
    row = results.answer.row
    if row is None:
        return None
    results = results.by_place[row.setting.place]
    trial = _trial_of(results, row)
    spec = results.spec.model_dump(
        mode="json", exclude_defaults=True, exclude={"small", "skip", "axes", "name", "adaptive"}
    )
    axes: dict[str, Any] = {"workers": [row.setting.workers]}
    if row.setting.scaling == "weak":
        axes["batch_per_worker"] = [row.setting.batch_per_worker]
    else:
        axes["global_batch"] = [row.setting.global_batch]
    if row.setting.accumulation > 1:
        axes["accumulation"] = [row.setting.accumulation]
    axes["optimizer"] = [short_optimizer(trial)]
    if trial.strategy.name != "ddp" or trial.strategy.model_dump(exclude_defaults=True):
        axes["strategy"] = [trial.strategy.model_dump(mode="json", exclude_defaults=True)]
    if trial.precision != "fp32":
        axes["precision"] = [trial.precision]
    if len(results.spec.starts) > 1:
        axes["weights"] = ["pretrained" if trial.workload.pretrained else "scratch"]
    other_fields = {key: False if value is None else value for key, value in spec.items() if key != "workload"}
    study = {
        "name": f"{results.spec.name[:50]}-recommended",
        "workload": spec["workload"],
        "axes": axes,
        **other_fields,
    }
    stream = io.StringIO()
    yaml = YAML(typ="rt")
    yaml.default_flow_style = None
    yaml.width = 78
    yaml.dump(study, stream)
    return stream.getvalue()


def short_optimizer(trial: TrialSpec) -> dict[str, Any]:
    """Return the optimizer as a user would write it in a study file."""
    optimizer = trial.optimizer
    fields = optimizer.model_dump(mode="json", exclude_defaults=True)
    if optimizer.momentum == 0 == USUAL_MOMENTUM.get(optimizer.name, 0.0):
        del fields["momentum"]
    return {"name": optimizer.name} | fields


def _trial_of(results: Results, row: ScalingRow) -> TrialSpec:
    """Return a training trial with the best variant of the row, or a probe if nothing was trained."""
    trials = [trial for trial in results.trials.values() if trial.kind != "pretrain" and _runs(trial, row.setting)]
    best = [trial for trial in trials if trial.kind == "train" and trial.variant == row.variant]
    return (best or trials)[0]


def _runs(trial: TrialSpec, setting: Setting) -> bool:
    """Whether the trial ran this setting. A search for the largest batch ran every batch it tried."""
    trial_setting = trial.setting
    return trial_setting == setting or (
        trial.largest is not None and replace(trial_setting, batch_per_worker=setting.batch_per_worker) == setting
    )
