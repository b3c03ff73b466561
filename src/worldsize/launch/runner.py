"""Run a plan: start launches until every trial has a record. Each place runs as many at once as its target allows."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import suppress
from typing import Any

from worldsize.data.catalog import WorkloadFacts
from worldsize.errors import DiskFullError, LaunchError
from worldsize.folder.launches import LaunchEnd, kind_of
from worldsize.folder.study_folder import StudyFolder
from worldsize.launch.autopsy import current_trial
from worldsize.launch.prepare import prepare
from worldsize.launch.target import PreparedLaunch, Progress, RunningLaunch, RunSite, open_launches
from worldsize.launch.verdict import finish_launch, finish_trial, set_aside_if_damaged
from worldsize.plan.plan import Launch, Plan


class Run:
    def __init__(
        self,
        folder: StudyFolder,
        plan: Plan,
        facts: WorkloadFacts,
        sites: Mapping[str, RunSite],
        progress: Progress,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._folder, self._plan, self._facts, self._sites = folder, plan, facts, sites
        self._progress, self._sleep = progress, sleep
        self._running: list[RunningLaunch] = []
        self._finished: set[str] = set()
        self._cancelled: dict[str, LaunchEnd] = {}
        """Trials whose job somebody cancelled. This run does not submit them again."""

    def turns(self, *, detach: bool) -> Generator[None, None, bool]:
        """Run the plan and return whether every trial has a record. Yield before each launch that starts while nothing
        else of this run is running, so that several runs can take turns.

        `detach` submits the remaining launches and returns. Before that, it finishes the launches of an earlier driver
        that have ended. Raises KeyboardInterrupt if the user stops the run; finished trials are kept.
        """
        for trial_id in self._plan.trials:
            set_aside_if_damaged(self._folder, trial_id, self._progress)
        try:
            for place, site in self._sites.items():
                left_open = open_launches(self._folder, place, site.spec.hang_timeout_s)
                for running in site.target.adopt(left_open, self._on_event):
                    self._running.append(running)
            for running in self._running:
                self._finished |= set(running.prepared.trials) - set(running.prepared.left())
            if detach:
                self._detach()
            else:
                yield from self._follow()
        except (KeyboardInterrupt, OSError, DiskFullError):
            for running in self._running:
                if (end := running.stop()) is not None:
                    # After an error, the launch stays open. The next driver sees that its processes are gone.
                    with suppress(OSError, DiskFullError):
                        self._finish_launch(running.prepared, end)
            raise
        if self._cancelled:
            jobs = sorted({str(end.job) for end in self._cancelled.values()})
            which = f"job {jobs[0]} was" if len(jobs) == 1 else f"jobs {', '.join(jobs)} were"
            raise LaunchError(
                f"{which} cancelled, trials left: {len(self._cancelled)}; run the same command to submit them again"
            )
        return not detach or all(self._folder.has_record(trial_id) for trial_id in self._plan.trials)

    def _follow(self) -> Iterator[None]:
        ended = True
        while ended or self._running:
            if ended:  # the end of a launch makes room, or allows launches that had to wait for it
                if not self._running and any(self._next(place) for place in self._sites):
                    yield
                self._start_launches()
            ended = self._poll()
            if not ended:
                self._pause()

    def _detach(self) -> None:
        """Finish launches that have ended since an earlier driver left, then submit all trials that are left."""
        while not all(running.known_to_run for running in self._running):
            if not self._poll():
                self._pause()
        self._start_launches()

    def _pause(self) -> None:
        if self._running:
            self._sleep(min(self._sites[running.prepared.place].target.poll_s for running in self._running))

    def _start_launches(self) -> None:
        for place, site in self._sites.items():
            while self._has_room(place, site) and (waiting := self._next(place)) is not None:
                launch, left = waiting
                trials = [self._plan.trials[trial_id] for trial_id in left]
                self._progress.launch_comes(trials)
                prepared = prepare(self._folder, self._plan, self._facts, site, launch, left)
                self._progress.launch_started(prepared.launch_id, trials)
                self._running.append(site.target.start(prepared, self._on_event))

    def _has_room(self, place: str, site: RunSite) -> bool:
        return sum(running.prepared.place == place for running in self._running) < site.target.at_once

    def _next(self, place: str) -> tuple[Launch, list[str]] | None:
        """Return the first launch at this place with trials that are neither done nor running, and these trials.

        Launches that come after pretraining in the plan wait until it is done.
        """
        taken = {trial_id for running in self._running for trial_id in running.prepared.trials} | self._cancelled.keys()
        for launch in self._plan.launches:
            left = [trial_id for trial_id in launch.trials if not self._folder.has_record(trial_id)]
            waiting = [trial_id for trial_id in left if trial_id not in taken]
            if waiting and launch.place == place:
                return launch, waiting
            if launch.kind == "pretrain":
                if left:
                    return None
                _check_pretrained(self._folder, launch)
        return None

    def _poll(self) -> bool:
        """Poll the running launches, finish those that have ended, and return whether any did."""
        ended = []
        for running in self._running:
            end = running.poll()
            if end is not None:
                ended.append((running, end))
        for running, end in ended:
            self._running.remove(running)
            self._finish_launch(running.prepared, end)
        return bool(ended)

    def _on_event(self, trial_id: str, event: dict[str, Any]) -> None:
        self._progress.trial_event(self._plan.trials[trial_id], event)
        if kind_of(event) == "end":
            launches = [running.prepared for running in self._running if trial_id in running.prepared.trials]
            if launches:
                self._finish_trial(launches[0], trial_id)

    def _finish_trial(self, prepared: PreparedLaunch, trial_id: str) -> None:
        if trial_id not in self._finished and prepared.folder.has_record(trial_id):
            self._finished.add(trial_id)
            finish_trial(prepared, self._plan.trials[trial_id], self._progress)

    def _finish_launch(self, prepared: PreparedLaunch, end: LaunchEnd) -> None:
        for trial_id in prepared.trials:  # some may have a record, but no `end` event was seen
            self._finish_trial(prepared, trial_id)
        left = prepared.left()
        retries = self._sites[prepared.place].spec.retries
        in_progress = self._plan.trials[current_trial(prepared.path, left)] if left else None
        finish_launch(prepared, end, in_progress, retries, self._progress)
        if end.reason == "cancelled":
            self._cancelled |= dict.fromkeys(left, end)


def _check_pretrained(folder: StudyFolder, launch: Launch) -> None:
    record = folder.record(launch.trials[0])
    if record is None or record.outcome != "finished":
        outcome = record.outcome if record else "missing"
        raise LaunchError(
            f"the outcome of pretraining is {outcome!r}, so there are no weights to start from; "
            f"see `worldsize status {folder.path}`, "
            "then run with --retry-failed, or change `pretrain:` and use a new folder"
        )
