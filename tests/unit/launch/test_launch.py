"""Commands, following and blame: launches without starting one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from worldsize.folder.launches import LaunchFolder, RankFailure
from worldsize.folder.study_folder import StudyFolder
from worldsize.launch.autopsy import any_trial_began, find_cause, killed_ranks, trial_log
from worldsize.launch.commands import backend_for, torchrun_command, worker_environment
from worldsize.launch.follow import Follower

TRIALS = ["0000-a", "0001-b"]

TORCHRUN_REPORT = """\
torch.distributed.elastic.multiprocessing.errors.ChildFailedError:
============================================================
worldsize.worker FAILED
------------------------------------------------------------
Failures:
[1]:
  time      : 2026-01-01_00:00:01
  host      : here
  rank      : 0 (local_rank: 0)
  exitcode  : -15 (pid: 10)
  error_file: <N/A>
  traceback : Signal 15 (SIGTERM) received by PID 10
------------------------------------------------------------
Root Cause (first observed failure):
[0]:
  time      : 2026-01-01_00:00:00
  host      : here
  rank      : 3 (local_rank: 3)
  exitcode  : -9 (pid: 13)
  error_file: <N/A>
  traceback : Signal 9 (SIGKILL) received by PID 13
============================================================
"""


def test_the_command_is_torchrun_and_nothing_is_left_to_a_shell() -> None:
    command = torchrun_command(Path("runs/$(touch x)"), "0001-probe-w4", 4, python="python")
    assert command == [
        "python",
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc-per-node=4",
        "-m",
        "worldsize.worker",
        "runs/$(touch x)",
        "0001-probe-w4",
    ]
    assert worker_environment(2)["OMP_NUM_THREADS"] == "2"


def test_workers_keep_freed_memory_unless_it_is_limited_or_not_wanted() -> None:
    keeps = worker_environment(1, tunables="glibc.rtld.optional_static_tls=0x4000")
    assert keeps["MALLOC_TRIM_THRESHOLD_"] == str(4 * 1024**3)
    assert keeps["GLIBC_TUNABLES"] == "glibc.rtld.optional_static_tls=0x4000:glibc.malloc.hugetlb=1"
    assert worker_environment(1)["GLIBC_TUNABLES"] == "glibc.malloc.hugetlb=1"
    for returns in (worker_environment(1, 1.0), worker_environment(1, keep_freed_memory=False)):
        assert not {"MALLOC_TRIM_THRESHOLD_", "MALLOC_TOP_PAD_", "GLIBC_TUNABLES"} & returns.keys()


def test_nccl_only_where_every_rank_has_a_gpu() -> None:
    assert backend_for("cuda", 4, 4) == "nccl"
    assert backend_for("cuda", 4, 2) == "gloo"
    assert backend_for("cpu", 2, 0) == "gloo"


class Teller:
    """Plays rank 0, on a clock that tests move."""

    def __init__(self, path: Path) -> None:
        self.folder, self.time = StudyFolder(path), 0.0
        for trial in TRIALS:
            self.folder.trial(trial).mkdir(parents=True, exist_ok=True)

    def say(self, trial: str, event: str, end: str = "\n", **values: Any) -> None:
        with (self.folder.trial(trial) / "events.jsonl").open("a") as file:
            file.write(json.dumps({"event": event, **values}) + end)

    def follower(self) -> Follower:
        return Follower(self.folder, self.folder.launch("0001"), TRIALS, 300.0, now=lambda: self.time)


def test_events_come_in_order_and_none_is_lost_between_trials(tmp_path: Path) -> None:
    teller = Teller(tmp_path)
    follower = teller.follower()
    assert list(follower.events()) == []
    teller.say(TRIALS[0], "start")
    teller.say(TRIALS[0], "end")
    teller.say(TRIALS[1], "start")
    teller.say(TRIALS[1], "progress", end="", step=7)
    assert [(trial, event["event"]) for trial, event in follower.events()] == [
        (TRIALS[0], "start"),
        (TRIALS[0], "end"),
        (TRIALS[1], "start"),
    ]
    teller.say(TRIALS[1], "progress", step=9)  # the unfinished line before it is now garbled: no event, no crash
    teller.say(TRIALS[1], "end")
    assert [event["event"] for _, event in follower.events()] == ["end"]


def test_trials_that_take_turns_are_all_heard(tmp_path: Path) -> None:
    """Their events come in turns, and none of them ends before all are measured."""
    teller = Teller(tmp_path)
    follower = teller.follower()
    for trial in TRIALS[:2]:
        teller.say(trial, "start")
    list(follower.events())
    for step in range(4):  # steps of the first are short, those of the second are long
        teller.say(TRIALS[0], "progress", step=step)
        list(follower.events())
        teller.time += 8
        teller.say(TRIALS[1], "progress", step=step)
        assert [trial for trial, _ in follower.events()] == [TRIALS[1]]
    assert follower.patience_s() == 160  # 20 gaps of 8 s, not of what is between steps of the first
    assert follower.last_step == 3
    for trial in TRIALS[:2]:
        teller.say(trial, "end")
    assert [trial for trial, _ in follower.events()] == TRIALS[:2]
    assert list(follower.events()) == []


def test_a_second_attempt_does_not_hear_the_first(tmp_path: Path) -> None:
    teller = Teller(tmp_path)
    teller.say(TRIALS[0], "start")
    teller.say(TRIALS[0], "end")
    assert list(teller.follower().events()) == []


def test_patience_follows_the_steps_seen(tmp_path: Path) -> None:
    teller = Teller(tmp_path)
    follower = teller.follower()
    assert follower.patience_s() == 300
    teller.say(TRIALS[0], "progress", step=0)
    list(follower.events())
    assert follower.patience_s() == 300  # one step says nothing of the next
    for step in range(4):
        teller.say(TRIALS[0], "progress", step=step)
        list(follower.events())
        teller.time += 5
    assert follower.patience_s() == 100  # 20 gaps of 5 s
    assert follower.last_step == 3
    teller.time += 90
    assert not follower.hung()
    teller.time += 10
    assert follower.hung()
    teller.say(TRIALS[0], "evaluation")
    list(follower.events())
    assert follower.patience_s() == 300
    assert not follower.hung()


def write_failure(launch: Path, rank: int, at: float, error: str, kind: str = "RuntimeError") -> None:
    failure = RankFailure(rank=rank, trial=TRIALS[0], step=5, at=at, type=kind, error=error)
    LaunchFolder(launch).write(failure)


def cause_of(launch: Path, **changes: Any) -> Any:
    return find_cause(
        launch, TRIALS[0], **{"workers": 4, "hung": False, "patience_s": 30.0, "last_step": 12, **changes}
    )


def test_torchruns_report_names_the_killed_rank_not_those_it_ended() -> None:
    assert killed_ranks(TORCHRUN_REPORT) == [(3, 9)]
    assert killed_ranks("") == []


def test_a_killed_rank_is_blamed_before_those_that_lost_it(tmp_path: Path) -> None:
    (tmp_path / "torchrun.log").write_text(TORCHRUN_REPORT)
    write_failure(tmp_path, 0, 1.0, "Connection closed by peer [127.0.0.1]:1234")
    cause = cause_of(tmp_path)
    assert (cause.failure.rank, cause.failure.step, cause.retryable) == (3, 12, True)
    assert "SIGKILL" in cause.failure.error


def test_the_first_error_that_is_not_a_lost_peer_is_blamed(tmp_path: Path) -> None:
    write_failure(tmp_path, 0, 1.0, "Connection reset by peer")
    write_failure(tmp_path, 2, 3.0, "later")
    write_failure(tmp_path, 1, 2.0, "bad shape", "ValueError")
    (tmp_path / "rank01.log").write_text(f"start\n--- trial {TRIALS[0]}\nboom\n--- trial {TRIALS[1]}\nother\n")
    cause = cause_of(tmp_path)
    assert (cause.failure.rank, cause.failure.error, cause.retryable) == (1, "ValueError: bad shape", False)
    assert (cause.failure.step, cause.failure.log) == (5, ("boom",))


def test_what_cannot_be_had_is_no_fault_of_the_trial(tmp_path: Path) -> None:
    write_failure(tmp_path, 0, 1.0, "model='resnet81' is not a model", "InputError")
    assert cause_of(tmp_path).is_input
    write_failure(tmp_path, 0, 1.0, "socket timed out", "RuntimeError")
    assert not cause_of(tmp_path, workers=1).failure.error.startswith("lost the connection")


def test_a_rank_that_prints_is_alive(tmp_path: Path) -> None:
    teller = Teller(tmp_path)
    follower = teller.follower()
    launch = teller.folder.launch("0001")
    launch.mkdir(parents=True)
    for _ in range(3):
        teller.time += 250
        with (launch / "rank01.log").open("a") as log:
            log.write("decoded 1,000 of 9,000 images\n")
        assert not follower.hung()
    teller.time += 301
    assert follower.hung()


def test_hangs_lost_peers_and_silent_exits_may_be_tried_again(tmp_path: Path) -> None:
    assert cause_of(tmp_path).failure.error.startswith("the processes ended without an error")
    assert "no sign of life for 30 s" in cause_of(tmp_path, hung=True).failure.error
    write_failure(tmp_path, 0, 1.0, "Connection reset by peer")
    assert cause_of(tmp_path).retryable


def test_logs_are_cut_by_trial_and_prefixed_with_the_rank(tmp_path: Path) -> None:
    assert not any_trial_began(tmp_path)
    (tmp_path / "rank00.log").write_text(f"import\n--- trial {TRIALS[0]}\none\n--- trial {TRIALS[1]}\ntwo\n")
    (tmp_path / "rank01.log").write_text(f"--- trial {TRIALS[0]}\n\x1b[31mred\n")
    assert any_trial_began(tmp_path)
    assert trial_log(tmp_path, TRIALS[0]) == ["[00] one", "[01] \x1b[31mred"]
    assert trial_log(tmp_path, TRIALS[1]) == ["[00] two"]
