"""Text from a study folder that would steer a terminal: shown everywhere, obeyed nowhere."""

from __future__ import annotations

import io
import shutil
import time
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from rich.console import Group
from rich.progress import Progress, TextColumn
from rich.table import Table
from rich.text import Text
from typer.testing import CliRunner

from tests.made import Made, write_end, write_study
from worldsize.cli.main import app
from worldsize.data.catalog import WorkloadFacts
from worldsize.errors import visible
from worldsize.exports.tables import cell
from worldsize.folder.files import write_json
from worldsize.folder.launches import JobFile, LaunchFolder
from worldsize.folder.record import Epoch, Failure, TrialRecord
from worldsize.launch.slurm.status import JobStatus
from worldsize.report.views.status import job_lines
from worldsize.report.write.console import console

STEERING = ["\x1b[2J", "\x9b31m", "\x07", "\x08", "\r", "\x7f", "\u202e", "\u2066", "\u200b", "\ufeff", "\ud800"]
HOSTILE = "evil" + "".join(each for each in STEERING if each != "\ud800")
STUDY = """\
name: hostile
workload: digits
axes: {workers: [1, 2], batch_per_worker: [100]}
train: {epochs: 2}
repeats: 2
oversubscribe: true
"""


def steers(text: str) -> list[str]:
    return [each for each in STEERING if each in text]


@pytest.mark.parametrize("text", STEERING)
def test_what_steers_is_written_out(text: str) -> None:
    assert not steers(visible(f"a{text}b"))
    assert visible(visible(text)) == visible(text)
    visible(text).encode()


@pytest.mark.parametrize("text", ["plain", "two\nlines\tand a tab", "Größe 3 µs – 90 %", "模型", "\\x1b"])
def test_what_does_not_is_left_alone(text: str) -> None:
    assert visible(text) == text


