"""Checks whether a study can run on this machine, before anything is written."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from shutil import disk_usage, which

from worldsize.answer.results import read_study
from worldsize.data.catalog import WORKLOADS, facts_of
from worldsize.data.sets import require
from worldsize.errors import InputError, StoreError
from worldsize.folder.files import read_model
from worldsize.folder.study_folder import StudyFolder
from worldsize.launch.slurm.status import submitted_job
from worldsize.plan.plan import Plan, PlanFile, make_plan
from worldsize.spec.file import changes_between
from worldsize.spec.place import OnSlurm
from worldsize.spec.study import StudySpec
from worldsize.study.adaptive_rounds import first_points


@dataclass(frozen=True, kw_only=True)
class JobOptions:
    """How a run deals with its Slurm jobs."""

    smoke: bool = False
    """Submit a one-minute test job first."""
    detach: bool = False
    """Return once all jobs are submitted; a later run follows them."""
    cancel: bool = False
    """Cancel the jobs on KeyboardInterrupt. Otherwise they continue, and the next run follows them."""


def check_job_options(spec: StudySpec, home: StudyFolder, jobs: JobOptions) -> None:
    submits = {on: isinstance(place, OnSlurm) for on, place in spec.places.items()}
    if jobs != JobOptions() and not any(submits.values()):
        raise InputError("smoke, detach and cancel are about jobs, and this study has none; add `run_on: slurm`")
    if jobs.detach and not all(submits.values()):
        name = next(on for on, by_jobs in submits.items() if not by_jobs)
        raise InputError(f"detach leaves jobs behind, and {name} runs on this machine; choose others with --on")
    if any(submits.values()) and not home.study_file.exists() and which("sbatch") is None:
        raise InputError(
            "the study runs on Slurm, whose sbatch is not here; run this on a login node, or use --on local"
        )


def require_same_study(spec: StudySpec, plan: Plan, home: StudyFolder) -> bool:
    """Whether the folder holds this study. Until something is measured, the place where it runs may change."""
    if not home.study_file.exists():
        if home.path.exists() and not home.unfinished():
            raise StoreError(f"{home.path} exists and is not a study folder; choose another with --dir")
        return False
    stored = read_study(home)
    changes = changes_between(stored, spec)
    unused = not any(home.has_record(trial_id) for trial_id in home.trial_ids())
    if (
        changes
        and unused
        and make_plan(stored, first_points(stored)) == plan
        and all(change.startswith("run_on") for change in changes)
    ):
        if job := submitted_job(home):
            raise StoreError(
                f"{home.path} is this study elsewhere, and job {job} may still run it: both would write into the "
                "same trials; let the job end there (the same command as before sees it), or choose another --dir"
            )
        return False
    if changes:
        listed = "\n".join(f"  {change}" for change in changes)
        raise StoreError(
            f"{home.path} holds this study with other values:\n{listed}\n"
            "undo the change to continue it, or give a new folder with --dir"
        )
    return True


def check_space(home: StudyFolder, needed_bytes: int, trials: int) -> None:
    free = free_bytes(home.path)
    if free < needed_bytes:
        raise StoreError(
            f"the {trials} trials left will write about {megabytes(needed_bytes)} into {home.path}, and its disk has "
            f"{megabytes(free)} free; free some space, or choose a folder on another disk with --dir"
        )


def free_bytes(path: Path) -> int:
    """Free bytes on the disk that holds a folder, or will hold it."""
    existing = next(above for above in (path.absolute(), *path.absolute().parents) if above.exists())
    return disk_usage(existing).free


def megabytes(size: float) -> str:
    return f"{size / 1e6:,.0f} MB" if size < 1e9 else f"{size / 1e9:,.1f} GB"


def check_device(devices: Mapping[str, str], home: StudyFolder) -> None:
    """Refuse to continue on another device: steps on a CPU and on a GPU are not repeats of each other. Devices are by
    place."""
    began = read_model(home.plan_file, PlanFile).device
    if devices != began:
        raise StoreError(
            f"{home.path} was begun on {_in_words(began)}, and this machine would continue it on {_in_words(devices)}; "
            f"continue it where it began, or give a new folder with --dir"
        )


def _in_words(devices: Mapping[str, str]) -> str:
    return ", ".join(f"{device} ({on})" if on else device for on, device in devices.items())


def check_data(spec: StudySpec, root: Path, *, deep: bool = True) -> None:
    """Check before training that every data file exists; with `deep`, also that its bytes are those published. `deep`
    also counts the samples for pretraining; the study's own were counted when it was created."""
    used = [spec.workload]
    if spec.pretrain is not None:
        used.append(spec.pretrain.workload)
        if deep:
            facts_of(spec.pretrain.workload, root)
    for workload in used:
        entry = WORKLOADS.get(workload.name)
        if entry is not None and entry.dataset is not None:
            require(entry.dataset, root, deep=deep)
