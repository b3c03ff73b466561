"""Real processes, really killed: finished trials stay, the rest runs, nothing is left behind."""

from __future__ import annotations

import json
import os
import pty
import re
import signal
import subprocess
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

import worldsize
from tests.system.conftest import SMALL, Start, processes_of, records, starter, wait_for


def outcomes(folder: Path) -> dict[str, str]:
    return {trial[:4]: record.outcome for trial, record in worldsize.load(folder).records.items()}


TWO_WORKERS = SMALL.replace("workers: [1, 2]", "workers: [2]")
"""2 probes, each in a launch of its own, then training."""
THROUGHPUT = TWO_WORKERS.replace("train: {steps: 30}\n", "").replace("repeats: 2", "repeats: 4")
"""4 probes, each in a launch of its own."""


@dataclass(frozen=True, kw_only=True)
class Ending:
    """Of a driver: what it said, and what was there when it had ended."""

    code: int
    output: str
    kept: dict[str, int]
    processes: list[psutil.Process]


@pytest.fixture(scope="module")
def ended(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the study of `endings`."""
    home = tmp_path_factory.mktemp("ended")
    (home / "small.yaml").write_text(THROUGHPUT)
    return home / "study"


@pytest.fixture(scope="module")
def endings(ended: Path) -> dict[str, Ending]:
    """One study, whose drivers are ended in every way in turn, each while a rank is held in the next trial.

    The last driver runs to the end, although a rank of its is killed.
    """
    folder = ended
    start = starter(folder)
    found: dict[str, Ending] = {}

    def held(trial: int, **popen: object) -> subprocess.Popen[str]:
        driver = start(fault=f"hold:0:000{trial}:0", **popen)
        try:
            wait_for(lambda: len(records(folder)) == trial)
        except AssertionError:
            driver.kill()  # a rank that is held would never end by itself
            raise
        return driver

    def note(name: str, driver: subprocess.Popen[str], output: str) -> None:
        code = driver.wait(15)
        found[name] = Ending(code=code, output=output, kept=records(folder), processes=processes_of(folder))

    ours, theirs = pty.openpty()
    driver = held(1, stdin=theirs, stdout=theirs, stderr=theirs)
    os.close(theirs)
    second = start()
    output, _ = second.communicate()
    note("second", second, output.replace(str(driver.pid), "PID OF THE FIRST"))
    driver.send_signal(signal.SIGINT)
    note("ctrl-c", driver, _read_all(ours))
    driver = held(2)
    driver.terminate()
    note("terminated", driver, driver.communicate()[0])
    driver = held(3)
    driver.kill()
    output, _ = driver.communicate()
    wait_for(lambda: not processes_of(folder), 10)  # workers end with the driver, before anything resumes
    note("killed", driver, output)
    driver = start(fault="kill:0:0003:8:once")
    note("last", driver, driver.communicate()[0])
    return found


def test_a_second_driver_is_refused(endings: dict[str, Ending]) -> None:
    assert endings["second"].code == 2
    assert "is being run by pid PID OF THE FIRST" in endings["second"].output
    assert endings["second"].processes  # those of the first, which it left alone


def test_ctrl_c_keeps_everything(endings: dict[str, Ending]) -> None:
    assert endings["ctrl-c"].code == 130
    assert "Stopped. Finished trials are kept" in endings["ctrl-c"].output
    assert endings["ctrl-c"].kept == endings["second"].kept
    assert endings["ctrl-c"].processes == []


def test_a_terminated_driver_ends_its_workers(endings: dict[str, Ending]) -> None:
    assert endings["terminated"].code == 130
    assert endings["terminated"].processes == []


def test_the_workers_of_a_killed_driver_end(endings: dict[str, Ending]) -> None:
    assert endings["killed"].code == -signal.SIGKILL
    assert endings["killed"].processes == []


def test_the_same_command_continues_whatever_ended_the_driver(endings: dict[str, Ending]) -> None:
    assert endings["last"].code == 0, endings["last"].output
    assert [len(endings[name].kept) for name in ("ctrl-c", "terminated", "killed", "last")] == [1, 2, 3, 4]
    for name in ("ctrl-c", "terminated", "killed"):
        kept = endings[name].kept
        assert {trial: endings["last"].kept[trial] for trial in kept} == kept
    assert endings["last"].processes == []


@pytest.mark.long
def test_a_driver_killed_in_the_middle_is_continued_with_training(folder: Path, start: Start) -> None:
    driver = start(fault="slow:0:0004:0")
    wait_for(lambda: len(records(folder)) >= 4)
    driver.kill()
    driver.communicate()
    wait_for(lambda: not processes_of(folder), 10)  # workers end with the driver, before anything resumes
    before = records(folder)
    assert 4 <= len(before) < 6
    second = start()
    output, _ = second.communicate()
    assert second.returncode == 0, output
    after = records(folder)
    assert len(after) == 6
    assert {trial: after[trial] for trial in before} == before
    assert processes_of(folder) == []


def test_an_error_on_one_rank_is_a_record_and_the_rest_goes_on(folder: Path, start: Start) -> None:
    (folder.parent / "small.yaml").write_text(TWO_WORKERS)
    driver = start(fault="raise:1:0000:8")
    output, _ = driver.communicate()
    assert driver.returncode == 1, output
    assert outcomes(folder) == {"0000": "failed", "0001": "finished", "0002": "finished"}
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


def test_a_killed_rank_is_tried_again(ended: Path, endings: dict[str, Ending]) -> None:
    assert_tried_again(endings["last"].code, endings["last"].output, ended, "0003")


def test_of_trials_that_take_turns_the_one_in_progress_is_blamed(folder: Path, start: Start) -> None:
    """None of them has a record when the rank is killed, and all of them run again."""
    (folder.parent / "small.yaml").write_text(SMALL.replace("train: {steps: 30}\n", ""))
    first, second, *_ = worldsize.Study(folder.parent / "small.yaml", folder=folder).plan.trials.values()
    blamed = second if second.workers == 2 else first
    driver = start(fault=f"kill:1:{blamed.id[:4]}:8:once")
    output, _ = driver.communicate()
    assert_tried_again(driver.returncode, output, folder, blamed.id[:4])


def assert_tried_again(code: int, output: str, folder: Path, trial: str) -> None:
    assert code == 0, output
    assert "killed by SIGKILL" in output
    assert "trying again (1 of 1)" in output
    assert set(outcomes(folder).values()) == {"finished"}
    ends = sorted(folder.glob("launches/*/end.json"))  # none where the driver itself was killed
    culprits = [json.loads(end.read_text())["culprit"] for end in ends]
    assert [culprit[:4] for culprit in culprits if culprit] == [trial]


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


@pytest.mark.long
def test_a_killed_torchrun_leaves_no_rank(folder: Path, start: Start) -> None:
    driver = start(fault="slow:0:0003:0")
    wait_for(lambda: _events(folder, "0003"))
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
    assert len(list(folder.glob("launches/*"))) == 5  # it was tried twice


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
    assert_tried_again(driver.returncode, output, folder, "0005")
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
        assert re.search(r"The 4 left need about \d+ MB, and \S+ has 0 MB free", output)
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
