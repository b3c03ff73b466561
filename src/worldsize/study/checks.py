"""Check whether a study can run on this machine, before anything is written."""

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
    """How a run handles its Slurm jobs."""

    smoke: bool = False
    """Submit a test job of one minute first."""
    detach: bool = False
    """Return when all jobs are submitted. A later run follows them."""
    cancel: bool = False
    """Cancel the jobs on KeyboardInterrupt. Otherwise they continue, and the next run follows them."""


def check_job_options(spec: StudySpec, home: StudyFolder, jobs: JobOptions) -> None:
    uses_slurm = {name: isinstance(place, OnSlurm) for name, place in spec.places.items()}
    if jobs != JobOptions() and not any(uses_slurm.values()):
        raise InputError("smoke, detach and cancel apply only to Slurm jobs; add `run_on: slurm` or remove them")
    if jobs.detach and not all(uses_slurm.values()):
        name = next(name for name, uses in uses_slurm.items() if not uses)
        raise InputError(f"detach applies only to Slurm, and {name} runs on this machine; choose a place with --on")
    if any(uses_slurm.values()) and not home.study_file.exists() and which("sbatch") is None:
        raise InputError(
            "the study runs on Slurm, but this machine has no sbatch; run this on a login node, or use --on local"
        )


def require_same_study(spec: StudySpec, plan: Plan, home: StudyFolder) -> bool:
    """Whether the folder already has this study. Raises StoreError if it has anything else.

    As long as nothing is measured, the study can move to another place.
    """
    if not home.study_file.exists():
        if home.path.exists() and not home.unfinished():
            raise StoreError(f"{home.path} exists and is not a study folder; choose another folder with --dir")
        return False
    stored = read_study(home)
    changes = changes_between(stored, spec)
    has_no_records = not any(home.has_record(trial_id) for trial_id in home.trial_ids())
    if (
        changes
        and has_no_records
        and make_plan(stored, first_points(stored)) == plan
        and all(change.startswith("run_on") for change in changes)
    ):
        if job := submitted_job(home):
            raise StoreError(
                f"{home.path} has this study with another `run_on`, whose job {job} might still write the same trials; "
                "repeat the earlier command until the job has ended, or choose another folder with --dir"
            )
        return False
    if changes:
        lines = "\n".join(f"  {change}" for change in changes)
        raise StoreError(
            f"{home.path} has this study with other values:\n{lines}\n"
            "undo the change to continue it, or choose a new folder with --dir"
        )
    return True


def check_space(home: StudyFolder, needed_bytes: int, trials: int) -> None:
    free = free_bytes(home.path)
    if free < needed_bytes:
        raise StoreError(
            f"the {trials} trials left will write about {megabytes(needed_bytes)} into {home.path}, but its disk has "
            f"only {megabytes(free)} free; free some space, or choose a folder on another disk with --dir"
        )


def free_bytes(path: Path) -> int:
    """Return the free bytes on the disk of a folder, which need not exist yet."""
    existing = next(folder for folder in (path.absolute(), *path.absolute().parents) if folder.exists())
    return disk_usage(existing).free


def megabytes(size: float) -> str:
    return f"{size / 1e6:,.0f} MB" if size < 1e9 else f"{size / 1e9:,.1f} GB"


def check_device(devices: Mapping[str, str], home: StudyFolder) -> None:
    """Refuse to continue a study on another device, because times on a CPU and a GPU cannot be compared.

    `devices` has the device of each place.
    """
    stored = read_model(home.plan_file, PlanFile).device
    if devices != stored:
        raise StoreError(
            f"{home.path} was started on {_in_words(stored)}, but this machine would continue it on "
            f"{_in_words(devices)}; continue it on {_in_words(stored)}, or choose a new folder with --dir"
        )


def _in_words(devices: Mapping[str, str]) -> str:
    return ", ".join(f"{device} ({place})" if place else device for place, device in devices.items())


def check_data(spec: StudySpec, root: Path, *, deep: bool = True) -> None:
    """Check before training that all data files exist.

    `deep` also verifies their checksums, and counts the samples for pretraining. The samples of the study itself are
    counted when the study is created.
    """
    workloads = [spec.workload]
    if spec.pretrain is not None:
        workloads.append(spec.pretrain.workload)
        if deep:
            facts_of(spec.pretrain.workload, root)
    for workload in workloads:
        entry = WORKLOADS.get(workload.name)
        if entry is not None and entry.dataset is not None:
            require(entry.dataset, root, deep=deep)
