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
        assert seen() == ("4 workers, probe, run 1", "step 3, 10.0 samples/s", 40)
        progress.launch_started("0002", [one])
        assert seen()[0] == "4 workers, probe, run 1"
        progress.trial_ended(other, results.records[other.id])
        step(one, 9)
        assert seen() == ("1 worker, probe, run 1", "step 9, 10.0 samples/s", 30)


def test_a_line_for_each_trial_names_what_differs(tmp_path: Path) -> None:
    results = load(made_study(tmp_path / "made").path)
    console = Console(file=io.StringIO(), width=120)
    with StudyProgress(console, results.plan, results.facts, set(), {}) as progress:
        for launch in results.plan.launches:
            trials = [results.trials[name] for name in launch.trials]
            progress.launch_started("0001", trials)
            for trial in trials:
                progress.trial_ended(trial, results.records[trial.id])
    assert isinstance(console.file, io.StringIO)
    lines = console.file.getvalue().splitlines()
    total = len(results.trials)
    ended = [line for line in lines if line.startswith("[")]
    assert len(ended) == total
    assert ended[-1].startswith(f"[{total}/{total}]  ")
    assert not any(trial_id in line for line in lines for trial_id in results.trials)
    labels = [line.partition("]  ")[2].partition("  ")[0] for line in ended]
    assert len(set(labels)) == total, "every trial can be recognized"
    assert any(line.startswith("Starting 1 worker for ") for line in lines)
