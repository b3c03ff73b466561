"""Export to plain tables: trials, epochs, the parts of steps, and settings; every step of every rank on request.

CSV: RFC 4180, UTF-8, an empty cell for a missing value. Text that a spreadsheet would run as a formula is marked as
text. Parquet: the same tables with their types.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from worldsize.answer.results import Results
from worldsize.errors import visible
from worldsize.folder.record import SPANS, TrialRecord
from worldsize.report.write.tables import csv_text
from worldsize.spec.study import TrialSpec

if TYPE_CHECKING:
    import pyarrow as pa

Scalar = str | int | float | bool | None
FACTS = ("host", "device", "gpu", "torch", "worldsize")
"""Environment facts that are exported for each trial."""


@dataclass(frozen=True, kw_only=True)
class ExportTable:
    name: str
    columns: tuple[str, ...]
    rows: tuple[tuple[Scalar, ...], ...]


def tables(results: Results) -> list[ExportTable]:
    """Return the tables of a study. Each cell is a number, text, a boolean, or None for a missing value."""
    trials = list(results.trials.values())
    return [
        _table("trials", (trial_row(results, trial) for trial in trials)),
        _table("epochs", (row for trial in trials for row in epoch_rows(results.records.get(trial.id)))),
        _table("steps", (step_row(results, trial) for trial in trials if _has_spans(results, trial))),
        _table("settings", results.to_rows()),
    ]


def span_tables(results: Results) -> Iterator[ExportTable]:
    """Yield the seconds of every step of every rank that counts: a table per trial, to keep only one in memory."""
    for trial in results.trials.values():
        if _has_spans(results, trial):
            record = results.records[trial.id]
            spans, steps = results.folder.span_s(record), results.folder.counted_steps(record).steps.tolist()
            columns = ("step", "rank", *(f"{name}_s" for name in SPANS))
            rows = tuple(
                (step, rank, *spans[index, rank].tolist())
                for index, step in enumerate(steps)
                for rank in range(spans.shape[1])
            )
            yield ExportTable(name=safe_name(trial.id), columns=columns, rows=rows)


def trial_row(results: Results, trial: TrialSpec) -> dict[str, Scalar]:
    record = results.records.get(trial.id)
    return {**parameters(trial), **outcome(results, trial.id, record), **_ran(record), **finals(record)}


def parameters(trial: TrialSpec) -> dict[str, Scalar]:
    """Return the parameters of a trial. The optimizer and learning rates are None for a probe."""
    trained = trial.kind != "probe"
    optimizer = trial.optimizer
    return {
        "trial": trial.id,
        "kind": trial.kind,
        "workload": trial.workload.name,
        "model": trial.workload.model,
        "workers": trial.workers,
        "batch_per_worker": trial.batch_per_worker,
        "accumulation": trial.accumulation,
        "global_batch": trial.global_batch,
        "scaling": trial.scaling,
        "strategy": trial.strategy.label,
        "precision": trial.precision,
        "place": trial.place or None,
        "optimizer": optimizer.family if trained else None,
        "momentum": optimizer.momentum if trained else None,
        "weight_decay": optimizer.weight_decay if trained else None,
        "lr": optimizer.lr if trained else None,
        "peak_lr": trial.peak_lr if trained else None,
        "variant": trial.variant if trained else None,
        "repeat": trial.repeat,
        "seed": trial.seed,
    }


def outcome(results: Results, trial_id: str, record: TrialRecord | None) -> dict[str, Scalar]:
    """Return how the trial ended; `left` if it has not run yet."""
    if record is None:
        return {"outcome": "damaged" if trial_id in results.damaged else "left"}
    failure = record.failure.error.splitlines() if record.failure else []
    return {
        "outcome": record.outcome,
        "diverged_at_step": record.diverged_at_step,
        "failure": failure[0] if failure else None,
        "launch": record.launch,
    }


def finals(record: TrialRecord | None) -> dict[str, Scalar]:
    """Return the metrics of the last evaluation."""
    return {f"test_{name}": value for name, value in record.metrics.items()} if record else {}


def epoch_rows(record: TrialRecord | None) -> Iterator[dict[str, Scalar]]:
    """Yield one row per epoch. `step` and `time_s` count from the start of the trial's training."""
    step, time_s = 0, 0.0
    for epoch in record.epochs if record else ():
        step, time_s = step + epoch.steps, time_s + epoch.train_s
        assert record is not None
        yield {
            "trial": record.trial,
            "epoch": epoch.epoch,
            "step": step,
            "time_s": time_s,
            "steps": epoch.steps,
            "samples": epoch.samples,
            "train_s": epoch.train_s,
            "evaluation_s": epoch.evaluation_s,
            "train_loss": epoch.train_loss,
            **{f"test_{name}": value for name, value in epoch.test.items()},
            **{f"trained_{name}": value for name, value in epoch.train.items()},
        }


