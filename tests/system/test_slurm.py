"""Studies on a real Slurm: from nothing to an answer, and through everything that happens to jobs."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import worldsize
from tests.system.conftest import PLANTED, processes_of, records, wait_for
from tests.system.slurm import Cluster, cluster, left_behind

pytestmark = pytest.mark.long

STUDY = """\
name: tiny
workload: linear
axes: {workers: [1, 2, 4], batch_per_worker: [16]}
probe: {max_seconds: 0.2, repeats: 2}
train: {steps: 20}
repeats: 1
interconnect_probe_s: 0
run_on: {slurm: {nodes: 2, time: 5, max_jobs: 2}}
"""
"""Two jobs of 3 probes on 2 nodes, then training on 1 and 2 workers on one node and on 4 on both."""
ONE = ("--set", "axes.workers=[2]", "--set", "probe=false", "--set", "train.steps=40", "--set", "repeats=5")
"""5 trials, a worker on each of 2 nodes, in one job."""
HELD = "hold:0:0002:0"
"""The third of them waits until it is released: whatever happens, happens in the middle."""


@pytest.fixture(scope="module")
def slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """In a folder of its own: other users' paths are too long for a socket."""
    with cluster(tmp_path_factory.mktemp("slurm", numbered=True)) as made:
        yield made
    assert left_behind(made) == []


class Driver:
    """`worldsize` on this study, as a user would type it."""

    def __init__(self, slurm: Cluster, home: Path) -> None:
        self.slurm, self.folder = slurm, home / "study"
        home.mkdir(exist_ok=True)
        self.study = str(home / "tiny.yaml")
        (home / "tiny.yaml").write_text(STUDY)
        self.path = slurm.environment["PATH"]

    def start(self, *options: str, command: str = "run", fault: str = "") -> subprocess.Popen[str]:
        environment = {**self.slurm.environment, "PATH": self.path}
        if fault:
            marker = str(self.folder.parent / "planted")
            environment |= {"PLANTED": fault, "PLANTED_MARKER": marker, "PYTHONPATH": str(PLANTED)}
        return subprocess.Popen(
            [
                *(sys.executable, "-m", "worldsize.cli.main", command, self.study, "--dir", str(self.folder)),
                *options,
            ],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        )

    def run(self, *options: str, command: str = "run", fault: str = "", code: int = 0) -> str:
        process = self.start(*options, command=command, fault=fault)
        return self.finish(process, code)

    def finish(self, process: subprocess.Popen[str], code: int = 0, seconds: float = 300) -> str:
        try:
            output, _ = process.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            process.kill()
            output, _ = process.communicate()
            raise AssertionError(f"did not end:\n{output}\n{self.slurm.jobs()}") from None
        assert process.returncode == code, output
        return output

    def hear(self, process: subprocess.Popen[str], words: str, seconds: float = 180) -> None:
        """Waits until it says this; one that stays silent is killed, which ends its output."""
        assert process.stdout is not None
        deadline = threading.Timer(seconds, process.kill)
        deadline.start()
        heard: list[str] = []
        try:
            for line in process.stdout:
                heard.append(line)
                if words in line:
                    return
        finally:
            deadline.cancel()
        raise AssertionError(f"it never said {words!r}:\n{''.join(heard)}\n{self.slurm.jobs()}")

    def status(self) -> str:
        command = [sys.executable, "-m", "worldsize.cli.main", "status", str(self.folder)]
        return subprocess.run(
            command, env=self.slurm.environment, stdout=subprocess.PIPE, text=True, check=True, timeout=60
        ).stdout

    def ends(self) -> dict[str, dict[str, Any]]:
        return {
            path.parent.name: json.loads(path.read_text()) for path in sorted(self.folder.glob("launches/*/end.json"))
        }

    def job(self, launch: str = "*") -> str:
        """The id of the newest job."""
        files = sorted(self.folder.glob(f"launches/{launch}/job.json"))
        return str(json.loads(files[-1].read_text())["id"])

    def events(self, launch: str = "*") -> list[dict[str, Any]]:
        """What jobs have said of themselves."""
        files = sorted(self.folder.glob(f"launches/{launch}/job-events.jsonl"))
        return [json.loads(line) for path in files for line in path.read_text().splitlines()]

    def wait_until_held(self) -> dict[str, int]:
        """The records that are there then."""
        wait_for(lambda: len(records(self.folder)) == 2, 180)
        return records(self.folder)

    def wait_for_start(self, launch: str, attempts: int = 1) -> None:
        wait_for(lambda: [event["event"] for event in self.events(launch)].count("start") == attempts, 180)

    def release(self) -> None:
        (self.folder.parent / "planted").touch()

    def assert_whole(self, before: dict[str, int], trials: int) -> None:
        """Everything has a record, and what had one before was not touched."""
        after = records(self.folder)
        assert len(after) == trials
        assert {name: after[name] for name in before} == before
        found = worldsize.load(self.folder)
        assert {record.outcome for record in found.records.values()} == {"finished"}
        wait_for(lambda: processes_of(self.folder) == [], 20)


