"""The command line without workers: plans, errors, exit codes, nothing written, nothing steered."""

from __future__ import annotations

import json
import os
import re
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tests.made import Made, write_study
from worldsize.cli.main import app, main
from worldsize.errors import StoreError, visible
from worldsize.folder.record import Failure, Outcome, TrialRecord
from worldsize.folder.study_folder import StudyFolder
from worldsize.machine import Machine
from worldsize.plan.plan import PRETRAIN_ID
from worldsize.report.views.overview import StudyOverview
from worldsize.report.views.status import failure_view
from worldsize.spec.file import dump_yaml
from worldsize.study.checks import check_device, require_same_study
from worldsize.study.study import Study

STUDY = """\
name: cli
workload: digits
axes: {workers: [1, 2], batch_per_worker: [100]}
train: {epochs: 3}
oversubscribe: true
"""


RETRIED: list[tuple[Outcome, list[str], bool]] = [
    ("diverged", ["--retry-failed"], False),
    ("out_of_memory", ["--retry-failed"], False),
    ("failed", ["--retry-failed"], False),
    ("finished", ["--retry-failed"], True),
    ("diverged", [], True),
]


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "cli.yaml").write_text(STUDY)
    return tmp_path


def call(*arguments: str, monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setattr("sys.argv", ["worldsize", *arguments])
    monkeypatch.setattr("signal.signal", lambda *_: None)
    with pytest.raises(SystemExit) as left:
        main()
    return int(left.value.code or 0)


def test_plan_shows_epochs_steps_rates_launches_and_commands(home: Path) -> None:
    answer = CliRunner().invoke(app, ["plan", "cli.yaml", "--all"])
    assert answer.exit_code == 0, answer.output
    assert "12 trials (6 probe, 6 train) in 7 launches" in answer.output
    assert "--nproc-per-node=2 -m worldsize.worker runs/cli 0001-probe-w2" in answer.output
    rows = [line.split() for line in answer.output.splitlines()]
    assert ["1", "100", "100", "sgd", "0.05", "120", "360", "3"] in rows
    assert ["2", "100", "200", "sgd", "0.1", "60", "180", "3"] in rows
    assert [path.name for path in home.iterdir()] == ["cli.yaml"]


@pytest.mark.parametrize(("outcome", "option", "done"), RETRIED)
def test_the_bar_counts_what_is_tried_again_as_left(
    home: Path, monkeypatch: pytest.MonkeyPatch, outcome: Outcome, option: list[str], done: bool
) -> None:
    text = STUDY + "pretrain: {workload: digits, batch_per_worker: 64, optimizer: sgd, epochs: 1}\n"
    (home / "cli.yaml").write_text(text)
    folder = StudyFolder(home / "mine")
    Study.from_text(text, folder=folder.path)._write()
    folder.trial(PRETRAIN_ID).mkdir(parents=True)
    failure = Failure(rank=0, step=0, error="E") if outcome == "failed" else None
    folder.write_record(
        TrialRecord(trial=PRETRAIN_ID, outcome=outcome, launch="l", started_at=0, wall_s=0, failure=failure)
    )
    counted: list[set[str]] = []

    def shown(_console: object, _plan: object, _facts: object, finished: set[str], _step_s: object) -> None:
        counted.append(finished)
        raise KeyboardInterrupt

    monkeypatch.setattr("worldsize.report.views.progress.StudyProgress", shown)
    assert CliRunner().invoke(app, ["run", "cli.yaml", "--dir", "mine", *option]).exit_code == 130
    assert counted == [{PRETRAIN_ID} if done else set()]


def test_plan_is_for_the_folder_that_is_named(home: Path) -> None:
    answer = CliRunner().invoke(app, ["plan", "cli.yaml", "--dir", "elsewhere/mine"])
    assert answer.exit_code == 0, answer.output
    assert "-m worldsize.worker elsewhere/mine 0001-probe-w2" in answer.output
    assert "runs/cli" not in answer.output
    assert "rough: nothing is measured yet" in answer.output
    job = CliRunner().invoke(app, ["plan", "cli.yaml", "--dir", "elsewhere/mine", "--on", "slurm"])
    assert job.exit_code == 0, job.output
    assert "sbatch elsewhere/mine/launches/0001-probe-w2/job.sh" in job.output
    assert "runs/cli" not in job.output
    assert [path.name for path in home.iterdir()] == ["cli.yaml"]
    write_study(home / "mine", STUDY, Made(times=lambda _: {"forward": 0.01}))
    assert "from steps measured before" in CliRunner().invoke(app, ["plan", "cli.yaml", "--dir", "mine"]).output


def test_plan_as_json(home: Path) -> None:  # noqa: ARG001
    answer = CliRunner().invoke(app, ["plan", "cli.yaml", "--json", "--set", "repeats=1", "--workers", "1"])
    plan = json.loads(answer.output)
    assert len(plan["trials"]) == 2
    assert {launch["workers"] for launch in plan["launches"]} == {1}
    assert plan["estimate"]["worker_s"] > 0


def test_plan_says_what_data_is_missing_and_plans_all_the_same(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLDSIZE_DATA", str(home))
    nowhere = ["plan", "cli.yaml", "--set", "workload=mnist"]
    answer = CliRunner().invoke(app, nowhere)
    assert answer.exit_code == 0, answer.output
    told = next(line for line in answer.output.splitlines() if "Cannot run yet" in line)
    assert "train-images-idx3-ubyte.gz is missing" in told
    assert "worldsize data fetch mnist" in told
    as_json = json.loads(CliRunner().invoke(app, [*nowhere, "--json"]).output)
    assert as_json["missing_data"] in told
    assert "Cannot run" not in CliRunner().invoke(app, ["plan", "cli.yaml"]).output
    assert [path.name for path in home.iterdir()] == ["cli.yaml"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["run", "cli.yaml", "--set", "train.epochs=-1"], "--set train.epochs=-1: train.epochs=-1"),
        (["run", "cli.yaml", "--set", "oversubscribe=false", "--workers", "1,110"], "workers=110 is more than the"),
        (["run", "nowhere.yaml"], "neither a file, a study folder nor a built-in study"),
        (["status", "."], "is not a study folder"),
        (["plan", "cli.yaml", "--set", "axes.batch=[1]"], 'unknown key "batch" in "axes". Did you mean'),
    ],
)
def test_wrong_input_is_one_message_exit_2_and_writes_nothing(
    home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], arguments: list[str], said: str
) -> None:
    assert call(*arguments, monkeypatch=monkeypatch) == 2
    captured = capsys.readouterr()
    assert said in captured.err
    assert captured.err.startswith("error: ")
    assert "Traceback" not in captured.err
    assert [path.name for path in home.iterdir()] == ["cli.yaml"]


