"""A disk that fills up: the study stops, keeps what is finished, says what it needs, and the same command continues."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from worldsize.errors import DiskFullError, StoreError
from worldsize.folder.files import has_room, is_disk_full, write_model
from worldsize.folder.launches import LaunchEnd, RankFailure, Written
from worldsize.folder.record import TrialRecord
from worldsize.folder.study_folder import save_array
from worldsize.launch.target import OnEvent, PreparedLaunch, RunSite
from worldsize.machine import Machine
from worldsize.study.study import Study
from worldsize.worker.process import write_failure

STUDY = "{name: s, workload: digits, axes: {workers: [1, 2], batch_per_worker: [100]}, train: {epochs: 1}, repeats: 2}"
FULL = OSError(errno.ENOSPC, "No space left on device")


class Ranks:
    """A target whose ranks finish trials at once, until `fault` raises what a rank would."""

    at_once, poll_s = 1, 0.0

    def __init__(self, fault: Callable[[str], None] = lambda _: None) -> None:
        self.fault = fault
        self.known_to_run = True

    def start(self, prepared: PreparedLaunch, on_event: OnEvent) -> Ranks:  # noqa: ARG002
        self.prepared = prepared
        (prepared.path / "rank00.log").write_text("".join(f"--- trial {trial_id}\n" for trial_id in prepared.trials))
        for trial_id in prepared.trials:
            try:
                self.fault(trial_id)
            except OSError as error:
                write_failure(prepared.path, 0, trial_id, 3, error, out_of_memory=False)
                break
            record = TrialRecord(
                trial=trial_id, outcome="finished", launch=prepared.launch_id, started_at=0.0, wall_s=1.0
            )
            prepared.folder.write_record(record)
        return self

    def adopt(self, open_launches: Sequence[PreparedLaunch], on_event: OnEvent) -> Sequence[Any]:  # noqa: ARG002
        return ()

    def poll(self) -> LaunchEnd:
        return LaunchEnd(wall_s=1.0, started_at=0.0, returncode=1, hung=False, patience_s=9.0, last_step=None)

    stop = poll


@pytest.fixture
def study(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Study:
    study = Study.from_text(STUDY, folder=tmp_path / "study", machine=Machine(cores=2, gpus=0))
    on(monkeypatch, study, Ranks())
    return study


def on(monkeypatch: pytest.MonkeyPatch, study: Study, ranks: Ranks) -> None:
    sites = {"": RunSite(spec=study.spec, machine=study.sites[""].machine, target=ranks, data=study.data)}
    monkeypatch.setattr(study, "_run_sites", lambda *_, **__: sites)


def raise_in(number: str) -> Callable[[str], None]:
    def fault(trial_id: str) -> None:
        if trial_id.startswith(number):
            raise FULL

    return fault


def times(folder: Path) -> dict[str, int]:
    return {path.parent.name: path.stat().st_mtime_ns for path in folder.glob("trials/*/record.json")}


def check_continues(study: Study, folder: Path, monkeypatch: pytest.MonkeyPatch, before: dict[str, int]) -> None:
    on(monkeypatch, study, Ranks())
    results = study.run()
    assert {record.outcome for record in results.records.values()} == {"finished"}
    assert not results.left()
    assert {trial: time for trial, time in times(folder).items() if trial in before} == before


@pytest.mark.parametrize("number", ["0000", "0002", "0005"])
def test_a_rank_that_finds_the_disk_full(
    study: Study, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: str
) -> None:
    on(monkeypatch, study, Ranks(raise_in(number)))
    left = len(study.plan.trials) - int(number)
    words = rf"the disk is full: .*No space left on device in {number}-.* \(rank 0\)\. Finished trials are kept\. "
    with pytest.raises(DiskFullError, match=words + rf"The {left} left need about \d+ MB, and .* free") as told:
        study.run()
    assert told.value.exit_code == 1
    before = times(tmp_path / "study")
    assert len(before) == int(number)
    check_continues(study, tmp_path / "study", monkeypatch, before)


def refuse_ends(path: Path, file: Written) -> None:
    """A disk that fills up after the launch began."""
    if isinstance(file, LaunchEnd | RankFailure):
        raise FULL
    write_model(path, file)


def test_a_rank_that_cannot_even_say_so(study: Study, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    on(monkeypatch, study, Ranks(raise_in("0001")))
    with monkeypatch.context() as patch:
        patch.setattr("worldsize.folder.launches.write_model", refuse_ends)
        patch.setattr("worldsize.launch.autopsy.has_room", lambda _: False)
        with pytest.raises(DiskFullError, match="the disk is full: No space left on device in 0001"):
            study.run()
    before = times(tmp_path / "study")
    assert len(before) == 1
    check_continues(study, tmp_path / "study", monkeypatch, before)


@pytest.mark.parametrize(
    "where", ["folder.launches.write_model", "launch.prepare.write_atomic", "study.study.write_model"]
)
def test_a_driver_that_finds_the_disk_full(
    study: Study, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(f"worldsize.{where}", lambda *_: (_ for _ in ()).throw(FULL))
        with pytest.raises(DiskFullError, match=r"The 8 left need about \d+ MB"):
            study.run()
    check_continues(study, tmp_path / "study", monkeypatch, {})


def test_another_error_of_the_system_is_not_a_full_disk(study: Study, monkeypatch: pytest.MonkeyPatch) -> None:
    refused = PermissionError("no")
    monkeypatch.setattr("worldsize.folder.launches.write_model", lambda *_: (_ for _ in ()).throw(refused))
    with pytest.raises(PermissionError):
        study.run()


def test_too_little_space_is_said_before_anything_is_written(
    study: Study, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr("worldsize.study.checks.disk_usage", lambda _: SimpleNamespace(free=3_000_000))
        with pytest.raises(
            StoreError, match=r"8 trials left will write about \d+ MB into .*, but its disk has only 3 MB"
        ):
            study.run()
        assert list(tmp_path.iterdir()) == []
    study.run()
    with monkeypatch.context() as patch:  # nothing is left to write
        patch.setattr("worldsize.study.checks.disk_usage", lambda _: SimpleNamespace(free=0))
        assert study.run().left() == []


def test_arrays_say_that_the_disk_is_full() -> None:
    with pytest.raises(OSError, match="No space left") as error:
        save_array(Path("/dev/full"), 0, np.zeros(100_000))
    assert is_disk_full(error.value)


def test_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert has_room(tmp_path)
    assert list(tmp_path.iterdir()) == []
    monkeypatch.setattr(os, "fsync", lambda _: (_ for _ in ()).throw(OSError(errno.EDQUOT, "Disk quota exceeded")))
    assert not has_room(tmp_path)