@pytest.fixture
def driver(slurm: Cluster, tmp_path: Path) -> Iterator[Driver]:
    slurm.clear()
    yield Driver(slurm, tmp_path)
    slurm.clear()


def test_the_quickstart_over_one_and_two_nodes_to_its_report(driver: Driver, tmp_path: Path) -> None:
    driver.study = "quickstart"
    asked = (
        "--on",
        "slurm",
        "--set",
        "run_on.slurm.nodes=2",
        "--set",
        "run_on.slurm.time=10",
        "--set",
        "run_on.slurm.max_jobs=2",
    )
    output = driver.run("--small", "--workers", "1,2,4", *asked, "--smoke")
    assert "workers start and connect" in output
    assert "7 batch jobs: " in output
    driver.assert_whole({}, 12)
    ends = driver.ends()
    assert [end["reason"] for end in ends.values()] == [""] * 7
    assert all(end["queued_s"] is not None and end["attempts"] == 1 for end in ends.values())
    nodes = {name[5:]: driver.events(name)[0]["hosts"] for name in ends}
    assert nodes == {"smoke-w4": 2, "probe-w4": 2, "train-w1": 1, "train-w2": 1, "train-w4": 2}
    # The wait in the queue is no part of any phase.
    for name, end in ends.items():
        if "-train-" in name:
            assert sum(end["phases_s"].values()) == pytest.approx(end["wall_s"], abs=3)
    assert "7 jobs" in driver.status()
    assert (driver.folder / "report" / "index.html").exists()
    # Moved, and reported where there is no Slurm.
    copy = tmp_path / "copy"
    driver.folder.rename(copy)
    command = [sys.executable, "-m", "worldsize.cli.main", "report", str(copy), "--out", str(tmp_path / "report")]
    subprocess.run(command, env={**driver.slurm.environment, "SLURM_CONF": "/nowhere"}, check=True, timeout=300)
    assert len((tmp_path / "report" / "tables" / "jobs.csv").read_text().splitlines()) == 1 + 7
    assert [row["workers"] for row in worldsize.load(copy).table()] == [1, 2, 4]


def test_targets_are_kept_apart_and_an_sbatch_that_fails_after_it_has_queued_submits_once(
    driver: Driver, tmp_path: Path
) -> None:
    tools = tmp_path / "tools"
    tools.mkdir()
    (tools / "sbatch").write_text(
        "#!/bin/bash\n/usr/bin/sbatch \"$@\" >/dev/null\necho 'sbatch: error: Socket timed out' >&2\nexit 1\n"
    )
    (tools / "sbatch").chmod(0o755)
    driver.path = f"{tools}:{driver.path}"
    known = set(driver.slurm.jobs())
    on = "run_on=[{name: here, slurm: {time: 5}}, {name: there, slurm: {time: 5, partition: urgent, nodes: 2}}]"
    output = driver.run("--set", on, "--set", "train=false", "--set", "axes.workers=[1, 2]")
    assert output.count("is in the queue") == 4
    assert "On here" in output
    assert "On there" in output
    driver.assert_whole({}, 8)
    assert len(set(driver.slurm.jobs()) - known) == 4
    hosts = {name[-5:].strip("-"): driver.events(name)[0]["hosts"] for name in driver.ends()}
    assert hosts == {"here": 1, "there": 2}
    found = worldsize.load(driver.folder)
    assert [(row["place"], row["workers"]) for row in found.table()] == [
        (on, n) for on in ("here", "there") for n in (1, 2)
    ]


