"""Jobs in words: what a plan would submit, and where those of a study stand."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from dataclasses import asdict
from textwrap import indent
from typing import TYPE_CHECKING, Any

from rich.text import Text

from worldsize.errors import visible
from worldsize.estimate import Estimate
from worldsize.launch.commands import mpirun_command, torchrun_command
from worldsize.launch.slurm_script import job_script
from worldsize.launch.slurm_status import JobStatus
from worldsize.launch.slurm_target import job_of
from worldsize.report.words import duration, number
from worldsize.spec import StudySpec

if TYPE_CHECKING:
    from worldsize.study import Study


def launch_command(study: Study, launch_id: str, workers: int) -> str:
    """What starts a launch, for a shell."""
    if study.spec.slurm is not None:
        job = job_of(study.spec, study.default_folder, launch_id, workers, name=launch_id)
        script = shlex.quote(f"{study.default_folder}/launches/{launch_id}/job.sh")
        return f"sbatch {script}   # nodes: {job.nodes}, workers a node: {job.workers_per_node}"
    build = mpirun_command if study.spec.on == "mpi" else torchrun_command
    return shlex.join(build(study.default_folder, launch_id, workers, "python"))


def planned_script(study: Study, launch_id: str, workers: int, *, first: bool) -> str:
    """Of the first job in full: the others differ in their names and sizes."""
    if study.spec.slurm is None or not first:
        return ""
    name = f"ws-{study.spec.name[:40]}-{launch_id}"
    job = job_of(study.spec, study.default_folder, launch_id, workers, name=name)
    return "\n" + indent(job_script(job, study.spec.slurm), "    ")


def job_words(spec: StudySpec, cost: Estimate) -> Iterator[str]:
    if spec.slurm is None or cost.node_s is None:
        return
    where = f" in partition {spec.slurm.partition}" if spec.slurm.partition else ""
    yield (
        f"on Slurm{where}: about {number(cost.node_s / 3600)} node-hours, {spec.slurm.max_jobs} jobs at once, "
        f"each of {spec.slurm.time} at most; waiting in the queue comes on top"
    )


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
