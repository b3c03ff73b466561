"""Export to TensorBoard event files, with TensorBoard's own writer: one run per trial, with its hyperparameters."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.plugins.hparams.summary_v2 import hparams_pb
from tensorboard.summary.writer.event_file_writer import EventFileWriter

from worldsize.answer.results import Results
from worldsize.errors import visible
from worldsize.exports.tables import epoch_rows, finals, parameters, safe_name, step_row
from worldsize.folder.record import TrialRecord
from worldsize.spec.study import TrialSpec

SCALARS = ("train_s", "evaluation_s", "train_loss")
"""Values of an epoch that are exported in addition to its metrics."""


def write_tensorboard(results: Results, stage: Path, steps: bool) -> None:
    """Write one folder per trial, which `tensorboard --logdir` shows as a run of that name."""
    for trial_id, record in results.records.items():
        trial = results.trials[trial_id]
        writer = EventFileWriter(str(stage / safe_name(trial_id)))
        try:
            facts = parameters(trial).items()
            known = {
                key: visible(value) if isinstance(value, str) else value for key, value in facts if value is not None
            }
            hparams = hparams_pb(known, trial_id=trial_id, start_time_secs=record.started_at)
            writer.add_event(Event(wall_time=record.started_at, summary=hparams))
            for tag, step, at_s, value in _scalars(results, trial, record, steps):
                summary = Summary(value=[Summary.Value(tag=tag, simple_value=value)])
                writer.add_event(Event(wall_time=record.started_at + at_s, step=step, summary=summary))
        finally:
            writer.close()


def _scalars(
    results: Results, trial: TrialSpec, record: TrialRecord, steps: bool
) -> Iterator[tuple[str, int, float, float]]:
    """Yield tag, step, seconds since the trial began, and value. Tags are `test/accuracy`, `train/loss` and so on."""
    for row in epoch_rows(record):
        step, at_s = row["step"], row["time_s"]
        assert isinstance(step, int)
        assert isinstance(at_s, float)
        for name, value in row.items():
            known = name in SCALARS or name.startswith(("test_", "trained_"))
            if known and isinstance(value, int | float):
                yield _tag(name), step, at_s, float(value)
    for name, value in finals(record).items():
        assert isinstance(value, float)
        yield f"final/{name.removeprefix('test_')}", 0, record.wall_s, value
    if record.spans and len(results.folder.span_s(record)):
        for name, value in step_row(results, trial).items():
            if name.endswith("_s") and isinstance(value, float):
                yield f"step/{name}", 0, record.wall_s, value
        if steps:
            numbers = results.folder.counted_steps(record).steps.tolist()
            for number, seconds in zip(numbers, results.folder.step_s(record).max(axis=1).tolist(), strict=True):
                yield "step/each_s", number, record.wall_s, seconds


def _tag(name: str) -> str:
    """Return the tag of a value. TensorBoard groups tags by the part before the slash."""
    if name in ("train_s", "evaluation_s"):
        return f"time/{name}"
    group, _, rest = name.partition("_")
    return f"{group}/{rest}"
