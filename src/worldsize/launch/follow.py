"""Follow a launch through the files that its ranks write: events of its trials in order, and the time without any."""

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
"""While steps run, silence for this many times the longest gap between two progress events counts as a hang."""


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
        self._folder, self._launch, self._now = folder, launch, now
        self._open = list(trials)
        """Trials whose end was not seen yet. Several of them run at once if they take turns."""
        self._started: set[str] = set()
        self._printed = 0
        self._hang_timeout_s = hang_timeout_s
        self._recorded: set[str] = set()
        # A rerun trial appends to the event file of its first attempt. Skip those events.
        self._offsets = {trial_id: self._size(trial_id) for trial_id in trials}
        self._heard_at = now()
        self._stepping = False
        self._longest_gap_s = 0.0
        self.last_step: int | None = None

    def events(self) -> Iterator[tuple[str, dict[str, Any]]]:
        """Yield (trial, event) for each line written since the last call."""
        for trial_id in tuple(self._open):
            ended = False
            path = self._folder.events_file(trial_id)
            events, self._offsets[trial_id] = read_lines(path, self._offsets[trial_id])
            for event in events:
                self._started.add(trial_id)
                self._update(event)
                yield trial_id, event
                ended = ended or kind_of(event) == "end"
            if ended or self._ended_without_event(trial_id):
                self._open.remove(trial_id)
                self.last_step = None
            elif trial_id not in self._started:
                return  # later trials have not started either

    def _ended_without_event(self, trial_id: str) -> bool:
        """Return whether two calls in a row have seen a record but no `end` event.

        Either rank 0 was killed right after it wrote the record, or the trial ended before anybody followed it.
        """
        before = trial_id in self._recorded
        if self._folder.has_record(trial_id):
            self._recorded.add(trial_id)
            return before
        return False

    def hung(self) -> bool:
        """Return whether the launch has been silent for longer than `patience_s`.

        Log output is a sign of life too: decoding images reports its progress only there.
        """
        printed = sum(path.stat().st_size for path in self._launch.glob("rank*.log"))
        if printed != self._printed:
            self._printed, self._heard_at = printed, self._now()
        return self._now() - self._heard_at > self.patience_s()

    def patience_s(self) -> float:
        """Return how long the launch may be silent. Before the first step and in evaluations: the study's timeout."""
        if not self._stepping or not self._longest_gap_s:
            return self._hang_timeout_s
        return max(self._least_patience_s, PATIENCE_GAPS * self._longest_gap_s)

    def _update(self, event: dict[str, Any]) -> None:
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
