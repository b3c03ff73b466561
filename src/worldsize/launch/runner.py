"""Runs a plan: launches for the trials that have no record yet, as many at once as each target takes, until every
trial has one.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

from worldsize.errors import DiskFullError, LaunchError
from worldsize.folder.launches import LaunchEnd
from worldsize.folder.study_folder import StudyFolder
from worldsize.launch.prepare import Goal, prepare
from worldsize.launch.target import Progress, Running, RunSite, Work, open_work
from worldsize.launch.verdict import close, conclude, set_aside_if_damaged
from worldsize.plan.plan import Launch, Plan


class Run:
    def __init__(
        self,
        folder: StudyFolder,
        plan: Plan,
        goal: Goal,
        sites: Mapping[str, RunSite],
        progress: Progress,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._folder, self._plan, self._goal, self._sites = folder, plan, goal, sites
        self._progress, self._sleep = progress, sleep
        self._running: list[Running] = []
        self._closed: set[str] = set()
        self._cancelled: dict[str, LaunchEnd] = {}
        """Trials whose job somebody ended on purpose: not submitted again in this run."""

    def run(self, *, detach: bool) -> bool:
        """Whether every trial has a record now. `detach` submits what is left and leaves; what an earlier driver
        submitted and has ended by now is concluded first.

        Raises KeyboardInterrupt when the user stopped it; what is finished then stays.
        """
        for trial_id in self._plan.trials:
            set_aside_if_damaged(self._folder, trial_id, self._progress)
        try:
            for on, site in self._sites.items():
                left_open = open_work(self._folder, on, site.spec.hang_timeout_s)
                self._running += site.target.adopt(left_open, self._on_event)
            for running in self._running:
                self._closed |= set(running.work.trials) - set(running.work.left())
            if detach:
                self._detach()
            else:
                self._follow()
        except (KeyboardInterrupt, OSError, DiskFullError):
            for running in self._running:
                if (end := running.stop()) is not None:
                    with suppress(
                        OSError, DiskFullError
                    ):  # left open: the next driver sees that its processes are gone
                        self._conclude(running.work, end)
            raise
        if self._cancelled:
            jobs = sorted({str(end.job) for end in self._cancelled.values()})
            which = f"job {jobs[0]} was" if len(jobs) == 1 else f"jobs {', '.join(jobs)} were"
            raise LaunchError(
                f"{which} cancelled, trials left: {len(self._cancelled)}; the same command submits them again"
            )
        return not detach or all(self._folder.has_record(trial_id) for trial_id in self._plan.trials)

    def _follow(self) -> None:
        ended = True
        while ended or self._running:
            if ended:  # only then is there room, or something new to do
                self._start_what_may()
            ended = self._poll()
            if not ended:
                self._pause()

    def _detach(self) -> None:
        """What has ended since an earlier driver left holds its trials no longer: they are submitted again."""
        while not all(running.goes_on for running in self._running):
            if not self._poll():
                self._pause()
        self._start_what_may()

    def _pause(self) -> None:
        if self._running:
            self._sleep(min(self._sites[running.work.on].target.poll_s for running in self._running))

    def _start_what_may(self) -> None:
        for on, site in self._sites.items():
            while self._room(on, site) and (found := self._next(on)) is not None:
                launch, left = found
                work = prepare(self._folder, self._plan, self._goal, site, launch, left)
                self._progress.launch_started(work.launch_id, [self._plan.trials[trial_id] for trial_id in left])
                self._running.append(site.target.start(work, self._on_event))

    def _room(self, on: str, site: RunSite) -> bool:
        return sum(running.work.on == on for running in self._running) < site.target.at_once

    def _next(self, on: str) -> tuple[Launch, list[str]] | None:
        """The first launch of this target with trials that are neither done nor under way. Pretraining comes first."""
        taken = {trial_id for running in self._running for trial_id in running.work.trials} | self._cancelled.keys()
        for launch in self._plan.launches:
            left = [trial_id for trial_id in launch.trials if not self._folder.has_record(trial_id)]
            waiting = [trial_id for trial_id in left if trial_id not in taken]
            if waiting and launch.on == on:
                return launch, waiting
            if launch.kind == "pretrain":
                if left:
                    return None
                _check_pretrained(self._folder, launch)
        return None

    def _poll(self) -> bool:
        """Whether one of them has ended."""
        ended = []
        for running in self._running:
            end = running.poll()
            if end is not None:
                ended.append((running, end))
        for running, end in ended:
            self._running.remove(running)
            self._conclude(running.work, end)
        return bool(ended)

    def _on_event(self, trial_id: str, event: dict[str, Any]) -> None:
        self._progress.trial_event(self._plan.trials[trial_id], event)
        if event["event"] == "end":
            running = next((each.work for each in self._running if trial_id in each.work.trials), None)
            if running is not None:
                self._close(running, trial_id)

    def _close(self, work: Work, trial_id: str) -> None:
        if trial_id not in self._closed and work.folder.has_record(trial_id):
            self._closed.add(trial_id)
            close(work, self._plan.trials[trial_id], self._progress)

    def _conclude(self, work: Work, end: LaunchEnd) -> None:
        for trial_id in work.trials:  # what was finished and not heard of
            self._close(work, trial_id)
        left = work.left()
        retries = self._sites[work.on].spec.retries
        conclude(work, end, self._plan.trials[left[0]] if left else None, retries, self._progress)
        if end.reason == "cancelled":
            self._cancelled |= dict.fromkeys(left, end)


def _check_pretrained(folder: StudyFolder, launch: Launch) -> None:
    record = folder.record(launch.trials[0])
    if record is None or record.outcome != "finished":
        outcome = record.outcome if record else "missing"
        raise LaunchError(
            f"pretraining {outcome}, so there are no weights to begin with; see `worldsize status {folder.path}`, "
            "then run with --retry-failed, or change `pretrain:` and use a new folder"
        )