def test_a_folder_that_is_something_else_is_left_alone(
    home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (home / "photos").mkdir()
    (home / "photos" / "cat.jpg").touch()
    assert call("run", "cli.yaml", "--dir", "photos", monkeypatch=monkeypatch) == 2
    assert "photos exists and is not a study folder" in capsys.readouterr().err
    assert [path.name for path in (home / "photos").iterdir()] == ["cat.jpg"]


def test_what_an_early_stop_leaves_is_no_obstacle_and_other_things_are(
    home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    study = Study(home / "cli.yaml")
    (home / "stopped").mkdir()
    (home / "stopped" / ".lock.guard").touch()
    assert not require_same_study(study.spec, study.plan, StudyFolder(home / "stopped"))
    assert call("run", "cli.yaml", "--dir", "cli.yaml", monkeypatch=monkeypatch) == 2
    assert "cli.yaml exists and is not a study folder" in capsys.readouterr().err
    (home / "half").mkdir()
    (home / "half" / "study.yaml").write_text(dump_yaml(study.spec))
    assert call("status", "half", monkeypatch=monkeypatch) == 2
    assert "plan.json is missing, damaged or of another version" in capsys.readouterr().err


def test_a_study_is_continued_on_the_device_it_began_on(home: Path) -> None:
    study = Study(home / "cli.yaml", folder=home / "runs", machine=Machine(cores=4, gpus=0))
    folder = StudyFolder(home / "runs")
    study._write()
    check_device(study._devices, folder)
    other = Study(home / "cli.yaml", machine=Machine(cores=4, gpus=2))
    with pytest.raises(StoreError, match="was started on cpu, but this machine would continue it on cuda"):
        check_device(other._devices, folder)


def test_studies_and_data_sets_are_listed(home: Path) -> None:
    shown = CliRunner().invoke(app, ["studies"]).output
    studies = json.loads(CliRunner().invoke(app, ["studies", "--json"]).output)
    assert "quickstart" in [study["name"] for study in studies]
    assert all(study["name"] in shown for study in studies)
    listed = json.loads(CliRunner().invoke(app, ["data", "list", "--data", str(home), "--json"]).output)
    assert listed["folder"] == str(home)
    assert {row["name"]: row["state"] for row in listed["data_sets"]}["mnist"] == "missing"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["worker-command", "cli.yaml"], "worker-command is now called by-hand"),
        (["predict", ".", "--target", "0.9"], "--target is now called --until"),
    ],
)
def test_a_word_that_was_renamed_is_told(
    home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], arguments: list[str], said: str
) -> None:
    assert call(*arguments, monkeypatch=monkeypatch) == 2
    assert said in capsys.readouterr().err
    assert [path.name for path in home.iterdir()] == ["cli.yaml"]


@pytest.mark.parametrize("workers", ["1,x", "0", "", "auto,2"])
def test_wrong_counts_name_the_option(home: Path, workers: str) -> None:  # noqa: ARG001
    answer = CliRunner().invoke(app, ["plan", "cli.yaml", "--workers", workers])
    assert answer.exit_code == 2
    assert "Invalid value for '--workers': " in answer.output
    assert "is not a number of workers; write --workers 8,16,1024" in answer.output


