"""Launches as Slurm jobs: one job per launch, several at a time. A later driver can adopt running jobs."""

from __future__ import annotations

import secrets
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from worldsize.errors import LaunchError
from worldsize.folder.files import write_atomic
from worldsize.folder.launches import JobFile
from worldsize.launch.autopsy import launch_log
from worldsize.launch.slurm.job import JobRunning
from worldsize.launch.slurm.queue import Queue
from worldsize.launch.slurm.script import Job, job_script
from worldsize.launch.target import OnEvent, PreparedLaunch, Progress, RunningLaunch
from worldsize.launch.verdict import finish_launch
from worldsize.spec.place import nodes_for
from worldsize.spec.study import StudySpec

POLL_S = 1.0
SMOKE_TIME = "1"
"""Time limit of the smoke job, in minutes."""
ANY_NUMBER = 1_000_000


class SlurmTarget:
    poll_s = POLL_S

    def __init__(
        self,
        spec: StudySpec,
        queue: Queue,
        progress: Progress,
        *,
        cancel: bool = False,
        detach: bool = False,
    ) -> None:
        """Create a target. All targets of a study share the queue, so that one squeue asks for all their jobs."""
        assert spec.slurm is not None
        self._spec, self._slurm, self._queue, self._progress = spec, spec.slurm, queue, progress
        self._cancel, self._detach = cancel, detach
        # A detached driver cannot submit jobs later, so it submits all of them now, with dependencies.
        self.at_once = ANY_NUMBER if detach else self._slurm.max_jobs
        self._submitted: list[str] = []

    def start(self, prepared: PreparedLaunch, on_event: OnEvent) -> JobRunning:
        name = write_script(prepared, self._spec)
        before = self._submitted[-self._slurm.max_jobs :] if self._detach else []
        after = before[:1] if len(before) == self._slurm.max_jobs else []
        job_id = self._queue.submit(prepared, name, after)
        self._submitted.append(job_id)
        self._progress.note(f"{prepared.launch_id}: submitted as job {job_id}")
        return JobRunning(prepared, self._queue, on_event, self._progress, cancel=self._cancel)

    def adopt(self, open_launches: Sequence[PreparedLaunch], on_event: OnEvent) -> Iterator[RunningLaunch]:
        """Follow jobs of an earlier driver and jobs submitted by hand.

        A launch whose job never reached the queue is closed, so that nobody submits it later.
        """
        jobs = [prepared for prepared in open_launches if prepared.files.job is not None]
        followed = [
            JobRunning(prepared, self._queue, on_event, self._progress, cancel=self._cancel) for prepared in jobs
        ]
        known = self._queue.fresh() if any(running.id is None for running in followed) else {}
        for prepared, running in zip(jobs, followed, strict=True):
            if running.id is None and running.name not in known:
                finish_launch(prepared, running.end("interrupted"), None, 0, self._progress)
                continue
            if running.id is not None:
                self._submitted.append(running.id)
            yield running
            # After the yield: the user may press Ctrl-C on reading this, and by then the runner must know the job.
            self._progress.note(f"{prepared.launch_id}: following job {running.id or running.name}")

    def smoke(self, prepared: PreparedLaunch) -> None:
        """Submit a job of one minute in which all workers connect and exit.

        It shows errors in the setup before anybody waits hours for a large job.
        """
        name = write_script(prepared, self._spec, time=SMOKE_TIME)
        job_id = self._queue.submit(prepared, name, [])
        self._progress.note(f"{prepared.launch_id}: submitted as job {job_id}, to check that workers can start")
        running = JobRunning(prepared, self._queue, lambda *_: None, self._progress, cancel=True)
        try:
            while (end := running.poll()) is None:
                self._queue.sleep(self.poll_s)
        except KeyboardInterrupt:
            self._queue.scheduler.cancel([job_id])
            raise
        finish_launch(prepared, end, None, 0, self._progress)
        if prepared.files.phases is None:
            lines = "\n  ".join(launch_log(prepared.path)[-8:])
            raise LaunchError(
                f"the smoke job {end.job} failed ({end.reason or end.returncode}); see {prepared.path}\n  {lines}"
            )
        waited = f" after {end.queued_s:.0f} s in the queue" if end.queued_s is not None else ""
        self._progress.note(f"{prepared.launch_id}: workers start and connect, in {end.wall_s:.0f} s{waited}")


def write_script(prepared: PreparedLaunch, spec: StudySpec, *, time: str | None = None) -> str:
    """Write job.sh into the folder of the launch and return the name of the job, which is unique."""
    name = f"ws-{spec.name[:40]}-{prepared.launch_id}-{secrets.token_hex(4)}"
    job = job_of(
        spec, prepared.folder.path, prepared.launch_id, prepared.workers, name=name, environment=prepared.environment
    )
    assert spec.slurm is not None
    script = job_script(job if time is None else replace(job, time=time), spec.slurm)
    write_atomic(prepared.path / "job.sh", script.encode())
    return name


def prepare_by_hand(prepared: PreparedLaunch, spec: StudySpec) -> Path:
    """Write a job.sh for the user to submit. `worldsize run` then finds the job by its name."""
    name = write_script(prepared, spec)
    prepared.files.write(JobFile(name=name, id=None, submitted_at=None))
    return prepared.path / "job.sh"


def job_of(
    spec: StudySpec, folder: Path, launch_id: str, workers: int, *, name: str, environment: Mapping[str, str]
) -> Job:
    """Return the job of a launch. `plan/problems.py` has checked that its workers divide evenly among the nodes."""
    assert spec.slurm is not None
    nodes = nodes_for(spec.slurm, workers)
    return Job(
        name=name,
        study=folder.absolute(),
        launch_id=launch_id,
        nodes=nodes,
        workers_per_node=workers // nodes,
        threads=spec.threads_per_worker,
        environment=tuple(environment.items()),
        python=sys.executable,
    )
