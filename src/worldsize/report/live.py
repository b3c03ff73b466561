"""The page while a study runs: written anew as trials end, by a process of its own that gives way to the workers."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from worldsize.errors import OutputError, ReportError, visible
from worldsize.launch.progress import Progress
from worldsize.machine import Machine
from worldsize.plan import Plan
from worldsize.record import TrialRecord
from worldsize.report.publish import publish
from worldsize.results import Results
from worldsize.spec import TrialSpec

EVERY_S = 20.0
"""Not more often: a page of a large study takes seconds to make."""


def last_page(results: Results) -> str:
    """Writes the page of a study that has ended, and says where; a page that cannot be made fails no run."""
    try:
        made = publish(results, printed=False)
    except (ReportError, OutputError, OSError) as error:
        return f"No report: {visible(str(error))}; everything measured is kept"
    return f"The report is {visible(str(made.page))}; `worldsize report` adds figures for print"


class LivePage:
    """Stands between the driver and what shows its progress.

    Where workers leave a core free, a page follows each trial; else only between launches, while the next one starts
    up: a page made beside a measurement would be part of it.
    """

    def __init__(
        self,
        inner: Progress,
        folder: Path,
        machines: Mapping[str, Machine],
        elsewhere: Collection[str] = (),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """By target. `elsewhere`: those whose workers do not run on this machine."""
        self._inner, self._folder, self._clock = inner, folder, clock
        self._machines, self._elsewhere = machines, elsewhere
        self._process: subprocess.Popen[bytes] | None = None
        self._last = -EVERY_S
        self._ended = 0

    def launch_started(self, launch_id: str, trials: Sequence[TrialSpec]) -> None:
        self._inner.launch_started(launch_id, trials)
        if self._ended:
            self._write()

    def trial_event(self, trial: TrialSpec, event: dict[str, Any]) -> None:
        self._inner.trial_event(trial, event)

    def trial_ended(self, trial: TrialSpec, record: TrialRecord) -> None:
        self._inner.trial_ended(trial, record)
        self._ended += 1
        if trial.on in self._elsewhere or trial.workers * trial.threads < self._machines[trial.on].cores:
            self._write()

    def plan_grew(self, plan: Plan) -> None:
        self._inner.plan_grew(plan)

    def note(self, text: str) -> None:
        self._inner.note(text)

    def close(self) -> None:
        """No page of the past may come after the last one."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def _write(self) -> None:
        busy = self._process is not None and self._process.poll() is None
        if busy or self._clock() - self._last < EVERY_S:
            return
        self._last = self._clock()
        self._process = subprocess.Popen(
            ["nice", "-n", "19", sys.executable, "-m", "worldsize.cli", "report", str(self._folder), "--live"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
