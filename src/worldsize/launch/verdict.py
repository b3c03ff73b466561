"""What follows from the end of a launch: whom to blame, what to try again, what is written down."""

from __future__ import annotations

import time
from contextlib import suppress

from worldsize.errors import DiskFullError, InputError, LaunchError
from worldsize.folder.files import write_atomic
from worldsize.folder.launches import LaunchEnd, LaunchFolder, launch_folders
from worldsize.folder.record import Failure, TrialRecord
from worldsize.folder.study_folder import StudyFolder
from worldsize.launch.autopsy import Cause, any_trial_began, find_cause, launch_log, trial_log, tries_told
from worldsize.launch.target import PreparedLaunch, Progress
from worldsize.spec.study import TrialSpec

NOBODYS_FAULT = ("interrupted", "cancelled", "preempted")


def finish_launch(
    prepared: PreparedLaunch, end: LaunchEnd, first_left: TrialSpec | None, retries: int, progress: Progress
) -> None:
    """Writes end.json, last of all. The record decides, not the return code: a rank may abort on its way out after all
    work is done."""
    # What a time limit cut off after something was finished is simply what is left.
    cut_short = end.reason == "time limit" and len(prepared.left()) < len(prepared.trials)
    if first_left is None or end.reason in NOBODYS_FAULT or cut_short:
        _write_end(prepared, end)
        return
    try:
        cause = _blame(prepared, first_left, end, retries, progress)
    except (LaunchError, InputError, DiskFullError) as error:
        # Not the fault of a trial, but the launch is over: left open, the next driver would adopt a dead launch.
        with suppress(OSError):  # on a full disk it stays open: the next driver sees that its processes are gone
            _write_end(prepared, end, cause=str(error).partition("\n")[0])
        raise
    _write_end(prepared, end, culprit=first_left.id, cause=cause.failure.error)


def _write_end(
    prepared: PreparedLaunch, end: LaunchEnd, *, culprit: str | None = None, cause: str | None = None
) -> None:
    phases_s = _phases(prepared.files, end.started_at + end.wall_s)
    prepared.files.write(end.model_copy(update={"phases_s": phases_s, "culprit": culprit, "cause": cause}))


def finish_trial(prepared: PreparedLaunch, trial: TrialSpec, progress: Progress) -> None:
    """Called when a trial has its record: copies its part of the logs, and tells whoever is watching."""
    lines = trial_log(prepared.path, trial.id)
    if lines:
        write_atomic(prepared.folder.trial(trial.id) / "log.txt", ("\n".join(lines) + "\n").encode())
    record = prepared.folder.record(trial.id)
    assert record is not None
    progress.trial_ended(trial, record)


def set_aside_if_damaged(folder: StudyFolder, trial_id: str, progress: Progress) -> None:
    try:
        folder.record(trial_id)
    except ValueError as error:
        kept = folder.set_aside(trial_id, "damaged")
        progress.note(f"{trial_id}: its record is damaged ({error}); kept as {kept.name}, the trial runs again")


def _blame(prepared: PreparedLaunch, trial: TrialSpec, end: LaunchEnd, retries: int, progress: Progress) -> Cause:
    """The first trial without a record is where the launch ended: try it again, or write its failure down."""
    path = prepared.path
    cause = _from_outside(end) or find_cause(
        path, trial.id, workers=trial.workers, hung=end.hung, patience_s=end.patience_s, last_step=end.last_step
    )
    if cause.disk_full:
        rank = "" if cause.failure.rank is None else f" (rank {cause.failure.rank})"
        raise DiskFullError(f"{cause.failure.error} in {trial.id}{rank}")
    ends = [launch.end for launch in launch_folders(prepared.folder)]
    attempts = 1 + sum(end_of_launch is not None and end_of_launch.culprit == trial.id for end_of_launch in ends)
    if cause.retryable and attempts <= retries:
        progress.note(f"{trial.id}: {cause.failure.error}; trying again ({attempts} of {retries})")
        return cause
    if cause.is_input:
        raise InputError(f"{cause.failure.error.partition(': ')[2]} (found when {trial.id} began)")
    if not any_trial_began(path) and end.reason != "time limit":
        lines = "\n  ".join(launch_log(path)[-8:])
        raise LaunchError(f"the workers could not be started: {cause.failure.error}; see {path}\n  {lines}")
    prepared.folder.write_record(
        TrialRecord(
            trial=trial.id,
            outcome=cause.outcome,
            launch=prepared.launch_id,
            started_at=end.started_at,
            wall_s=end.wall_s,
            tries=tries_told(prepared.folder, trial.id) if cause.outcome == "out_of_memory" else (),
            failure=cause.failure,
        )
    )
    finish_trial(prepared, trial, progress)
    return cause


OUTSIDE = {
    "time limit": "the time limit of its job cut it off before any trial was done (raise slurm.time in run_on)",
    "node failure": "a node of its job failed",
    "lost": "its job is gone from the queue and left no end",
    "setup failed": "a command of slurm.setup in run_on failed; see job.log",
}


def _from_outside(end: LaunchEnd) -> Cause | None:
    """A hang is ended by us; else what the scheduler did comes before what ranks say of it."""
    if end.hung or end.reason not in OUTSIDE:
        return None
    failure = Failure(rank=None, step=end.last_step, error=OUTSIDE[end.reason], log=())
    return Cause(failure=failure, retryable=end.reason != "setup failed")


def _phases(launch: LaunchFolder, ended_at: float) -> dict[str, float] | None:
    """Where the wall time of a launch went, as rank 0 reported it, and the rest until all processes were gone."""
    phases = launch.phases
    if phases is None:  # it did not get that far
        return None
    return {**phases.phases_s, "process end": max(0.0, min(ended_at, time.time()) - phases.ended_at)}
