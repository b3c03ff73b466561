"""The study folder: atomic writes, one writer a file, records that are whole or not there.

runs/<name>/
  study.yaml            as given, defaults filled in
  plan.json             trials, launches, order, estimate
  lock.json             who is running the study
  launches/0001-probe-w2/
    launch.json         the trials to run and all that is fixed at process start
    rank00.log          what a rank printed, with a line where each trial begins
    failure-rank00.json why a rank failed
    torchrun.log        what the launcher printed
    phases.json         where the time of rank 0 went, from process start to the last trial
    end.json            how the launch ended, its wall time and where that went
  trials/0007-w4-b128-sgd-r0/
    spec.json           all that the worker needs
    events.jsonl        appended by rank 0 while it runs
    spans-rank03.npy    raw step spans, one file a rank; of a search for the largest batch, spans-b256-rank03.npy, ...
    noise-rank03.npy    square norms of gradients, where `train.noise_scale` asks for them
    losses.npy          the loss of every step
    telemetry-rank03.npy   how busy and how full the hardware of a rank was, over time
    log.txt             what the processes printed, each line with its rank
    record.json         written last
"""

from __future__ import annotations

import errno
import hashlib
import io
import json
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from worldsize.errors import StoreError
from worldsize.record import SPAN_UNIT_S, SpanFile, TrialRecord, from_json, to_json
from worldsize.spec import TrialSpec

TRIAL_MARK = "--- trial "
"""Begins the line in a rank's log that separates one trial's output from the next."""


ROOM_BYTES = 2**18
"""A disk with less room than this is full: what a trial saves may be larger."""
TEMPORARY = ".tmp"
"""Ends the names of files that `write_atomic` has not yet put in place; a killed process leaves them behind."""


def write_atomic(path: Path, content: bytes) -> None:
    """Whole or not at all, also after a power cut: temporary name, fsync, rename, fsync the folder."""
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=TEMPORARY)
    temporary = Path(name)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        temporary.chmod(0o644)
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def write_json(path: Path, value: Any) -> None:
    write_atomic(path, (json.dumps(value, indent=1, allow_nan=False) + "\n").encode())


def read_json(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))


def save_array(path: Path, rank: int, array: npt.NDArray[Any]) -> SpanFile:
    """A plain .npy, never pickled; its checksum goes into the record."""
    content = io.BytesIO()  # numpy's own writing to a file does not say that the disk is full
    np.save(content, array, allow_pickle=False)
    with path.open("wb") as file:
        file.write(content.getbuffer())
        file.flush()
        os.fsync(file.fileno())
    return SpanFile(rank=rank, name=path.name, sha256=hashlib.sha256(content.getbuffer()).hexdigest())


def is_disk_full(error: BaseException) -> bool:
    return isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT)


def has_room(folder: Path) -> bool:
    """Whether a file can still be written there. Free space alone would not tell: a quota may be used up."""
    try:
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(bytes(ROOM_BYTES))
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        if is_disk_full(error):
            return False
        raise
    return True


