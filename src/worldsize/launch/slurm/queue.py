"""Slurm's commands: pure functions build them, and one function runs them. None means that Slurm does not report it.

`Queue` asks Slurm about the jobs of a study. It runs one squeue for all of them, not too often, and less often while
the controller does not answer.
"""

from __future__ import annotations

import re
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from worldsize.errors import LaunchError
from worldsize.folder.launches import JobFile, Reason
from worldsize.launch.target import PreparedLaunch, Progress

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
"""Final job states, and the reason for the end that each implies ("" if only the job itself knows)."""


@dataclass(frozen=True, kw_only=True)
class JobState:
    id: str
    state: str
    """As squeue prints it: PENDING, RUNNING, COMPLETED, ..."""
    reason: str = ""
    """Why the job is waiting."""
    nodes: str = ""


class SubmitError(Exception):
    """sbatch failed. The job may still be in the queue."""


class Scheduler(Protocol):
    def submit(self, script: Path, after: Sequence[str]) -> str:
        """Submit a job that starts after the end of others, and return its id. Raises SubmitError."""

    def states(self, names: Sequence[str]) -> dict[str, JobState] | None:
        """Return the jobs with these names that Slurm still lists, including ended ones. None if it does not answer."""

    def final_state(self, job_id: str) -> str | None:
        """Return the state of a job according to Slurm's accounting, or None if it has none."""

    def cancel(self, job_ids: Sequence[str]) -> bool:
        """Cancel jobs. Return whether Slurm accepted the command."""

    def ask_for_stacks(self, job_id: str) -> bool:
        """Signal the script of a job to make every rank log its stack. Return whether Slurm accepted the command."""


class Slurm:
    def submit(self, script: Path, after: Sequence[str]) -> str:
        answer = _run(sbatch_command(script, after))
        if answer is None:
            raise SubmitError(f"sbatch did not answer within {TIMEOUT_S:.0f} s")
        job_id = re.match(r"(\d+)", answer.stdout.strip())
        if answer.returncode != 0 or job_id is None:
            raise SubmitError(" ".join(answer.stderr.split()) or f"sbatch exited with code {answer.returncode}")
        return job_id.group(1)

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
        return answer.stdout.split()[0]  # the state may be "CANCELLED by 1000"

    def cancel(self, job_ids: Sequence[str]) -> bool:
        return _succeeded(_run(["scancel", *job_ids]))

    def ask_for_stacks(self, job_id: str) -> bool:
        return _succeeded(_run(["scancel", "--batch", "--signal=HUP", job_id]))


def sbatch_command(script: Path, after: Sequence[str] = ()) -> list[str]:
    dependency = [f"--dependency=afterany:{':'.join(after)}"] if after else []
    return ["sbatch", "--parsable", *dependency, str(script)]


def squeue_command(names: Sequence[str]) -> list[str]:
    """Return a squeue command for jobs by name, not by id: squeue fails for ids that it no longer knows."""
    return ["squeue", "--noheader", "--states=all", f"--format={FORMAT}", f"--name={','.join(names)}"]


def sacct_command(job_id: str) -> list[str]:
    return ["sacct", "--noheader", "--parsable2", "--allocations", f"--jobs={job_id}", "--format=State"]


def parse_states(text: str) -> dict[str, JobState]:
    """Parse squeue's output into one job per name.

    If a script was submitted twice, one of its jobs runs and the other exits at once. So a job that has not ended comes
    before one that has, and then the newest comes first.
    """
    jobs: dict[str, JobState] = {}
    for line in text.splitlines():
        job_id, name, state, reason, nodes = (*line.split("|"), "", "", "", "", "")[:5]
        if not job_id.isdecimal():
            continue
        job = JobState(id=job_id, state=state, reason=reason, nodes=nodes)
        if name not in jobs or _precedence(job) > _precedence(jobs[name]):
            jobs[name] = job
    return jobs


def _precedence(job: JobState) -> tuple[bool, int]:
    return job.state not in FINAL, int(job.id)