def test_by_hand_writes_the_launches_and_names_each_host(home: Path) -> None:
    answer = CliRunner().invoke(app, ["by-hand", "cli.yaml", "--dir", "mine", "--hosts", "a,b", "--set", "repeats=1"])
    assert answer.exit_code == 0, answer.output
    assert f"-m worldsize.worker {home / 'mine'} 0001-probe-w2" in answer.output
    assert [line for line in answer.output.splitlines() if line.startswith("# on ")][:2] == ["# on a:", "# on b:"]
    assert (home / "mine" / "launches" / "0001-probe-w2" / "launch.json").is_file()


def test_the_data_folder_is_passed_on_and_the_environment_stays_as_it_is(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WORLDSIZE_DATA", str(home / "other"))
    answer = CliRunner().invoke(app, ["plan", "cli.yaml", "--set", "workload=mnist", "--data", "sets", "--json"])
    assert f"{home}/sets/mnist/" in json.loads(answer.output)["missing_data"]
    assert os.environ["WORLDSIZE_DATA"] == str(home / "other")
    answer = CliRunner().invoke(app, ["by-hand", "cli.yaml", "--dir", "mine", "--data", "sets"])
    assert answer.exit_code == 0, answer.output
    launch = json.loads((home / "mine" / "launches" / "0001-probe-w2" / "launch.json").read_text())
    assert launch["data"] == str(home / "sets")


def test_the_api_plans_what_the_command_plans(home: Path) -> None:
    study = Study(home / "cli.yaml", {"repeats": 2})
    assert len(study.plan.trials) == 8
    assert study.folder == Path("runs/cli")


@pytest.mark.parametrize("hostile", ["\x1b[2J", "\x07", "\u202e", "\x9b31m", "\r"])
def test_nothing_from_outside_steers_the_terminal(hostile: str) -> None:
    failure = Failure(rank=0, step=1, error=f"bad {hostile} name", log=(f"line {hostile}", "[/bold]"))
    record = TrialRecord(trial="t", outcome="failed", launch="l", started_at=0, wall_s=0, failure=failure)
    shown = failure_view(record).plain
    assert hostile not in shown
    assert "[/bold]" in shown
    assert hostile not in visible(hostile)


def test_status_lists_the_studies_in_runs(home: Path) -> None:
    said = CliRunner().invoke(app, ["status"])
    assert said.exit_code == 0, said.output
    assert said.output == "No studies in runs yet. `worldsize run` runs the built-in quickstart study.\n"
    assert CliRunner().invoke(app, ["status", "--json"]).output == "[]\n"
    made = Made(times=lambda trial: {"forward": 0.02 / trial.workers})
    write_study(home / "runs" / "done", STUDY, made)
    write_study(home / "runs" / "half", STUDY.replace("name: cli", "name: other"), made)
    for path in sorted((home / "runs" / "half" / "trials").glob("*/record.json"))[:3]:
        path.unlink()
    (home / "runs" / "broken").mkdir()
    (home / "runs" / "broken" / "study.yaml").write_text("name: [")
    (home / "runs" / "notes").mkdir()
    said = CliRunner().invoke(app, ["status"])
    assert said.exit_code == 0, said.output
    assert re.search(r"^runs/done +finished, cli\n  Use 2 workers: \d\.\d+x as fast as 1 worker\.$", said.output, re.M)
    assert re.search(r"^runs/half +9 of 12 trials, other\n", said.output, re.M)
    assert re.search(r"^runs/broken +unreadable\n", said.output, re.M)
    assert "notes" not in said.output
    as_json = json.loads(CliRunner().invoke(app, ["status", "--json"]).output)
    assert [(study["folder"], study["state"]) for study in as_json] == [
        ("runs/broken", "unreadable"),
        ("runs/done", "finished"),
        ("runs/half", "9 of 12 trials"),
    ]


def test_states_of_studies() -> None:
    study = StudyOverview(name="a", folder="runs/a", trials=12, ended=5)
    assert study.state == "5 of 12 trials"
    assert replace(study, running=True, failed=1).state == "running, 5 of 12 trials, 1 failed"
    assert replace(study, ended=12, failed=2).state == "finished, 2 failed"
    assert replace(study, error="locked").state == "unreadable"


def test_project_is_another_name_of_predict(home: Path) -> None:
    (home / "t.csv").write_text("workers,samples_per_s\n1,100\n2,190\n4,370\n")
    outputs = [CliRunner().invoke(app, [verb, "t.csv", "--workers", "8"]).output for verb in ("predict", "project")]
    assert outputs[0] == outputs[1]
    assert "8 workers" in outputs[0]
    assert "project " not in CliRunner().invoke(app, ["--help"]).output


@pytest.mark.parametrize(
    "command",
    [
        *("run", "plan", "status", "by-hand", "studies", "new", "predict", "report", "compare", "export", "serve"),
        *("data", "data list", "data fetch"),
    ],
)
def test_help_has_an_example(command: str) -> None:
    said = CliRunner().invoke(app, [*command.split(), "--help"])
    assert said.exit_code == 0, said.output
    assert f"Example: worldsize {command}" in said.output
