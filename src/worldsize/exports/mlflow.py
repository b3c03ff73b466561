"""Export to MLflow: one run per trial, in a SQLite file for `mlflow ui --backend-store-uri sqlite:///.../mlflow.db`."""

from __future__ import annotations

import logging
import os
import re
import shutil
import sqlite3
import tempfile
import warnings
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TypeVar

from worldsize.answer.results import Results
from worldsize.errors import visible
from worldsize.exports.tables import Scalar, epoch_rows, outcome, parameters, step_row
from worldsize.folder.record import TrialRecord

DATABASE = "mlflow.db"
STATUS = {"failed": "FAILED", "stopped": "KILLED"}
"""MLflow status by outcome; FINISHED for the rest. The tag `outcome` has worldsize's own term."""
MAX_METRICS, MAX_PARAMS = 1000, 100
"""Maximum number of entries that MLflow accepts in one call."""
MAX_CHARACTERS = 5000
T = TypeVar("T")
TELEMETRY = "MLFLOW_DISABLE_TELEMETRY"


def write_mlflow(results: Results, stage: Path, steps: bool, *, artifacts: Path) -> None:
    """Write the database to a local disk, then copy it: SQLite is unsafe on NFS and Lustre.

    `artifacts` is the folder for artifacts once the export is in place.
    """
    with _quiet(), tempfile.TemporaryDirectory() as local:
        database, snapshot = Path(local) / "open.db", Path(local) / DATABASE
        _write(results, database, artifacts.absolute().as_uri(), steps)
        # MLflow keeps its file open; SQLite's backup makes a consistent copy of it.
        with closing(sqlite3.connect(database)) as source, closing(sqlite3.connect(snapshot)) as copy:
            source.backup(copy)
        shutil.copyfile(snapshot, stage / DATABASE)


def _write(results: Results, database: Path, artifacts: str, steps: bool) -> None:
    from mlflow.entities import Metric, Param, RunTag
    from mlflow.tracking import MlflowClient

    client = MlflowClient(tracking_uri=f"sqlite:///{database}")
    experiment = client.create_experiment(results.spec.name, artifact_location=artifacts)
    for trial_id, record in results.records.items():
        began_ms, ended_ms = (round(time * 1000) for time in (record.started_at, record.started_at + record.wall_s))
        run = client.create_run(experiment, start_time=began_ms, run_name=trial_id).info.run_id
        params = [Param(key, _text(value)) for key, value in _params(results, trial_id).items()]
        tags = [RunTag(key, _text(value)) for key, value in _tags(results, trial_id, record).items()]
        metrics = [
            Metric(_key(name), value, round((record.started_at + at_s) * 1000), step)
            for name, value, at_s, step in _metrics(results, trial_id, record, steps)
        ]
        client.log_batch(run, params=params[:MAX_PARAMS], tags=tags)
        for chunk in _chunks(metrics, MAX_METRICS):
            client.log_batch(run, metrics=chunk)
        client.set_terminated(run, STATUS.get(record.outcome, "FINISHED"), ended_ms)


def _params(results: Results, trial_id: str) -> dict[str, Scalar]:
    fields = parameters(results.trials[trial_id])
    return {key: value for key, value in fields.items() if value is not None and key != "trial"}


def _tags(results: Results, trial_id: str, record: TrialRecord) -> dict[str, Scalar]:
    facts = {"study": results.spec.name, "trial": trial_id, **outcome(results, trial_id, record)}
    facts |= {key: value for key, value in record.environment.items() if isinstance(value, str | int | float)}
    return {_key(key): value for key, value in facts.items() if value is not None}


def _metrics(
    results: Results, trial_id: str, record: TrialRecord, steps: bool
) -> Iterator[tuple[str, float, float, int]]:
    """Yield name, value, seconds since the trial began, and step: the epoch number, or the step number with --steps."""
    for row in epoch_rows(record):
        at_s, epoch = row["time_s"], row["epoch"]
        assert isinstance(at_s, float)
        assert isinstance(epoch, int)
        for name, value in row.items():
            if name not in ("trial", "epoch") and isinstance(value, int | float):
                yield name, float(value), at_s, epoch
    if record.spans and len(results.folder.span_s(record)):
        for name, value in step_row(results, results.trials[trial_id]).items():
            if name.endswith("_s") and isinstance(value, float):
                yield f"median_{name}", value, record.wall_s, 0
        if steps:
            numbers = results.folder.counted_steps(record).steps.tolist()
            for number, seconds in zip(numbers, results.folder.step_s(record).max(axis=1).tolist(), strict=True):
                yield "each_step_s", seconds, record.wall_s, number


def _key(name: str) -> str:
    """Replace characters that MLflow refuses."""
    return re.sub(r"[^A-Za-z0-9_\-. /]", "_", name)[:250]


def _text(value: Scalar) -> str:
    return visible(str(value))[:MAX_CHARACTERS]


def _chunks(values: Sequence[T], most: int) -> Iterator[Sequence[T]]:
    return (values[start : start + most] for start in range(0, len(values), most))


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep MLflow from sending telemetry from a compute node, and from logging how it creates its tables."""
    previous = os.environ.get(TELEMETRY)
    os.environ.setdefault(TELEMETRY, "true")  # read at the first import
    loggers = [logging.getLogger(name) for name in ("mlflow", "alembic")]
    levels = [logger.level for logger in loggers]
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # SQLAlchemy warns about MLflow's code
            import mlflow.tracking  # noqa: F401 - its first import sets log levels

            for logger in loggers:
                logger.setLevel(logging.WARNING)
            yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
        if previous is None:
            del os.environ[TELEMETRY]
