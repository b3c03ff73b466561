"""Every trial of a study for the page: its configuration, its environment, how it ended, how to run it again."""

from __future__ import annotations

import json
import shlex
from collections import Counter
from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any

from worldsize.grid import base_batch
from worldsize.report.opening import short_optimizer
from worldsize.report.words import counted
from worldsize.results import Results
from worldsize.spec import TrialSpec

MOST_LOG_LINES = 20
OWN = {"id", "kind", "repeat", "seed", "search", "scaling"}
"""Fields of a trial that are told elsewhere, or are the same in all."""


def trial_details(results: Results) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """All trials, and the distinct environments that they name by number."""
    environments: dict[str, int] = {}
    base = base_batch(results.spec)
    details = []
    common = _common(results)
    for trial_id, trial in results.trials.items():
        record = results.records.get(trial_id)
        place = None
        if record is not None and record.environment:
            key = json.dumps(record.environment, sort_keys=True)
            place = environments.setdefault(key, len(environments))
        found: dict[str, Any] = {
            "trial": trial_id,
            "kind": trial.kind,
            "workers": trial.workers,
            "batch_per_worker": trial.batch_per_worker,
            "repeat": trial.repeat,
            "seed": trial.seed,
            "outcome": record.outcome if record else "damaged" if trial_id in results.damaged else "left",
            "configuration": {key: value for key, value in _told(trial).items() if common.get(key) != value},
            "command": shlex.join(again(results, trial, base)),
            "environment": place,
        }
        if record is not None:
            found |= {
                "launch": record.launch,
                "wall_s": record.wall_s,
                "phases_s": record.phases_s,
                "metrics": record.metrics,
                "diverged_at_step": record.diverged_at_step,
            }
            if record.failure is not None:
                failure = record.failure
                found["failure"] = {
                    "rank": failure.rank,
                    "step": failure.step,
                    "error": failure.error,
                    "log": list(failure.log[-MOST_LOG_LINES:]),
                }
        details.append(found)
    return details, [json.loads(key) for key in environments]


def common_configuration(results: Results) -> dict[str, Any]:
    return _common(results)


def _common(results: Results) -> dict[str, Any]:
    """What all trials share: told once."""
    told = [_told(trial) for trial in results.trials.values() if trial.kind != "pretrain"]
    if not told:
        return {}
    counts = Counter(key for each in told for key in each)
    return {
        key: value for key, value in told[0].items() if counts[key] == len(told) and all(t[key] == value for t in told)
    }


def _told(trial: TrialSpec) -> dict[str, Any]:
    """Dotted fields, without those that are at their defaults and mean nothing here."""
    return dict(_leaves(trial.model_dump(mode="json", exclude_defaults=True, exclude=OWN), ""))


def _leaves(tree: Mapping[str, Any], path: str) -> Iterator[tuple[str, Any]]:
    for key, value in tree.items():
        if isinstance(value, Mapping) and value:
            yield from _leaves(value, f"{path}{key}.")
        else:
            yield f"{path}{key}", value


def again(results: Results, trial: TrialSpec, base: int) -> list[str]:
    """The command that runs this one trial, in a folder of its own: the study with every axis at one value."""
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
        "axes.start": ["pretrained" if trial.workload.pretrained else "scratch"] if axes.start else None,
        "axes.seed": [trial.seed],
        "repeats": 1,
        "skip": [],
    }
    if trial.kind == "probe":
        values |= {"train": False, "probe.repeats": 1}
    else:
        values |= {"probe": False, "train.base_batch": base}
    given = {key: value for key, value in values.items() if _differs(results, key, value)}
    options = [f"{key}={json.dumps(value)}" for key, value in given.items()]
    command = ["worldsize", "run", str(results.folder.study_file), "--dir", f"runs/{trial.id}"]
    command += ["--on", trial.on] if trial.on else []
    return command + [word for option in options for word in ("--set", option)]


def _differs(results: Results, key: str, value: Any) -> bool:
    """Whether the study says something else there: short commands are read, long ones are not."""
    node: Any = results.spec
    for part in key.split("."):
        node = getattr(node, part, None)
    if value is False:
        return node is not None
    if key == "axes.seed":
        return bool(list(results.spec.seeds) != value)
    if key in ("axes.optimizer", "axes.strategy"):
        return len(node) > 1 or (key == "axes.optimizer" and len(list(islice(node[0].settings(), 2))) > 1)
    return bool((list(node) if isinstance(node, tuple) else node) != value)


def left_out(results: Results) -> list[str]:
    """What the tables and figures do not use, and why."""
    outcomes = Counter(record.outcome for record in results.records.values())
    warmup = sorted({record.warmup_steps for record in results.records.values() if record.spans})
    told = []
    if any(warmup):
        steps = str(warmup[0]) if len(warmup) == 1 else f"{warmup[0]} to {warmup[-1]}"
        told.append(
            f"The first {steps} steps of every trial, and what else of its beginning is clearly slower: warm-up."
        )
    if results.spec.probe is not None and any(trial.kind == "train" for trial in results.trials.values()):
        told.append("Steps of training trials, for throughput: where a setting has probes, these speak for it.")
    if outcomes["failed"]:
        told.append(f"{counted(outcomes['failed'], 'failed trial')}, without a result; why is said below.")
    if outcomes["out_of_memory"]:
        full = counted(outcomes["out_of_memory"], "trial")
        told.append(f"{full} out of memory: nothing was measured; their batches are marked in figure and table.")
    if outcomes["diverged"]:
        told.append(
            f"Times and final metrics of {counted(outcomes['diverged'], 'trial')} that diverged; curves are drawn."
        )
    if outcomes["stopped"]:
        told.append(f"Final metrics of {counted(outcomes['stopped'], 'trial')} stopped as hopeless beside the others.")
    if results.damaged:
        told.append(
            f"{counted(len(results.damaged), 'damaged record')}: {', '.join(results.damaged)}. "
            "The next run repeats what is damaged."
        )
    if results.left():
        told.append(f"{counted(len(results.left()), 'trial')} not run yet.")
    for skip in results.spec.skip:
        named = ", ".join(f"{key} {value}" for key, value in skip.model_dump(exclude_none=True).items())
        told.append(f"Points with {named}: the study skips them.")
    return told