def test_a_time_limit_is_no_failure_and_a_hang_tells_where_it_stands(driver: Driver, tmp_path: Path) -> None:
    """Two studies side by side: both wait most of the time."""
    # Slurm looks at limits every half a minute: of two minutes, a job has 60 to 90 s before it is warned. The first is
    # held until then, so no load and no phase lets it finish; the rest is a matter of seconds.
    limited = driver.start(*ONE, "--set", "axes.workers=[1]", "--set", "run_on.slurm.time=2", fault=HELD)
    hanging = Driver(driver.slurm, tmp_path / "hanging")
    stopped = hanging.start(*ONE, "--set", "hang_timeout_s=30", fault="stop:1:0001:5:once")
    wait_for(lambda: any(driver.folder.glob("launches/0001-*/stop-*")), 240)
    before = records(driver.folder)
    driver.release()
    output = hanging.finish(stopped)
    assert "asking its ranks for their stacks" in output
    hanging.assert_whole({}, 5)
    first, second = hanging.ends().values()
    assert "no sign of life" in first["cause"]
    assert (first["culprit"][:4], second["culprit"]) == ("0001", None)
    assert [event["event"] for event in hanging.events("0001-*")][1] == "stacks"
    (log,) = hanging.folder.glob("launches/0001-*/rank00.log")
    assert "most recent call first" in log.read_text()
    driver.finish(limited)
    driver.assert_whole(before, 5)
    first, *more = driver.ends().values()
    assert first["reason"] == "time limit"
    assert more[-1]["reason"] == ""
    assert not before or first["culprit"] is None  # what is cut off after something was done is nobody's failure


def test_a_cancelled_job_is_not_submitted_again_until_asked(driver: Driver, tmp_path: Path) -> None:
    process = driver.start(*ONE, fault=HELD)
    before = driver.wait_until_held()
    driver.slurm.call("scancel", driver.job())
    output = driver.finish(process, code=1)
    assert f"job {driver.job()} was cancelled" in output
    assert [end["reason"] for end in driver.ends().values()] == ["cancelled"]
    assert "cancelled" in driver.status()
    # It goes on where the folder was moved to. There Ctrl-C cancels, as it was asked to.
    driver.folder = driver.folder.rename(tmp_path / "moved")
    process = driver.start(*ONE, "--cancel", fault=HELD)
    driver.wait_for_start("0002-*")
    process.send_signal(signal.SIGINT)
    driver.finish(process, code=130)
    assert driver.slurm.jobs()[driver.job()] == "CANCELLED"
    assert processes_of(driver.folder) == []
    driver.run(*ONE)
    driver.assert_whole(before, 5)
    assert [end["reason"] for end in driver.ends().values()] == ["cancelled", "interrupted", ""]


def test_a_job_that_is_requeued_and_then_preempted_goes_on_where_it_was(driver: Driver) -> None:
    process = driver.start(*ONE, "--set", "run_on.slurm.partition=idle", fault=HELD)
    before = driver.wait_until_held()
    driver.slurm.call("scontrol", "requeue", driver.job())
    driver.wait_for_start("0001-*", attempts=2)
    driver.hear(process, "attempt 2")
    assert "attempt 2" in driver.status()
    driver.slurm.call(
        *("sbatch", "--partition=urgent", "--nodes=2", "--exclusive", "--output=/dev/null", "--wrap=sleep 1")
    )
    driver.wait_for_start("0002-*")
    driver.release()
    driver.finish(process)
    driver.assert_whole(before, 5)
    first, second = driver.ends().values()
    assert (first["reason"], first["attempts"], first["culprit"]) == ("preempted", 2, None)
    assert (second["reason"], second["attempts"], second["culprit"]) == ("", 1, None)
    assert "preempted" in driver.status()


