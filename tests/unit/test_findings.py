"""What is said beside the answer, of studies of which it is known."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.made import Made, run_plan, write_study
from worldsize.analysis.recommend import Finding
from worldsize.machine import Machine
from worldsize.report.sentences import finding_sentence
from worldsize.results import Results, load
from worldsize.spec import TrialSpec
from worldsize.study import Study

STUDY = """\
name: noisy
workload: digits
axes: {workers: [1, 2, 4], batch_per_worker: [16]}
probe: {repeats: 8}
"""


def times(trial: TrialSpec) -> dict[str, float]:
    return {"forward": 0.01, "communication": 0.001 * trial.workers}


def made(**telemetry: float) -> Made:
    return Made(times=times, telemetry=telemetry)


def study(folder: Path, **telemetry: float) -> Results:
    return write_study(folder, STUDY, made(**telemetry))


def stolen(results: Results) -> list[Finding]:
    return [found for found in results.answer.findings if found.code == "cpu-stolen"]


def again(results: Results, trial_id: str, **telemetry: float) -> Results:
    """With that trial run once more, on a machine of another day."""
    shutil.rmtree(results.folder.trial(trial_id))
    run_plan(results.folder, results.plan, made(**telemetry), Study.from_text(STUDY, machine=Machine(cores=16, gpus=0)))
    return load(results.folder.path)


def test_what_a_hypervisor_keeps_is_a_share_of_what_was_wanted(tmp_path: Path) -> None:
    results = study(tmp_path, host_cpu_s=3.0, host_stolen_s=1.0)
    assert [found.stolen_share for _, found in results.hardware] == pytest.approx([0.25] * 3)
    (found,) = stolen(results)
    assert found.numbers == pytest.approx({"trials": 24, "of": 24, "percent": 25, "most": 25})
    assert finding_sentence(found).startswith("24 of 24 trials ran while a hypervisor kept 25 % of the CPU time")


def test_a_quiet_machine_and_one_that_does_not_tell_are_no_finding(tmp_path: Path) -> None:
    quiet = study(tmp_path / "quiet", host_cpu_s=3.0, host_stolen_s=0.03)
    assert quiet.hardware[0][1].stolen_share == pytest.approx(0.03 / 3.03)
    unseen = study(tmp_path / "unseen", process_cpu_s=1.0)
    assert unseen.hardware[0][1].stolen_share is None
    assert stolen(quiet) == stolen(unseen) == []


def test_one_disturbed_trial_of_many_is_not_worth_a_word_and_two_are(tmp_path: Path) -> None:
    results = study(tmp_path, host_cpu_s=3.0, host_stolen_s=0.0)
    first, second, *_ = results.trials
    results = again(results, first, host_cpu_s=3.0, host_stolen_s=0.2)
    assert stolen(results) == []
    (found,) = stolen(again(results, second, host_cpu_s=3.0, host_stolen_s=1.0))
    assert found.numbers == pytest.approx({"trials": 2, "of": 24, "percent": 50 * (0.2 / 3.2 + 0.25), "most": 25})
