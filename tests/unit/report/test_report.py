"""The report: one document behind everything, figures by data, a page with the same numbers."""

from __future__ import annotations

import json
import shlex
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from tests.made import STUDY, made_study
from worldsize.answer.curves import thinned
from worldsize.answer.evidence import Evidence
from worldsize.answer.reruns import recommended_study
from worldsize.answer.results import load
from worldsize.cli.main import app
from worldsize.plan.plan import make_plan
from worldsize.report.document import document
from worldsize.report.figures.matplotlib import rendered
from worldsize.report.pages import figures
from worldsize.report.write.publish import to_json
from worldsize.spec.file import StudyFile

MIXED = STUDY.replace("lr: 0.05}", "lr: [0.05, 3.0]}, {name: adam, lr: 0.001}")
PROBES = STUDY.replace("[1, 2, 4]", "[1]").replace("train: {epochs: 30}\n", "").replace("[64]", "[32, 64]")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Evidence:
    home = made_study(tmp_path_factory.mktemp("study") / "made", MIXED, failing=("0009",))
    return Evidence(load(home.path))


def keys(found: Evidence) -> list[str]:
    return [figure.key for figure in figures(found)]


def test_the_document_is_strict_json_and_reads_back(made: Evidence) -> None:
    numbers = document(made)
    assert json.loads(to_json(numbers)) == numbers


def test_figures_of_a_study_that_trains(made: Evidence) -> None:
    scaling, steps = ["speedup", "pareto", "outcome"], ["step", "timeline", "wall-time"]
    learning = ["curves", "steps-by-rate", "stable", "convergence"]
    assert keys(made) == [*scaling, *steps, *learning, "devices"]
    for figure in figures(made):
        assert figure.title
        assert figure.alt
        assert all(panel.x.title and panel.y.title for panel in figure.panels)


def test_figures_only_where_there_is_data(tmp_path: Path) -> None:
    found = Evidence(load(made_study(tmp_path / "probe", PROBES).path))
    assert keys(found) == ["batch", "step", "wall-time", "devices"]


def test_the_same_document_gives_the_same_bytes(made: Evidence) -> None:
    figure = figures(made)[0]
    assert rendered(figure) == rendered(figure)


def test_the_recommended_study_can_be_run(made: Evidence) -> None:
    text, row = recommended_study(made.results), made.results.answer.row
    assert text is not None
    assert row is not None
    spec = StudyFile(text, "snippet").spec()
    assert (spec.axes.workers, spec.axes.batch_per_worker) == (
        (row.setting.workers,),
        (row.setting.batch_per_worker,),
    )
    trial = next(trial for trial in make_plan(spec).trials.values() if trial.kind == "train")
    trained = next(e for e in made.training if e.setting == row.setting and e.variant == row.variant)
    assert trial.peak_lr == pytest.approx(trained.peak_lr)


def test_the_command_of_a_trial_plans_exactly_that_trial(tmp_path: Path) -> None:
    home = made_study(tmp_path / "made", MIXED)
    results = load(home.path)
    for run in document(results)["runs"]:
        words = shlex.split(run["command"])
        file = StudyFile.read(home.study_file)
        for assignment in (value for option, value in pairwise(words) if option == "--set"):
            file.override_text(assignment)
        (again,) = make_plan(file.spec()).trials.values()
        first = results.trials[run["trial"]]
        told = {"id", "repeat", "probe", "train"}
        assert again.model_dump(exclude=told) == first.model_dump(exclude=told)


def test_thinning_keeps_ends_and_beginnings() -> None:
    assert thinned(5, 80) == [0, 1, 2, 3, 4]
    places = thinned(1000, 80)
    assert (places[0], places[1], places[-1]) == (0, 1, 999)
    assert len(places) <= 81


def test_the_command_line(tmp_path: Path) -> None:
    home = made_study(tmp_path / "made", PROBES)
    asked = CliRunner().invoke(app, ["report", str(home.path), "--json"])
    assert json.loads(asked.output)["study"] == "made"
    assert not (home.path / "report").exists()
    written = CliRunner().invoke(app, ["report", str(home.path)])
    assert written.exit_code == 0, written.output
    assert (home.path / "report" / "index.html").exists()
    assert "figures" in written.output
    unknown: Any = CliRunner().invoke(app, ["report", str(tmp_path)])
    assert unknown.exit_code != 0