def _succeeded(answer: subprocess.CompletedProcess[str] | None) -> bool:
    return answer is not None and answer.returncode == 0


def _run(command: list[str]) -> subprocess.CompletedProcess[str] | None:
    """Run one of Slurm's commands. Return None if it does not finish within TIMEOUT_S."""
    try:
        return subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            check=False,
            start_new_session=True,  # Ctrl-C must not interrupt a submission
        )
    except subprocess.TimeoutExpired:
        return None
    except FileNotFoundError:
        raise LaunchError(
            f"{command[0]} was not found, so Slurm cannot be used; run this on a login node of the cluster"
        ) from None


ASK_EVERY_S = 5.0
LONGEST_PAUSE_S = 60.0
SUBMISSIONS = 5
"""Maximum number of attempts to submit one job."""
AWAY = ("contact", "connect", "timed out", "did not answer", "socket", "try again", "zero bytes", "temporarily")
"""Parts of sbatch's error messages that show a problem with the controller, not with the job."""


class Queue:
    """Submits jobs, and keeps the last answer of squeue until it is time to ask again."""

    def __init__(
        self,
        scheduler: Scheduler,
        progress: Progress,
        now: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self.scheduler, self._progress, self.now, self.sleep = scheduler, progress, now, sleep
        self.names: set[str] = set()
        self.answers = 0
        """Number of answers so far. A job counts as gone once several of them do not list it."""
        self._known: dict[str, JobState] = {}
        self._next_at = -1.0
        self._pause_s = ASK_EVERY_S

    def look(self) -> dict[str, JobState]:
        """Return the jobs as of the last answer. Asks again if that is old enough."""
        if self.names and self.now() >= self._next_at:
            self._ask()
        return self._known

    def _ask(self) -> bool:
        states = self.scheduler.states(sorted(self.names))
        if states is None:
            if self._pause_s == ASK_EVERY_S:
                self._progress.note("Slurm does not answer; running jobs continue, and it will be asked again")
            self._pause_s = min(2 * self._pause_s, LONGEST_PAUSE_S)
        else:
            if self._pause_s > ASK_EVERY_S:
                self._progress.note("Slurm answers again")
            self._known, self._pause_s = states, ASK_EVERY_S
            self.answers += 1
        self._next_at = self.now() + self._pause_s
        return states is not None

    def fresh(self) -> dict[str, JobState]:
        """Return the jobs as of now. Waits until Slurm may be asked again, and until it answers."""
        while True:
            self.sleep(max(0.0, self._next_at - self.now()))
            if self._ask():
                return self._known

    def submit(self, prepared: PreparedLaunch, name: str, after: list[str]) -> str:
        """Submit a job and return its id.

        The name of the job is stored first, and looked up in the queue if sbatch fails. So no job is lost, and none is
        submitted twice.
        """
        self.names.add(name)
        if not self.answers and not self._ask():
            raise LaunchError(
                "Slurm does not answer, so nothing was submitted; run `squeue` to see why, then run the same command"
            )
        job = JobFile(name=name, id=None, submitted_at=time.time())
        prepared.files.write(job)
        for attempt in range(1, SUBMISSIONS + 1):
            try:
                job_id = self.scheduler.submit(prepared.path / "job.sh", after)
                break
            except SubmitError as error:
                if (queued := self.fresh().get(name)) is not None:
                    self._progress.note(
                        f"{prepared.launch_id}: sbatch failed ({error}), but job {queued.id} is in the queue"
                    )
                    job_id = queued.id
                    break
                if attempt == SUBMISSIONS or not any(word in str(error).lower() for word in AWAY):
                    raise LaunchError(
                        f"sbatch refused {prepared.path / 'job.sh'}: {error}; "
                        "change `run_on`, then run the same command"
                    ) from None
                self._progress.note(f"{prepared.launch_id}: sbatch failed ({error}); submitting again")
                self.sleep(ASK_EVERY_S)
        prepared.files.write(job.model_copy(update={"id": job_id}))
        return job_id
