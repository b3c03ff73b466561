"""Follow a Slurm job from the queue to its end, using what it writes into the study folder and what Slurm reports.

Both are needed: a killed job cannot write, and Slurm forgets old jobs. A job has ended only if Slurm reports a state
that is known to be final, or no longer lists the job.
"""

from __future__ import annotations

import time
from typing import Any

from worldsize.folder.launches import LaunchEnd, Reason, queued_s
from worldsize.launch.follow import Follower
from worldsize.launch.slurm.queue import FINAL, JobState, Queue
from worldsize.launch.target import OnEvent, PreparedLaunch, Progress

GONE_AFTER = 2
"""Number of squeue answers in a row without a job after which the job counts as gone."""
SETTLE_S = 10.0
"""Time from the end of a job until its last files are visible on a shared file system."""
LEAST_PATIENCE_S = 120.0
"""Longer than for local launches, because files of other hosts become visible late."""
CANCEL_S = 90.0
"""How long to wait for the end of a cancelled job."""
STACKS_S = 40.0
"""How long to wait for the stacks of a job that hangs before it is cancelled."""


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
        self._answers, self._missing = queue.answers, 0  # earlier answers do not count for this job
        self._seen: JobState | None = None
        self._final_at: float | None = None
        self._hung = False
        self._stacks_asked_at: float | None = None
        self._dumps_before = 0
        self._idle_at = queue.now()
        """When the job was last not known to be running."""
        self._noted = ""
        self._events: list[dict[str, Any]] = []
        self._follower: Follower | None = None
        self._read_events()

    def poll(self) -> LaunchEnd | None:
        self._read_events()
        self._pass_on()
        self._update_state()
        self._restart_patience_if_idle()
        self._end_if_hung()
        reason = self._reason()
        if reason is None:
            return None
        self._read_events()
        self._pass_on()
        return self.end("" if self._hung else reason)

    def _restart_patience_if_idle(self) -> None:
        """Count silence from when the job runs: a suspended or requeued job cannot report progress."""
        if self._seen is None or self._seen.state != "RUNNING":
            self._idle_at, self._stacks_asked_at = self._queue.now(), None

    def _end_if_hung(self) -> None:
        """Ask the ranks of a silent job for their stacks, then cancel the job.

        Its end is awaited like that of any other job, so that two launches never write into the same trial.
        """
        if self._follower is None or self._seen is None or self._seen.state != "RUNNING" or self._hung:
            return
        if self._stacks_asked_at is not None:
            answered = self._stack_dumps > self._dumps_before or self._queue.now() - self._stacks_asked_at > STACKS_S
            self._hung = answered and self._queue.scheduler.cancel([self._seen.id])
        elif self._event("end") is None and self._silent(self._follower):
            self._progress.note(
                f"{self.prepared.launch_id}: job {self._seen.id} hangs; asking its ranks for their stacks"
            )
            self._dumps_before = self._stack_dumps
            self._queue.scheduler.ask_for_stacks(self._seen.id)
            self._stacks_asked_at = self._queue.now()

    def _silent(self, follower: Follower) -> bool:
        return follower.hung() and self._queue.now() - self._idle_at > follower.patience_s()

    @property
    def _stack_dumps(self) -> int:
        """How often the job has reported that its ranks wrote their stacks."""
        return sum(event["event"] == "stacks" for event in self._events)

    def stop(self) -> LaunchEnd | None:
        if not self._cancel:
            self._progress.note(
                f"{self.prepared.launch_id}: job {self.id or self.name} keeps running; "
                "add --cancel if Ctrl-C should cancel jobs"
            )
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
        """Whether Slurm's last answer lists the job in a state that is not final.

        If not, the next few calls of `poll` find out whether the job has ended.
        """
        return self._seen is not None and not self._missing and self._seen.state not in FINAL

    def _update_state(self) -> None:
        seen = self._queue.look().get(self.name)
        if self._queue.answers == self._answers:
            return  # Slurm has not been asked again, or did not answer
        self._answers = self._queue.answers
        self._missing = 0 if seen else self._missing + 1
        self._seen = seen or self._seen
        if seen is not None and seen.state not in FINAL:
            self._final_at = None
            self._note_state(seen)

    def _note_state(self, seen: JobState) -> None:
        text = f"{self.prepared.launch_id}: job {seen.id} {seen.state.lower()}"
        if seen.state == "PENDING":
            text += f" ({seen.reason})" if seen.reason not in ("", "None") else ""
            text += f", attempt {self.attempts + 1}" if self.attempts else ""
        elif self._starts:
            text += f" on {seen.nodes}"
            if self.attempts > 1:
                text += f", attempt {self.attempts}"
            elif (queued := self.queued_s) is not None:
                text += f" after {queued:.0f} s in the queue"
        if text != self._noted:
            self._noted = text
            self._progress.note(text)

    def _reason(self) -> Reason | None:
        """Return why the job ended, or None if it has not ended or this is not known yet."""
        ended = self._event("end") is not None
        if ended and not self.prepared.left() and self.prepared.trials:
            return ""
        if self._missing >= GONE_AFTER:
            return self._reason_when_gone(ended=ended)
        state = None if self._missing or self._seen is None else self._seen.state
        if state not in FINAL:
            return None
        if not ended:  # either the job was killed, or its last event is not visible yet
            self._final_at = self._final_at or self._queue.now()
            if self._queue.now() - self._final_at < SETTLE_S and self._starts:
                return None
        return FINAL[state] or self._own_reason()

    def _reason_when_gone(self, *, ended: bool) -> Reason:
        """Return why a job that squeue no longer lists has ended: from its own events, else from the accounting."""
        if self.id is None:
            return "interrupted"  # never submitted
        if ended and not self._event("terminated"):
            return self._own_reason()
        if self._event("time-limit"):
            return "time limit"
        state = self._queue.scheduler.final_state(self.id)
        return FINAL.get(state or "", "lost")

    def _own_reason(self) -> Reason:
        """Return the reason that the job itself reported, or "" if it reported none."""
        if self._event("setup-failed"):
            return "setup failed"
        return "time limit" if self._event("time-limit") else ""

    def _read_events(self) -> None:
        events = self.prepared.files.job_events()
        starts = sum(event["event"] == "start" for event in events)
        if starts > len(self._starts):
            # A new attempt. It runs only the trials that are left, and its events follow those of the last attempt.
            self._follower = Follower(
                self.prepared.folder,
                self.prepared.path,
                self.prepared.left(),
                self.prepared.hang_timeout_s,
                self._queue.now,
                least_patience_s=LEAST_PATIENCE_S,
            )
            self._stacks_asked_at = None
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
        """Return the last event with this name in the last attempt."""
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
                self._stacks_asked_at = None  # the job makes progress (its logs do not show this: stacks go there)
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
