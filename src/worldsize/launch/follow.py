"""Following a launch by what rank 0 writes: events of its trials in order, and how long it has been silent."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from worldsize.folder.files import read_lines
from worldsize.folder.launches import kind_of
from worldsize.folder.study_folder import StudyFolder

LEAST_PATIENCE_S = 30.0
PATIENCE_GAPS = 20.0
"""While steps run, a silence this many times as long as the longest gap between two signs of progress is a hang."""


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
            path = self._folder.events_file(trial_id)
            events, self._offsets[trial_id] = read_lines(path, self._offsets[trial_id])
            for event in events:
                self._note(event)
                yield trial_id, event
                ended = ended or kind_of(event) == "end"
            if not ended and not self._ended_unheard(trial_id):
                return
            self._index += 1
            self._recorded = False
            self.last_step = None

    def _ended_unheard(self, trial_id: str) -> bool:
        """Whether there is a record without an `end` event, also the next time we look: its rank was killed just then,
        or nobody followed it."""
        before, self._recorded = self._recorded, self._folder.has_record(trial_id)
        return before and self._recorded

    def hung(self) -> bool:
        """A rank that prints is alive too: decoding images reports its progress only in the log."""
        printed = sum(path.stat().st_size for path in self._launch.glob("rank*.log"))
        if printed != self._printed:
            self._printed, self._heard_at = printed, self._now()
        return self._now() - self._heard_at > self.patience_s()

    def patience_s(self) -> float:
        """Derived from the steps seen so far; before the first step and in evaluations, the timeout of the study."""
        if not self._stepping or not self._longest_gap_s:
            return self._hang_timeout_s
        return max(self._least_patience_s, PATIENCE_GAPS * self._longest_gap_s)

    def _note(self, event: dict[str, Any]) -> None:
        now = self._now()
        stepping = kind_of(event) == "progress"
        if stepping:
            self.last_step = event["step"]
            if self._stepping:
                self._longest_gap_s = max(self._longest_gap_s, now - self._heard_at)
        self._stepping = stepping
        self._heard_at = now

    def _size(self, trial_id: str) -> int:
        path = self._folder.events_file(trial_id)
        return path.stat().st_size if path.exists() else 0
