"""The study folder: atomic writes, one writer per file, and records that are either complete or absent.

runs/<name>/
  study.yaml            the study, with all defaults filled in
  plan.json             trials, launches and their order; devices; facts about the workload
  lock.json             the driver that runs the study
  launches/0001-probe-w2/
    launch.json         the trials to run, and everything that is fixed when processes start
    rank00.log          output of a rank, with a line where each trial starts
    failure-rank00.json the error with which a rank ended
    torchrun.log        output of the launcher
    process.json        the launcher on this machine; Slurm jobs have job.json instead, with their name and id
    interconnect.json   raw times of the links between ranks
    phases.json         time of rank 0 in each phase, from process start to the last trial
    end.json            how the launch ended, its wall time, and how that time was spent
  trials/0007-w4-b128-sgd-r0/
    spec.json           everything that the worker needs to run the trial
    events.jsonl        events that rank 0 appends while the trial runs
    blocks.npy          the blocks of a probe that took turns with others: which steps, when, and whether disturbed
    spans-rank03.npy    raw spans of the steps, one file per rank; spans-b256-rank03.npy for a batch that a search tried
    noise-rank03.npy    squared norms of gradients, if `train.measure_noise_scale` is set
    losses.npy          the loss of each step
    telemetry-rank03.npy   utilization and memory of the hardware of a rank over time
    log.txt             output of the ranks, each line with its rank
    record.json         written last
"""

from __future__ import annotations

import hashlib
import io
import math
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from worldsize.errors import DamagedError, StoreError
from worldsize.folder.files import TEMPORARY, damage_named, read_lines, write_atomic
from worldsize.folder.record import BLOCKS, SPAN_UNIT_S, SPANS, ArrayFile, TrialRecord, from_json, to_json
from worldsize.machine import MOST_TEXT_BYTES, open_regular, read_regular
from worldsize.spec.base import FILE_NAME
from worldsize.spec.study import TrialSpec

MOST_ARRAY_BYTES = 2**33
NPY = re.compile(
    rb"\x93NUMPY\x01\x00..\{'descr': '([<|][uif][1248])', 'fortran_order': (True|False), "
    rb"'shape': \((\d{1,15}(?:, \d{1,15})*),?\), \} *\n",
    re.DOTALL,
)
"""Header of a .npy file with numbers, as numpy writes it."""
TRIAL_MARK = "--- trial "
"""Start of the line that separates the output of trials in the log of a rank."""


def read_text(path: Path) -> str:
    """Return the output of processes; only its end if it is too long. Bytes that are not text are replaced."""
    with open_regular(path) as file:
        file.seek(max(0, os.fstat(file.fileno()).st_size - MOST_TEXT_BYTES))
        return file.read(MOST_TEXT_BYTES).decode(errors="replace")


def as_array(content: bytes, name: str) -> npt.NDArray[Any]:
    """Return an array from the bytes of a .npy file. Its header cannot claim more memory than there are bytes."""
    header = NPY.match(content)
    if header is None or header.end() != 10 + int.from_bytes(content[8:10], "little"):
        raise DamagedError(f"{name} is not an array of numbers")
    kind, fortran, sizes = (group.decode() for group in header.groups())
    shape, dtype = tuple(int(size) for size in sizes.split(",")), np.dtype(kind)
    claimed_bytes, actual_bytes = math.prod(shape) * dtype.itemsize, len(content) - header.end()
    if claimed_bytes != actual_bytes:
        raise DamagedError(f"the header of {name} claims {claimed_bytes:,} bytes, but it has {actual_bytes:,}")
    order: Literal["C", "F"] = "F" if fortran == "True" else "C"
    return np.ndarray(shape, dtype, content, header.end(), order=order)


def _verify_checksum(sha256: str, file: ArrayFile) -> None:
    if sha256 != file.sha256:
        raise DamagedError(f"{file.name} does not match its checksum")


def save_array(path: Path, rank: int, array: npt.NDArray[Any]) -> ArrayFile:
    """Write an array as .npy without pickle, and return its name and checksum for the record."""
    content = io.BytesIO()  # np.save to a file does not report a full disk
    np.save(content, array, allow_pickle=False)
    with path.open("wb") as file:
        file.write(content.getbuffer())
        file.flush()
        os.fsync(file.fileno())
    return ArrayFile(rank=rank, name=path.name, sha256=hashlib.sha256(content.getbuffer()).hexdigest())


def is_name(name: object) -> bool:
    """Whether it is a safe name of a file or folder, or a safe job id."""
    return isinstance(name, str) and re.fullmatch(FILE_NAME, name) is not None and not name.endswith("\n")


@dataclass(frozen=True, kw_only=True)
class CountedSteps:
    """The steps of a trial that count."""

    steps: npt.NDArray[np.int64]
    """Their numbers, which are their rows in the spans."""
    blocks: npt.NDArray[np.int64] | None = None
    """Number of the block of each of them. None: the trial did not take turns with others."""
    disturbed: float = 0.0
    """Share of the blocks that other work disturbed."""


