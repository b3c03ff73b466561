"""Study folders that somebody else made: nothing is read or written outside of them, waited for, or believed."""

from __future__ import annotations

import hashlib
import json
import os
import resource
import shutil
import signal
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.made import Made, write_study
from tests.unit.cli.test_cli import call
from worldsize.answer.from_records import links
from worldsize.answer.results import load
from worldsize.errors import StoreError, WorldsizeError
from worldsize.folder.files import read_json, write_json
from worldsize.folder.lock import lock_holder, study_lock
from worldsize.folder.record import ArrayFile, TrialRecord
from worldsize.folder.study_folder import StudyFolder, save_array
from worldsize.launch.slurm.status import job_statuses
from worldsize.launch.target import PreparedLaunch, open_launches
from worldsize.machine import Machine
from worldsize.plan.plan import PlanFile, make_plan
from worldsize.study.study import Study

STUDY = """\
name: hostile
workload: digits
axes: {workers: [2], batch_per_worker: [100]}
repeats: 2
"""
TRIAL = "0000-w2-b100-probe-r0"
Change = Callable[[dict[str, Any]], None]


@pytest.fixture(autouse=True)
def _bounded() -> Iterator[None]:
    """What hangs or fills the memory fails; it takes neither the tests nor the machine with it."""
    before = signal.signal(signal.SIGALRM, lambda *_: pytest.fail("still reading after 20 s"))
    limits = resource.getrlimit(resource.RLIMIT_AS)
    in_use = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (in_use + 2**31, limits[1]))
    signal.alarm(20)
    yield
    signal.alarm(0)
    resource.setrlimit(resource.RLIMIT_AS, limits)
    signal.signal(signal.SIGALRM, before)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    times = {"forward": 0.01, "communication": 0.002}
    telemetry = {"samples": 100.0}
    folder = tmp_path_factory.mktemp("made") / "study"
    write_study(folder, STUDY, Made(times=lambda _: times, telemetry=telemetry))
    return folder


@pytest.fixture
def folder(made: Path, tmp_path: Path) -> StudyFolder:
    return StudyFolder(Path(shutil.copytree(made, tmp_path / "study")))


def change_record(folder: StudyFolder, change: Change) -> None:
    """By somebody who knows how to make the checksum fit."""
    path = folder.trial(TRIAL) / "record.json"
    body = json.loads(path.read_text(encoding="utf-8"))
    del body["sha256"]
    change(body)
    whole = json.dumps(body, sort_keys=True, separators=(",", ":"))
    path.write_text(json.dumps({**body, "sha256": hashlib.sha256(whole.encode()).hexdigest()}), encoding="utf-8")


def change_plan(folder: StudyFolder, change: Change) -> None:
    plan = read_json(folder.plan_file)
    change(plan)
    folder.plan_file.write_text(json.dumps(plan), encoding="utf-8")


def put_array(folder: StudyFolder, content: bytes, name: str = "spans-rank00.npy") -> None:
    (folder.trial(TRIAL) / name).write_bytes(content)

    def change(body: dict[str, Any]) -> None:
        for file in body["spans"] + body["telemetry"]:
            if file["name"] == name:
                file["sha256"] = hashlib.sha256(content).hexdigest()

    change_record(folder, change)


def npy(header: str, data: bytes = b"") -> bytes:
    padded = header.encode().ljust(117) + b"\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(padded)) + padded + data


def tree(root: Path) -> set[Path]:
    return {path.relative_to(root) for path in root.rglob("*")}


