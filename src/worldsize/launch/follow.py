"""Following a launch by what rank 0 writes: events of its trials in order, and how long it has been silent."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from worldsize.folder.study_folder import StudyFolder, json_lines
from worldsize.machine import open_regular

LEAST_PATIENCE_S = 30.0
PATIENCE_GAPS = 20.0
"""While steps run, silence of so many times the longest gap between two signs of progress is a hang."""


class Follower:
    def __init__(
        self,
        folder: StudyFolder,
        launch: Path,
        trials: list[str],
        hang_timeout_s: float,
        now: Callable[[], float] = time.monotonic,
        least_patience_s: float = LEAST_PATIENCE_S,
    ) -> None:
        self._least_patience_s = least_patience_s
        self._folder, self._launch, self._trials, self._now = folder, launch, trials, now
        self._printed = 0
        self._hang_timeout_s = hang_timeout_s
        self._index = 0
        self._recorded = False
        # A trial that is run again appends to the events of its first attempt.
        self._offsets = {trial_id: self._size(trial_id) for trial_id in trials}
        self._heard_at = now()
        self._stepping = False
        self._longest_gap_s = 0.0
        self.last_step: int | None = None

    def events(self) -> Iterator[tuple[str, dict[str, Any]]]:
        """(trial, event) for each line since the last call."""
        while self._index < len(self._trials):
            trial_id = self._trials[self._index]
            ended = False
            for event in self._new_lines(trial_id):
                self._note(event)
                yield trial_id, event
                ended = ended or event["event"] == "end"
            if not ended and not self._ended_unheard(trial_id):
                return
            self._index += 1
            self._recorded = False
            self.last_step = None

    def _ended_unheard(self, trial_id: str) -> bool:
        """A record of which no end is told, also the next time we look: that of a rank killed just then, or of one that
        nobody followed."""
        before, self._recorded = self._recorded, self._folder.has_record(trial_id)
        return before and self._recorded

    def hung(self) -> bool:
        """A rank that prints is alive too: decoding images tells how far it is in the log alone."""
        printed = sum(path.stat().st_size for path in self._launch.glob("rank*.log"))
        if printed != self._printed:
            self._printed, self._heard_at = printed, self._now()
        return self._now() - self._heard_at > self.patience_s()

    def patience_s(self) -> float:
        """Derived from the steps seen so far; before them, and in evaluations, the stated timeout."""
        if not self._stepping or not self._longest_gap_s:
            return self._hang_timeout_s
        return max(self._least_patience_s, PATIENCE_GAPS * self._longest_gap_s)

    def _note(self, event: dict[str, Any]) -> None:
        now = self._now()
        stepping = event["event"] == "progress"
        if stepping:
            self.last_step = event["step"]
            if self._stepping:
                self._longest_gap_s = max(self._longest_gap_s, now - self._heard_at)
        self._stepping = stepping
        self._heard_at = now

    def _new_lines(self, trial_id: str) -> Iterator[dict[str, Any]]:
        try:
            with open_regular(self._folder.trial(trial_id) / "events.jsonl") as file:
                file.seek(self._offsets[trial_id])
                text = file.read()
        except FileNotFoundError:
            return
        whole = text[: text.rfind(b"\n") + 1]
        self._offsets[trial_id] += len(whole)
        yield from json_lines(whole)

    def _size(self, trial_id: str) -> int:
        path = self._folder.trial(trial_id) / "events.jsonl"
        return path.stat().st_size if path.exists() else 0
