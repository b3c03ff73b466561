"""What is said beside the answer, of studies of which it is known."""

from __future__ import annotations

import io
import shutil
from pathlib import Path

import pytest
from rich.console import Console

from tests.made import Made, run_plan, write_study
from worldsize.analysis.recommend import Finding
from worldsize.machine import Machine
from worldsize.prediction import Question, predict
from worldsize.report.document import document
from worldsize.report.page import page
from worldsize.report.prediction import prediction_view
from worldsize.report.sentences import finding_sentence
from worldsize.report.terminal import answer_view
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
    assert finding_sentence(found).startswith("Not a quiet machine: while 24 of 24 trials ran, a hypervisor kept 25 %")


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


def test_what_puts_the_answer_in_question_is_said_right_below_it_and_with_every_projection(tmp_path: Path) -> None:
    results = study(tmp_path, process_cpu_s=1.0, process_memory_bytes=1e8, host_cpu_s=3.0, host_stolen_s=1.0)
    words = document(results)["words"]
    (said,) = words["cautions"]
    assert said["text"].startswith("Not a quiet machine")
    assert "cpu-stolen" not in {found["code"] for found in words["findings"]}
    opening, findings = page(document(results), [], []).split('id="findings"')
    assert f'<p class="running">{said["text"]}</p><p class="outlook">' in opening
    assert said["text"] not in findings
    shown = io.StringIO()
    Console(file=shown, width=1000).print(
        answer_view(results), prediction_view(predict(results, Question(workers=(8,))), results.facts)
    )
    assert shown.getvalue().count(said["text"]) == 2
