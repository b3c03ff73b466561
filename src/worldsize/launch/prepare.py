"""A launch before it starts: its folder with launch.json, and the specs of the trials that are left."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

from worldsize.data.sets import cache_root, data_root
from worldsize.folder.files import write_atomic
from worldsize.folder.launches import LaunchFile, LaunchFolder
from worldsize.folder.record import rival_curve
from worldsize.folder.study_folder import StudyFolder
from worldsize.launch.commands import backend_for
from worldsize.launch.target import Work
from worldsize.plan.grid import Site
from worldsize.plan.plan import Launch, Plan
from worldsize.spec.place import nodes_for
from worldsize.spec.study import StudySpec, TrialSpec

SHARE_TO_FILL = 0.8
"""Of the memory that is free when a launch starts: others on the machine need some too."""


@dataclass(frozen=True, kw_only=True)
class Goal:
    """The metric by which trials of a search are compared while they run."""

    metric: str
    higher_is_better: bool
    train_samples: int


def prepare(folder: StudyFolder, plan: Plan, goal: Goal, site: Site, launch: Launch, left: Sequence[str]) -> Work:
    """What is left of a launch, at the largest of its counts."""
    trials = [plan.trials[trial_id] for trial_id in left]
    for trial in trials:
        folder.refuse_links(trial.id)
        write_atomic(folder.trial(trial.id) / "spec.json", trial.model_dump_json(indent=1).encode())
    workers = max(trial.workers for trial in trials)
    launch = launch.model_copy(update={"workers": workers, "trials": tuple(left)})
    return _write(folder, goal, site, launch, _rivals(folder, plan, trials, goal))


def prepare_smoke(folder: StudyFolder, goal: Goal, site: Site, workers: int, on: str) -> Work:
    """A launch without trials: everybody meets and leaves, which shows that a launch can start at all."""
    return _write(folder, goal, site, Launch(kind="smoke", workers=workers, trials=(), on=on), {})


def _next_number(folder: StudyFolder) -> int:
    return 1 + max((int(path.name.partition("-")[0]) for path in folder.launches()), default=0)


def _write(
    folder: StudyFolder,
    goal: Goal,
    site: Site,
    launch: Launch,
    rivals: dict[str, tuple[tuple[float, ...], ...]],
) -> Work:
    spec, workers, device = site.spec, launch.workers, site.device
    launch_id = launch.id(_next_number(folder))
    LaunchFolder(folder.launch(launch_id)).write(
        LaunchFile(
            kind=launch.kind,
            on=launch.on,
            workers=workers,
            threads=spec.threads,
            memory_limit_gb=memory_limit_gb(spec, device, workers, psutil.virtual_memory().available),
            device=device,
            backend=backend_for(device, workers, _gpus(site, workers)),
            trials=launch.trials,
            metric=goal.metric,
            higher_is_better=goal.higher_is_better,
            interconnect_s=spec.interconnect_s if launch.trials else 0.0,
            rivals=rivals,
            commit=_commit(),
            data=str(data_root()),
            cache=str(cache_root()),
            launched_at=time.time(),
        )
    )
    return Work.stored(folder, launch_id, spec.hang_timeout_s)


def memory_limit_gb(spec: StudySpec, device: str, workers: int, available_bytes: float) -> float | None:
    """Of each worker. A search on a CPU has one in any case: the system would kill what fills the machine."""
    if spec.memory_limit_gb is not None or device != "cpu" or spec.axes.largest is None:
        return spec.memory_limit_gb
    return round(SHARE_TO_FILL * available_bytes / workers / 1e9, 2)


def _rivals(
    folder: StudyFolder, plan: Plan, trials: list[TrialSpec], goal: Goal
) -> dict[str, tuple[tuple[float, ...], ...]]:
    """What earlier launches have shown of the searches of these trials: the metric, epoch by epoch."""
    wanted = {trial.search for trial in trials if trial.stop_hopeless and trial.search}
    found: dict[str, list[tuple[float, ...]]] = {search: [] for search in sorted(wanted)}
    for other in plan.trials.values():
        if other.search in found and (record := folder.record(other.id)) is not None and record.failure is None:
            most = other.train.planned_epochs(goal.train_samples, other.global_batch) if other.train else 0
            found[other.search].append(tuple(rival_curve(record.epochs, record.outcome, goal.metric, most)))
    return {search: tuple(curves) for search, curves in found.items()}


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


def _gpus(site: Site, workers: int) -> int:
    """That a launch has: of Slurm's nodes, those of its own."""
    slurm = site.spec.slurm
    if slurm is None:
        return site.machine.gpus
    return nodes_for(slurm, workers) * (slurm.gpus_per_node or 0)
