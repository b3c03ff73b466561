"""The study folder: atomic writes, one writer per file, records that are whole or not there.

runs/<name>/
  study.yaml            as given, defaults filled in
  plan.json             trials, launches and their order; devices; facts about the workload
  lock.json             who is running the study
  launches/0001-probe-w2/
    launch.json         the trials to run and everything that is fixed at process start
    rank00.log          what a rank printed, with a line where each trial begins
    failure-rank00.json why a rank failed
    torchrun.log        what the launcher printed
    process.json        the launcher on this machine; for a Slurm job, job.json: its name and id
    interconnect.json   what the links between the ranks can do, raw
    phases.json         where the time of rank 0 went, from process start to the last trial
    end.json            how the launch ended, its wall time and where that went
  trials/0007-w4-b128-sgd-r0/
    spec.json           everything that the worker needs
    events.jsonl        appended by rank 0 while it runs
    spans-rank03.npy    raw step spans, one file per rank; in a search for the largest batch, spans-b256-rank03.npy, ...
    noise-rank03.npy    square norms of gradients, where `train.measure_noise_scale` asks for them
    losses.npy          the loss of every step
    telemetry-rank03.npy   how busy and how full the hardware of a rank was, over time
    log.txt             what the processes printed, each line with its rank
    record.json         written last
"""

from __future__ import annotations

import hashlib
import io
import math
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from worldsize.errors import DamagedError, StoreError
from worldsize.folder.files import TEMPORARY, read_lines, whole, write_atomic
from worldsize.folder.record import SPAN_UNIT_S, SPANS, ArrayFile, TrialRecord, from_json, to_json
from worldsize.machine import MOST_TEXT_BYTES, open_regular, read_regular
from worldsize.spec.base import FILE_NAME
from worldsize.spec.study import TrialSpec

MOST_ARRAY_BYTES = 2**33
NPY = re.compile(
    rb"\x93NUMPY\x01\x00..\{'descr': '([<|][uif][1248])', 'fortran_order': (True|False), "
    rb"'shape': \((\d{1,15}(?:, \d{1,15})*),?\), \} *\n",
    re.DOTALL,
)
"""The beginning of an array as numpy saves it: numbers only."""
TRIAL_MARK = "--- trial "
"""Begins the line in a rank's log that separates one trial's output from the next."""


def read_text(path: Path) -> str:
    """What processes printed, only the end if there is too much of it. Bytes that are not text are replaced."""
    with open_regular(path) as file:
        file.seek(max(0, os.fstat(file.fileno()).st_size - MOST_TEXT_BYTES))
        return file.read(MOST_TEXT_BYTES).decode(errors="replace")


def as_array(content: bytes, name: str) -> npt.NDArray[Any]:
    """An array as numpy saved it. What its header claims must be what follows: memory is not allocated on its word."""
    header = NPY.match(content)
    if header is None or header.end() != 10 + int.from_bytes(content[8:10], "little"):
        raise DamagedError(f"{name} is not an array of numbers")
    kind, fortran, numbers = (part.decode() for part in header.groups())
    shape, dtype = tuple(int(number) for number in numbers.split(",")), np.dtype(kind)
    claimed, left = math.prod(shape) * dtype.itemsize, len(content) - header.end()
    if claimed != left:
        raise DamagedError(f"{name} claims {claimed:,} bytes of numbers and has {left:,}")
    order: Literal["C", "F"] = "F" if fortran == "True" else "C"
    return np.ndarray(shape, dtype, content, header.end(), order=order)


def _check_sum(sha256: str, file: ArrayFile) -> None:
    if sha256 != file.sha256:
        raise DamagedError(f"{file.name} does not fit its checksum")


