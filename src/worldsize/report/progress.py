"""What is seen while a study runs: two live bars in a terminal, plain lines elsewhere."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TaskID, TextColumn
from rich.text import Text

from worldsize.catalog import WORKLOADS
from worldsize.errors import visible
from worldsize.estimate import LAUNCH_START_S, trial_s
from worldsize.plan import Plan
from worldsize.record import TrialRecord
from worldsize.report.terminal import failure_view
from worldsize.report.words import counted, duration, number
from worldsize.spec import TrialSpec


class StudyProgress:
    """Counts work in estimated seconds, and corrects the estimate by how long trials really took."""

    def __init__(self, console: Console, plan: Plan, finished: set[str], step_s: dict[tuple[int, int], float]) -> None:
        self._console = console
        self._plan, self._step_s = plan, dict(step_s)
        self._left = [trial_id for trial_id in plan.trials if trial_id not in finished]
        self._total = len(plan.trials)
        self._started = time.monotonic()
        self._work_done_s = 0.0
        self._live: Progress | None = None
        self._study_bar = self._trial_bar = TaskID(0)

    def __enter__(self) -> StudyProgress:
        if self._console.is_terminal and self._left:
            self._live = Progress(
                SpinnerColumn(),
                TextColumn("{task.description}", markup=False),
                BarColumn(bar_width=24),
                TextColumn("{task.fields[words]}", markup=False),
                console=self._console,
                transient=True,
            )
            self._study_bar = self._live.add_task("study", total=self._total, words="")
            self._trial_bar = self._live.add_task("", total=None, words="starting workers")
            self._live.start()
            self._show_study()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live:
            self._live.stop()

    def launch_started(self, launch_id: str, trials: Sequence[TrialSpec]) -> None:
        if self._live:
            self._live.reset(self._trial_bar, total=None, description=launch_id, words="starting workers")
        else:
            self.note(f"{launch_id}: {counted(len(trials), 'trial')} ({self._progress_words()})")

    def trial_event(self, trial: TrialSpec, event: dict[str, Any]) -> None:
        if self._live is None:
            return
        match event["event"]:
            case "start":
                self._live.reset(self._trial_bar, total=event.get("steps"), description=trial.id, words="")
            case "progress":
                words = f"step {event['step']}, {number(event['samples_per_s'])} samples/s"
                self._live.update(self._trial_bar, completed=event["step"], words=words)
            case "evaluation":
                self._live.update(self._trial_bar, words="evaluating")
            case "epoch" if event["test"]:
                tested = ", ".join(f"{name} {value:.4f}" for name, value in event["test"].items())
                self._live.update(self._trial_bar, words=f"epoch {event['epoch'] + 1}: {tested}")
        self._show_study()

    def trial_ended(self, trial: TrialSpec, record: TrialRecord) -> None:
        self._work_done_s += self._expected_s(trial)
        if trial.id in self._left:
            self._left.remove(trial.id)
        if record.failure is not None:
            self._console.print(failure_view(record))
        elif self._live is None or trial.kind == "train":
            self._console.print(self._ended_line(trial, record), soft_wrap=True)
        self._show_study()

    def note(self, text: str) -> None:
        self._console.print(Text(visible(text)), soft_wrap=True)

    def _ended_line(self, trial: TrialSpec, record: TrialRecord) -> Text:
        tested = "".join(f", test {name} {value:.4f}" for name, value in record.metrics.items())
        result = "diverged" if record.outcome == "diverged" else f"{duration(record.wall_s)}{tested}"
        return Text(f"{trial.id}: {result}" + ("" if self._live else f" ({self._progress_words()})"))

    def _show_study(self) -> None:
        if self._live:
            done = self._total - len(self._left)
            self._live.update(self._study_bar, completed=done, words=self._progress_words())

    def _progress_words(self) -> str:
        done = self._total - len(self._left)
        return f"{done} of {self._total} done" + (f", {duration(max(self.eta_s(), 1))} left" if self._left else "")

    def eta_s(self) -> float:
        """The estimate of what is left, times how wrong the estimate of what was done has been."""
        left = set(self._left)
        launches = sum(any(trial_id in left for trial_id in launch.trials) for launch in self._plan.launches)
        expected = sum(self._expected_s(self._plan.trials[trial_id]) for trial_id in left)
        elapsed = time.monotonic() - self._started
        error = elapsed / (self._work_done_s + LAUNCH_START_S) if self._work_done_s else 1.0
        return (expected + launches * LAUNCH_START_S) * min(max(error, 0.2), 5.0)

    def _expected_s(self, trial: TrialSpec) -> float:
        facts = WORKLOADS[trial.workload.name]
        guess = 1e-3 + trial.batch_per_worker * facts.train_flop_per_sample / 2e10
        return trial_s(trial, facts, self._step_s.get((trial.workers, trial.batch_per_worker), guess))
