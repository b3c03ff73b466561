"""What was exported, read back with the libraries that it was exported for."""

from __future__ import annotations

import csv
import json
import subprocess
import sys
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.plugins.hparams.plugin_data_pb2 import HParamsPluginData
from typer.testing import CliRunner

from tests.made import STEPS, Made, write_study
from worldsize.answer.results import Results, load
from worldsize.cli.main import app
from worldsize.errors import InputError, OutputError
from worldsize.exports import study
from worldsize.exports.study import MARK, check_formats, export_study
from worldsize.exports.tables import cell, safe_name, tables
from worldsize.folder.record import Failure, TrialRecord

STUDY = """\
name: exported
workload: digits
axes: {workers: [1, 2], batch_per_worker: [100]}
train: {epochs: 3}
repeats: 2
oversubscribe: true
"""


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Results:
    """Eight trials: one failed with a hostile message, one has not run."""
    made = Made(
        times=lambda trial: {"forward": 0.01, "communication": 0.002 * (trial.workers - 1)},
        accuracy=lambda trial, steps: 0.5 + 0.1 * trial.repeat + steps / 10_000,
        environment={"device": "cpu", "host": "node", "torch": "2.13.0"},
    )
    home = tmp_path_factory.mktemp("study")
    found = write_study(home, STUDY, made)
    first, second = list(found.trials)[-2:]
    failure = Failure(rank=0, step=1, error="=HYPERLINK(1)\nmore")
    failed = TrialRecord(trial=first, outcome="failed", launch="l", started_at=5.0, wall_s=1.0, failure=failure)
    found.folder.write_record(failed)
    (found.folder.trial(second) / "record.json").unlink()
    return load(home)


def trained(results: Results) -> str:
    return next(trial.id for trial in results.trials.values() if trial.kind == "train" and trial.workers == 1)


