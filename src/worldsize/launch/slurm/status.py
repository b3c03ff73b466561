"""Where the jobs of a study stand, for whoever looks: from the study folder, and from Slurm where it answers."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from worldsize.errors import LaunchError
from worldsize.folder.files import read_json, whole
from worldsize.folder.launches import job_events, queued_s
from worldsize.folder.study_folder import StudyFolder
from worldsize.launch.slurm.job import read_job
from worldsize.launch.slurm.queue import JobState, Scheduler, Slurm


@dataclass(frozen=True, kw_only=True)
class JobStatus:
    launch: str
    id: str | None
    open: bool
    state: str
    """Slurm's; `unknown` where it does not say, `ended` once the driver has closed the launch."""
    why: str = ""
    """It waits."""
    nodes: str = ""
    reason: str = ""
    """It ended, where its own processes did not end it."""
    attempts: int = 0
    queued_s: float | None = None
    wall_s: float | None = None
    """From its last start to its end."""


def closed_jobs(folder: StudyFolder) -> list[JobStatus]:
    """Those whose end the driver has seen, by their folders alone."""
    return [job for path in folder.launches() if (job := _closed(path)) is not None]


def submitted_job(folder: StudyFolder) -> str | None:
    """One whose end no driver has seen."""
    for path in folder.launches():
        if (path / "job.json").exists() and not (path / "end.json").exists():
            told = [read_job(path)["id"], *(event["job"] for event in job_events(path))]
            if known := [str(job) for job in told if job]:
                return known[-1]
    return None


def _closed(path: Path) -> JobStatus | None:
    """None: still open, or none that ever reached the queue."""
    if not (path / "job.json").exists() or not (path / "end.json").exists():
        return None
    end = read_json(path / "end.json")
    with whole(path / "end.json"):
        return (
            JobStatus(
                launch=path.name,
                id=str(end["job"]),
                open=False,
                state="ended",
                reason=str(end["reason"]),
                attempts=int(end["attempts"]),
                queued_s=None if end["queued_s"] is None else float(end["queued_s"]),
                wall_s=float(end["wall_s"]),
            )
            if end["job"]
            else None
        )


def job_statuses(folder: StudyFolder, scheduler: Scheduler | None = None) -> list[JobStatus]:
    """Of every job, oldest first. Works without Slurm, on a copy of the folder."""
    jobs = [(path, read_job(path)) for path in folder.launches() if (path / "job.json").exists()]
    still_open = [job["name"] for path, job in jobs if not (path / "end.json").exists()]
    known: dict[str, JobState] = {}
    if still_open:
        try:
            known = (scheduler or Slurm()).states(still_open) or {}
        except LaunchError:  # no Slurm here
            known = {}
    found = []
    for path, job in jobs:
        if (path / "end.json").exists():
            found += [closed] if (closed := _closed(path)) is not None else []
            continue
        events = job_events(path)
        starts = sum(event["event"] == "start" for event in events)
        common = {"launch": path.name, "attempts": starts, "queued_s": queued_s(job, events)}
        found.append(_open(job, events, known.get(job["name"]), common))
    return found


def _open(
    job: dict[str, Any], events: list[dict[str, Any]], seen: JobState | None, common: dict[str, Any]
) -> JobStatus:
    """What Slurm does not say is unknown, never ended."""
    if seen is None:
        return JobStatus(**common, id=events[-1]["job"] if events else job["id"], open=True, state="unknown")
    why = seen.reason if seen.state == "PENDING" and seen.reason != "None" else ""
    return JobStatus(**common, id=seen.id, open=True, state=seen.state, why=why, nodes=seen.nodes)