def is_damaged(folder: StudyFolder, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        folder.record(TRIAL)
    results = load(folder.path)
    assert results.damaged == (TRIAL,)
    assert len(results.records) == 1
    assert results.rows  # the other trial still counts


def test_the_folder_itself_is_fine(folder: StudyFolder) -> None:
    assert load(folder.path).damaged == ()


HOSTILE_NAMES = (
    *("../../escape/x", "/tmp/escape", "..", ".", "", "a/b", "a\\b", ".hidden"),
    *("a\nb", "a\n", "a\x00b", "-rf", "a b", "ä", "x" * 300),
)


@pytest.mark.parametrize("name", HOSTILE_NAMES)
def test_no_name_leads_out_of_the_folder(folder: StudyFolder, name: str) -> None:
    with pytest.raises(StoreError, match="is not a folder in"):
        folder.trial(name)
    with pytest.raises(StoreError, match="is not a folder in"):
        folder.launch(name)


def rename_trial(stored: dict[str, Any]) -> None:
    """As in the report: both the key and the trial, in the launch too."""
    plan = stored["plan"]
    trial = plan["trials"].pop(TRIAL)
    plan["trials"]["../../escape/x"] = {**trial, "id": "../../escape/x"}
    plan["launches"][0]["trials"] = ["../../escape/x"]


PLANS: dict[str, Change] = {
    "a trial elsewhere": rename_trial,
    "a trial that says so": lambda stored: stored["plan"]["trials"][TRIAL].update(id="../../escape/x"),
    "a trial of another name": lambda stored: stored["plan"]["trials"][TRIAL].update(id="0000-w2-b100-probe-r1"),
    "a launch of no trial": lambda stored: stored["plan"]["launches"][0].update(trials=["../../escape/x"]),
    "a launch elsewhere": lambda stored: stored["plan"]["launches"][0].update(kind="../../escape/x"),
    "a launch of text": lambda stored: stored["plan"]["launches"][0].update(workers="../x"),
    "a launch on a target elsewhere": lambda stored: stored["plan"]["launches"][0].update(place="../../x"),
    "a target elsewhere": lambda stored: stored["plan"]["trials"][TRIAL].update(place="../../x"),
    "no facts": lambda stored: stored.update(facts={"title": 1}),
    "a metric that steers": lambda stored: stored["facts"].update(metric="a\x1b[2J"),
    "no mapping": lambda stored: stored["plan"].update(trials=[1]),
}


@pytest.mark.parametrize("change", PLANS.values(), ids=PLANS)
def test_a_plan_that_leads_elsewhere_is_refused_and_nothing_written(
    folder: StudyFolder, change: Change, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for trial_id in folder.trial_ids():
        (folder.trial(trial_id) / "record.json").unlink()
    change_plan(folder, change)
    before = tree(folder.path.parent)
    with pytest.raises(StoreError, match=r"plan\.json"):
        load(folder.path)
    assert call("status", str(folder.path), monkeypatch=monkeypatch) == 2
    assert capsys.readouterr().err.startswith("error: ")
    study = Study.from_text(STUDY, folder=folder.path, machine=Machine(cores=4, gpus=0))
    with pytest.raises(StoreError):
        study.prepare()
    assert tree(folder.path.parent) <= {*before, Path("study/.lock.guard")}


def test_a_launch_whose_trials_lie_elsewhere_is_not_adopted(folder: StudyFolder) -> None:
    study = Study.from_text(STUDY, folder=folder.path, machine=Machine(cores=4, gpus=0))
    for trial_id in folder.trial_ids():
        (folder.trial(trial_id) / "record.json").unlink()
    work, *_ = study.prepare()
    launch = read_json(work.path / "launch.json")
    write_json(work.path / "launch.json", {**launch, "trials": ["../../escape/x"]})
    with pytest.raises(StoreError, match="is not a folder in"):
        PreparedLaunch.stored(folder, work.launch_id, 1.0)
    write_json(work.path / "launch.json", [])
    with pytest.raises(StoreError, match=r"launch\.json is damaged or of another version"):
        open_launches(folder, "", 1.0)


def links_out(folder: StudyFolder, trial_id: str, name: str) -> Path:
    outside = folder.path.parent / "outside"
    outside.mkdir()
    (outside / "precious").write_text("mine", encoding="utf-8")
    path = folder.trial(trial_id)
    if name:
        path.mkdir(exist_ok=True)
        (path / name).unlink(missing_ok=True)
        (path / name).symlink_to(outside / "precious")
    else:
        shutil.rmtree(path)
        path.symlink_to(outside)
    return outside


@pytest.mark.parametrize("name", ["events.jsonl", "spans-rank00.npy", "log.txt", ""])
def test_no_trial_writes_through_a_link(folder: StudyFolder, name: str) -> None:
    for trial_id in folder.trial_ids():
        (folder.trial(trial_id) / "record.json").unlink()
    outside = links_out(folder, TRIAL, name)
    study = Study.from_text(STUDY, folder=folder.path, machine=Machine(cores=4, gpus=0))
    with pytest.raises(StoreError, match=r"is a link|is not a folder in"):
        study.prepare()
    assert tree(outside) == {Path("precious")}
    assert (outside / "precious").read_text(encoding="utf-8") == "mine"


@pytest.mark.parametrize("room", ["trials", "launches"])
def test_the_folder_itself_may_be_a_link_and_its_parts_may_not(folder: StudyFolder, room: str) -> None:
    link = folder.path.with_name("link")
    link.symlink_to(folder.path)
    assert len(load(link).records) == 2
    (folder.path / room).rename(folder.path.parent / room)
    (folder.path / room).symlink_to(folder.path.parent / room)
    with pytest.raises(StoreError, match=f"{room} is a link"):
        load(folder.path)


def test_the_lock_empties_nothing_through_a_link(folder: StudyFolder) -> None:
    precious = folder.path.parent / "precious"
    precious.write_text("mine", encoding="utf-8")
    (folder.path / ".lock.guard").symlink_to(precious)
    with pytest.raises(StoreError, match="is a link"), study_lock(folder.path):
        pass
    assert precious.read_text(encoding="utf-8") == "mine"


@pytest.mark.parametrize("name", ["/dev/zero", "../../plan.json", "/etc/passwd", "..", "a/b", ""])
def test_an_array_lies_in_the_folder_of_its_trial(folder: StudyFolder, name: str) -> None:
    change_record(folder, lambda body: body["spans"][0].update(name=name))
    is_damaged(folder, "name")


@pytest.mark.parametrize("group", ["spans", "telemetry"])
@pytest.mark.parametrize("kind", ["pipe", "link to /dev/zero", "folder", "link to itself"])
def test_an_array_is_a_plain_file(folder: StudyFolder, kind: str, group: str) -> None:
    path = folder.trial(TRIAL) / f"{group}-rank00.npy"
    path.unlink()
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    else:
        path.symlink_to("/dev/zero" if kind.endswith("zero") else path)
    is_damaged(folder, rf"{group}-rank00\.npy is (not a plain file|a link)")


def test_an_array_outside_is_not_read_through_a_link(folder: StudyFolder) -> None:
    path = folder.trial(TRIAL) / "spans-rank00.npy"
    path.rename(folder.path.parent / "spans.npy")
    path.symlink_to(folder.path.parent / "spans.npy")
    is_damaged(folder, "is a link")


UINTS = np.zeros((60, 7), dtype=np.uint32).tobytes()
ARRAYS = {
    "claims 104 GiB": (npy("{'descr': '<u4', 'fortran_order': False, 'shape': (4000000000, 7), }", UINTS), "claims"),
    "claims too little": (npy("{'descr': '<u4', 'fortran_order': False, 'shape': (59, 7), }", UINTS), "claims"),
    "overflows": (npy(f"{{'descr': '<u4', 'fortran_order': False, 'shape': ({2**62}, 7), }}", UINTS), "not an array"),
    "negative": (npy("{'descr': '<u4', 'fortran_order': False, 'shape': (-60, 7), }", UINTS), "not an array"),
    "objects": (npy("{'descr': '|O', 'fortran_order': False, 'shape': (60, 7), }", UINTS), "not an array"),
    "floats": (npy("{'descr': '<f4', 'fortran_order': False, 'shape': (60, 7), }", UINTS), "columns"),
    "one row": (npy("{'descr': '<u4', 'fortran_order': False, 'shape': (1, 420), }", UINTS), "columns"),
    "a line": (npy("{'descr': '<u4', 'fortran_order': False, 'shape': (420,), }", UINTS), "columns"),
    "a cube": (npy("{'descr': '<u4', 'fortran_order': False, 'shape': (60, 7, 1), }", UINTS), "columns"),
    "fewer rows": (npy("{'descr': '<u4', 'fortran_order': False, 'shape': (59, 7), }", UINTS[28:]), "columns|rows"),
    "code": (
        npy("{'descr': __import__('os').system('x'), 'fortran_order': False, 'shape': (60, 7), }"),
        "not an array",
    ),
    "a short header": (npy("{'descr': '<u4', 'fortran_order': False, 'shape': (60, 7), }", UINTS)[:40], "not an array"),
    "another format": (b"\x93NUMPY\x03\x00" + bytes(100), "not an array"),
    "empty": (b"", "not an array"),
}


@pytest.mark.parametrize(("content", "said"), ARRAYS.values(), ids=ARRAYS)
def test_an_array_is_what_its_beginning_claims(folder: StudyFolder, content: bytes, said: str) -> None:
    put_array(folder, content, "spans-rank01.npy")
    is_damaged(folder, said)


def test_telemetry_has_the_columns_that_the_record_names(folder: StudyFolder) -> None:
    rows = np.zeros((40, 2))
    put_array(
        folder,
        npy("{'descr': '<f8', 'fortran_order': False, 'shape': (20, 4), }", rows.tobytes()),
        "telemetry-rank00.npy",
    )
    is_damaged(folder, r"telemetry-rank00\.npy does not have the columns")


@pytest.mark.parametrize(
    "array",
    [
        np.arange(28, dtype=np.uint32).reshape(4, 7),
        np.asfortranarray(np.arange(28, dtype=np.uint32).reshape(4, 7)),
        np.zeros((0, 7), dtype=np.uint32),
    ],
    ids=["usual", "by columns", "no step"],
)
def test_arrays_read_back(tmp_path: Path, array: Any) -> None:
    folder = StudyFolder(tmp_path)
    folder.trial(TRIAL).mkdir(parents=True)
    spans = (save_array(folder.trial(TRIAL) / "spans-rank00.npy", 0, array),)
    common: dict[str, Any] = {"trial": TRIAL, "outcome": "finished", "launch": "0001", "started_at": 0.0, "wall_s": 1.0}
    folder.write_record(TrialRecord(**common, spans=spans))
    record = folder.record(TRIAL)
    assert record is not None
    assert folder.span_s(record)[:, 0] == pytest.approx(array * 1e-7)


def test_missing_weights_damage_a_record(folder: StudyFolder) -> None:
    weights = {"rank": 0, "name": "weights.pt", "sha256": hashlib.sha256(b"w").hexdigest()}
    change_record(folder, lambda body: body.update(weights=weights))
    is_damaged(folder, r"weights\.pt is missing")
    (folder.trial(TRIAL) / "weights.pt").write_bytes(b"x")
    is_damaged(folder, r"weights\.pt does not match its checksum")
    (folder.trial(TRIAL) / "weights.pt").write_bytes(b"w")
    assert load(folder.path).damaged == ()


RECORDS: dict[str, Change] = {
    "another trial": lambda body: body.update(trial="0001-w2-b100-probe-r1"),
    "a trial elsewhere": lambda body: body.update(trial="../../x"),
    "a launch elsewhere": lambda body: body.update(launch="../../x"),
    "a failure without a reason": lambda body: body.update(outcome="failed"),
    "a column that steers": lambda body: body.update(columns=["a\x1b[2J", *body["columns"][1:]]),
    "other spans": lambda body: body.update(columns=["step", *body["columns"][1:]]),
    "not a number": lambda body: body.update(wall_s=float("nan")),
}


@pytest.mark.parametrize("change", RECORDS.values(), ids=RECORDS)
def test_a_record_that_cannot_be_ours_is_damaged(folder: StudyFolder, change: Change) -> None:
    change_record(folder, change)
    is_damaged(folder, ".")


@pytest.mark.parametrize("command", ["report", "status", "export"])
def test_a_folder_of_an_older_format_is_refused_in_one_sentence(
    folder: StudyFolder, command: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    change_record(folder, lambda body: body.update(schema_version=3))
    assert call(command, str(folder.path), monkeypatch=monkeypatch) == 2
    said = " ".join(capsys.readouterr().err.split())
    assert (
        "a record of format 3 is from an older worldsize (this one reads format 4); use the version that wrote" in said
    )
    assert "Traceback" not in said


def test_nesting_without_end_is_damage(folder: StudyFolder) -> None:
    (folder.trial(TRIAL) / "record.json").write_text("[" * 200_000, encoding="utf-8")
    is_damaged(folder, "nested too deeply")
    folder.plan_file.write_text('{"a":' * 200_000, encoding="utf-8")
    with pytest.raises(StoreError, match=r"plan\.json"):
        load(folder.path)


def test_a_damaged_record_of_any_kind_is_set_aside(folder: StudyFolder) -> None:
    path = folder.trial(TRIAL) / "record.json"
    path.unlink()
    os.mkfifo(path)
    is_damaged(folder, r"record\.json is not a plain file")
    assert folder.set_aside(TRIAL, "damaged").name == "record.json.damaged"
    assert folder.record(TRIAL) is None


def read_status(folder: StudyFolder) -> None:
    lock_holder(folder.path)
    load(folder.path).to_dict()
    list(folder.events(TRIAL))
    links(folder)
    job_statuses(folder)


@pytest.mark.parametrize("kind", ["pipe", "link to /dev/zero", "folder", "sparse", "text", "list"])
@pytest.mark.parametrize(
    "name",
    [
        *("study.yaml", "plan.json", "lock.json", "launches/0001-probe-w2/interconnect.json"),
        *("launches/0001-probe-w2/job.json", "launches/0001-probe-w2/end.json"),
        *(f"trials/{TRIAL}/record.json", f"trials/{TRIAL}/events.jsonl", f"trials/{TRIAL}/spec.json"),
    ],
)
def test_every_file_is_read_as_a_plain_one(folder: StudyFolder, name: str, kind: str) -> None:
    """It ends, in an error of ours or none; never in one of Python's."""
    if name.endswith("end.json"):
        write_json(folder.path / "launches/0001-probe-w2/job.json", {"name": "ws-x", "id": "7", "submitted_at": 1.0})
    path = folder.path / name
    path.unlink(missing_ok=True)
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    elif kind == "sparse":
        with path.open("wb") as file:
            file.truncate(2**40)
    elif kind == "link to /dev/zero":
        path.symlink_to("/dev/zero")
    else:
        path.write_text("\x00\xff" if kind == "text" else "[1]", encoding="latin-1")
    read = (lambda: folder.trial_spec(TRIAL)) if name.endswith("spec.json") else (lambda: read_status(folder))
    said = None
    try:
        read()
    except WorldsizeError as error:
        said = error
    assert said is None or (said.exit_code == 2 and str(folder.path) in str(said))


def test_launches_of_other_names_are_none(folder: StudyFolder) -> None:
    known = folder.launches()
    for name in ("x", "0a0b-probe", ".0001-probe", "0002-\x1b[2J"):
        (folder.path / "launches" / name).mkdir()
    (folder.path / "launches" / "0009-probe-w2").symlink_to("/tmp")
    assert folder.launches() == known


@pytest.mark.parametrize("job", ["--help", "1;rm", "7\x1b[2J", "", 7])
def test_what_slurm_is_asked_about_is_a_job(folder: StudyFolder, job: Any) -> None:
    path = folder.path / "launches/0001-probe-w2/job.json"
    for told in ({"name": "ws-x", "id": job}, {"name": job, "id": "7"}):
        write_json(path, {**told, "submitted_at": 1.0})
        with pytest.raises(StoreError, match=r"job\.json is damaged"):
            job_statuses(folder)


def test_what_plans_name_is_what_the_folder_takes() -> None:
    """Every name that a plan can make: targets, strategies, pretraining."""
    text = STUDY.replace("[100]}", "[100], strategy: [ddp, {name: local-sgd, every: 4}, fp16-compression]}")
    text += "run_on: [{name: t4.a-b_c, slurm: {nodes: 2}}, {name: v100, slurm: {nodes: 2}}]\ntrain: {epochs: 1}\n"
    study = Study.from_text(text, folder=Path("x"), machine=Machine(cores=4, gpus=0))
    plan = make_plan(study.spec)
    folder = StudyFolder(Path("x"))
    for number, launch in enumerate(plan.launches, start=1):
        folder.launch(launch.id(number))
    assert all(folder.trial(trial_id) for trial_id in plan.trials)
    stored = PlanFile(plan=plan, device={"": "cpu"}, facts=study.facts)
    assert PlanFile.model_validate_json(stored.model_dump_json()).plan == plan
    assert ArrayFile(rank=0, name="spans-b256-rank03.npy", sha256="").name == "spans-b256-rank03.npy"
