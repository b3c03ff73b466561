"""What Slurm says of our jobs, asked seldom: one squeue for all, and patience with a controller that is away."""

from __future__ import annotations

import time
from collections.abc import Callable

from worldsize.errors import LaunchError
from worldsize.launch.progress import Progress
from worldsize.launch.slurm import JobState, Scheduler, SubmitError
from worldsize.launch.target import Work
from worldsize.store import write_json

ASK_EVERY_S = 5.0
LONGEST_PAUSE_S = 60.0
SUBMISSIONS = 5
AWAY = ("contact", "connect", "timed out", "did not answer", "socket", "try again", "zero bytes", "temporarily")
"""In what sbatch says when the controller is the trouble, not the job."""


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
        """As of the last answer. Asks again when it is time to."""
        if self.names and self.now() >= self._next_at:
            self._ask()
        return self._known

    def _ask(self) -> bool:
        found = self.scheduler.states(sorted(self.names))
        if found is None:
            if self._pause_s == ASK_EVERY_S:
                self._progress.note("Slurm does not answer; what runs goes on, asking again")
            self._pause_s = min(2 * self._pause_s, LONGEST_PAUSE_S)
        else:
            if self._pause_s > ASK_EVERY_S:
                self._progress.note("Slurm answers again")
            self._known, self._pause_s = found, ASK_EVERY_S
            self.answers += 1
        self._next_at = self.now() + self._pause_s
        return found is not None

    def fresh(self) -> dict[str, JobState]:
        """As of now, and for certain: waits until Slurm may be asked again, and until it answers."""
        while True:
            self.sleep(max(0.0, self._next_at - self.now()))
            if self._ask():
                return self._known

    def submit(self, work: Work, name: str, after: list[str]) -> str:
        """The id of the job. The name is written down first and looked up after a failure, so no job is lost and none
        submitted twice."""
        self.names.add(name)
        if not self.answers and not self._ask():
            raise LaunchError(
                "Slurm does not answer, so nothing was submitted; see what `squeue` says, then run the same command"
            )
        job_file = work.path / "job.json"
        told = {"name": name, "id": None, "submitted_at": time.time()}
        write_json(job_file, told)
        for attempt in range(1, SUBMISSIONS + 1):
            try:
                job_id = self.scheduler.submit(work.path / "job.sh", after)
                break
            except SubmitError as error:
                if (found := self.fresh().get(name)) is not None:
                    self._progress.note(
                        f"{work.launch_id}: sbatch failed ({error}), but job {found.id} is in the queue"
                    )
                    job_id = found.id
                    break
                if attempt == SUBMISSIONS or not any(word in str(error).lower() for word in AWAY):
                    raise LaunchError(
                        f"sbatch refused {work.path / 'job.sh'}: {error}; change `on.slurm`, then run the same command"
                    ) from None
                self._progress.note(f"{work.launch_id}: sbatch failed ({error}); submitting again")
                self.sleep(ASK_EVERY_S)
        write_json(job_file, {**told, "id": job_id})
        return job_id
