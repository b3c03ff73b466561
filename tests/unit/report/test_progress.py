"""What is seen of a run in a terminal, where several launches run side by side."""

from __future__ import annotations

import io
from pathlib import Path

from rich.console import Console

from tests.made import made_study
from worldsize.answer.results import load
from worldsize.report.views.progress import StudyProgress


def test_the_bar_speaks_of_one_trial_at_a_time(tmp_path: Path) -> None:
    results = load(made_study(tmp_path / "made").path)
    one, other = list(results.trials.values())[:2]
    console = Console(file=io.StringIO(), force_terminal=True, width=120)
    with StudyProgress(console, results.plan, results.facts, set(), {}) as progress:
        assert progress._live is not None

        def seen() -> tuple[str, str, float | None]:
            assert progress._live is not None
            task = progress._live.tasks[1]
            return task.description, task.fields["words"], task.total

        def step(trial: object, number: int) -> None:
            progress.trial_event(trial, {"event": "progress", "step": number, "samples_per_s": 10.0})  # type: ignore[arg-type]

        progress.launch_started("0001", [one])
        assert seen() == ("0001", "starting workers", None)
        progress.trial_event(one, {"event": "start", "steps": 30})
        step(one, 7)
        progress.trial_event(other, {"event": "start", "steps": 40})
        step(other, 3)
        step(one, 8)
        assert seen() == (other.id, "step 3, 10.0 samples/s", 40)
        progress.launch_started("0002", [one])
        assert seen()[0] == other.id
        progress.trial_ended(other, results.records[other.id])
        step(one, 9)
        assert seen() == (one.id, "step 9, 10.0 samples/s", 30)
