"""What rank 0 reports while a trial runs: events.jsonl, appended line by line. The other ranks write nothing."""

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
        self._said_at = time.perf_counter()
        self._said_step = 0
        self._doing = "steps"

    def say(self, event: EventKind, **values: Any) -> None:
        if self._path is None:
            return
        line = json.dumps({"at": time.time(), "event": event, **values}, allow_nan=False)
        with self._path.open("a", encoding="utf-8") as file:
            file.write(line + "\n")

    def alive(self, doing: EventKind) -> None:
        """For phases without steps: writes one event at once, and then two per second."""
        if self._path is None:
            return
        now = time.perf_counter()
        if self._doing != doing or now - self._said_at >= PROGRESS_EVERY_S:
            self.say(doing)
            self._doing, self._said_at = doing, now

    def step(self, step: int, samples: int) -> None:
        """Called after every step; writes at most twice per second. This is also where a trial stops on request."""
        if self._path is None or (now := time.perf_counter()) - self._said_at < PROGRESS_EVERY_S:
            return
        rate = samples * (step - self._said_step) / (now - self._said_at)
        self.say("progress", step=step, samples_per_s=rate)
        self._said_at, self._said_step, self._doing = now, step, "steps"
        if self._stop_file.exists():
            self.say("stopped", step=step)
            os._exit(EXIT_STOPPED)  # a half-run trial is not a result: leave at this step, the driver ends the rest