def test_a_node_that_is_lost_costs_an_attempt_and_no_trial(driver: Driver) -> None:
    process = driver.start(*ONE, fault=HELD)
    before = driver.wait_until_held()
    driver.slurm.stop("n2")
    wait_for(lambda: driver.slurm.jobs()[driver.job()] == "PENDING", 180)
    driver.slurm.start_node("n2")
    driver.wait_for_start("0001-*", attempts=2)
    driver.release()
    output = driver.finish(process)
    driver.assert_whole(before, 5)
    assert len(driver.ends()) == 1
    assert "attempt 2" in output


def test_a_controller_that_is_away_is_waited_for(driver: Driver) -> None:
    process = driver.start(*ONE, fault=HELD)
    before = driver.wait_until_held()
    driver.slurm.stop("slurmctld")
    time.sleep(20)
    driver.hear(process, "Slurm does not answer")
    driver.slurm.start_controller()
    driver.release()
    driver.finish(process)
    driver.assert_whole(before, 5)
    (end,) = driver.ends().values()
    assert (end["reason"], end["attempts"]) == ("", 1)


def test_detached_killed_stopped_and_adopted_it_is_one_job(driver: Driver) -> None:
    output = driver.run(*ONE, "--detach", fault=HELD)
    assert "worldsize status" in output
    before = driver.wait_until_held()
    assert "running on n[1-2]" in driver.status()
    killed = driver.start(*ONE)
    driver.hear(killed, "following job")
    killed.kill()
    killed.communicate()
    stopped = driver.start(*ONE)
    driver.hear(stopped, "following job")
    stopped.send_signal(signal.SIGINT)
    assert "keeps running" in driver.finish(stopped, code=130)
    driver.release()
    output = driver.run(*ONE)
    assert f"following job {driver.job()}" in output
    driver.assert_whole(before, 5)
    (end,) = driver.ends().values()
    assert (end["reason"], end["attempts"], end["job"]) == ("", 1, driver.job())


def test_an_adaptive_study_goes_on_round_by_round_while_nobody_watches(driver: Driver) -> None:
    """Each call takes in the jobs that ended, and submits what follows from them; the last one has nothing left."""
    values = ("axes.workers=auto", "axes.batch_per_worker=[128]", "workload=digits", "run_on.slurm.workers_per_node=2")
    auto = [option for value in values for option in ("--set", value)]
    rounds = []
    for _ in range(8):
        driver.run(*auto, "--detach")
        plan = json.loads((driver.folder / "plan.json").read_text())
        rounds.append([launch["kind"] for launch in plan["plan"]["launches"]])
        wait_for(lambda: not driver.slurm.call("squeue", "--noheader"), 120)
        if len(rounds) > 1 and rounds[-1] == rounds[-2]:
            break
    assert rounds[0] == ["probe"]
    assert rounds[-1] == rounds[-2], rounds
    assert rounds[-1][-1] == "train"
    results = worldsize.load(driver.folder)
    assert not results.left()
    assert results.answer.row is not None
    assert {trial.workers for trial in results.trials.values() if trial.kind == "probe"} == {1, 2, 4}
    assert "adaptive" in {finding.code for finding in results.answer.findings}


def test_a_script_submitted_by_hand_does_the_same(driver: Driver, tmp_path: Path) -> None:
    output = driver.run(*ONE, "--set", "repeats=2", command="by-hand")
    (line,) = [line for line in output.splitlines() if line.startswith("sbatch ")]
    driver.slurm.call(*line.split())
    driver.run(*ONE, "--set", "repeats=2")
    driver.assert_whole({}, 2)
    assert len(driver.ends()) == 1
    assert not (tmp_path / "slurm.out").exists()
