"""Slurm's commands: argv lists as pure functions, and the one place that runs them. Nothing is guessed: what Slurm does
not say is None."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from worldsize.errors import LaunchError
from worldsize.launch.target import Reason

TIMEOUT_S = 30.0
FORMAT = "%i|%j|%T|%r|%N"
FINAL: dict[str, Reason] = {
    "COMPLETED": "",
    "FAILED": "",
    "OUT_OF_MEMORY": "",
    "CANCELLED": "cancelled",
    "TIMEOUT": "time limit",
    "DEADLINE": "time limit",
    "NODE_FAIL": "node failure",
    "BOOT_FAIL": "node failure",
    "PREEMPTED": "preempted",
}
"""States from which a job does not come back, and what they say of its end."""


@dataclass(frozen=True, kw_only=True)
class JobState:
    id: str
    state: str
    """As squeue writes it: PENDING, RUNNING, COMPLETED, ..."""
    reason: str = ""
    """Why it waits."""
    nodes: str = ""


class SubmitError(Exception):
    """sbatch said no. The job may be in the queue all the same."""


class Scheduler(Protocol):
    def submit(self, script: Path, after: Sequence[str]) -> str:
        """The id of the job. Raises SubmitError."""

    def states(self, names: Sequence[str]) -> dict[str, JobState] | None:
        """Of the jobs with these names that Slurm still knows, ended ones too; None: it does not answer."""

    def final_state(self, job_id: str) -> str | None:
        """From the accounting, where there is one."""

    def cancel(self, job_ids: Sequence[str]) -> bool:
        """Whether Slurm has heard it."""

    def ask_for_stacks(self, job_id: str) -> bool:
        """Tells the script of a job to have every rank write where it stands. Whether Slurm has heard it."""


class Slurm:
    def submit(self, script: Path, after: Sequence[str]) -> str:
        answer = _run(sbatch_command(script, after))
        if answer is None:
            raise SubmitError(f"sbatch did not answer within {TIMEOUT_S:.0f} s")
        found = re.match(r"(\d+)", answer.stdout.strip())
        if answer.returncode != 0 or found is None:
            raise SubmitError(" ".join(answer.stderr.split()) or f"sbatch ended with {answer.returncode}")
        return found.group(1)

    def states(self, names: Sequence[str]) -> dict[str, JobState] | None:
        answer = _run(squeue_command(names))
        if answer is None or answer.returncode != 0:
            return None
        return parse_states(answer.stdout)

    def final_state(self, job_id: str) -> str | None:
        try:
            answer = _run(sacct_command(job_id))
        except LaunchError:
            return None
        if answer is None or answer.returncode != 0 or not answer.stdout.strip():
            return None
        return answer.stdout.split()[0]  # CANCELLED by 1000

    def cancel(self, job_ids: Sequence[str]) -> bool:
        return _heard(_run(["scancel", *job_ids]))

    def ask_for_stacks(self, job_id: str) -> bool:
        return _heard(_run(["scancel", "--batch", "--signal=HUP", job_id]))


def sbatch_command(script: Path, after: Sequence[str] = ()) -> list[str]:
    waits = [f"--dependency=afterany:{':'.join(after)}"] if after else []
    return ["sbatch", "--parsable", *waits, str(script)]


def squeue_command(names: Sequence[str]) -> list[str]:
    """By name, not by id: squeue fails for an id that it no longer knows."""
    return ["squeue", "--noheader", "--states=all", f"--format={FORMAT}", f"--name={','.join(names)}"]


def sacct_command(job_id: str) -> list[str]:
    return ["sacct", "--noheader", "--parsable2", "--allocations", f"--jobs={job_id}", "--format=State"]


def parse_states(text: str) -> dict[str, JobState]:
    """One job of each name. A script that was submitted twice runs in one of its jobs, and the other leaves at once:
    what has not ended counts before what has, the newest among equals."""
    found: dict[str, JobState] = {}
    for line in text.splitlines():
        job_id, name, state, reason, nodes = (*line.split("|"), "", "", "", "", "")[:5]
        if not job_id.isdecimal():
            continue
        job = JobState(id=job_id, state=state, reason=reason, nodes=nodes)
        if name not in found or _weight(job) > _weight(found[name]):
            found[name] = job
    return found


def _weight(job: JobState) -> tuple[bool, int]:
    return job.state not in FINAL, int(job.id)


def _heard(answer: subprocess.CompletedProcess[str] | None) -> bool:
    return answer is not None and answer.returncode == 0


def _run(command: list[str]) -> subprocess.CompletedProcess[str] | None:
    """None: no answer in time."""
    try:
        return subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            check=False,
            start_new_session=True,  # a Ctrl-C in the terminal must not cut a submission in two
        )
    except subprocess.TimeoutExpired:
        return None
    except FileNotFoundError:
        raise LaunchError(
            f"{command[0]} is not here, so nothing can be submitted to Slurm; run this on a login node of the cluster"
        ) from None
