"""The files of a launch: written and read through one model each."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from worldsize.errors import DamagedError
from worldsize.folder.files import read_json, write_json
from worldsize.folder.launches import (
    InterconnectFile,
    JobFile,
    LaunchEnd,
    LaunchFile,
    LaunchFolder,
    LinkSweep,
    LinkTimes,
    PhasesFile,
    ProcessFile,
    RankFailure,
    Written,
    launch_folders,
)
from worldsize.folder.study_folder import StudyFolder

LAUNCH = LaunchFile(
    kind="train",
    place="t4",
    workers=2,
    threads=1,
    memory_limit_gb=1.5,
    device="cpu",
    backend="gloo",
    trials=("0000-w2-b64-sgd-r0", "0001-w2-b64-sgd-r1"),
    metric="accuracy",
    higher_is_better=True,
    interconnect_probe_s=3.0,
    search_curves={"w2": ((0.1, 0.2), ()), "w4": ()},
    commit=None,
    data="/data",
    cache="/cache",
    launched_at=1e9,
)
END = LaunchEnd(
    wall_s=12.5,
    started_at=1e9,
    returncode=1,
    hung=False,
    patience_s=30.0,
    last_step=7,
    reason="time limit",
    queued_s=2.0,
    attempts=2,
    job="77",
    phases_s={"process start": 4.0},
    culprit="0001-w2-b64-sgd-r1",
    cause="killed by SIGKILL",
)
FAILURE = RankFailure(rank=3, trial=None, step=None, at=2.0, type="OSError", error="no room", disk_full=True)
TIMES = LinkTimes(kind="inside", host="n1", workers=2, size_bytes=1024, seconds=(0.1, 0.2))
FILES: dict[str, Written] = {
    "launch.json": LAUNCH,
    "end.json": END,
    "job.json": JobFile(name="ws-study-0001", id=None, submitted_at=1e9),
    "process.json": ProcessFile(pid=12, started_at=1e9),
    "phases.json": PhasesFile(phases_s={"training": 1.0}, ended_at=1e9),
    "interconnect.json": InterconnectFile(
        hosts=("n1", "n1"), sweep=LinkSweep(budget_s=3.0, took_s=2.5, times=(TIMES,))
    ),
    "failure-rank03.json": FAILURE,
}


def read(launch: LaunchFolder, name: str) -> Any:
    if name.startswith("failure"):
        (found,) = launch.failures
        return found
    return getattr(launch, name.removesuffix(".json"))


@pytest.mark.parametrize("name", FILES)
def test_what_is_written_is_read(tmp_path: Path, name: str) -> None:
    launch = LaunchFolder(tmp_path)
    launch.write(FILES[name])
    assert [path.name for path in tmp_path.iterdir()] == [name]
    assert read(launch, name) == FILES[name]


@pytest.mark.parametrize("name", FILES)
def test_a_missing_key_is_named(tmp_path: Path, name: str) -> None:
    launch = LaunchFolder(tmp_path)
    launch.write(FILES[name])
    key = next(name for name, field in type(FILES[name]).model_fields.items() if field.is_required())
    content = read_json(tmp_path / name)
    del content[key]
    write_json(tmp_path / name, content)
    with pytest.raises(DamagedError, match=rf"{name} is damaged or of another version \(.*{key}: Field required"):
        read(launch, name)


@pytest.mark.parametrize("name", FILES)
def test_an_unknown_key_is_named(tmp_path: Path, name: str) -> None:
    write_json(tmp_path / name, FILES[name].model_dump(mode="json") | {"of_tomorrow": 1})
    with pytest.raises(DamagedError, match=rf"{name} is damaged.*of_tomorrow: Extra inputs are not permitted"):
        read(LaunchFolder(tmp_path), name)


@pytest.mark.parametrize(
    ("name", "key", "value"),
    [
        *(("launch.json", "kind", "study"), ("launch.json", "workers", "2"), ("launch.json", "workers", 0)),
        *(("launch.json", "place", "../x"), ("launch.json", "trials", [1]), ("launch.json", "trials", "0001")),
        *(("end.json", "reason", "tired"), ("end.json", "wall_s", None), ("end.json", "phases_s", [1.0])),
        *(("job.json", "id", 7), ("job.json", "id", "7\x1b[2J"), ("job.json", "name", "--help")),
        *(("process.json", "pid", -1), ("process.json", "pid", 2**40)),
        *(("phases.json", "phases_s", {"training": "long"}), ("failure-rank03.json", "step", 1.5)),
        *(("interconnect.json", "hosts", None), ("interconnect.json", "sweep", {})),
    ],
)
def test_a_wrong_value_is_named(tmp_path: Path, name: str, key: str, value: object) -> None:
    write_json(tmp_path / name, FILES[name].model_dump(mode="json") | {key: value})
    with pytest.raises(DamagedError, match=rf"{name} is damaged or of another version \(.*{key}"):
        read(LaunchFolder(tmp_path), name)


def test_a_number_beyond_all_numbers_is_damage(tmp_path: Path) -> None:
    write_json(tmp_path / "process.json", {"pid": 1, "started_at": 7})
    (tmp_path / "process.json").write_text((tmp_path / "process.json").read_text().replace("7", "1e999"))
    with pytest.raises(DamagedError, match=r"process\.json is damaged"):
        _ = LaunchFolder(tmp_path).process


def test_an_empty_folder_has_nothing(tmp_path: Path) -> None:
    launch = LaunchFolder(tmp_path / "0001-probe-w2")
    files = (launch.launch, launch.end, launch.job, launch.process, launch.phases, launch.interconnect)
    assert files == (None,) * 6
    assert (launch.failures, launch.job_events(), launch.is_prepared, launch.is_over) == ((), [], False, False)
    with pytest.raises(DamagedError, match=r"launch\.json is missing"):
        launch.prepared()


def test_one_killed_after_its_first_file(tmp_path: Path) -> None:
    launch = LaunchFolder(tmp_path)
    launch.write(LAUNCH)
    assert launch.prepared() == LAUNCH
    assert (launch.end, launch.process, launch.failures) == (None, None, ())
    assert (launch.is_prepared, launch.is_over) == (True, False)


def test_a_finished_one(tmp_path: Path) -> None:
    launch = LaunchFolder(tmp_path)
    for file in FILES.values():
        launch.write(file)
    launch.write(FAILURE.model_copy(update={"rank": 0, "at": 1.0}))
    assert (launch.launch, launch.end, launch.is_over) == (LAUNCH, END, True)
    assert [failure.rank for failure in launch.failures] == [0, 3]  # by time


def test_launches_come_in_the_order_of_their_numbers(tmp_path: Path) -> None:
    names = ["0002-train-w1", "0001-probe-w2", "0010-smoke-w2"]
    for name in names:
        (tmp_path / "launches" / name).mkdir(parents=True)
    assert [launch.name for launch in launch_folders(StudyFolder(tmp_path))] == sorted(names)
