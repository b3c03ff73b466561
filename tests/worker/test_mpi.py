"""The process of a rank: rank and size under mpirun, where ranks meet, how it says why it failed."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from worldsize.errors import LaunchError
from worldsize.folder.launches import LaunchFolder
from worldsize.worker.process import place, write_failure

OPEN_MPI = {"OMPI_COMM_WORLD_SIZE": "4", "OMPI_COMM_WORLD_LOCAL_RANK": "1", "PMIX_NAMESPACE": "run-2"}
MEETING = {"MASTER_ADDR": "there", "MASTER_PORT": "1234"}


def test_torchrun_has_said_everything(tmp_path: Path) -> None:
    assert place({"RANK": "0", "OMPI_COMM_WORLD_RANK": "3", **OPEN_MPI}, tmp_path) == {}
    assert place({}, tmp_path) == {}


def test_open_mpi_and_pmi(tmp_path: Path) -> None:
    found = place({"OMPI_COMM_WORLD_RANK": "3", **OPEN_MPI, **MEETING}, tmp_path)
    assert found == {"RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "1"}
    found = place({"PMI_RANK": "1", "PMI_SIZE": "2", **MEETING}, tmp_path)
    assert found == {"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1"}


def test_rank_0_says_where_to_meet_and_the_others_wait_for_this_run(tmp_path: Path) -> None:
    (tmp_path / "meeting.json").write_text(json.dumps({"run": "run-1", **MEETING}))
    first: dict[str, str] = {}

    def rank_0_comes(_: float) -> None:
        first.update(place({"OMPI_COMM_WORLD_RANK": "0", **OPEN_MPI}, tmp_path))

    other = place({"OMPI_COMM_WORLD_RANK": "3", **OPEN_MPI}, tmp_path, sleep=rank_0_comes)
    assert (first["RANK"], other["RANK"]) == ("0", "3")
    assert other["MASTER_PORT"] == first["MASTER_PORT"] != "1234"


def test_waiting_for_rank_0_has_an_end(tmp_path: Path) -> None:
    time = iter(range(0, 10_000, 100))
    with pytest.raises(LaunchError, match="use a folder that is shared"):
        place({"PMI_RANK": "1", "PMI_SIZE": "2"}, tmp_path, sleep=lambda _: None, now=lambda: float(next(time)))


def test_a_failure_is_told_in_whatever_bytes_a_file_is_called(tmp_path: Path) -> None:
    error = FileNotFoundError(2, "No such file", os.fsdecode(b"caf\xe9.png"))
    write_failure(tmp_path, 1, "0001", 7, error, out_of_memory=False)
    (told,) = LaunchFolder(tmp_path).failures
    assert (told.rank, told.trial, told.step, told.type, told.disk_full) == (1, "0001", 7, "FileNotFoundError", False)
    assert r"caf\udce9.png" in told.error
