"""More time for a finished study: which counts are measured again, and how often."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.made import Made, run_plan, write_study
from worldsize.answer.reruns import pass_s
from worldsize.answer.results import Results, load, read_plan
from worldsize.errors import InputError
from worldsize.folder.files import write_model
from worldsize.machine import Machine
from worldsize.spec.study import TrialSpec
from worldsize.study.checks import JobOptions
from worldsize.study.more_time import check_more_time, open_settings, with_more_time
from worldsize.study.study import Study

STUDY = """\
name: more
workload: digits
axes:
  workers: [1, 2, 4]
  batch_per_worker: [64]
repeats: 3
"""
MACHINE = Machine(cores=4, gpus=0)


def made(two_s: float, noise: float = 0.0) -> Made:
    """A machine on which 4 workers gain nothing over 2."""

    def times(trial: TrialSpec) -> dict[str, float]:
        return {"forward": {1: 0.01, 2: two_s, 4: 2 * two_s}[trial.workers]}

    return Made(times=times, noise=noise)


def study(folder: Path, two_s: float, noise: float = 0.0) -> Results:
    return write_study(folder, STUDY, made(two_s, noise), MACHINE)


def test_a_close_call_is_measured_again_and_nothing_else(tmp_path: Path) -> None:
    results = study(tmp_path / "study", 0.015, noise=0.1)
    assert "close-call" in {finding.code for finding in results.answer.findings}
    assert [setting.workers for setting in open_settings(results)] == [1, 2]
    seconds = 5 * pass_s(results)
    plan = with_more_time(results.spec, results.plan, results, seconds)
    more = [trial for name, trial in plan.trials.items() if name not in results.trials]
    assert sorted({trial.repeat for trial in more}) == [3, 4, 5, 6, 7]  # continued, so that repeats stay paired
    assert {trial.workers for trial in more} == {1, 2}
    added = plan.launches[len(results.plan.launches) :]
    assert [len(launch.trials) for launch in added] == [2] * 5  # new processes for each


def test_more_time_narrows_the_interval(tmp_path: Path) -> None:
    results = study(tmp_path / "study", 0.015, noise=0.1)
    before = results.rows[1].speedup.relative_width
    plan = with_more_time(results.spec, results.plan, results, 12 * pass_s(results))
    write_model(results.folder.plan_file, read_plan(results.folder).model_copy(update={"plan": plan}))
    run_plan(results.folder, plan, made(0.015, 0.1), Study.from_text(STUDY, machine=MACHINE))
    after = load(results.folder.path)
    assert [row.repeats for row in after.rows] == [15, 15, 3]
    assert after.rows[1].speedup.relative_width < 0.7 * before


def test_a_clear_answer_is_repeated_as_a_whole_and_at_least_once(tmp_path: Path) -> None:
    results = study(tmp_path / "study", 0.010)
    assert [setting.workers for setting in open_settings(results)] == [1, 2, 4]
    plan = with_more_time(results.spec, results.plan, results, 0.1)
    assert len(plan.trials) == len(results.trials) + 3


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (STUDY + "probe: false\ntrain: {steps: 30}\n", r"this study has none; raise `repeats`"),
        (STUDY.replace("[64]", "{largest: true}"), "this study searches for the largest batch"),
    ],
)
def test_a_study_that_more_time_cannot_help_says_so_before_it_runs(tmp_path: Path, text: str, words: str) -> None:
    study = Study.from_text(text, folder=tmp_path / "study", machine=MACHINE)
    with pytest.raises(InputError, match=rf"time=40: more time adds repeats of probes, but {words}"):
        study.run(more_s=40.0)
    assert not (tmp_path / "study").exists()


def test_more_time_waits_for_the_jobs_of_the_study() -> None:
    with pytest.raises(InputError, match="leave out --detach"):
        check_more_time(Study.from_text(STUDY, machine=MACHINE).spec, 40.0, JobOptions(detach=True))