def save_array(path: Path, rank: int, array: npt.NDArray[Any]) -> ArrayFile:
    """A plain .npy, never pickled; its checksum goes into the record."""
    content = io.BytesIO()  # numpy's own writing to a file does not say that the disk is full
    np.save(content, array, allow_pickle=False)
    with path.open("wb") as file:
        file.write(content.getbuffer())
        file.flush()
        os.fsync(file.fileno())
    return ArrayFile(rank=rank, name=path.name, sha256=hashlib.sha256(content.getbuffer()).hexdigest())


def is_name(name: object) -> bool:
    """Whether it can be the name of a file or folder inside another, and the id of a job."""
    return isinstance(name, str) and re.fullmatch(FILE_NAME, name) is not None and not name.endswith("\n")


class StudyFolder:
    """Paths and reading for everybody; the methods that write say who their one caller is."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.study_file = path / "study.yaml"
        self.plan_file = path / "plan.json"
        for room in (path / "trials", path / "launches"):
            if room.is_symlink():
                raise DamagedError(f"{room} is a link, which leads out of the study folder; link the whole folder")

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
        """Removes what is left of files that only the driver writes. By the driver, under its lock."""
        for path in self._temporaries():
            path.unlink(missing_ok=True)

    def _temporaries(self) -> list[Path]:
        names = ("lock.json", "plan.json", "study.yaml")
        return [path for name in names for path in self.path.glob(f".{name}.*{TEMPORARY}")]

    def trial(self, trial_id: str) -> Path:
        return self._inside("trials", trial_id)

    def launch(self, launch_id: str) -> Path:
        return self._inside("launches", launch_id)

    def _inside(self, room: str, name: str) -> Path:
        """Names come from files of the folder, which anybody may have written: none of them leads out of it."""
        path = self.path / room / name if is_name(name) else None
        if path is None or path.is_symlink():
            raise DamagedError(f"{name!r} is not a folder of its own in {self.path / room}; use a new study folder")
        return path

    def refuse_links(self, trial_id: str) -> None:
        """Before a trial writes into its folder, and through whatever an earlier owner of the folder left there."""
        for path in self.trial(trial_id).glob("*"):
            if path.is_symlink() or not (path.is_file() or path.is_dir()):
                raise DamagedError(f"{path} is a link, a pipe or a device, which the trial would write to; remove it")

    def launches(self) -> list[Path]:
        paths = (self.path / "launches").glob("[0-9][0-9][0-9][0-9]*-*")
        return sorted(path for path in paths if is_name(path.name) and path.is_dir() and not path.is_symlink())

    def trial_ids(self) -> list[str]:
        return sorted(path.name for path in (self.path / "trials").glob("*") if is_name(path.name) and path.is_dir())

    def trial_spec(self, trial_id: str) -> TrialSpec:
        path = self.trial(trial_id) / "spec.json"
        with whole(path):
            return TrialSpec.model_validate_json(read_regular(path))

    def write_record(self, record: TrialRecord) -> None:
        """By rank 0 of the trial; by the driver for a trial whose processes are gone."""
        write_atomic(self.trial(record.trial) / "record.json", to_json(record).encode())

    def has_record(self, trial_id: str) -> bool:
        return (self.trial(trial_id) / "record.json").exists()

    def record(self, trial_id: str) -> TrialRecord | None:
        """None while there is none. Raises ValueError when the record, or an array it vouches for, is damaged."""
        path = self.trial(trial_id) / "record.json"
        try:
            text = read_regular(path).decode()
        except FileNotFoundError:
            return None
        record = from_json(text)
        if record.trial != trial_id:
            raise ValueError(f"it is of {record.trial}")
        if record.outcome == "failed" and record.failure is None:
            raise ValueError("it failed, and does not say why")
        try:
            self._check_arrays(record)
        except OSError as error:
            raise ValueError(f"{Path(str(error.filename)).name} is missing ({error.strerror})") from error
        return record

    def _check_arrays(self, record: TrialRecord) -> None:
        """Raises ValueError where an array that the record vouches for is not the one it was written with, or is none
        of the kind and shape that it must have: whoever changes an array can change its checksum too."""
        width = len(SPANS)
        if record.columns != SPANS and (record.spans or record.tries):
            raise ValueError("its spans are not those of this format")
        of_all_ranks: list[tuple[Sequence[ArrayFile], str, int | None]] = [
            (record.spans, "<u4", width),
            *((tried.spans, "<u4", width) for tried in record.tries),
            (record.exposed, "<u4", 2),
            (record.noise, "<f4", None),
            *(((file,), "<f8", len(record.telemetry_columns)) for file in record.telemetry),
        ]
        for files, kind, columns in of_all_ranks:
            arrays = self._arrays(record, files, check=True)
            for file, array in zip(files, arrays, strict=True):
                if array.dtype.str != kind or array.ndim != 2 or array.shape[1] != (columns or array.shape[1]):
                    raise ValueError(f"{file.name} does not have the columns that it should have")
                if array.shape != arrays[0].shape:
                    raise ValueError(f"{file.name} does not have as many rows as that of the first rank")
        if record.losses is not None and self._arrays(record, [record.losses], check=True)[0].ndim != 1:
            raise ValueError(f"{record.losses.name} is not one loss per step")
        if record.weights is not None:
            with open_regular(self.trial(record.trial) / record.weights.name) as weights:
                _check_sum(hashlib.file_digest(weights, "sha256").hexdigest(), record.weights)

    def _arrays(
        self, record: TrialRecord, files: Sequence[ArrayFile], *, check: bool = False
    ) -> list[npt.NDArray[Any]]:
        """Their checksums are checked once, when the record is read."""
        folder, arrays = self.trial(record.trial), []
        for file in files:
            content = read_regular(folder / file.name, most=MOST_ARRAY_BYTES)
            if check:
                _check_sum(hashlib.sha256(content).hexdigest(), file)
            arrays.append(as_array(content, file.name))
        return arrays

    def set_aside(self, trial_id: str, why: Literal["damaged", "failed"]) -> Path:
        """Renames a record, so that the trial runs again; those set aside before are kept. By the driver, under its
        lock."""
        path = self.trial(trial_id) / "record.json"
        kept = path.with_name(f"record.json.{why}")
        number = 0
        while os.path.lexists(kept):
            number += 1
            kept = path.with_name(f"record.json.{why}{number}")
        return path.rename(kept)

    def step_s(self, record: TrialRecord) -> npt.NDArray[np.float64]:
        """Seconds of every step after warm-up, one row per step, one column per rank."""
        return np.asarray(self.span_s(record).sum(axis=2))

    def span_s(self, record: TrialRecord) -> npt.NDArray[np.float64]:
        """Seconds of every span after warm-up: steps x ranks x SPANS."""
        arrays = self._arrays(record, record.spans)
        if not arrays:
            return np.zeros((0, 1, len(SPANS)))
        return np.stack([array[record.warmup_steps :] for array in arrays], axis=1) * SPAN_UNIT_S

    def exposed(self, record: TrialRecord) -> tuple[npt.NDArray[np.uint32], npt.NDArray[np.float64]]:
        """Which steps exchanged gradients, and the seconds of each step, one column per rank."""
        arrays = self._arrays(record, record.exposed)
        return arrays[0][:, 0], np.stack([array[:, 1] for array in arrays], axis=1) * SPAN_UNIT_S

    def noise(self, record: TrialRecord) -> list[npt.NDArray[np.float32]]:
        """Square norms of gradients, per rank."""
        return self._arrays(record, record.noise)

    def telemetry(self, record: TrialRecord) -> list[npt.NDArray[np.float64]]:
        """Rows per rank, with the columns that `telemetry_columns` names."""
        return self._arrays(record, record.telemetry)

    def events_file(self, trial_id: str) -> Path:
        return self.trial(trial_id) / "events.jsonl"

    def events(self, trial_id: str) -> list[dict[str, Any]]:
        return read_lines(self.events_file(trial_id))[0]
