"""The events that rank 0 appends to events.jsonl while a trial runs. The other ranks write nothing."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

from worldsize.folder.launches import EventKind

PROGRESS_EVERY_S = 0.5
EXIT_STOPPED = 3


class Journal:
    def __init__(self, path: Path | None, stop_file: Path) -> None:
        self._path = path
        self._stop_file = stop_file
        self._written_at = time.perf_counter()
        self._written_step = 0
        self._activity = "steps"

    def say(self, event: EventKind, **values: Any) -> None:
        if self._path is None:
            return
        line = json.dumps({"at": time.time(), "event": event, **values}, allow_nan=False)
        with self._path.open("a", encoding="utf-8") as file:
            file.write(line + "\n")

    def alive(self, activity: EventKind) -> None:
        """Report an activity without steps: one event at once, then two per second."""
        if self._path is None:
            return
        now = time.perf_counter()
        if self._activity != activity or now - self._written_at >= PROGRESS_EVERY_S:
            self.say(activity)
            self._activity, self._written_at = activity, now

    def step(self, step: int, samples: int) -> None:
        """Report a completed step, at most twice per second. This is also where a trial stops on request."""
        if self._path is None or (now := time.perf_counter()) - self._written_at < PROGRESS_EVERY_S:
            return
        rate = samples * (step - self._written_step) / (now - self._written_at)
        self.say("progress", step=step, samples_per_s=rate)
        self._written_at, self._written_step, self._activity = now, step, "steps"
        if self._stop_file.exists():
            self.say("stopped", step=step)
            os._exit(EXIT_STOPPED)  # a partial trial is not a result; the driver ends the other ranks
