"""Prepare launches: a folder with launch.json, and the specs of the remaining trials."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

import psutil

from worldsize.data.catalog import WorkloadFacts
from worldsize.data.sets import cache_root
from worldsize.folder.files import write_atomic
from worldsize.folder.launches import LaunchFile, LaunchFolder, launch_folders
from worldsize.folder.record import search_curve
from worldsize.folder.study_folder import StudyFolder
from worldsize.launch.commands import backend_for
from worldsize.launch.target import PreparedLaunch
from worldsize.plan.grid import Site
from worldsize.plan.plan import Launch, Plan
from worldsize.spec.place import nodes_for
from worldsize.spec.study import StudySpec, TrialSpec

SHARE_TO_FILL = 0.8
"""Share of the free memory that the workers of a largest-batch search may use. Other programs need the rest."""


def prepare(
    folder: StudyFolder, plan: Plan, facts: WorkloadFacts, site: Site, launch: Launch, left: Sequence[str]
) -> PreparedLaunch:
    """Prepare a launch of the trials that are left, with as many workers as the largest of them needs."""
    trials = [plan.trials[trial_id] for trial_id in left]
    for trial in trials:
        folder.refuse_links(trial.id)
        write_atomic(folder.trial(trial.id) / "spec.json", trial.model_dump_json(indent=1).encode())
    workers = max(trial.workers for trial in trials)
    launch = launch.model_copy(update={"workers": workers, "trials": tuple(left)})
    return _write(folder, facts, site, launch, _search_curves(folder, plan, trials, facts))


def prepare_smoke(folder: StudyFolder, facts: WorkloadFacts, site: Site, workers: int, on: str) -> PreparedLaunch:
    """Prepare a launch without trials. Its workers connect and exit, which shows that launches can start."""
    return _write(folder, facts, site, Launch(kind="smoke", workers=workers, trials=(), place=on), {})


def _next_number(folder: StudyFolder) -> int:
    return 1 + max((int(path.name.partition("-")[0]) for path in folder.launches()), default=0)


def _write(
    folder: StudyFolder,
    facts: WorkloadFacts,
    site: Site,
    launch: Launch,
    search_curves: dict[str, tuple[tuple[float, ...], ...]],
) -> PreparedLaunch:
    spec, workers, device = site.spec, launch.workers, site.device
    launch_id = launch.id(_next_number(folder))
    LaunchFolder(folder.launch(launch_id)).write(
        LaunchFile(
            kind=launch.kind,
            place=launch.place,
            workers=workers,
            threads=spec.threads_per_worker,
            memory_limit_gb=memory_limit_gb(spec, device, workers, psutil.virtual_memory().available),
            keep_freed_memory=spec.keep_freed_memory,
            device=device,
            backend=backend_for(device, workers, _gpus(site, workers)),
            trials=launch.trials,
            metric=facts.metric,
            higher_is_better=facts.higher_is_better,
            interconnect_probe_s=0.0 if _links_are_known(folder, launch) else spec.interconnect_probe_s,
            search_curves=search_curves,
            commit=_commit(),
            data=str(site.data),
            cache=str(cache_root()),
            launched_at=time.time(),
        )
    )
    return PreparedLaunch.stored(folder, launch_id, spec.hang_timeout_s)


def _links_are_known(folder: StudyFolder, launch: Launch) -> bool:
    """Whether the links need not be measured: the launch has no trials, or another of its size measured them."""
    earlier = [
        other.prepared() for other in launch_folders(folder) if other.is_prepared and other.interconnect is not None
    ]
    return not launch.trials or (launch.place, launch.workers) in [(other.place, other.workers) for other in earlier]


def memory_limit_gb(spec: StudySpec, device: str, workers: int, available_bytes: float) -> float | None:
    """Return the memory limit per worker.

    A largest-batch search on a CPU always has a limit. Otherwise, the system would kill the process that fills the
    memory.
    """
    if spec.memory_limit_gb is not None or device != "cpu" or spec.axes.largest is None:
        return spec.memory_limit_gb
    return round(SHARE_TO_FILL * available_bytes / workers / 1e9, 2)


def _search_curves(
    folder: StudyFolder, plan: Plan, trials: list[TrialSpec], facts: WorkloadFacts
) -> dict[str, tuple[tuple[float, ...], ...]]:
    """Return the metric by epoch of the earlier trials in the same searches."""
    searches = {trial.search for trial in trials if trial.prune and trial.search}
    curves: dict[str, list[tuple[float, ...]]] = {search: [] for search in sorted(searches)}
    for other in plan.trials.values():
        if other.search in curves and (record := folder.record(other.id)) is not None and record.failure is None:
            epochs = other.train.planned_epochs(facts.train_samples, other.global_batch) if other.train else 0
            curves[other.search].append(tuple(search_curve(record.epochs, record.outcome, facts.metric, epochs)))
    return {search: tuple(of_search) for search, of_search in curves.items()}


def _commit() -> str | None:
    """Return the commit of the user's repository, if the study is run from one."""
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
    """Return the number of GPUs of a launch. On Slurm, this counts all its nodes."""
    slurm = site.spec.slurm
    if slurm is None:
        return site.machine.gpus
    return nodes_for(slurm, workers) * (slurm.gpus_per_node or 0)
