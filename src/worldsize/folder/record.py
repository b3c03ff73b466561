"""The record of one trial, with everything that it measured. Strict JSON with a checksum."""

from __future__ import annotations

import hashlib
import itertools
import json
from collections.abc import Sequence
from typing import Any, Literal

from pydantic import Field, JsonValue

from worldsize.errors import StoreError
from worldsize.spec.base import FileName, Frozen, Label

SCHEMA = 4
SPAN_UNIT_S = 1e-7
"""Unit of stored spans: 0.1 microseconds. A uint32 holds a step of up to 429 s."""

SPANS = ("data", "copy", "forward", "backward", "communication", "optimizer", "rest")
"""The spans of a step on each rank: waiting for samples; copying them to the device; forward, including augmentation;
backward, until the last gradient of the rank is ready; communication after that, including waiting for slower ranks;
the optimizer; everything else. They add up to the duration of the step."""

BLOCKS = ("first_step", "steps", "cold_steps", "at_s", "disturbed")
"""Columns of the blocks of a probe: the row of its first step in the spans; its number of steps; how many of its first
steps do not count, because the ranks had just been woken; Unix time; and 1 if other work disturbed it."""

Outcome = Literal["finished", "diverged", "plateaued", "stopped", "out_of_memory", "failed"]
"""finished: ran to its end or to its target; the epochs tell whether it reached the target. plateaued: ended because
the metric no longer improved. stopped: pruned because others of its search were better. out_of_memory: its batch does
not fit, which is a result and not a failure."""


class ArrayFile(Frozen):
    """An array or weights in a separate file. Spans are uint32 arrays with a row per step."""

    rank: int
    name: FileName
    """Name of the file in the folder of the trial."""
    sha256: str


class Epoch(Frozen):
    """One pass over the training data, or the part of it that was trained."""

    epoch: int
    steps: int
    samples: int
    train_loss: float | None
    """Mean over the samples of the epoch, with the loss of each step before its update. None: not finite."""
    test: dict[Label, float] = Field(default_factory=dict)
    """Loss and metrics on the test samples after the epoch."""
    train: dict[Label, float] = Field(default_factory=dict)
    """The same on an equal number of training samples, without augmentation. The gap to `test` is overfitting."""
    test_samples: int = 0
    train_s: float
    evaluation_s: float


class Failure(Frozen):
    """Why a trial ended early: it failed, or its batch does not fit into memory."""

    rank: int | None
    """The rank that failed first, or None if that is unknown."""
    step: int | None
    """Number of completed steps, as counted by the failed rank or last reported by rank 0."""
    error: str
    log: tuple[str, ...] = ()
    """Last lines of output of the failed rank."""


class Try(Frozen):
    """One batch that a search for the largest batch tried."""

    batch_per_worker: int
    outcome: Literal["finished", "out_of_memory"]
    """The same on all ranks: if one runs out of memory, no rank continues with this batch."""
    ranks: tuple[int, ...] = ()
    """Ranks that ran out of memory."""
    samples_per_s: float | None = None
    """Throughput of all ranks, from the median step of rank 0. Only the search uses it; answers come from the spans."""
    precision_reached: bool | None = None
    memory_bytes: float | None = None
    """Peak memory over all ranks: tensors on a GPU, or the whole process on a CPU."""
    timed_from: float | None = None
    timed_until: float | None = None
    """Unix time, like `started_at` of the trial. Selects the telemetry of this batch."""
    warmup_steps: int = 0
    spans: tuple[ArrayFile, ...] = ()
    """Raw spans, like those of a trial."""