def read_csv(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def test_csv_read_back(results: Results, tmp_path: Path) -> None:
    (written,) = export_study(results, ["csv"], tmp_path / "out")
    trials = {row["trial"]: row for row in read_csv(written / "trials.csv")}
    assert trials.keys() == results.trials.keys()
    row = trials[trained(results)]
    assert (row["workers"], row["optimizer"], row["outcome"], row["host"]) == ("1", "sgd", "finished", "node")
    assert float(row["test_accuracy"]) == results.records[trained(results)].metrics["accuracy"]
    failed, left = list(trials.values())[-2:]
    assert (failed["outcome"], failed["failure"]) == ("failed", "'=HYPERLINK(1)")
    assert (left["outcome"], left["wall_s"]) == ("left", "")
    epochs = [row for row in read_csv(written / "epochs.csv") if row["trial"] == trained(results)]
    assert [(row["epoch"], row["step"]) for row in epochs] == [("0", "120"), ("1", "240"), ("2", "360")]
    steps = {row["trial"]: row for row in read_csv(written / "steps.csv")}
    assert float(steps[trained(results)]["forward_s"]) == pytest.approx(0.01, rel=0.1)
    settings = read_csv(written / "settings.csv")
    assert [float(row["step_s"]) for row in settings] == [row.step_s.value for row in results.rows]
    lows = [float(row["speedup_low"]) if row["speedup_low"] else None for row in settings]
    assert lows == [row.speedup.low for row in results.rows]
    assert any(lows)
    assert not (written / "spans").exists()


def test_every_step_on_request(results: Results, tmp_path: Path) -> None:
    csv_at, parquet_at = export_study(results, ["csv", "parquet"], tmp_path, steps=True)
    two = next(trial.id for trial in results.trials.values() if trial.workers == 2)
    rows = read_csv(csv_at / "spans" / f"{two}.csv")
    assert len(rows) == STEPS * 2
    spans = results.folder.span_s(results.records[two])
    assert [float(row["forward_s"]) for row in rows] == spans[:, :, 2].ravel().tolist()
    assert pq.read_table(parquet_at / "spans" / f"{two}.parquet")["rank"].to_pylist() == [0, 1] * STEPS


def test_parquet_read_back_with_its_types(results: Results, tmp_path: Path) -> None:
    (written,) = export_study(results, ["parquet"], tmp_path)
    for table in tables(results):
        found = pq.read_table(written / f"{table.name}.parquet")
        assert tuple(found.column_names) == table.columns
        assert list(zip(*(found[name].to_pylist() for name in table.columns), strict=True)) == list(table.rows)
    schema = pq.read_schema(written / "trials.parquet")
    kinds = {name: str(schema.field(name).type) for name in ("trial", "workers", "lr", "model", "failure")}
    assert kinds == {"trial": "string", "workers": "int64", "lr": "double", "model": "null", "failure": "string"}


def test_tensorboard_reads_it(results: Results, tmp_path: Path) -> None:
    (written,) = export_study(results, ["tensorboard"], tmp_path, steps=True)
    assert {path.name for path in written.iterdir()} == {MARK, *results.records}
    events = EventAccumulator(str(written / trained(results)), size_guidance={"scalars": 0})
    events.Reload()
    accuracy = events.Scalars("test/accuracy")
    assert [each.step for each in accuracy] == [120, 240, 360]
    assert [each.value for each in accuracy] == pytest.approx([0.512, 0.524, 0.536])
    assert events.Scalars("step/step_s")[0].value == pytest.approx(0.01, rel=0.1)
    assert len(events.Scalars("step/each_s")) == STEPS
    (tag,) = [tag for tag in events.summary_metadata if tag.endswith("session_start_info")]
    data = HParamsPluginData.FromString(events.summary_metadata[tag].plugin_data.content)
    hparams = data.session_start_info.hparams
    assert (hparams["workers"].number_value, hparams["optimizer"].string_value) == (1, "sgd")


@pytest.mark.long
def test_mlflow_reads_it(results: Results, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (written,) = export_study(results, ["mlflow"], tmp_path)
    assert capfd.readouterr() == ("", "")
    assert {path.name for path in written.iterdir()} == {MARK, "mlflow.db"}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from mlflow.tracking import MlflowClient

        client = MlflowClient(tracking_uri=f"sqlite:///{written / 'mlflow.db'}")
        experiment = client.get_experiment_by_name("exported")
        runs = {run.info.run_name: run for run in client.search_runs([experiment.experiment_id])}
        run = runs[trained(results)]
        history = client.get_metric_history(run.info.run_id, "test_accuracy")
    assert runs.keys() == results.records.keys()
    assert (run.data.params["workers"], run.data.params["optimizer"]) == ("1", "sgd")
    assert (run.data.tags["outcome"], run.data.tags["torch"], run.info.status) == ("finished", "2.13.0", "FINISHED")
    assert [(each.step, each.value) for each in history] == [(0, 0.512), (1, 0.524), (2, 0.536)]
    assert run.data.metrics["median_step_s"] == pytest.approx(0.01, rel=0.1)
    failed = next(run for run in runs.values() if run.info.status == "FAILED")
    assert failed.data.tags["failure"] == "=HYPERLINK(1)"
    assert (failed.info.start_time, failed.info.end_time) == (5000, 6000)


@pytest.mark.parametrize("text", ["=1+1", "+1", "-1", "@SUM(A1)", "\t=1", "\n=1"])
def test_text_that_a_spreadsheet_would_run_is_quoted(text: str) -> None:
    assert cell(text) == f"'{text}"


@pytest.mark.parametrize("value", [-0.5, -1, 1e-9, None, True, "plain", "a=b", "0001-w1"])
def test_numbers_and_plain_text_are_not(value: Any) -> None:
    assert cell(value) is value


@pytest.mark.parametrize(
    ("name", "safe"), [("0001-w1", "0001-w1"), ("../up", "_up"), ("..", "_"), ("a/b", "a_b"), ("a\0b", "a_b")]
)
def test_names_lead_nowhere(name: str, safe: str) -> None:
    assert safe_name(name) == safe


def test_what_is_there_already(results: Results, tmp_path: Path) -> None:
    """An export is replaced; what somebody else put there is not."""
    list(export_study(results, ["csv"], tmp_path, steps=True))
    list(export_study(results, ["csv"], tmp_path))
    assert not (tmp_path / "csv" / "spans").exists()
    assert [path.name for path in tmp_path.iterdir()] == ["csv"]
    (tmp_path / "parquet").mkdir()
    (tmp_path / "parquet" / "mine.parquet").touch()
    with pytest.raises(OutputError, match=r"contains mine.parquet, not written by an export; .*another --out"):
        list(export_study(results, ["parquet"], tmp_path))
    (tmp_path / "mlflow").symlink_to(tmp_path / "csv")
    with pytest.raises(OutputError, match="exists and is not a folder"):
        list(export_study(results, ["mlflow"], tmp_path))
    assert [path.name for path in (tmp_path / "parquet").iterdir()] == ["mine.parquet"]


def test_an_export_that_fails_leaves_the_one_before(
    results: Results, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    list(export_study(results, ["csv"], tmp_path))
    before = (tmp_path / "csv" / "trials.csv").read_bytes()

    def fails(_: Results, stage: Path, *__: object) -> None:
        (stage / "trials.csv").write_text("half")
        raise OSError("no space left")

    monkeypatch.setattr(study, "_writer", lambda *_: fails)
    with pytest.raises(OSError, match="no space"):
        list(export_study(results, ["csv"], tmp_path))
    assert (tmp_path / "csv" / "trials.csv").read_bytes() == before
    assert [path.name for path in tmp_path.iterdir()] == ["csv"]


def test_a_format_that_is_unknown_or_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    assert check_formats("csv, parquet,csv") == check_formats(["csv", "parquet"]) == ("csv", "parquet")
    for text in ("", "xlsx"):
        with pytest.raises(InputError, match="choose any of csv, parquet, tensorboard, mlflow"):
            check_formats(text)
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    with pytest.raises(
        InputError, match=r"needs pyarrow, which is not installed; run `pip install 'worldsize\[parquet\]'`"
    ):
        check_formats("parquet")


def test_the_command_writes_below_the_study(results: Results) -> None:
    home = results.folder.path
    answer = CliRunner().invoke(app, ["export", str(home), "--to", "csv"])
    assert answer.exit_code == 0, answer.output
    assert answer.output.strip() == str(home / "export" / "csv")
    mark = json.loads((home / "export" / "csv" / MARK).read_text())
    assert (mark["study"], mark["trials"], mark["records"]) == ("exported", 8, 7)
    refused = CliRunner().invoke(app, ["export", str(home), "--to", "xlsx"])
    assert refused.exit_code == 2
    assert "Invalid value for '--to': 'xlsx' is not an export format" in refused.output


def test_a_study_of_which_nothing_ran_has_empty_tables(results: Results, tmp_path: Path) -> None:
    nothing = replace(results, records={})
    csv_at, parquet_at = export_study(nothing, ["csv", "parquet"], tmp_path)
    assert {row["outcome"] for row in read_csv(csv_at / "trials.csv")} == {"left"}
    assert pq.read_table(parquet_at / "epochs.parquet").num_rows == 0


def test_no_exporter_loads_torch() -> None:
    modules = ("tables", "tensorboard", "mlflow")
    check = "".join(f"import worldsize.exports.{name}\n" for name in modules)
    check += "import sys\nwith worldsize.exports.mlflow._quiet(): pass\nsys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", check], check=False).returncode == 0


def test_medians_are_of_the_slowest_rank(results: Results) -> None:
    (steps,) = [table for table in tables(results) if table.name == "steps"]
    for row in (dict(zip(steps.columns, row, strict=True)) for row in steps.rows):
        record = results.records[str(row["trial"])]
        assert row["step_s"] == np.median(results.folder.step_s(record).max(axis=1))
