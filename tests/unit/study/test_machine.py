"""A machine that is too small: a plan says what it lacks, a run says which command would work."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import pytest
from typer.testing import CliRunner

from worldsize.cli import main
from worldsize.errors import InputError
from worldsize.machine import Machine
from worldsize.spec.file import builtin_studies
from worldsize.study.builtin import builtin_on
from worldsize.study.study import Study

STUDY = """\
name: mine
workload: digits
axes: {workers: [1, 2, 4, 8], batch_per_worker: [64]}
train: false
"""
SMALL = Machine(cores=2, gpus=0)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a study for 8 cores, on a machine with 2."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("worldsize.study.study.this_machine", lambda: SMALL)
    (tmp_path / "mine.yaml").write_text(STUDY, encoding="utf-8")
    return tmp_path


def invoke(*words: str) -> tuple[int, str]:
    answer = CliRunner().invoke(main.app, list(words))
    return answer.exit_code, answer.output if answer.exception is None else f"{answer.output}{answer.exception}"


@pytest.mark.usefixtures("folder")
def test_a_plan_needs_no_machine() -> None:
    study = Study("mine.yaml")
    assert study.spec.axes.workers == (1, 2, 4, 8)
    assert [problem.where for problem in study.lacks] == ["mine.yaml, line 3"] * 2
    assert "workers=4 is more than the 2 cores of this machine" in study.lacks[0].text
    assert study.runs_here_with == {"axes.workers": [1, 2]}
    code, shown = invoke("plan", "mine.yaml")
    assert code == 0
    assert "Cannot run here: mine.yaml, line 3: workers=8 is more than the 2 cores" in " ".join(shown.split())
    planned = json.loads(invoke("plan", "mine.yaml", "--json")[1])
    assert planned["command_that_fits"] == "worldsize run mine.yaml --workers 1,2"
    assert len(planned["lacks"]) == 2


@pytest.mark.parametrize(
    "options",
    [
        [],
        ["--dir", "runs/my study", "--set", "repeats=2"],
        ["--set", "axes.workers=[2,4]"],
        ["--set", "device=cuda"],
        ["--set", "threads_per_worker=3", "--set", "axes.workers=[1,2]"],
    ],
)
def test_the_command_in_the_error_works(folder: Path, options: list[str]) -> None:
    code, said = invoke("run", "mine.yaml", *options)
    assert code != 0
    command = re.search(r"this would run here: (worldsize run .*)$", said, re.MULTILINE)
    assert command, said
    words = shlex.split(command[1])
    assert words[:3] == ["worldsize", "run", "mine.yaml"]
    assert not (folder / "runs").exists()
    planned = json.loads(invoke("plan", *words[2:], "--json")[1])
    assert planned["lacks"] == []
    if "--dir" in options:
        assert words[-2:] == ["--dir", "runs/my study"]


def test_python_says_which_overrides_work(folder: Path) -> None:
    with pytest.raises(InputError, match=r"this would run here: overrides=\{'axes\.workers': \[1, 2\]\}"):
        Study("mine.yaml").run()
    assert not (folder / "runs").exists()
    assert Study("mine.yaml", {"axes.workers": [1, 2]}).lacks == ()


@pytest.mark.usefixtures("folder")
def test_built_in_studies_use_the_counts_that_fit() -> None:
    study = Study("gpt-scaling", machine=Machine(cores=2, gpus=0))
    assert (study.spec.axes.workers, study.left_out, study.lacks) == ((1, 2), (4,), ())
    assert {trial.workers for trial in study.plan.trials.values()} == {1, 2}
    large = Study("gpt-scaling", machine=Machine(cores=16, gpus=0))
    assert (large.spec.axes.workers, large.left_out) == ((1, 2, 4), ())
    code, shown = invoke("plan", "gpt-scaling")
    assert code == 0
    assert "Left out: 4 workers, because this machine has only 2 cores." in shown


@pytest.mark.usefixtures("folder")
def test_counts_that_a_user_chose_are_kept() -> None:
    study = Study("gpt-scaling", {"axes.workers": [1, 4]}, machine=SMALL)
    assert (study.spec.axes.workers, study.left_out) == ((1, 4), ())
    assert len(study.lacks) == 1
    jobs = Study("gpt-scaling", run_on="slurm", machine=SMALL)
    assert jobs.spec.axes.workers == (1, 2, 4)


def test_nothing_is_left_out_if_no_count_fits() -> None:
    study = Study("strategies", machine=Machine(cores=1, gpus=0))
    assert (study.spec.axes.workers, study.left_out) == ((2,), ())
    assert study.runs_here_with == {"oversubscribe": True}


def test_the_list_of_studies_says_what_each_needs_here(folder: Path) -> None:
    listed = {study.name: study for study in builtin_on(SMALL, folder / "data")}
    assert list(listed) == list(builtin_studies())
    assert listed["quickstart"].data == "included"
    assert (listed["mnist-scaling"].data, listed["mnist-scaling"].fetch) == ("to fetch", ("mnist",))
    assert (listed["fruit-transfer"].data, listed["fruit-transfer"].fetch) == ("your own", ("cifar10",))
    assert listed["gpt-scaling"].left_out == (4,)
    assert (listed["steering-scaling"].wall_s, listed["steering-scaling"].path) == (
        None,
        "donkeycar-steering/steering.csv",
    )
    code, shown = invoke("studies", "--data", str(folder / "data"))
    words = " ".join(shown.split())
    assert code == 0
    assert "first `worldsize data fetch mnist`" in words
    assert "needs your data: `--data FOLDER` with fruits-fresh-rotten" in words
    assert re.search(r"about \d+ days on 1 worker, or \d+ s with --small", words)  # cifar10-large-batch on a CPU
