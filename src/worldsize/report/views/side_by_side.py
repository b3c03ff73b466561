"""Progress of studies that run in turn: one line per launch, with the letter of the study."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.text import Text

from worldsize.answer.results import load
from worldsize.errors import visible
from worldsize.folder.record import TrialRecord
from worldsize.launch.target import Progress
from worldsize.plan.plan import Plan
from worldsize.report.views.status import failure_view
from worldsize.report.words.numbers import counted
from worldsize.spec.study import TrialSpec
from worldsize.study.study import Study


class TurnProgress(Progress):
    """Prints when a launch of one study starts, and why trials failed."""

    def __init__(self, console: Console, name: str, study: Study) -> None:
        self._console, self._name = console, name
        results = load(study.folder) if (study.folder / "study.yaml").exists() else None
        self._total = len((results.plan if results else study.plan).trials)
        self._ended = len(results.records) if results else 0

    def launch_started(self, launch_id: str, trials: Sequence[TrialSpec]) -> None:
        done = f"[{self._ended:>{len(str(self._total))}}/{self._total}]"
        self.note(f"{done}  {launch_id}, {counted(len(trials), 'trial')}")

    def trial_ended(self, trial: TrialSpec, record: TrialRecord) -> None:  # noqa: ARG002
        self._ended += 1
        if record.outcome == "failed":
            self._console.print(failure_view(record))

    def plan_grew(self, plan: Plan) -> None:
        self._total = len(plan.trials)

    def note(self, text: str) -> None:
        self._console.print(Text(visible(f"{self._name} {text}")), soft_wrap=True)
