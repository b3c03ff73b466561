"""The life of a job, from the queue to its end, by what it writes into the study folder and what Slurm says of it.

Neither alone would do: a job that was killed cannot write, and Slurm forgets. A state that is not known to be final is
never taken for an end.
"""

from __future__ import annotations

import time
from typing import Any

from worldsize.folder.launches import LaunchEnd, Reason, queued_s
from worldsize.launch.follow import Follower
from worldsize.launch.slurm.queue import FINAL, JobState, Queue
from worldsize.launch.target import OnEvent, PreparedLaunch, Progress

GONE_AFTER = 2
"""Answers of squeue that leave a job out, before it is taken for gone."""
SETTLE_S = 10.0
"""After Slurm calls a job ended, until its last files must be visible on a shared file system."""
LEAST_PATIENCE_S = 120.0
"""Files of other hosts are seen late."""
CANCEL_S = 90.0
STACKS_S = 40.0
"""A job whose script cannot ask its ranks in this time is ended without their answer."""


class JobRunning:
    def __init__(
        self, prepared: PreparedLaunch, queue: Queue, on_event: OnEvent, progress: Progress, *, cancel: bool
    ) -> None:
        self.prepared, self._queue, self._cancel = prepared, queue, cancel
        self._on_event, self._progress = on_event, progress
        job = prepared.files.job
        assert job is not None
        self.job, self.name = job, job.name
        queue.names.add(self.name)
        self._answers, self._missing = queue.answers, 0  # earlier answers say nothing of this job
        self._seen: JobState | None = None
        self._final_at: float | None = None
        self._hung = False
        self._asked_at: float | None = None
        self._stacks_before = 0
        self._still_at = queue.now()
        """When it was last known not to run."""
        self._noted = ""
        self._events: list[dict[str, Any]] = []
        self._follower: Follower | None = None
        self._read_events()

    def poll(self) -> LaunchEnd | None:
        self._read_events()
        self._pass_on()
        self._ask()
        self._forgive_if_still()
        self._end_if_hung()
        reason = self._reason()
        if reason is None:
            return None
        self._read_events()
        self._pass_on()
        return self.end("" if self._hung else reason)

    def _forgive_if_still(self) -> None:
        """A job that is suspended, or waits again, cannot report: silence counts from when it runs."""
        if self._seen is None or self._seen.state != "RUNNING":
            self._still_at, self._asked_at = self._queue.now(), None

    def _end_if_hung(self) -> None:
        """First its ranks are asked where they stand. Its end is waited for like any other: two launches must not write
        into the same trial."""
        if self._follower is None or self._seen is None or self._seen.state != "RUNNING" or self._hung:
            return
        if self._asked_at is not None:
            answered = self._stacks > self._stacks_before or self._queue.now() - self._asked_at > STACKS_S
            self._hung = answered and self._queue.scheduler.cancel([self._seen.id])
        elif self._event("end") is None and self._silent(self._follower):
            self._progress.note(
                f"{self.prepared.launch_id}: job {self._seen.id} hangs; asking its ranks where they stand"
            )
            self._stacks_before = self._stacks
            self._queue.scheduler.ask_for_stacks(self._seen.id)
            self._asked_at = self._queue.now()

    def _silent(self, follower: Follower) -> bool:
        return follower.hung() and self._queue.now() - self._still_at > follower.patience_s()

    @property
    def _stacks(self) -> int:
        """How often it has reported where its ranks stand."""
        return sum(event["event"] == "stacks" for event in self._events)

    def stop(self) -> LaunchEnd | None:
        if not self._cancel:
            self._progress.note(f"{self.prepared.launch_id}: job {self.id or self.name} goes on; --cancel would end it")
            return None
        if self.id is not None:
            self._queue.scheduler.cancel([self.id])
        deadline = time.monotonic() + CANCEL_S
        try:
            while time.monotonic() < deadline:
                if (end := self.poll()) is not None:
                    return end.model_copy(update={"reason": "interrupted"})
                time.sleep(0.5)
        except KeyboardInterrupt:
            pass
        return None

    @property
    def id(self) -> str | None:
        if self._seen is not None:
            return self._seen.id
        job_id: str | None = self._events[-1]["job"] if self._events else self.job.id
        return job_id

    @property
    def known_to_run(self) -> bool:
        """Whether Slurm has said so since this driver started. A job that is not listed, or has just ended, is known
        after a few polls."""
        return self._seen is not None and not self._missing and self._seen.state not in FINAL

    def _ask(self) -> None:
        seen = self._queue.look().get(self.name)
        if self._queue.answers == self._answers:
            return  # nothing new was heard
        self._answers = self._queue.answers
        self._missing = 0 if seen else self._missing + 1
        self._seen = seen or self._seen
        if seen is not None and seen.state not in FINAL:
            self._final_at = None
            self._tell(seen)

    def _tell(self, seen: JobState) -> None:
        words = f"{self.prepared.launch_id}: job {seen.id} {seen.state.lower()}"
        if seen.state == "PENDING":
            words += f" ({seen.reason})" if seen.reason not in ("", "None") else ""
            words += f", attempt {self.attempts + 1}" if self.attempts else ""
        elif self._starts:
            words += f" on {seen.nodes}"
            if self.attempts > 1:
                words += f", attempt {self.attempts}"
            elif (queued := self.queued_s) is not None:
                words += f" after {queued:.0f} s in the queue"
        if words != self._noted:
            self._noted = words
            self._progress.note(words)

    def _reason(self) -> Reason | None:
        """Why it ended; None: it has not ended, or nobody knows."""
        ended = self._event("end") is not None
        if ended and not self.prepared.left() and self.prepared.trials:
            return ""
        if self._missing >= GONE_AFTER:
            return self._reason_of_what_is_gone(ended=ended)
        state = None if self._missing or self._seen is None else self._seen.state
        if state not in FINAL:
            return None
        if not ended:  # it may be killed and silent, or its last words are still under way
            self._final_at = self._final_at or self._queue.now()
            if self._queue.now() - self._final_at < SETTLE_S and self._starts:
                return None
        return FINAL[state] or self._own_reason()

    def _reason_of_what_is_gone(self, *, ended: bool) -> Reason:
        """Slurm forgets jobs after a while. The accounting may remember; the job's own words do."""
        if self.id is None:
            return "interrupted"  # never submitted
        if ended and not self._event("terminated"):
            return self._own_reason()
        if self._event("time-limit"):
            return "time limit"
        state = self._queue.scheduler.final_state(self.id)
        return FINAL.get(state or "", "lost")

    def _own_reason(self) -> Reason:
        if self._event("setup-failed"):
            return "setup failed"
        return "time limit" if self._event("time-limit") else ""

    def _read_events(self) -> None:
        events = self.prepared.files.job_events()
        starts = sum(event["event"] == "start" for event in events)
        if starts > len(self._starts):
            # A new attempt: what it says comes after what the last one said, and it skips what has a record.
            self._follower = Follower(
                *(
                    self.prepared.folder,
                    self.prepared.path,
                    self.prepared.left(),
                    self.prepared.hang_timeout_s,
                    self._queue.now,
                ),
                least_patience_s=LEAST_PATIENCE_S,
            )
            self._asked_at = None
        self._events = events

    @property
    def _starts(self) -> list[dict[str, Any]]:
        return [event for event in self._events if event["event"] == "start"]

    @property
    def attempts(self) -> int:
        return len(self._starts)

    @property
    def queued_s(self) -> float | None:
        return queued_s(self.job, self._events)

    def _event(self, name: str) -> dict[str, Any] | None:
        """The last event of this name in the last attempt."""
        last: dict[str, Any] | None = None
        for event in self._events:
            if event["event"] == "start":
                last = None
            elif event["event"] == name:
                last = event
        return last

    def _pass_on(self) -> None:
        if self._follower is not None:
            for trial_id, event in self._follower.events():
                self._asked_at = None  # it goes on; the logs say nothing of that, for stacks are written there
                self._on_event(trial_id, event)

    def end(self, reason: Reason) -> LaunchEnd:
        end = self._event("end")
        started_at = float(self._starts[-1]["at"]) if self._starts else time.time()
        ended_at = float(end["at"]) if end else time.time()
        return LaunchEnd(
            wall_s=max(0.0, ended_at - started_at) if self._starts else 0.0,
            started_at=started_at,
            returncode=end["returncode"] if end else None,
            hung=self._hung,
            patience_s=self._follower.patience_s() if self._follower else 0.0,
            last_step=self._follower.last_step if self._follower else None,
            reason=reason,
            queued_s=self.queued_s,
            attempts=max(self.attempts, 1),
            job=self.id,
        )
