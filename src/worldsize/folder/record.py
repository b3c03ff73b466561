"""What was measured: the record of one trial, raw values first. Strict JSON, with a checksum over itself."""

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
"""Spans are stored as whole tenths of a microsecond: uint32 holds a step of up to 429 s."""

SPANS = ("data", "copy", "forward", "backward", "communication", "optimizer", "rest")
"""Where a step goes, on each rank: waiting for samples, copying them to the device, forward (with preparing and varying
inputs), backward until the last gradient of the rank is there, what communication takes after that (waiting for slower
ranks included), the optimizer, everything else. They add up to the step."""

Outcome = Literal["finished", "diverged", "plateaued", "stopped", "out_of_memory", "failed"]
"""finished: ran to its end, or to its target. plateaued: no longer got better. stopped: hopeless beside the others of
its search. out_of_memory: its batch does not fit, which is a result and not a failure. Whether and when a target was
reached follows from the epochs."""


class ArrayFile(Frozen):
    """Raw spans of the steps of one rank: a uint32 array, one row per step, one column per span."""

    rank: int
    name: FileName
    """In the folder of the trial."""
    sha256: str


class Epoch(Frozen):
    """One pass over the training data, or the part of one that was trained."""

    epoch: int
    steps: int
    samples: int
    train_loss: float | None
    """Mean over the samples of the epoch, each step's loss taken before its update. None: not finite."""
    test: dict[Label, float] = Field(default_factory=dict)
    """Loss and metrics on the test samples after the epoch."""
    train: dict[Label, float] = Field(default_factory=dict)
    """The same on as many training samples, unvaried: what the two differ by is overfitting."""
    test_samples: int = 0
    train_s: float
    evaluation_s: float


class Failure(Frozen):
    """Why a trial ended before its time: it failed, or its batch does not fit into memory."""

    rank: int | None
    """The first rank that failed; None where no rank could be blamed."""
    step: int | None
    """Steps done: as the failing rank counted them, or as rank 0 last reported."""
    error: str
    log: tuple[str, ...] = ()
    """The last lines that the failing rank printed."""


class Try(Frozen):
    """One batch that the search for the largest tried."""

    batch_per_worker: int
    outcome: Literal["finished", "out_of_memory"]
    """The same on all ranks: where one is out of memory, none goes on."""
    ranks: tuple[int, ...] = ()
    """The ranks that were out of memory."""
    samples_per_s: float | None = None
    """Over all ranks, from the median step of rank 0; only the search itself uses it. Answers come from the spans."""
    precision_reached: bool | None = None
    memory_bytes: float | None = None
    """The most that a rank held: in tensors on its GPU; on a CPU, as a process."""
    timed_from: float | None = None
    timed_until: float | None = None
    """Unix time, as `started_at` of the trial: which rows of its telemetry are of this batch."""
    warmup_steps: int = 0
    spans: tuple[ArrayFile, ...] = ()
    """Raw, as those of a trial."""


