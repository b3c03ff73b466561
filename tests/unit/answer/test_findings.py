"""What is said beside the answer, of studies of which it is known."""

from __future__ import annotations

import io
import shutil
from pathlib import Path

import pytest
from rich.console import Console, RenderableType

from tests.made import Made, run_plan, write_study
from worldsize.analysis.speed.recommend import Finding
from worldsize.answer.comparison import compare_studies, to_dict
from worldsize.answer.evidence import Evidence
from worldsize.answer.predict.predict import predict
from worldsize.answer.predict.question import Question
from worldsize.answer.results import Results, load
from worldsize.machine import Machine
from worldsize.report.blocks import Prose
from worldsize.report.document import document
from worldsize.report.pages import study_report
from worldsize.report.sections.comparison import comparison_report
from worldsize.report.sections.hardware import hardware_table
from worldsize.report.sections.opening import cautions, other_findings
from worldsize.report.sections.projection import prediction_blocks
from worldsize.report.views.answer import answer_blocks
from worldsize.report.views.status import status_view
from worldsize.report.words.findings import sentence
from worldsize.report.write.terminal import to_terminal
from worldsize.spec.study import TrialSpec
from worldsize.study.study import Study

STUDY = """\
name: noisy
workload: digits
axes: {workers: [1, 2, 4], batch_per_worker: [16]}
probe: {repeats: 8}
"""
QUIET, SHARED = {"host_cpu_s": 3.0, "host_stolen_s": 0.0}, {"host_cpu_s": 3.0, "host_stolen_s": 1.0}
PROCESS = {"process_cpu_s": 1.0, "process_memory_bytes": 1e8}


def times(trial: TrialSpec) -> dict[str, float]:
    return {"forward": 0.01, "communication": 0.001 * trial.workers}


def study(folder: Path, telemetry: dict[str, float] | None = None, text: str = STUDY) -> Results:
    return write_study(folder, text, Made(times=times, telemetry=telemetry or PROCESS | QUIET))


def codes(results: Results) -> set[str]:
    return {finding.code for finding in results.answer.findings}


def test_one_count_is_said_and_two_are_not(tmp_path: Path) -> None:
    """The shortest test of a finding: a study that has it, and one that does not."""
    assert "one-count" in codes(study(tmp_path / "one", text=STUDY.replace("[1, 2, 4]", "[2]")))
    assert "one-count" not in codes(study(tmp_path / "more"))


def stolen(results: Results) -> list[Finding]:
    return [found for found in results.answer.findings if found.code == "cpu-stolen"]


def again(results: Results, trial_ids: list[str], telemetry: dict[str, float], text: str = STUDY) -> Results:
    """With these trials run once more, on a machine of another day."""
    for trial_id in trial_ids:
        shutil.rmtree(results.folder.trial(trial_id))
    made = Made(times=times, telemetry=telemetry)
    run_plan(results.folder, results.plan, made, Study.from_text(text, machine=Machine(cores=16, gpus=0)))
    return load(results.folder.path)


def shown(*views: RenderableType) -> str:
    text = io.StringIO()
    Console(file=text, width=1000).print(*views)
    return text.getvalue()


def test_what_a_hypervisor_keeps_is_a_share_of_what_was_wanted(tmp_path: Path) -> None:
    results = study(tmp_path, SHARED)
    assert [found.stolen_share for _, found in results.hardware] == pytest.approx([0.25] * 3)
    assert shown(to_terminal(filter(None, [hardware_table(Evidence(results))]))).count("25 %") == 3
    (found,) = stolen(results)
    assert found.numbers == pytest.approx({"trials": 24, "of": 24, "percent": 25, "most": 25})
    assert sentence(found).startswith("Not a quiet machine: during 24 of 24 trials the hypervisor withheld 25 %")


def test_a_quiet_machine_and_one_that_does_not_tell_are_no_finding(tmp_path: Path) -> None:
    quiet = study(tmp_path / "quiet", {**PROCESS, "host_cpu_s": 3.0, "host_stolen_s": 0.1})
    assert quiet.hardware[0][1].stolen_share == pytest.approx(0.1 / 3.1)
    idle = study(tmp_path / "idle", {**PROCESS, "host_cpu_s": 3.0, "host_stolen_s": 0.01})
    assert "CPU steal  " not in shown(to_terminal(filter(None, [hardware_table(Evidence(idle))])))
    unseen = study(tmp_path / "unseen", PROCESS)
    assert unseen.hardware[0][1].stolen_share is None
    assert unseen.stolen == []
    assert stolen(quiet) == stolen(unseen) == []


def test_few_disturbed_trials_are_not_worth_a_word(tmp_path: Path) -> None:
    results = study(tmp_path, QUIET)
    first, second, third, *_ = results.trials
    results = again(results, [first], {"host_cpu_s": 3.0, "host_stolen_s": 0.2})
    assert stolen(results) == []
    results = again(results, [second, third], SHARED)
    (found,) = stolen(results)
    assert found.numbers == pytest.approx({"trials": 3, "of": 24, "percent": 25, "most": 25})
    few = STUDY.replace("repeats: 8", "repeats: 2")
    results = study(tmp_path / "few", QUIET, few)
    results = again(results, list(results.trials)[:1], SHARED, few)
    assert stolen(results) == []  # one of six is more than a twentieth, and still one
    # Two hundredths of a second of a short probe are no share to speak of.
    assert stolen(study(tmp_path / "ticks", {"host_cpu_s": 0.01, "host_stolen_s": 0.004})) == []


