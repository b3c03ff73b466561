"""Conclude a launch that has ended: find the trial to blame, retry it or record its failure, and write end.json."""

from __future__ import annotations

import time
from contextlib import suppress

from worldsize.errors import DiskFullError, InputError, LaunchError
from worldsize.folder.files import write_atomic
from worldsize.folder.launches import LaunchEnd, LaunchFolder, launch_folders
from worldsize.folder.record import Failure, TrialRecord
from worldsize.folder.study_folder import StudyFolder
from worldsize.launch.autopsy import Cause, any_trial_began, find_cause, launch_log, reported_tries, trial_log
from worldsize.launch.target import PreparedLaunch, Progress
from worldsize.spec.study import TrialSpec

WITHOUT_FAULT = ("interrupted", "cancelled", "preempted")
"""Reasons for an end that are not the fault of a trial."""


def finish_launch(
    prepared: PreparedLaunch, end: LaunchEnd, in_progress: TrialSpec | None, retries: int, progress: Progress
) -> None:
    """Blame the trial that was in progress, if any, and write end.json last.

    Records decide which trials are done, not the return code: a rank may crash on exit after all work is done.
    """
    # A time limit is no failure if at least one trial was finished. The others run in the next launch.
    cut_short = end.reason == "time limit" and len(prepared.left()) < len(prepared.trials)
    if in_progress is None or end.reason in WITHOUT_FAULT or cut_short:
        _write_end(prepared, end)
        return
    try:
        cause = _blame(prepared, in_progress, end, retries, progress)
    except (LaunchError, InputError, DiskFullError) as error:
        # No trial is to blame, but the launch has ended. Close it, or the next driver would adopt a dead launch.
        with suppress(OSError):  # on a full disk it stays open, and the next driver sees that its processes are gone
            _write_end(prepared, end, cause=str(error).partition("\n")[0])
        raise
    _write_end(prepared, end, culprit=in_progress.id, cause=cause.failure.error)


def _write_end(
    prepared: PreparedLaunch, end: LaunchEnd, *, culprit: str | None = None, cause: str | None = None
) -> None:
    phases_s = _phases(prepared.files, end.started_at + end.wall_s)
    prepared.files.write(end.model_copy(update={"phases_s": phases_s, "culprit": culprit, "cause": cause}))


def finish_trial(prepared: PreparedLaunch, trial: TrialSpec, progress: Progress) -> None:
    """Copy the log lines of a trial that has its record into its folder, and report its end to `progress`."""
    lines = trial_log(prepared.path, trial.id)
    if lines:
        write_atomic(prepared.folder.trial(trial.id) / "log.txt", ("\n".join(lines) + "\n").encode())
    record = prepared.folder.record(trial.id)
    assert record is not None
    progress.trial_ended(trial, record)


def set_aside_if_damaged(folder: StudyFolder, trial_id: str, progress: Progress) -> None:
    """Rename a damaged record, so that its trial runs again."""
    try:
        folder.record(trial_id)
    except ValueError as error:
        kept = folder.set_aside(trial_id, "damaged")
        progress.note(f"{trial_id}: its record is damaged ({error}); renamed it to {kept.name}; the trial runs again")


def _blame(prepared: PreparedLaunch, trial: TrialSpec, end: LaunchEnd, retries: int, progress: Progress) -> Cause:
    """Leave the trial in which the launch ended for a retry, or record its failure. Return the cause."""
    path = prepared.path
    cause = _external_cause(end) or find_cause(
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
        raise InputError(f"{cause.failure.error.partition(': ')[2]} (in {trial.id})")
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
            tries=reported_tries(prepared.folder, trial.id) if cause.outcome == "out_of_memory" else (),
            failure=cause.failure,
        )
    )
    finish_trial(prepared, trial, progress)
    return cause


EXTERNAL_CAUSES = {
    "time limit": "the job reached its time limit before any trial was done; raise run_on.slurm.time",
    "node failure": "a node of the job failed",
    "lost": "the job left the queue without reporting its end",
    "setup failed": "a command in run_on.slurm.setup failed; see job.log",
}
"""Causes outside the workers, by the reason for the end."""


def _external_cause(end: LaunchEnd) -> Cause | None:
    """Return the cause if the job was ended from outside, which counts before the errors of its ranks.

    A hang is not such a cause, because the driver itself ended the job.
    """
    if end.hung or end.reason not in EXTERNAL_CAUSES:
        return None
    failure = Failure(rank=None, step=end.last_step, error=EXTERNAL_CAUSES[end.reason], log=())
    return Cause(failure=failure, retryable=end.reason != "setup failed")


def _phases(launch: LaunchFolder, ended_at: float) -> dict[str, float] | None:
    """Return the wall time by phase as reported by rank 0, plus the time until all processes were gone."""
    phases = launch.phases
    if phases is None:  # rank 0 ended before it could report
        return None
    return {**phases.phases_s, "process end": max(0.0, min(ended_at, time.time()) - phases.ended_at)}