class StudyFolder:
    """Paths in a study folder, and methods that read its files. Methods that write name their only caller."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.study_file = path / "study.yaml"
        self.plan_file = path / "plan.json"
        for parent in (path / "trials", path / "launches"):
            if parent.is_symlink():
                raise DamagedError(f"{parent} is a link out of the study folder; link the whole study folder instead")

    @classmethod
    def existing(cls, path: Path) -> StudyFolder:
        folder = cls(path)
        if not folder.study_file.is_file():
            raise StoreError(f"{path} is not a study folder (it has no study.yaml); use a folder that `run` created")
        return folder

    def unfinished(self) -> bool:
        """Whether the folder contains only files that a driver leaves if it is killed during its first writes."""
        leftovers = {"lock.json", "plan.json", ".lock.guard", *(path.name for path in self._temporaries())}
        return self.path.is_dir() and {path.name for path in self.path.iterdir()} <= leftovers

    def remove_temporaries(self) -> None:
        """Remove temporary files that a killed driver left. Called by the driver while it holds the lock."""
        for path in self._temporaries():
            path.unlink(missing_ok=True)

    def _temporaries(self) -> list[Path]:
        names = ("lock.json", "plan.json", "study.yaml")
        return [path for name in names for path in self.path.glob(f".{name}.*{TEMPORARY}")]

    def trial(self, trial_id: str) -> Path:
        return self._inside("trials", trial_id)

    def launch(self, launch_id: str) -> Path:
        return self._inside("launches", launch_id)

    def _inside(self, parent: str, name: str) -> Path:
        """Return the path of a trial or launch. Refuse names, which come from files, that lead out of the folder."""
        path = self.path / parent / name if is_name(name) else None
        if path is None or path.is_symlink():
            raise DamagedError(f"{name!r} is not a folder in {self.path / parent}; use a new study folder")
        return path

    def refuse_links(self, trial_id: str) -> None:
        """Raise DamagedError if the folder of a trial contains links or devices that the trial would write to."""
        for path in self.trial(trial_id).glob("*"):
            if path.is_symlink() or not (path.is_file() or path.is_dir()):
                raise DamagedError(f"{path} is a link, a pipe or a device that the trial would write to; remove it")

    def launches(self) -> list[Path]:
        paths = (self.path / "launches").glob("[0-9][0-9][0-9][0-9]*-*")
        return sorted(path for path in paths if is_name(path.name) and path.is_dir() and not path.is_symlink())

    def trial_ids(self) -> list[str]:
        return sorted(path.name for path in (self.path / "trials").glob("*") if is_name(path.name) and path.is_dir())

    def trial_spec(self, trial_id: str) -> TrialSpec:
        path = self.trial(trial_id) / "spec.json"
        with damage_named(path):
            return TrialSpec.model_validate_json(read_regular(path))

    def write_record(self, record: TrialRecord) -> None:
        """Write the record of a trial. Called by rank 0, or by the driver if the processes of the trial have ended."""
        write_atomic(self.trial(record.trial) / "record.json", to_json(record).encode())

    def has_record(self, trial_id: str) -> bool:
        return (self.trial(trial_id) / "record.json").exists()

    def record(self, trial_id: str) -> TrialRecord | None:
        """Return the record of a trial, or None if it has none. Raises ValueError if it or a file of it is damaged."""
        path = self.trial(trial_id) / "record.json"
        try:
            text = read_regular(path).decode()
        except FileNotFoundError:
            return None
        record = from_json(text)
        if record.trial != trial_id:
            raise ValueError(f"it belongs to the trial {record.trial}")
        if record.outcome == "failed" and record.failure is None:
            raise ValueError("its outcome is failed, but it has no failure")
        try:
            self._check_arrays(record)
        except OSError as error:
            raise ValueError(f"{Path(str(error.filename)).name} is missing ({error.strerror})") from error
        return record

    def _check_arrays(self, record: TrialRecord) -> None:
        """Raise ValueError if a file of the record does not match its checksum, or an array has a wrong type or shape.

        Checksums do not guarantee types and shapes: whoever changes an array can also change its checksum.
        """
        width = len(SPANS)
        if record.columns != SPANS and (record.spans or record.tries):
            raise ValueError("its spans do not have the columns of this format")
        per_rank_files: list[tuple[Sequence[ArrayFile], str, int | None]] = [
            (record.spans, "<u4", width),
            *((attempt.spans, "<u4", width) for attempt in record.tries),
            ([record.blocks] if record.blocks else [], "<f8", len(BLOCKS)),
            (record.exposed, "<u4", 2),
            (record.noise, "<f4", None),
            *(((file,), "<f8", len(record.telemetry_columns)) for file in record.telemetry),
        ]
        for files, kind, columns in per_rank_files:
            arrays = self._arrays(record, files, check=True)
            for file, array in zip(files, arrays, strict=True):
                if array.dtype.str != kind or array.ndim != 2 or array.shape[1] != (columns or array.shape[1]):
                    raise ValueError(f"{file.name} does not have the columns of its kind")
                if array.shape != arrays[0].shape:
                    raise ValueError(f"{file.name} does not have the rows and columns of the file of the first rank")
        if record.blocks is not None:
            self._check_blocks(record)
        if record.losses is not None and self._arrays(record, [record.losses], check=True)[0].ndim != 1:
            raise ValueError(f"{record.losses.name} is not a list of losses")
        if record.weights is not None:
            with open_regular(self.trial(record.trial) / record.weights.name) as weights:
                _verify_checksum(hashlib.file_digest(weights, "sha256").hexdigest(), record.weights)

    def _check_blocks(self, record: TrialRecord) -> None:
        """Raise ValueError if a block has no steps that count, or steps that were not recorded."""
        assert record.blocks is not None
        first, length, cold = self._arrays(record, [record.blocks])[0].T[:3]
        steps = len(self._arrays(record, record.spans[:1])[0]) if record.spans else 0
        whole = all(bool(np.all(column == np.floor(column))) for column in (first, length, cold))
        inside = (first >= 0) & (cold >= 0) & (cold < length) & (first + length <= steps)
        if not whole or not np.all(inside) or not np.all(first[1:] >= (first + length)[:-1]):
            raise ValueError(f"{record.blocks.name} does not fit the recorded steps")

    def _arrays(
        self, record: TrialRecord, files: Sequence[ArrayFile], *, check: bool = False
    ) -> list[npt.NDArray[Any]]:
        """Read arrays of a record. With `check`, which is set once when the record is read, verify their checksums."""
        folder, arrays = self.trial(record.trial), []
        for file in files:
            content = read_regular(folder / file.name, most=MOST_ARRAY_BYTES)
            if check:
                _verify_checksum(hashlib.sha256(content).hexdigest(), file)
            arrays.append(as_array(content, file.name))
        return arrays

    def set_aside(self, trial_id: str, why: Literal["damaged", "failed"]) -> Path:
        """Rename a record, so that the trial runs again. Records that were set aside earlier are kept.

        Called by the driver while it holds the lock.
        """
        path = self.trial(trial_id) / "record.json"
        target = path.with_name(f"record.json.{why}")
        number = 0
        while os.path.lexists(target):
            number += 1
            target = path.with_name(f"record.json.{why}{number}")
        return path.rename(target)

    def step_s(self, record: TrialRecord) -> npt.NDArray[np.float64]:
        """Return the seconds of each step that counts, with one row per step and one column per rank."""
        return np.asarray(self.span_s(record).sum(axis=2))

    def span_s(self, record: TrialRecord) -> npt.NDArray[np.float64]:
        """Return the seconds of each span of the steps that count, as an array of steps x ranks x SPANS."""
        arrays = self._arrays(record, record.spans)
        if not arrays:
            return np.zeros((0, 1, len(SPANS)))
        counted = self.counted_steps(record, len(arrays[0]))
        return np.stack([array[counted.steps] for array in arrays], axis=1) * SPAN_UNIT_S

    def counted_steps(self, record: TrialRecord, steps: int | None = None) -> CountedSteps:
        """Return which of the recorded steps count. Warm-up does not, nor do the first steps of a block.

        Blocks that other work disturbed are left out, unless that would leave out more than half. `steps`: how many
        were recorded, if known.
        """
        if record.blocks is None:
            total = len(self._arrays(record, record.spans[:1])[0]) if steps is None else steps
            return CountedSteps(steps=np.arange(record.warmup_steps, total))
        rows = self._arrays(record, [record.blocks])[0]
        first, length, cold, _, disturbed = rows.T
        undisturbed = np.flatnonzero(disturbed == 0)
        kept = undisturbed if 2 * len(undisturbed) >= len(rows) else np.arange(len(rows))
        spans = [np.arange(first[block] + cold[block], first[block] + length[block]) for block in kept]
        return CountedSteps(
            steps=np.concatenate([np.zeros(0), *spans]).astype(np.int64),
            blocks=np.repeat(np.arange(len(kept)), [len(span) for span in spans]),
            disturbed=float(np.mean(disturbed != 0)) if len(rows) else 0.0,
        )

    def exposed(self, record: TrialRecord) -> tuple[npt.NDArray[np.uint32], npt.NDArray[np.float64]]:
        """Return which steps exchanged gradients (1 or 0), and the seconds of each step with one column per rank."""
        arrays = self._arrays(record, record.exposed)
        return arrays[0][:, 0], np.stack([array[:, 1] for array in arrays], axis=1) * SPAN_UNIT_S

    def noise(self, record: TrialRecord) -> list[npt.NDArray[np.float32]]:
        """Return the squared norms of gradients, one array per rank."""
        return self._arrays(record, record.noise)

    def telemetry(self, record: TrialRecord) -> list[npt.NDArray[np.float64]]:
        """Return the telemetry, one array per rank, with the columns `telemetry_columns`."""
        return self._arrays(record, record.telemetry)

    def events_file(self, trial_id: str) -> Path:
        return self.trial(trial_id) / "events.jsonl"

    def events(self, trial_id: str) -> list[dict[str, Any]]:
        return read_lines(self.events_file(trial_id))[0]
