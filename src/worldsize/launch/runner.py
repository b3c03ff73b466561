"""Runs a plan: launch after launch, each for the trials that have no record yet, until every trial has one."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import psutil

from worldsize.data.folders import cache_root
from worldsize.data.sets import data_root
from worldsize.errors import LaunchError, SpecError
from worldsize.launch.autopsy import Cause, begun, find_cause, launch_log, trial_log, tries_told
from worldsize.launch.commands import backend_for
from worldsize.launch.local import LaunchEnd, end_leftovers, run_launch
from worldsize.machine import Machine
from worldsize.plan import Launch, Plan
from worldsize.record import TrialRecord, rival_curve
from worldsize.spec import StudySpec, TrialSpec
from worldsize.store import StudyFolder, read_json, write_atomic, write_json

SHARE_TO_FILL = 0.8
"""Of the memory that is free when a launch starts: others on the machine need some too."""


class Progress(Protocol):
    """What a run tells whoever is watching."""

    def launch_started(self, launch_id: str, trials: Sequence[TrialSpec]) -> None: ...
    def trial_event(self, trial: TrialSpec, event: dict[str, Any]) -> None: ...
    def trial_ended(self, trial: TrialSpec, record: TrialRecord) -> None: ...
    def plan_grew(self, plan: Plan) -> None: ...
    def note(self, text: str) -> None: ...


class Silent:
    def launch_started(self, launch_id: str, trials: Sequence[TrialSpec]) -> None: ...
    def trial_event(self, trial: TrialSpec, event: dict[str, Any]) -> None: ...
    def trial_ended(self, trial: TrialSpec, record: TrialRecord) -> None: ...
    def plan_grew(self, plan: Plan) -> None: ...
    def note(self, text: str) -> None: ...


@dataclass(frozen=True, kw_only=True)
class Goal:
    """The metric by which trials of a search are compared while they run."""

    metric: str
    higher_is_better: bool
    train_samples: int


def run_plan(
    folder: StudyFolder, spec: StudySpec, plan: Plan, machine: Machine, goal: Goal, progress: Progress
) -> None:
    """Raises KeyboardInterrupt when the user stopped it; what is finished then stays."""
    for trial_id in plan.trials:
        _set_aside_if_damaged(folder, trial_id, progress)
    for launch_id in end_leftovers(folder):
        progress.note(f"ended {launch_id}, which a killed driver had left running")
    for launch in plan.launches:
        while left := [trial_id for trial_id in launch.trials if not folder.has_record(trial_id)]:
            _run_once(folder, spec, plan, launch, left, machine, goal, progress)
        if launch.kind == "pretrain":
            _check_pretrained(folder, launch)


def _check_pretrained(folder: StudyFolder, launch: Launch) -> None:
    record = folder.record(launch.trials[0])
    if record is None or record.outcome != "finished":
        outcome = record.outcome if record else "missing"
        raise LaunchError(
            f"pretraining {outcome}, so there are no weights to begin with; see `worldsize status {folder.path}`, "
            "then run with --retry-failed, or change `pretrain:` and use a new folder"
        )


def _run_once(
    folder: StudyFolder,
    spec: StudySpec,
    plan: Plan,
    launch: Launch,
    left: list[str],
    machine: Machine,
    goal: Goal,
    progress: Progress,
) -> None:
    """One launch for the trials that are left. Afterwards at least one more has a record or a counted attempt."""
    trials = [plan.trials[trial_id] for trial_id in left]
    workers = max(trial.workers for trial in trials)
    number = 1 + max((int(path.name[:4]) for path in folder.launches()), default=0)
    launch_id = f"{number:04d}-{launch.kind}-w{workers}"
    for trial in trials:
        write_atomic(folder.trial(trial.id) / "spec.json", trial.model_dump_json(indent=1).encode())
    device = machine.device(spec.device)
    limit_gb = memory_limit_gb(spec, device, workers, psutil.virtual_memory().available)
    write_json(
        folder.launch(launch_id) / "launch.json",
        {
            "workers": workers,
            "threads": spec.threads,
            "memory_limit_gb": limit_gb,
            "device": device,
            "backend": backend_for(device, workers, machine.gpus),
            "trials": left,
            "metric": goal.metric,
            "higher_is_better": goal.higher_is_better,
            "interconnect_s": spec.interconnect_s,
            "rivals": _rivals(folder, plan, trials, goal),
            "commit": _commit(),
            "data": str(data_root()),
            "cache": str(cache_root()),
            "launched_at": time.time(),
        },
    )
    progress.launch_started(launch_id, trials)

    def on_event(trial_id: str, event: dict[str, Any]) -> None:
        progress.trial_event(plan.trials[trial_id], event)
        if event["event"] == "end":
            _close(folder, launch_id, plan.trials[trial_id], progress)

    started_at = time.time()
    end = run_launch(
        folder,
        launch_id,
        workers=workers,
        threads=spec.threads,
        cpu_limit_gb=limit_gb if device == "cpu" else None,
        trials=left,
        hang_timeout_s=spec.hang_timeout_s,
        on_event=on_event,
    )
    ended_at = time.time()
    unfinished = [trial_id for trial_id in left if not folder.has_record(trial_id)]
    # The record decides, not the return code: a rank may abort on its way out after all work is done.
    cause = None
    if unfinished and not end.interrupted:
        cause = _blame(folder, launch_id, plan.trials[unfinished[0]], end, spec.retries, started_at, progress)
    write_json(
        folder.launch(launch_id) / "end.json",
        {
            "wall_s": end.wall_s,
            "phases_s": _phases(folder.launch(launch_id), ended_at),
            "returncode": end.returncode,
            "interrupted": end.interrupted,
            "culprit": unfinished[0] if cause else None,
            "cause": cause.failure.error if cause else None,
        },
    )
    if end.interrupted:
        raise KeyboardInterrupt


def memory_limit_gb(spec: StudySpec, device: str, workers: int, available_bytes: float) -> float | None:
    """Of each worker. A search on a CPU has one in any case: the system would kill what fills the machine."""
    if spec.memory_limit_gb is not None or device != "cpu" or spec.axes.largest is None:
        return spec.memory_limit_gb
    return round(SHARE_TO_FILL * available_bytes / workers / 1e9, 2)


def _rivals(folder: StudyFolder, plan: Plan, trials: list[TrialSpec], goal: Goal) -> dict[str, list[list[float]]]:
    """What earlier launches have shown of the searches of these trials: the metric, epoch by epoch."""
    wanted = {trial.search for trial in trials if trial.stop_hopeless and trial.search}
    found: dict[str, list[list[float]]] = {search: [] for search in sorted(wanted)}
    for other in plan.trials.values():
        if other.search in found and (record := folder.record(other.id)) is not None and record.failure is None:
            most = other.train.planned_epochs(goal.train_samples, other.global_batch) if other.train else 0
            found[other.search].append(rival_curve(record.epochs, record.outcome, goal.metric, most))
    return found


def _blame(
    folder: StudyFolder,
    launch_id: str,
    trial: TrialSpec,
    end: LaunchEnd,
    retries: int,
    started_at: float,
    progress: Progress,
) -> Cause:
    """The first trial without a record is where the launch ended: try it again, or write its failure down."""
    path = folder.launch(launch_id)
    cause = find_cause(
        path, trial.id, workers=trial.workers, hung=end.hung, patience_s=end.patience_s, last_step=end.last_step
    )
    attempts = 1 + sum(
        read_json(other / "end.json")["culprit"] == trial.id
        for other in folder.launches()
        if (other / "end.json").exists()
    )
    if cause.retryable and attempts <= retries:
        progress.note(f"{trial.id}: {cause.failure.error}; trying again ({attempts} of {retries})")
        return cause
    if cause.is_input:
        raise SpecError(f"{cause.failure.error.partition(': ')[2]} (found when {trial.id} began)")
    if not begun(path):
        lines = "\n  ".join(launch_log(path)[-8:])
        raise LaunchError(f"the workers could not be started: {cause.failure.error}; see {path}\n  {lines}")
    folder.write_record(
        TrialRecord(
            trial=trial.id,
            outcome=cause.outcome,
            launch=launch_id,
            started_at=started_at,
            wall_s=end.wall_s,
            tries=tries_told(folder, trial.id) if cause.outcome == "out_of_memory" else (),
            failure=cause.failure,
        )
    )
    _close(folder, launch_id, trial, progress)
    return cause


def _phases(launch: Path, ended_at: float) -> dict[str, float] | None:
    """Where the wall time of a launch went, as rank 0 told it, and the rest until all processes were gone."""
    try:
        told = read_json(launch / "phases.json")
    except FileNotFoundError:  # it did not get that far
        return None
    return {**told["phases_s"], "process end": max(0.0, ended_at - told["ended_at"])}


def _close(folder: StudyFolder, launch_id: str, trial: TrialSpec, progress: Progress) -> None:
    lines = trial_log(folder.launch(launch_id), trial.id)
    if lines:
        write_atomic(folder.trial(trial.id) / "log.txt", ("\n".join(lines) + "\n").encode())
    record = folder.record(trial.id)
    assert record is not None
    progress.trial_ended(trial, record)


def _set_aside_if_damaged(folder: StudyFolder, trial_id: str, progress: Progress) -> None:
    try:
        folder.record(trial_id)
    except ValueError as error:
        kept = folder.quarantine(trial_id)
        progress.note(f"{trial_id}: its record is damaged ({error}); kept as {kept.name}, the trial runs again")


def _commit() -> str | None:
    """Of the user's own repository, if the study is run from one."""
    try:
        answer = subprocess.run(
            ["git", "rev-parse", "--verify", "--quiet", "HEAD"],
            cwd=Path.cwd(),
            capture_output=True,
            text=True,
            timeout=5,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return answer.stdout.strip() or None