@pytest.mark.parametrize("terminal", [True, False])
def test_nothing_that_is_printed_steers(terminal: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if terminal:
        monkeypatch.setenv("FORCE_COLOR", "1")
        monkeypatch.setenv("TERM", "xterm")
    out, calm = console(), console()
    out.file, calm.file = io.StringIO(), io.StringIO()
    for each, name in ((out, HOSTILE), (calm, visible(HOSTILE))):
        table = Table(name, title=name)
        table.add_row(name, Text(name, style="bold"))
        for shown in (name, Text(name), Group(Text(name), table), Text.assemble((name, "red"), name)):
            each.print(shown, soft_wrap=True)
            each.print(shown, style="dim")
        with Progress(TextColumn("{task.description}", markup=False), console=each, auto_refresh=False) as bars:
            bars.add_task(name)
            bars.refresh()
    # Styles and cursor moves of our own are all that is left: the same with a text that has nothing to steer with.
    for steering in STEERING:
        assert out.file.getvalue().count(steering) == calm.file.getvalue().count(steering)
    assert "evil\\x1b[2J" in out.file.getvalue()


@pytest.mark.parametrize("text", STEERING)
def test_no_cell_of_a_csv_steers(text: str) -> None:
    shown = cell(f"a{text}b")
    assert isinstance(shown, str)
    assert not steers(shown)
    assert cell(f"={text}") == f"'={visible(text)}"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Whatever may be any text is hostile: hosts, devices, job ids, phases, errors, log lines, who runs it."""
    environment = {"device": "cpu", "host": HOSTILE, "gpu": HOSTILE, "torch": HOSTILE, "cores": 4}
    home = tmp_path_factory.mktemp("study") / "study"
    times = {"forward": 0.01, "communication": 0.002}
    results = write_study(home, STUDY, Made(times=lambda _: times, environment=environment))
    first, *_, last = results.trials
    failure = Failure(rank=0, step=1, error=HOSTILE, log=(HOSTILE, "[/bold]"))
    launch = "0001-probe-w2"
    results.folder.write_record(
        TrialRecord(trial=last, outcome="failed", launch=launch, started_at=1.0, wall_s=1.0, failure=failure)
    )
    told = {"phases_s": {HOSTILE: 1.0}, "culprit": HOSTILE, "cause": HOSTILE}
    write_end(home / "launches" / launch, **told, job=HOSTILE, attempts=2, queued_s=1.0)
    LaunchFolder(home / "launches" / launch).write(JobFile(name="ws-x", id="7", submitted_at=1.0))
    holder = {"host": HOSTILE, "pid": 1, "started_at": 1.0, "heartbeat_at": time.time() + 3600}
    write_json(home / "lock.json", holder)
    (results.folder.trial(first) / "record.json").unlink()
    (results.folder.trial(first) / "events.jsonl").write_text('{"event": "start"}\n', encoding="utf-8")
    return home


@pytest.mark.parametrize(
    "command",
    [
        *(["status", "DIR"], ["status", "DIR", "--json"], ["predict", "DIR"], ["predict", "DIR", "--json"]),
        *(["report", "DIR", "--live"], ["report", "DIR", "--json"], ["compare", "DIR", "COPY"]),
    ],
    ids=" ".join,
)
def test_no_command_steers_the_terminal(folder: Path, command: list[str], tmp_path: Path) -> None:
    places = {"DIR": str(folder), "COPY": str(shutil.copytree(folder, tmp_path / "copy"))}
    answer = CliRunner().invoke(app, [places.get(word, word) for word in command])
    assert answer.exit_code == 0, answer.output
    assert not steers(answer.output)


def test_status_shows_what_it_does_not_obey(folder: Path) -> None:
    output = CliRunner().invoke(app, ["status", str(folder)]).output
    assert "job evil\\x1b[2J\\x9b31m" in output
    assert "Run by process 1 on evil\\x1b[2J" in output
    assert "(rank 0, after step 1): evil\\x1b[2J" in output


def test_no_exported_table_steers(folder: Path, tmp_path: Path) -> None:
    answer = CliRunner().invoke(app, ["export", str(folder), "--to", "csv,parquet", "--out", str(tmp_path)])
    assert answer.exit_code == 0, answer.output
    texts = [path.read_bytes().decode() for path in tmp_path.glob("csv/*.csv")]
    texts += [str(pq.read_table(path).to_pydict()) for path in tmp_path.glob("parquet/*.parquet")]
    assert "evil\\x1b[2J" in "".join(texts)
    assert not [each for each in steers("".join(texts)) if each != "\r"]  # a CSV's own lines end with it
    assert "evil\r" not in "".join(texts)


def test_no_page_steers(folder: Path) -> None:
    assert CliRunner().invoke(app, ["report", str(folder), "--live"]).exit_code == 0
    for path in (folder / "report").rglob("*.html"):
        assert "evil\x1b" not in path.read_text(encoding="utf-8")


def test_job_lines(capsys: pytest.CaptureFixture[str]) -> None:
    job = JobStatus(launch="0001", id=HOSTILE, open=True, state=HOSTILE, why=HOSTILE, nodes=HOSTILE, reason=HOSTILE)
    for line in job_lines([job]):
        console().print(line, soft_wrap=True)
    assert not steers(capsys.readouterr().out)


@pytest.mark.parametrize("name", ["a\x1b[2J", "a\x9bb", "a\u202eb", "a\nb", "x" * 300])
def test_names_of_metrics_are_printable(name: str) -> None:
    common: dict[str, Any] = {"epoch": 0, "steps": 1, "samples": 1, "train_loss": 1.0, "train_s": 1.0}
    with pytest.raises(ValueError, match=r"test\."):
        Epoch(**common, evaluation_s=1.0, test={name: 1.0})
    facts: dict[str, Any] = {"title": "t", "train_samples": 1, "test_samples": 1, "train_flop_per_sample": 1.0}
    with pytest.raises(ValueError, match="metric"):
        WorkloadFacts(**facts, metric=name)
    assert WorkloadFacts(**facts, metric="précision (top 5)").metric == "précision (top 5)"