def step_row(results: Results, trial: TrialSpec) -> dict[str, Scalar]:
    """Return medians over the steps after warm-up: of the slowest rank's step, and of each span's mean over ranks."""
    record = results.records[trial.id]
    spans = results.folder.span_s(record)
    slowest = spans.sum(axis=2).max(axis=1)
    medians = np.median(spans.mean(axis=1), axis=0).tolist()
    return {
        "trial": trial.id,
        "steps": len(slowest),
        "step_s": float(np.median(slowest)),
        **{f"{name}_s": value for name, value in zip(SPANS, medians, strict=True)},
    }


def safe_name(text: str) -> str:
    """Return a safe file or folder name: no separators, not hidden."""
    return re.sub(r"[^A-Za-z0-9._-]", "_", text).lstrip(".") or "_"


def _ran(record: TrialRecord | None) -> dict[str, Scalar]:
    if record is None:
        return {}
    facts = {name: record.environment.get(name) for name in FACTS}
    return {
        "started_at": record.started_at,
        "wall_s": record.wall_s,
        "samples": record.samples,
        "epochs": len(record.epochs),
        **{name: None if value is None else str(value) for name, value in facts.items()},
    }


def _has_spans(results: Results, trial: TrialSpec) -> bool:
    record = results.records.get(trial.id)
    return record is not None and bool(record.spans) and len(results.folder.span_s(record)) > 0


def _table(name: str, rows: Iterable[dict[str, Scalar]]) -> ExportTable:
    """Build a table. Columns are in the order of first appearance; a missing value is None."""
    rows = list(rows)
    columns = tuple(dict.fromkeys(column for row in rows for column in row))
    return ExportTable(name=name, columns=columns, rows=tuple(tuple(row.get(key) for key in columns) for row in rows))


def write_tables(results: Results, stage: Path, steps: bool, *, suffix: str) -> None:
    """Write the tables as CSV or Parquet."""
    write = {"csv": _write_csv, "parquet": _write_parquet}[suffix]
    for table in tables(results):
        write(stage / f"{table.name}.{suffix}", table)
    for table in span_tables(results) if steps else ():
        write(stage / "spans" / f"{table.name}.{suffix}", table)


def cell(value: Scalar) -> Scalar:
    """Return a CSV cell. Numbers stay as they are, including -0.1. Text that begins like a formula gets a leading
    quote, and control characters are escaped."""
    return csv_text(value) if isinstance(value, str) else value


def _write_csv(path: Path, table: ExportTable) -> None:
    path.parent.mkdir(exist_ok=True)
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(map(cell, table.columns))
        writer.writerows(map(cell, row) for row in table.rows)


def _write_parquet(path: Path, table: ExportTable) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    path.parent.mkdir(exist_ok=True)
    values = zip(*table.rows, strict=True) if table.rows else ((),) * len(table.columns)
    columns = {name: _parquet_column(list(cells)) for name, cells in zip(table.columns, values, strict=True)}
    pq.write_table(pa.table(columns), path)


def _parquet_column(cells: list[Scalar]) -> pa.Array:
    """Return a column with one type for all values: floats for 1 and 1.5, null if there are no values."""
    import pyarrow as pa

    values = [visible(cell) if isinstance(cell, str) else cell for cell in cells]
    types = {type(value) for value in values if value is not None}
    if types == {int, float}:
        types = {float}
    if len(types) > 1:
        return pa.array([None if value is None else str(value) for value in values], pa.string())
    arrow_types = {str: pa.string(), bool: pa.bool_(), int: pa.int64(), float: pa.float64()}
    return pa.array(values, arrow_types[types.pop()] if types else pa.null())
