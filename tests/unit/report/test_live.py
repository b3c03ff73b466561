"""The page while a study runs: when it is written, and what it says."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import pytest
from typer.testing import CliRunner

from tests.made import STUDY, made_study
from worldsize.answer.results import load
from worldsize.cli.main import app
from worldsize.errors import ReportError
from worldsize.folder.study_folder import StudyFolder
from worldsize.launch.target import Progress
from worldsize.machine import Machine
from worldsize.plan.grid import sites
from worldsize.report.write import page as page_module
from worldsize.report.write import publish as live
from worldsize.report.write.publish import EVERY_S, PAGE_SHARE, LivePage, publish
from worldsize.spec.place import OnSlurm, SlurmSpec


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


class Process:
    """Ends when told."""

    started: ClassVar[list[list[str]]] = []
    running = False
    takes: ClassVar[Callable[[], None]] = staticmethod(lambda: None)

    def __init__(self, argv: list[str], **_: object) -> None:
        Process.started.append(argv)

    def poll(self) -> int | None:
        return None if Process.running else 0

    def kill(self) -> None:
        Process.running = False

    def wait(self) -> int:
        Process.takes()
        return 0


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    Process.started, Process.running, Process.takes = [], False, lambda: None
    monkeypatch.setattr(live.subprocess, "Popen", Process)
    return Process.started


def test_a_page_follows_trials_that_leave_a_core_free(tmp_path: Path, started: list[list[str]]) -> None:
    results = load(made_study(tmp_path / "made").path)
    trial, record = next((results.trials[name], each) for name, each in results.records.items())
    clock = Clock()
    page = LivePage(Progress(), tmp_path, sites(results.spec, Machine(cores=8, gpus=0)), clock=clock)
    page.launch_comes([trial])
    page.trial_ended(trial, record)
    assert started == [
        ["nice", "-n", "19", sys.executable, "-m", "worldsize.cli.main", "report", str(tmp_path), "--live"]
    ]
    page.trial_ended(trial, record)  # too soon
    clock.now = EVERY_S
    Process.running = True
    page.trial_ended(trial, record)  # the last one is still being written
    assert len(started) == 1
    Process.running = False
    page.trial_ended(trial, record)
    assert len(started) == 2
    page.close()


def test_a_full_machine_is_left_alone_until_the_next_launch(tmp_path: Path, started: list[list[str]]) -> None:
    results = load(made_study(tmp_path / "made").path)
    trials = sorted(results.trials.values(), key=lambda trial: trial.workers)
    small, large = trials[0], trials[-1]
    full = sites(results.spec, Machine(cores=large.workers, gpus=0))
    clock = Clock()
    page = LivePage(Progress(), tmp_path, full, clock=clock)
    page.launch_comes([small, large])
    page.trial_ended(small, results.records[small.id])  # the launch also measures the count that needs all cores
    assert not started
    Process.takes = lambda: setattr(clock, "now", clock.now + 3)
    page.launch_comes([large])
    assert len(started) == 1
    assert clock.now == 3  # the next launch waited for the page
    Process.takes = lambda: None
    clock.now = 3 + 3 / PAGE_SHARE - 1
    page.launch_comes([large])
    assert len(started) == 1  # a page that takes long is made less often
    clock.now += 2
    page.launch_comes([large])
    assert len(started) == 2


def test_a_page_follows_trials_that_run_elsewhere(tmp_path: Path, started: list[list[str]]) -> None:
    results = load(made_study(tmp_path / "made").path)
    trial, record = next((results.trials[name], each) for name, each in results.records.items())
    slurm = OnSlurm(slurm=SlurmSpec(workers_per_node=trial.workers))
    full = sites(results.spec.model_copy(update={"run_on": slurm}), Machine(cores=1, gpus=0))
    assert full[""].machine.cores == trial.workers
    page = LivePage(Progress(), tmp_path, full, clock=Clock())
    page.launch_comes([trial])
    page.trial_ended(trial, record)
    assert len(started) == 1


def test_a_live_page_comes_back_and_the_last_one_does_not(tmp_path: Path) -> None:
    home = made_study(tmp_path / "made", STUDY.replace("train: {epochs: 30}\n", ""))  # fewer figures to draw
    (home.trial(home.trial_ids()[-1]) / "record.json").unlink()
    made = publish(load(home.path), printed=False, live=True)
    text = made.page.read_text(encoding="utf-8")
    assert 'http-equiv="refresh"' in text
    assert "Still running: " in text
    assert "For print" not in text
    assert not (home.path / "report" / "figures").exists()
    last = publish(load(home.path)).page.read_text(encoding="utf-8")
    assert 'http-equiv="refresh"' not in last
    assert "Still running: " not in last
    assert "For print" in last


@pytest.fixture
def ended(tmp_path: Path) -> StudyFolder:
    """A study that has run to its end, and has no page yet: `worldsize run` writes it."""
    return made_study(tmp_path / "made", STUDY)


def rerun(home: StudyFolder) -> Any:
    return CliRunner().invoke(app, ["run", str(home.study_file), "--dir", str(home.path)])


def test_a_run_ends_with_a_page(ended: StudyFolder) -> None:
    done = rerun(ended)
    assert done.exit_code == 0, done.output
    assert f"The report is {ended.path / 'report' / 'index.html'}" in done.output.replace("\n", "")
    assert (ended.path / "report" / "index.html").exists()


def test_run_report_and_the_file_hold_one_document(ended: StudyFolder) -> None:
    run = CliRunner().invoke(app, ["run", str(ended.study_file), "--dir", str(ended.path), "--json"])
    report = CliRunner().invoke(app, ["report", str(ended.path), "--json"])
    assert run.exit_code == report.exit_code == 0
    assert run.stdout == report.stdout == (ended.path / "report" / "report.json").read_text(encoding="utf-8")


def test_a_run_without_plotly_keeps_its_results_and_says_what_is_missing(
    ended: StudyFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "plotly", None)  # importing it fails, as where it is not installed
    done = rerun(ended)
    assert done.exit_code == 0, done.output
    (told,) = [line for line in done.output.splitlines() if line.startswith("The report could")]
    assert told.startswith("The report could not be written: the page needs plotly's plotly.min.js, which is not")
    assert "installed here; pip install plotly" in told
    assert "Use " in done.output or "Not enough evidence" in done.output  # the answer is there
    assert not (ended.path / "report").exists()
    report = CliRunner().invoke(app, ["report", str(ended.path)])
    assert isinstance(report.exception, ReportError)  # one line, and exit code 1


def test_a_plotly_without_its_script_is_said_too(ended: StudyFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page_module, "files", lambda _: ended.path / "nothing-here")
    with pytest.raises(ReportError, match=r"plotly\.min\.js, which is not installed here; pip install plotly"):
        publish(load(ended.path), printed=False)


def test_a_report_without_matplotlib_has_all_but_figures_for_print(
    ended: StudyFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(sys.modules, "worldsize.report.figures.matplotlib", raising=False)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    done = CliRunner().invoke(app, ["report", str(ended.path)])
    assert done.exit_code == 0, done.output
    assert "no figures for print, because matplotlib is not installed (pip install matplotlib)" in done.output
    assert not (ended.path / "report" / "figures").exists()
    assert "For print" not in (ended.path / "report" / "index.html").read_text(encoding="utf-8").partition("<script")[0]
    assert (ended.path / "report" / "tables" / "scaling.tex").exists()