class TrialRecord(Frozen):
    schema_version: int = SCHEMA
    trial: FileName
    outcome: Outcome
    launch: FileName
    """The folder of the launch that ran it."""
    started_at: float
    """Unix time."""
    wall_s: float
    phases_s: dict[str, float] = Field(default_factory=dict)
    """Where rank 0's wall time above the step went: preparation, warm-up, training, evaluation, gaps, saving."""
    columns: tuple[Label, ...] = SPANS
    """What the columns of the spans are."""
    warmup_steps: int = 0
    """Number of first steps that are recorded but left out of the statistics."""
    spans: tuple[ArrayFile, ...] = ()
    noise: tuple[ArrayFile, ...] = ()
    """float32, one file per rank, where the study asks for the noise scale: a row per step, with |g|^2 of each part of
    the batch that the rank computed, then of the whole batch. NaN for partial batches."""
    exposed: tuple[ArrayFile, ...] = ()
    """For a probe with several workers: uint32 rows of (1 with the exchange of gradients, 0 without; the step)."""
    exchange: dict[str, float] = Field(default_factory=dict)
    """Bytes of gradients per step; an exchange as timed by torch itself, in total and overlapped with backward."""
    compute: dict[str, JsonValue] = Field(default_factory=dict)
    """For a probe: FLOP per training sample, the peak of a worker's device, and where that number comes from."""
    losses: ArrayFile | None = None
    """float32, one per step: the mean loss over the global batch."""
    telemetry: tuple[ArrayFile, ...] = ()
    """float64, one row per sample, one file per rank: how busy and how full its hardware was. NaN: not seen there."""
    telemetry_columns: tuple[Label, ...] = ()
    weights: ArrayFile | None = None
    """The trained weights, where the study keeps them."""
    transfer: tuple[str, ...] = ()
    """Which of the initial weights were left out, and why."""
    known: dict[str, float] = Field(default_factory=dict)
    """What the workload knows in advance, such as the entropy of its source."""
    samples: int = 0
    """Samples trained on, over all ranks."""
    epochs: tuple[Epoch, ...] = ()
    diverged_at_step: int | None = None
    precision_reached: bool | None = None
    """Probes only: whether the median step time is as precise as the study asks for."""
    tries: tuple[Try, ...] = ()
    """What a search for the largest batch tried, in order; the spans are theirs, and the trial itself has none."""
    failure: Failure | None = None
    environment: dict[str, JsonValue] = Field(default_factory=dict)

    @property
    def metrics(self) -> dict[str, float]:
        """Loss and metrics of the last evaluation."""
        return next((epoch.test for epoch in reversed(self.epochs) if epoch.test), {})


def curve(epochs: Sequence[Epoch], metric: str) -> list[float]:
    """Up to the first evaluation that gave no finite value."""
    known = itertools.takewhile(lambda epoch: metric in epoch.test, epochs)
    return [epoch.test[metric] for epoch in known]


def search_curve(epochs: Sequence[Epoch], outcome: Outcome, metric: str, most: int) -> list[float]:
    """What other trials of a search are compared with. A trial that ended early because it was good enough keeps its
    last value."""
    values = curve(epochs, metric)
    if values and outcome in ("finished", "plateaued"):
        values += [values[-1]] * (most - len(values))
    return values


def to_json(record: TrialRecord) -> str:
    body = record.model_dump(mode="json")
    return json.dumps({**body, "sha256": _digest(body)}, indent=1, allow_nan=False) + "\n"


def from_json(text: str) -> TrialRecord:
    """Raises ValueError for whatever is not exactly what `to_json` wrote."""
    body = parsed(text)
    if isinstance(body, dict) and isinstance(version := body.get("schema_version"), int) and version > SCHEMA:
        raise StoreError(
            f"a record of format {version} was made by a newer worldsize (this one reads {SCHEMA}); update it"
        )
    if not isinstance(body, dict) or body.pop("sha256", None) != _digest(body):
        raise ValueError("the checksum does not fit the content")
    if isinstance(version := body.get("schema_version"), int) and version < SCHEMA:
        raise StoreError(
            f"a record of format {version} was made by an older worldsize (this one reads {SCHEMA}); use the version "
            "that made the folder, or run the study again in a new folder"
        )
    return TrialRecord.from_plain(body)


def parsed(text: str) -> Any:
    """Strict JSON. Raises ValueError for anything else, for NaN and Infinity as words, and for too deep nesting."""
    try:
        return json.loads(text, parse_constant=_no_number)
    except RecursionError:
        raise ValueError("nested too deeply") from None


def _no_number(word: str) -> Any:
    raise ValueError(f"{word} is not a number")


def _digest(body: Any) -> str:
    return hashlib.sha256(json.dumps(body, sort_keys=True, separators=(",", ":")).encode()).hexdigest()