class StudyFolder:
    """Paths and reading for everybody; the methods that write say who their one caller is."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.study_file = path / "study.yaml"
        self.plan_file = path / "plan.json"

    @classmethod
    def existing(cls, path: Path) -> StudyFolder:
        folder = cls(path)
        if not folder.study_file.is_file():
            raise StoreError(f"{path} is not a study folder (no study.yaml in it); give the folder that `run` made")
        return folder

    def unfinished(self) -> bool:
        """Whether the folder holds nothing but what a driver leaves that was killed during its first writes."""
        ours = {"lock.json", "plan.json", ".lock.guard", *(path.name for path in self._temporaries())}
        return self.path.is_dir() and {path.name for path in self.path.iterdir()} <= ours

    def remove_temporaries(self) -> None:
        """Of files that only the driver writes. By the driver, under its lock."""
        for path in self._temporaries():
            path.unlink(missing_ok=True)

    def _temporaries(self) -> list[Path]:
        names = ("lock.json", "plan.json", "study.yaml")
        return [path for name in names for path in self.path.glob(f".{name}.*{TEMPORARY}")]

    def trial(self, trial_id: str) -> Path:
        return self.path / "trials" / trial_id

    def launch(self, launch_id: str) -> Path:
        return self.path / "launches" / launch_id

    def launches(self) -> list[Path]:
        return sorted(path for path in (self.path / "launches").glob("*") if path.is_dir())

    def trial_ids(self) -> list[str]:
        return sorted(path.name for path in (self.path / "trials").glob("*") if path.is_dir())

    def trial_spec(self, trial_id: str) -> TrialSpec:
        return TrialSpec.model_validate_json((self.trial(trial_id) / "spec.json").read_text(encoding="utf-8"))

    def write_record(self, record: TrialRecord) -> None:
        """By rank 0 of the trial; by the driver for a trial whose processes are gone."""
        write_atomic(self.trial(record.trial) / "record.json", to_json(record).encode())

    def has_record(self, trial_id: str) -> bool:
        return (self.trial(trial_id) / "record.json").exists()

    def record(self, trial_id: str) -> TrialRecord | None:
        """None while there is none. Raises ValueError when the record, or an array it vouches for, is damaged."""
        path = self.trial(trial_id) / "record.json"
        try:
            text = path.read_text(encoding="utf-8")
        except FileNotFoundError:
            return None
        record = from_json(text)
        arrays = (*record.spans, *record.noise, *record.exposed, *record.telemetry, record.losses, record.weights)
        for file in filter(None, (*arrays, *(file for each in record.tries for file in each.spans))):
            try:
                content = (path.parent / file.name).read_bytes()
            except OSError as error:
                raise ValueError(f"{file.name} is missing") from error
            if hashlib.sha256(content).hexdigest() != file.sha256:
                raise ValueError(f"{file.name} does not fit its checksum")
        return record

    def quarantine(self, trial_id: str) -> Path:
        """Sets a damaged record aside, so that the trial runs again. By the driver, under its lock."""
        path = self.trial(trial_id) / "record.json"
        taken = len(list(path.parent.glob("record.json.damaged*")))
        return path.rename(path.with_name(f"record.json.damaged{taken or ''}"))

    def step_s(self, record: TrialRecord) -> npt.NDArray[np.float64]:
        """Seconds of every step after warm-up, one row a step, one column a rank."""
        return np.asarray(self.span_s(record).sum(axis=2))

    def span_s(self, record: TrialRecord) -> npt.NDArray[np.float64]:
        """Seconds of every span after warm-up: steps x ranks x the record's columns."""
        arrays = [np.load(self.trial(record.trial) / file.name, allow_pickle=False) for file in record.spans]
        if not arrays:
            return np.zeros((0, 1, len(record.columns)))
        return np.stack([array[record.warmup_steps :] for array in arrays], axis=1) * SPAN_UNIT_S

    def exposed(self, record: TrialRecord) -> tuple[npt.NDArray[np.uint32], npt.NDArray[np.float64]]:
        """Which steps exchanged gradients, and the seconds of each, one column a rank."""
        arrays = [np.load(self.trial(record.trial) / file.name, allow_pickle=False) for file in record.exposed]
        return arrays[0][:, 0], np.stack([array[:, 1] for array in arrays], axis=1) * SPAN_UNIT_S

    def noise(self, record: TrialRecord) -> list[npt.NDArray[np.float32]]:
        """Square norms of gradients, of each rank."""
        return [np.load(self.trial(record.trial) / file.name, allow_pickle=False) for file in record.noise]

    def telemetry(self, record: TrialRecord) -> list[npt.NDArray[np.float64]]:
        """Rows of each rank, as `telemetry_columns` names their columns."""
        return [np.load(self.trial(record.trial) / file.name, allow_pickle=False) for file in record.telemetry]

    def events(self, trial_id: str) -> Iterator[dict[str, Any]]:
        """A line cut short by a kill is no event."""
        try:
            text = (self.trial(trial_id) / "events.jsonl").read_text(encoding="utf-8", errors="replace")
        except FileNotFoundError:
            return
        for line in text.splitlines():
            try:
                yield json.loads(line)
            except ValueError:
                continue
