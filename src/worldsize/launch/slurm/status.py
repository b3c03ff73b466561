"""The state of a study's jobs, from the study folder and, if it answers, from Slurm."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from worldsize.errors import LaunchError
from worldsize.folder.launches import JobFile, LaunchFolder, launch_folders, queued_s
from worldsize.folder.study_folder import StudyFolder
from worldsize.launch.slurm.queue import JobState, Scheduler, Slurm


@dataclass(frozen=True, kw_only=True)
class JobStatus:
    launch: str
    id: str | None
    open: bool
    state: str
    """Slurm's state; `unknown` if Slurm does not report one, `ended` once the driver has closed the launch."""
    why: str = ""
    """Why the job is waiting."""
    nodes: str = ""
    reason: str = ""
    """Why the job ended. Empty if its own processes ended it."""
    attempts: int = 0
    queued_s: float | None = None
    wall_s: float | None = None
    """Time from its last start to its end, in seconds."""


def submitted_job(folder: StudyFolder) -> str | None:
    """Return the id of a job whose end no driver has seen."""
    for launch in launch_folders(folder):
        if not launch.is_over and (job := launch.job) is not None:
            ids = [job.id, *(event["job"] for event in launch.job_events())]
            if known := [str(job_id) for job_id in ids if job_id]:
                return known[-1]
    return None


def _closed(launch: LaunchFolder) -> JobStatus | None:
    """Return the status of a closed launch, or None if it is still open or never reached the queue."""
    end = launch.end
    if end is None or end.job is None or launch.job is None:
        return None
    return JobStatus(
        launch=launch.name,
        id=end.job,
        open=False,
        state="ended",
        reason=end.reason,
        attempts=end.attempts,
        queued_s=end.queued_s,
        wall_s=end.wall_s,
    )


def job_statuses(folder: StudyFolder, scheduler: Scheduler | None = None) -> list[JobStatus]:
    """Return the status of every job, oldest first. Also works without Slurm, on a copy of the folder."""
    jobs = [(launch, job) for launch in launch_folders(folder) if (job := launch.job) is not None]
    still_open = [job.name for launch, job in jobs if not launch.is_over]
    known: dict[str, JobState] = {}
    if still_open:
        try:
            known = (scheduler or Slurm()).states(still_open) or {}
        except LaunchError:  # Slurm is not installed
            known = {}
    statuses = []
    for launch, job in jobs:
        if launch.is_over:
            statuses += [closed] if (closed := _closed(launch)) is not None else []
            continue
        events = launch.job_events()
        starts = sum(event["event"] == "start" for event in events)
        common = {"launch": launch.name, "attempts": starts, "queued_s": queued_s(job, events)}
        statuses.append(_open(job, events, known.get(job.name), common))
    return statuses


def _open(job: JobFile, events: list[dict[str, Any]], seen: JobState | None, common: dict[str, Any]) -> JobStatus:
    """Return the status of an open launch: `unknown` if Slurm does not list its job."""
    if seen is None:
        return JobStatus(**common, id=events[-1]["job"] if events else job.id, open=True, state="unknown")
    why = seen.reason if seen.state == "PENDING" and seen.reason != "None" else ""
    return JobStatus(**common, id=seen.id, open=True, state=seen.state, why=why, nodes=seen.nodes)
