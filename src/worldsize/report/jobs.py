"""Jobs in words: what a plan would submit, and where those of a study stand."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from dataclasses import asdict
from textwrap import indent
from typing import TYPE_CHECKING, Any

from rich.text import Text

from worldsize.errors import visible
from worldsize.estimate import Cost
from worldsize.grid import on_target
from worldsize.launch.commands import mpirun_command, torchrun_command
from worldsize.launch.slurm_script import job_script
from worldsize.launch.slurm_status import JobStatus, closed_jobs
from worldsize.launch.slurm_target import job_of
from worldsize.plan import Launch
from worldsize.report.words import counted, duration, number
from worldsize.results import Results
from worldsize.spec import StudySpec

if TYPE_CHECKING:
    from worldsize.study import Study


def launch_command(study: Study, launch: Launch, number: int) -> str:
    """What starts a launch, for a shell."""
    spec, launch_id = on_target(study.spec, launch.on), launch.id(number)
    if spec.slurm is not None:
        job = job_of(spec, study.default_folder, launch_id, launch.workers, name=launch_id)
        script = shlex.quote(f"{study.default_folder}/launches/{launch_id}/job.sh")
        return f"sbatch {script}   # nodes: {job.nodes}, workers a node: {job.workers_per_node}"
    build = mpirun_command if spec.on == "mpi" else torchrun_command
    return shlex.join(build(study.default_folder, launch_id, launch.workers, "python"))


def planned_script(study: Study, launch: Launch, number: int) -> str:
    """Of a job, in full; nothing where a launch is none."""
    spec, launch_id = on_target(study.spec, launch.on), launch.id(number)
    if spec.slurm is None:
        return ""
    job = job_of(spec, study.default_folder, launch_id, launch.workers, name=f"ws-{spec.name[:40]}-{launch_id}")
    return "\n" + indent(job_script(job, spec.slurm), "    ")


def job_words(spec: StudySpec, cost: Cost) -> Iterator[str]:
    """A line for each target that takes jobs."""
    for on, node_s in cost.node_s.items():
        slurm = on_target(spec, on).slurm
        assert slurm is not None
        where = f"on {on or 'Slurm'}" + (f" in partition {slurm.partition}" if slurm.partition else "")
        jobs = f"{counted(slurm.max_jobs, 'job')} at once, each of {slurm.time} at most"
        yield f"{where}: about {number(node_s / 3600)} node-hours, {jobs}; waiting in the queue comes on top"


def queue_words(results: Results) -> Iterator[str]:
    """How long jobs waited, apart from how long they ran; nothing where there were none."""
    jobs = closed_jobs(results.folder)
    waits = [job.queued_s for job in jobs if job.queued_s is not None]
    if waits:
        again = sum(max(job.attempts - 1, 0) for job in jobs)
        requeued = f"; put back into the queue {again} times" if again else ""
        waited = f"{duration(sum(waits))} in the queue ({duration(max(waits))} for one at most)"
        ran = f"{duration(sum(job.wall_s or 0.0 for job in jobs))} running{requeued}"
        yield f"{counted(len(jobs), 'job')}: {waited}, {ran}. The wait is in no other number here."


def job_lines(jobs: list[JobStatus]) -> list[Text]:
    """Open jobs one by one, ended ones as far as something was the matter with them."""
    lines = [Text(_line(job)) for job in jobs if job.open or job.reason or job.attempts > 1]
    waits = [job.queued_s for job in jobs if job.queued_s is not None]
    if waits:
        lines.append(
            Text(f"{len(jobs)} jobs; {duration(sum(waits))} in the queue, at most {duration(max(waits))} for one")
        )
    return lines


def _line(job: JobStatus) -> str:
    words = f"{visible(job.launch)}: job {job.id or '(no id yet)'} {job.state.lower()}"
    words += f" ({visible(job.why)})" if job.why else ""
    words += f" on {visible(job.nodes)}" if job.nodes and job.open else ""
    words += f", {job.reason}" if job.reason else ""
    words += f", attempt {job.attempts}" if job.attempts > 1 else ""
    return words


def job_dicts(jobs: list[JobStatus]) -> list[dict[str, Any]]:
    return [asdict(job) for job in jobs]