class TrialRecord(Frozen):
    schema_version: int = SCHEMA
    trial: FileName
    outcome: Outcome
    launch: FileName
    """Name of the launch that ran the trial."""
    started_at: float
    """Start of the trial, in Unix time."""
    wall_s: float
    phases_s: dict[str, float] = Field(default_factory=dict)
    """Wall time of rank 0 in each phase: preparation, warm-up, training, evaluation, gaps, saving."""
    columns: tuple[Label, ...] = SPANS
    """Columns of the spans."""
    warmup_steps: int = 0
    """Number of first steps that are recorded but excluded from the statistics."""
    spans: tuple[ArrayFile, ...] = ()
    blocks: ArrayFile | None = None
    """Probes that took turns with others: float64, one row per measured block, with the columns BLOCKS."""
    noise: tuple[ArrayFile, ...] = ()
    """If the study measures the noise scale: float32, one file per rank, one row per step, with |g|^2 of each part of
    the batch that the rank processed, then of the whole batch. NaN for partial batches."""
    exposed: tuple[ArrayFile, ...] = ()
    """Probes with several workers: uint32 rows of (1 with gradient exchange, 0 without; duration of the step)."""
    exchange: dict[str, float] = Field(default_factory=dict)
    """Bytes of gradients per step, and the times of an exchange by torch's own clock: total, and hidden by backward."""
    compute: dict[str, JsonValue] = Field(default_factory=dict)
    """Probes: FLOP per training sample, the peak FLOP/s of the device of a worker, and the source of that peak."""
    losses: ArrayFile | None = None
    """float32, the mean loss over the global batch for each step."""
    telemetry: tuple[ArrayFile, ...] = ()
    """float64, one file per rank, one row per sample: utilization and memory of its hardware. NaN: not available."""
    telemetry_columns: tuple[Label, ...] = ()
    weights: ArrayFile | None = None
    """The trained weights, if the study saves them."""
    transfer: tuple[str, ...] = ()
    """Initial weights that were not used, and why."""
    known: dict[str, float] = Field(default_factory=dict)
    """Properties that the workload knows in advance, such as the entropy of its source."""
    samples: int = 0
    """Number of samples that all ranks trained on."""
    epochs: tuple[Epoch, ...] = ()
    diverged_at_step: int | None = None
    precision_reached: bool | None = None
    """Probes: whether the step time is as precise as the study requests."""
    tries: tuple[Try, ...] = ()
    """Batches that a search for the largest batch tried, in order. They have the spans; the trial itself has none."""
    failure: Failure | None = None
    environment: dict[str, JsonValue] = Field(default_factory=dict)

    @property
    def metrics(self) -> dict[str, float]:
        """Loss and metrics of the last evaluation."""
        return next((epoch.test for epoch in reversed(self.epochs) if epoch.test), {})


def curve(epochs: Sequence[Epoch], metric: str) -> list[float]:
    """Return the metric after each epoch, up to the first evaluation without a finite value."""
    known = itertools.takewhile(lambda epoch: metric in epoch.test, epochs)
    return [epoch.test[metric] for epoch in known]


def search_curve(epochs: Sequence[Epoch], outcome: Outcome, metric: str, most: int) -> list[float]:
    """Return the curve that other trials of a search are compared with.

    If the trial reached its target or a plateau early, its last value is repeated up to `most` epochs.
    """
    values = curve(epochs, metric)
    if values and outcome in ("finished", "plateaued"):
        values += [values[-1]] * (most - len(values))
    return values


def to_json(record: TrialRecord) -> str:
    body = record.model_dump(mode="json")
    return json.dumps({**body, "sha256": _digest(body)}, indent=1, allow_nan=False) + "\n"


def from_json(text: str) -> TrialRecord:
    """Read a record. Raises ValueError for anything that `to_json` did not write."""
    body = parsed(text)
    if isinstance(body, dict) and isinstance(version := body.get("schema_version"), int) and version > SCHEMA:
        raise StoreError(
            f"a record of format {version} is from a newer worldsize (this one reads format {SCHEMA}); update worldsize"
        )
    if not isinstance(body, dict) or body.pop("sha256", None) != _digest(body):
        raise ValueError("the checksum does not match the content")
    if isinstance(version := body.get("schema_version"), int) and version < SCHEMA:
        raise StoreError(
            f"a record of format {version} is from an older worldsize (this one reads format {SCHEMA}); use the "
            "version that wrote the folder, or run the study again in a new folder"
        )
    return TrialRecord.from_plain(body)


def parsed(text: str) -> Any:
    """Parse strict JSON. Raises ValueError for invalid JSON, NaN, Infinity, and nesting that is too deep."""
    try:
        return json.loads(text, parse_constant=_refuse_constant)
    except RecursionError:
        raise ValueError("nested too deeply") from None


def _refuse_constant(word: str) -> Any:
    raise ValueError(f"{word} is not a number")


def _digest(body: Any) -> str:
    return hashlib.sha256(json.dumps(body, sort_keys=True, separators=(",", ":")).encode()).hexdigest()
