"""Real processes, really killed: finished trials stay, the rest runs, nothing is left behind."""

from __future__ import annotations

import json
import os
import pty
import re
import signal
import subprocess
from pathlib import Path

import psutil
import pytest

import worldsize
from tests.system.conftest import Start, processes_of, records, wait_for


def outcomes(folder: Path) -> dict[str, str]:
    return {trial[:4]: record.outcome for trial, record in worldsize.load(folder).records.items()}


def test_a_driver_killed_in_the_middle_is_continued_by_the_same_command(folder: Path, start: Start) -> None:
    driver = start(fault="slow:0:0003:0")
    wait_for(lambda: len(records(folder)) >= 3)
    driver.kill()
    driver.communicate()
    wait_for(lambda: not processes_of(folder), 10)  # workers end with the driver, before anything resumes
    before = records(folder)
    assert 3 <= len(before) < 6
    second = start()
    output, _ = second.communicate()
    assert second.returncode == 0, output
    after = records(folder)
    assert len(after) == 6
    assert {trial: after[trial] for trial in before} == before
    assert processes_of(folder) == []


def test_an_error_on_one_rank_is_a_record_and_the_rest_goes_on(folder: Path, start: Start) -> None:
    trial = "0003" if _workers(folder, "0003") == 2 else "0002"
    driver = start(fault=f"raise:1:{trial}:8")
    output, _ = driver.communicate()
    assert driver.returncode == 1, output
    assert outcomes(folder) == {f"000{n}": "failed" if f"000{n}" == trial else "finished" for n in range(6)}
    (failed,) = worldsize.load(folder).failed()
    assert failed.failure is not None
    assert (failed.failure.rank, failed.failure.step) == (1, 8)
    assert failed.failure.error == "ValueError: planted error on this rank"
    assert "about to fail, as planted" in failed.failure.log
    assert "[01] about to fail, as planted" in (folder / "trials" / failed.trial / "log.txt").read_text()
    assert "planted error on this rank" in output
    kept = records(folder)
    again = start("--retry-failed")
    output, _ = again.communicate()
    assert again.returncode == 0, output
    assert {name for name, time in records(folder).items() if kept[name] != time} == {failed.trial}


def _workers(folder: Path, number: str) -> int:
    """Probes are in a seeded order: look up which of them has two workers."""
    study = worldsize.Study.from_file(folder.parent / "small.yaml")
    return next(trial.workers for trial in study.plan().trials.values() if trial.id.startswith(number))


def test_a_killed_rank_is_tried_again(folder: Path, start: Start) -> None:
    driver = start(fault="kill:0:0005:10:once")
    output, _ = driver.communicate()
    assert driver.returncode == 0, output
    assert "killed by SIGKILL" in output
    assert "trying again (1 of 1)" in output
    assert set(outcomes(folder).values()) == {"finished"}
    culprits = [
        json.loads((launch / "end.json").read_text())["culprit"] for launch in sorted(folder.glob("launches/*"))
    ]
    assert [culprit[:4] for culprit in culprits if culprit] == ["0005"]


def test_ctrl_c_keeps_everything_and_the_same_command_continues(folder: Path, start: Start) -> None:
    ours, theirs = pty.openpty()
    driver = start(fault="slow:0:0003:0", stdin=theirs, stdout=theirs, stderr=theirs)
    os.close(theirs)
    wait_for(lambda: len(records(folder)) >= 2)
    driver.send_signal(signal.SIGINT)
    seen = _read_all(ours)
    assert driver.wait(15) == 130
    assert "stopped; finished trials are kept" in seen
    assert processes_of(folder) == []
    before = records(folder)
    second = start("--json")
    output, _ = second.communicate()
    assert second.returncode == 0, output
    after = records(folder)
    assert {trial: after[trial] for trial in before} == before


def _read_all(descriptor: int) -> str:
    text = b""
    while True:
        try:
            chunk = os.read(descriptor, 65536)
        except OSError:  # the other end is closed
            break
        if not chunk:
            break
        text += chunk
    os.close(descriptor)
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", text.decode(errors="replace"))


