"""Slurm's commands: argv lists as pure functions, and the one place that runs them. Nothing is guessed: what Slurm does
not say is None.

`Queue` asks Slurm about our jobs, not too often: one squeue for all of them, and patience with a controller that does
not answer.
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
        """The jobs with these names that Slurm still knows, ended ones too; None: it does not answer."""

    def final_state(self, job_id: str) -> str | None:
        """The state in the accounting, where there is one."""

    def cancel(self, job_ids: Sequence[str]) -> bool:
        """Returns whether Slurm accepted it."""

    def ask_for_stacks(self, job_id: str) -> bool:
        """Tells the script of a job to have every rank write where it stands. Returns whether Slurm accepted it."""


class Slurm:
    def submit(self, script: Path, after: Sequence[str]) -> str:
        answer = _run(sbatch_command(script, after))
        if answer is None:
            raise SubmitError(f"sbatch did not answer within {TIMEOUT_S:.0f} s")
        job_id = re.match(r"(\d+)", answer.stdout.strip())
        if answer.returncode != 0 or job_id is None:
            raise SubmitError(" ".join(answer.stderr.split()) or f"sbatch ended with {answer.returncode}")
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
    jobs: dict[str, JobState] = {}
    for line in text.splitlines():
        job_id, name, state, reason, nodes = (*line.split("|"), "", "", "", "", "")[:5]
        if not job_id.isdecimal():
            continue
        job = JobState(id=job_id, state=state, reason=reason, nodes=nodes)
        if name not in jobs or _weight(job) > _weight(jobs[name]):
            jobs[name] = job
    return jobs


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


ASK_EVERY_S = 5.0
LONGEST_PAUSE_S = 60.0
SUBMISSIONS = 5
AWAY = ("contact", "connect", "timed out", "did not answer", "socket", "try again", "zero bytes", "temporarily")
"""Words of sbatch that show a problem with the controller, not with the job."""


class Queue:
    """The last answer of squeue, and how old it is."""

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
        """Counted, so that "gone" can be said of what several of them leave out."""
        self._known: dict[str, JobState] = {}
        self._next_at = -1.0
        self._pause_s = ASK_EVERY_S

    def look(self) -> dict[str, JobState]:
        """The jobs as of the last answer. Asks again when it is time to."""
        if self.names and self.now() >= self._next_at:
            self._ask()
        return self._known

    def _ask(self) -> bool:
        states = self.scheduler.states(sorted(self.names))
        if states is None:
            if self._pause_s == ASK_EVERY_S:
                self._progress.note("Slurm does not answer; what runs goes on, asking again")
            self._pause_s = min(2 * self._pause_s, LONGEST_PAUSE_S)
        else:
            if self._pause_s > ASK_EVERY_S:
                self._progress.note("Slurm answers again")
            self._known, self._pause_s = states, ASK_EVERY_S
            self.answers += 1
        self._next_at = self.now() + self._pause_s
        return states is not None

    def fresh(self) -> dict[str, JobState]:
        """The jobs as of now: waits until Slurm may be asked again, and until it answers."""
        while True:
            self.sleep(max(0.0, self._next_at - self.now()))
            if self._ask():
                return self._known

    def submit(self, prepared: PreparedLaunch, name: str, after: list[str]) -> str:
        """Returns the id of the job. The name is written down first and looked up after a failure, so no job is lost
        and none is submitted twice."""
        self.names.add(name)
        if not self.answers and not self._ask():
            raise LaunchError(
                "Slurm does not answer, so nothing was submitted; see what `squeue` says, then run the same command"
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
