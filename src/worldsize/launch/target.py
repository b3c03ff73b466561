"""The interface between the runner and what starts launches: local processes, MPI or Slurm jobs.

Also `Progress`, which a run calls when something happens.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from worldsize.folder.launches import LaunchEnd, LaunchFolder, launch_folders
from worldsize.folder.record import TrialRecord
from worldsize.folder.study_folder import StudyFolder
from worldsize.launch.commands import worker_environment
from worldsize.plan.grid import Site
from worldsize.plan.plan import Plan
from worldsize.spec.study import TrialSpec

OnEvent = Callable[[str, dict[str, Any]], None]


@dataclass(frozen=True, kw_only=True)
class PreparedLaunch:
    """A launch that is ready to start: its folder holds everything that the workers need."""

    folder: StudyFolder
    launch_id: str
    trials: tuple[str, ...]
    workers: int
    threads: int
    cpu_limit_gb: float | None
    keep_freed_memory: bool
    hang_timeout_s: float
    place: str = ""
    """Name of the place if the study has several places, else empty."""

    @property
    def path(self) -> Path:
        return self.folder.launch(self.launch_id)

    @property
    def files(self) -> LaunchFolder:
        return LaunchFolder(self.path)

    @property
    def environment(self) -> dict[str, str]:
        """Variables that its workers need in addition to the inherited environment."""
        return worker_environment(
            self.threads,
            self.cpu_limit_gb,
            keep_freed_memory=self.keep_freed_memory,
            tunables=os.environ.get("GLIBC_TUNABLES", ""),
        )

    def left(self) -> list[str]:
        return [trial_id for trial_id in self.trials if not self.folder.has_record(trial_id)]

    @classmethod
    def stored(cls, folder: StudyFolder, launch_id: str, hang_timeout_s: float) -> PreparedLaunch:
        """Return a launch that is already in the study folder."""
        launch = LaunchFolder(folder.launch(launch_id)).prepared()
        for trial_id in launch.trials:
            folder.trial(trial_id)  # raises if the id leads out of the study folder
        return cls(
            folder=folder,
            launch_id=launch_id,
            trials=launch.trials,
            workers=launch.workers,
            threads=launch.threads,
            cpu_limit_gb=launch.memory_limit_gb if launch.device == "cpu" else None,
            keep_freed_memory=launch.keep_freed_memory,
            hang_timeout_s=hang_timeout_s,
            place=launch.place,
        )


class RunningLaunch(Protocol):
    """A launch that was started and whose end has not been seen yet."""

    prepared: PreparedLaunch

    @property
    def known_to_run(self) -> bool:
        """Whether this driver knows that the launch is running. False if it has ended or if its state is unknown."""

    def poll(self) -> LaunchEnd | None:
        """Pass on the events since the last call. Return the end once all processes are gone."""

    def stop(self) -> LaunchEnd | None:
        """Stop on Ctrl-C. Return None if the launch keeps running; a later driver then adopts it."""


class Target(Protocol):
    @property
    def at_once(self) -> int:
        """Maximum number of launches at the same time."""

    @property
    def poll_s(self) -> float: ...

    def start(self, prepared: PreparedLaunch, on_event: OnEvent) -> RunningLaunch: ...

    def adopt(self, open_launches: Sequence[PreparedLaunch], on_event: OnEvent) -> Iterable[RunningLaunch]:
        """Take over or end the launches that an earlier driver left running on this target."""


@dataclass(frozen=True, kw_only=True)
class RunSite(Site):
    """A place of a study, with the target that starts launches there."""

    target: Target


def open_launches(folder: StudyFolder, place: str, hang_timeout_s: float) -> list[PreparedLaunch]:
    """Return the launches at a place that were prepared and have no end.json."""
    still_open = [
        PreparedLaunch.stored(folder, launch.name, hang_timeout_s)
        for launch in launch_folders(folder)
        if launch.is_prepared and not launch.is_over
    ]
    return [prepared for prepared in still_open if prepared.place == place]


class Progress:
    """Called when something happens in a run. Does nothing; override the methods of interest."""

    def launch_comes(self, trials: Sequence[TrialSpec]) -> None:
        """Called before a launch of these trials is prepared. It starts when this returns."""

    def launch_started(self, launch_id: str, trials: Sequence[TrialSpec]) -> None: ...
    def trial_event(self, trial: TrialSpec, event: dict[str, Any]) -> None: ...
    def trial_ended(self, trial: TrialSpec, record: TrialRecord) -> None: ...
    def plan_grew(self, plan: Plan) -> None: ...
    def note(self, text: str) -> None: ...