def test_a_second_driver_is_refused_and_status_can_look(folder: Path, start: Start) -> None:
    first = start(fault="slow:0:000:0")
    wait_for(lambda: len(records(folder)) >= 1)
    second = start()
    output, _ = second.communicate()
    assert second.returncode == 2
    assert f"is being run by pid {first.pid}" in output
    first.terminate()
    output, _ = first.communicate()
    assert first.returncode == 130, output
    assert processes_of(folder) == []


@pytest.mark.long
def test_a_killed_torchrun_leaves_no_rank(folder: Path, start: Start) -> None:
    driver = start(fault="slow:0:0003:0")
    wait_for(lambda: len(records(folder)) >= 1)
    (torchrun,) = [
        child for child in psutil.Process(driver.pid).children() if "torch.distributed.run" in child.cmdline()
    ]
    ranks = torchrun.children()
    assert len(ranks) == 2
    torchrun.kill()
    wait_for(lambda: not any(rank.is_running() and rank.status() != psutil.STATUS_ZOMBIE for rank in ranks), 5)
    output, _ = driver.communicate()
    assert driver.returncode == 0, output
    assert set(outcomes(folder).values()) == {"finished"}


@pytest.mark.long
def test_a_rank_that_leaves_early_with_exit_0_has_failed(folder: Path, start: Start) -> None:
    driver = start(fault="exit0:0:0004:3")
    output, _ = driver.communicate()
    assert driver.returncode == 1, output
    assert outcomes(folder) == {f"000{n}": "failed" if n == 4 else "finished" for n in range(6)}
    assert len(list(folder.glob("launches/*"))) == 4  # it was tried twice


@pytest.mark.long
def test_a_rank_that_hangs_is_ended_and_its_stack_is_in_the_log(folder: Path, start: Start) -> None:
    driver = start("--set", "hang_timeout_s=20", "--set", "retries=0", fault="stop:1:0005:3")
    output, _ = driver.communicate()
    assert driver.returncode == 1, output
    (failed,) = worldsize.load(folder).failed()
    assert failed.failure is not None
    assert "no sign of life" in failed.failure.error
    assert "run_steps" in (folder / "trials" / failed.trial / "log.txt").read_text()
    assert processes_of(folder) == []


@pytest.mark.long
@pytest.mark.parametrize("seed", range(4))
def test_any_rank_killed_at_any_step(folder: Path, start: Start, seed: int) -> None:
    rank, step = seed % 2, (0, 7, 19, 29)[seed]
    driver = start(fault=f"kill:{rank}:0005:{step}:once")
    output, _ = driver.communicate()
    assert driver.returncode == 0, output
    assert "killed by SIGKILL" in output
    assert set(outcomes(folder).values()) == {"finished"}
    assert processes_of(folder) == []


@pytest.mark.long
def test_a_full_disk_stops_the_study_and_the_same_command_continues_it(tmp_path: Path, start: Start) -> None:
    """A real one: a file system in memory with room for the study, until a file of somebody else fills it."""
    disk = tmp_path / "disk"
    folder = disk / "study"
    disk.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=40m", "tmpfs", disk], check=True)
    try:
        driver = start("--dir", str(folder), fault="hold:0:0003:5")
        wait_for(lambda: _events(folder, "0003"))
        before = records(folder)
        with pytest.raises(OSError, match="No space left"):
            _fill(disk / "filler")
        (tmp_path / "planted").touch()
        output, _ = driver.communicate()
        assert driver.returncode == 1, output
        assert "the disk is full: " in output
        assert re.search(r"The 3 left need about \d+ MB, and \S+ has 0 MB free", output)
        assert processes_of(folder) == []
        assert records(folder) == before
        again = start("--dir", str(folder))
        output, _ = again.communicate()
        assert again.returncode == 2, output  # looked at before anything starts
        assert "free some space" in output
        (disk / "filler").unlink()
        third = start("--dir", str(folder))
        output, _ = third.communicate()
        assert third.returncode == 0, output
        assert set(outcomes(folder).values()) == {"finished"}
        assert {trial: time for trial, time in records(folder).items() if trial in before} == before
    finally:
        subprocess.run(["umount", disk], check=True)


def _fill(path: Path) -> None:
    with path.open("wb", buffering=0) as file:
        while True:
            file.write(bytes(2**16))


def _events(folder: Path, number: str) -> bool:
    return any(path.stat().st_size for path in folder.glob(f"trials/{number}*/events.jsonl"))