def test_trials_that_trained_count_and_those_that_do_not_tell_do_not(tmp_path: Path) -> None:
    text = STUDY.replace("repeats: 8", "repeats: 2") + "train: {epochs: 2}\nrepeats: 2\n"
    results = study(tmp_path, QUIET, text)
    trained = [name for name, trial in results.trials.items() if trial.kind == "train"]
    results = again(results, trained, SHARED, text)
    results = again(results, [name for name in results.trials if name not in trained][:3], PROCESS, text)
    (found,) = stolen(results)
    assert (found.numbers["trials"], found.numbers["of"]) == (len(trained), len(results.trials) - 3)


def test_what_puts_the_answer_in_question_is_said_right_below_it_and_with_every_projection(tmp_path: Path) -> None:
    results = study(tmp_path / "shared", {**PROCESS, **SHARED})
    words = document(results)["words"]
    (said,) = words["cautions"]
    assert said["text"].startswith("Not a quiet machine")
    assert "cpu-stolen" not in {found["code"] for found in words["findings"]}
    opening, findings = study_report(Evidence(results), live=False).sections[:2]
    roles = [block.role for block in opening.blocks if isinstance(block, Prose)]
    assert roles[0] == "answer"
    assert "caution" in roles
    assert Prose(role="caution", text=said["text"]) in opening.blocks
    assert findings.key == "findings"
    assert said["text"] not in str(findings)
    for view in (
        to_terminal(answer_blocks(Evidence(results), details=False)),
        status_view(results, None, None),
        to_terminal(prediction_blocks(predict(results, Question(workers=(8,))), results.facts)),
    ):
        lines = [line.strip() for line in shown(view).splitlines()]
        answer = next(number for number, line in enumerate(lines) if line.startswith("Use "))
        assert answer < lines.index(said["text"]) < answer + 8
    quiet = study(tmp_path / "quiet", {**PROCESS, **QUIET})
    both = compare_studies(quiet, results)
    kept = "A hypervisor took CPU time: 25 % in 24 of 24 trials of B. That alone may explain a difference."
    assert any(kept in block.text for block in comparison_report(both).all(Prose))
    assert [[each["code"] for each in told] for told in to_dict(both)["cautions"].values()] == [[], ["cpu-stolen"]]


def test_of_several_targets_each_says_its_own(tmp_path: Path) -> None:
    text = (
        STUDY.replace("repeats: 8", "repeats: 2")
        + "run_on: [{name: here, local: true}, {name: there, slurm: {workers_per_node: 4}}]\n"
    )
    results = study(tmp_path, SHARED, text)
    assert [found["text"].split(":")[0] for found in cautions(results)] == ["On here", "On there"]


def test_an_answer_that_is_not_about_speed_is_not_put_in_question(tmp_path: Path) -> None:
    text = STUDY.replace("[1, 2, 4]", "[2]").replace("repeats: 8", "repeats: 2")
    results = study(tmp_path, SHARED, text + "train: {epochs: 2}\n")
    assert cautions(results) == []
    assert "cpu-stolen" in {found["code"] for found in other_findings(results)}


CORES = {"device": "cpu", "cores": 4, "host_cores": 4}


def beside(folder: Path, host_cpu_s: float) -> Results:
    """Workers that use half a core each, on a host of four cores whose load is known."""
    telemetry = {"process_cpu_s": 0.5, "process_memory_bytes": 1e8, "host_cpu_s": host_cpu_s, "host_stolen_s": 0.0}

    def slow_exchange(trial: TrialSpec) -> dict[str, float]:
        return {"forward": 0.01, "communication": 0.01 * (trial.workers - 1)}

    made = Made(times=slow_exchange, telemetry=telemetry, environment=CORES)
    return write_study(folder, STUDY, made, Machine(cores=4, gpus=0))


def test_other_programs_on_the_cores_of_the_workers_come_first_and_are_not_called_communication(tmp_path: Path) -> None:
    results = beside(tmp_path / "busy", 3.9)
    (busy,) = [finding for finding in results.answer.findings if finding.code == "machine-busy"]
    assert busy.numbers == pytest.approx({"trials": 24, "of": 24, "percent": 72.5, "most": 85.0})
    blocks = [block for block in answer_blocks(Evidence(results), details=False) if isinstance(block, Prose)]
    assert blocks[0].text == "Not a clean measurement: other processes used 72 % of the CPU."
    assert blocks[1].text.startswith("Best guess: ")
    assert "why" not in {block.role for block in blocks}
    assert "caution" not in {block.role for block in blocks}  # said once
    assert Evidence(results).outlook is not None
    assert Evidence(results).outlook[1] is None  # type: ignore[index]
    assert "straggler" not in codes(results)
    assert [finding["code"] for finding in cautions(results)] == ["machine-busy"]  # for status, predict and compare


def test_other_programs_that_leave_enough_cores_do_not_matter(tmp_path: Path) -> None:
    results = beside(tmp_path / "quiet", 2.0)  # beside 1 worker, 1.5 cores are busy and 2.5 free
    assert "machine-busy" not in codes(results)
    blocks = [block for block in answer_blocks(Evidence(results), details=False) if isinstance(block, Prose)]
    assert blocks[0].text == "Use 1 worker."
    assert "why" in {block.role for block in blocks}
