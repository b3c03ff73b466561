"""The life of jobs against a Slurm that does what the test says: nothing run twice, nothing lost, nothing guessed."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from tests.made import study_set
from worldsize.errors import LaunchError
from worldsize.folder.files import read_json
from worldsize.folder.record import TrialRecord
from worldsize.folder.study_folder import StudyFolder
from worldsize.launch.runner import Run
from worldsize.launch.slurm.queue import JobState, Queue, SubmitError, parse_states, sbatch_command, squeue_command
from worldsize.launch.slurm.status import job_statuses
from worldsize.launch.slurm.target import SlurmTarget, prepare_by_hand
from worldsize.launch.target import PreparedLaunch, Progress, RunSite

STUDY = """\
name: tiny
workload: digits
axes: {workers: [1, 2], batch_per_worker: [16]}
probe: false
train: {steps: 20}
repeats: 1
run_on: {slurm: {nodes: 2, workers_per_node: 1, time: 5, max_jobs: 2}}
"""
"""Two launches of one trial each."""


@dataclass
class FakeJob:
    id: str
    name: str
    launch: Path
    after: tuple[str, ...]
    state: str = "PENDING"
    attempt: int = 0
    known: bool = True
    """Whether squeue still lists it."""


class World(Progress):
    """A cluster, a clock and a watcher. Each time the driver sleeps, the next thing happens."""

    def __init__(self, tmp_path: Path, text: str = STUDY, *, set: Sequence[str] = ()) -> None:
        self.study = study_set(text, *set, folder=tmp_path / "study")
        self.folder = StudyFolder(tmp_path / "study")
        self.study._write()
        self.plan = self.study.plan
        self.jobs: list[FakeJob] = []
        self.time, self.away, self.asked_at = 0.0, False, list[float]()
        self.refuse: Callable[[], None] = lambda: None
        self.queue_first = False
        self.accounting: dict[str, str] = {}
        self.cancelled: list[str] = []
        self.asked_for_stacks: list[str] = []
        self.tells_stacks = True
        self.notes: list[str] = []
        self.script: list[Callable[[], None]] = []

    def note(self, text: str) -> None:
        self.notes.append(text)

    # The scheduler.

    def submit(self, script: Path, after: Sequence[str]) -> str:
        (name,) = re.findall(r"--job-name=(\S+)", script.read_text())
        job = FakeJob(str(100 + len(self.jobs)), name, script.parent, tuple(after))
        if self.queue_first:
            self.jobs.append(job)
        self.refuse()
        if not self.queue_first:
            self.jobs.append(job)
        return job.id

    def states(self, names: Sequence[str]) -> dict[str, JobState] | None:
        self.asked_at.append(self.time)
        if self.away:
            return None
        listed = [job for job in self.jobs if job.known and job.name in names]
        return parse_states("".join(f"{job.id}|{job.name}|{job.state}||n1\n" for job in listed))

    def final_state(self, job_id: str) -> str | None:
        return self.accounting.get(job_id)

    def cancel(self, job_ids: Sequence[str]) -> bool:
        self.cancelled += job_ids
        for job in self.jobs:
            if job.id in job_ids:
                self.end(job, "CANCELLED", 143)
        return True

    def ask_for_stacks(self, job_id: str) -> bool:
        assert job_id not in self.cancelled
        self.asked_for_stacks.append(job_id)
        if self.tells_stacks:
            self.say(next(job for job in self.jobs if job.id == job_id), "stacks")
        return True

    # What jobs do.

    def say(self, job: FakeJob, event: str, **more: Any) -> None:
        line = {"event": event, "job": job.id, "attempt": job.attempt, "at": 1e9 + self.time, **more}
        with (job.launch / "job-events.jsonl").open("a") as file:
            file.write(json.dumps(line) + "\n")

    def begin(self, job: FakeJob) -> None:
        job.state = "RUNNING"
        self.say(job, "start", nodes="n1", hosts=1)

    def finish(self, job: FakeJob, trials: int = 99) -> None:
        for trial_id in read_json(job.launch / "launch.json")["trials"][:trials]:
            self.folder.write_record(
                TrialRecord(trial=trial_id, outcome="finished", launch=job.launch.name, started_at=0, wall_s=1)
            )

    def end(self, job: FakeJob, state: str = "COMPLETED", code: int = 0) -> None:
        job.state = state
        self.say(job, "end", returncode=code)

    def whole(self, job: FakeJob) -> None:
        self.begin(job)
        self.finish(job)
        self.end(job)

    # The driver.

    def sleep(self, seconds: float) -> None:
        self.time += seconds
        assert self.time < 5000, f"nothing ends; {self.notes}"
        if self.script:
            self.script.pop(0)()

    def sites(self, *, detach: bool = False) -> dict[str, RunSite]:
        queue = Queue(self, self, now=lambda: self.time, sleep=self.sleep)
        return {
            on: RunSite(
                spec=site.spec,
                machine=site.machine,
                data=site.data,
                target=SlurmTarget(site.spec, queue, self, detach=detach),
            )
            for on, site in self.study.sites.items()
        }

    def run(self, *script: Callable[[], None], detach: bool = False) -> bool:
        self.script = list(script)
        run = Run(self.folder, self.plan, self.study.facts, self.sites(detach=detach), self, sleep=self.sleep)
        turns = run.turns(detach=detach)
        while True:
            try:
                next(turns)
            except StopIteration as end:
                return bool(end.value)

    def ends(self) -> list[dict[str, Any]]:
        return [read_json(path / "end.json") for path in self.folder.launches() if (path / "end.json").exists()]

    def all_done(self) -> bool:
        return all(self.folder.has_record(trial_id) for trial_id in self.plan.trials)


def nothing() -> None:
    pass


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


@pytest.fixture
def one(tmp_path: Path) -> World:
    """A single launch, of three trials."""
    return World(tmp_path, set=["axes.workers=[1]", "repeats=3"])


def test_jobs_run_side_by_side_and_the_wait_is_measured(world: World) -> None:
    assert world.run(
        nothing,
        lambda: [world.begin(job) for job in world.jobs],  # type: ignore[arg-type,return-value]
        lambda: [(world.finish(job), world.end(job)) for job in world.jobs],  # type: ignore[arg-type,return-value]
    )
    assert world.all_done()
    assert len(world.jobs) == 2
    assert [(end["reason"], end["attempts"], end["job"]) for end in world.ends()] == [("", 1, "100"), ("", 1, "101")]


def test_no_more_jobs_at_once_than_allowed_and_squeue_is_asked_seldom(tmp_path: Path) -> None:
    world = World(tmp_path, set=["repeats=6", "run_on.slurm.max_jobs=2"])
    most = 0

    def tick() -> None:
        nonlocal most
        open_jobs = [job for job in world.jobs if job.state in ("PENDING", "RUNNING")]
        most = max(most, len(open_jobs))
        if world.time % 7 == 0 and open_jobs:
            world.whole(open_jobs[0])

    assert world.run(*[tick] * 400)
    assert most == 2
    assert len(world.jobs) == len(world.plan.launches) == 7
    gaps = [later - earlier for earlier, later in zip(world.asked_at, world.asked_at[1:], strict=False)]
    assert min(gaps) >= 5


@pytest.mark.parametrize("state", ["SUSPENDED", "REQUEUED", "STAGE_OUT", "RESV_DEL_HOLD", "SPECIAL_EXIT", "WHATEVER"])
def test_a_state_nobody_knows_is_no_end(one: World, state: str) -> None:
    def strange() -> None:
        one.begin(one.jobs[0])
        one.jobs[0].state = state

    assert one.run(nothing, strange, *[nothing] * 200, lambda: (one.finish(one.jobs[0]), one.end(one.jobs[0]))[0])
    assert len(one.jobs) == 1


def test_a_controller_that_is_away_ends_nothing(one: World) -> None:
    def leave() -> None:
        one.begin(one.jobs[0])
        one.away = True

    assert one.run(nothing, leave, *[nothing] * 300, lambda: one.finish(one.jobs[0]), lambda: one.end(one.jobs[0]))
    assert len(one.jobs) == 1
    away = [at for at in one.asked_at if at > 10]
    assert len(away) < 15  # it is asked less and less often
    assert any("does not answer" in note for note in one.notes)


def test_a_job_that_ended_by_its_own_words_needs_no_slurm(one: World) -> None:
    """Its end is told, a trial is missing, and Slurm has forgotten it: blame as after any launch."""

    def forgotten() -> None:
        one.end(one.jobs[0], code=1)
        one.jobs[0].known = False

    assert one.run(nothing, lambda: one.begin(one.jobs[0]), lambda: one.finish(one.jobs[0], 1), forgotten, *rest(one))
    assert one.all_done()
    assert (one.ends()[0]["reason"], one.ends()[0]["returncode"]) == ("", 1)
    assert one.ends()[0]["culprit"].startswith("0001")


def rest(world: World) -> list[Callable[[], None]]:
    """Time for what Slurm says to be heard, then every later job does what it should."""

    def succeed() -> None:
        for job in world.jobs[1:]:
            if job.state == "PENDING":
                world.whole(job)

    return [*[nothing] * 30, *[succeed] * 200]


def test_a_job_that_is_gone_without_a_word_is_lost_and_tried_again(one: World) -> None:
    def vanish() -> None:
        one.jobs[0].known = False

    assert one.run(nothing, lambda: one.begin(one.jobs[0]), nothing, vanish, *rest(one))
    assert [end["reason"] for end in one.ends()] == ["lost", ""]
    assert one.all_done()


def test_the_accounting_is_asked_where_there_is_one(one: World) -> None:
    def vanish() -> None:
        one.jobs[0].known = False
        one.accounting[one.jobs[0].id] = "CANCELLED"

    with pytest.raises(LaunchError, match="job 100 was cancelled, trials left: 3"):
        one.run(nothing, lambda: one.begin(one.jobs[0]), nothing, vanish, *rest(one))
    assert len(one.jobs) == 1


def test_what_was_cancelled_is_left_and_the_rest_runs(world: World) -> None:
    def cancelled() -> None:
        world.end(world.jobs[0], "CANCELLED", 143)
        world.whole(world.jobs[1])

    with pytest.raises(LaunchError, match="job 100 was cancelled, trials left: 1; run the same command to submit"):
        world.run(nothing, lambda: world.begin(world.jobs[0]), cancelled)
    assert world.run(nothing, lambda: world.whole(world.jobs[2]))
    assert world.all_done()


@pytest.mark.parametrize(("state", "reason"), [("PREEMPTED", "preempted"), ("TIMEOUT", "time limit")])
def test_what_is_nobodys_fault_is_submitted_again(one: World, state: str, reason: str) -> None:
    """The limit came after a trial was finished; a preempted job may have done nothing at all."""

    def cut() -> None:
        one.finish(one.jobs[0], 1 if state == "TIMEOUT" else 0)
        one.end(one.jobs[0], state, 143)

    assert one.run(nothing, lambda: one.begin(one.jobs[0]), cut, *rest(one))
    assert [(end["reason"], end["culprit"]) for end in one.ends()] == [(reason, None), ("", None)]
    assert one.all_done()


def test_a_limit_too_short_for_any_trial_is_a_failure_in_the_end(one: World) -> None:
    def cut() -> None:
        for job in one.jobs:
            if job.state == "PENDING":
                one.begin(job)
                one.say(job, "time-limit")
                one.end(job, "FAILED", 1)

    assert one.run(*[cut] * 400)
    records = [one.folder.record(trial_id) for trial_id in one.plan.trials]
    assert all(
        record is not None and record.failure and "raise run_on.slurm.time" in record.failure.error
        for record in records
    )
    assert len(one.jobs) == 6  # each tried twice


def test_a_setup_that_failed_closes_its_launch_and_may_be_mended(one: World) -> None:
    def fail() -> None:
        one.begin(one.jobs[0])
        one.say(one.jobs[0], "setup-failed")
        one.end(one.jobs[0], "FAILED", 74)

    with pytest.raises(LaunchError, match=r"a command in run_on.slurm.setup failed; see job.log"):
        one.run(nothing, fail)
    (end,) = one.ends()
    assert (end["reason"], end["culprit"]) == ("setup failed", None)
    assert "slurm.setup" in end["cause"]
    assert one.run(nothing, lambda: one.whole(one.jobs[1]))
    assert one.all_done()


def test_workers_that_never_begin_are_an_error_each_time_and_a_new_job(one: World) -> None:
    def fail() -> None:
        for job in one.jobs:
            if job.state == "PENDING":
                one.begin(job)
                one.end(job, "FAILED", 1)

    for jobs in (2, 3):  # tried again once, then a run is a job
        with pytest.raises(LaunchError, match="the workers could not be started"):
            one.run(*[fail] * 60)
        assert len(one.jobs) == len(one.ends()) == jobs
    assert one.run(nothing, lambda: one.whole(one.jobs[-1]))
    assert one.all_done()


def test_a_lost_node_is_told_apart_and_counted(one: World) -> None:
    def fail() -> None:
        one.finish(one.jobs[0], 1)
        one.jobs[0].state = "NODE_FAIL"  # it could not say a word

    assert one.run(nothing, lambda: one.begin(one.jobs[0]), fail, *rest(one))
    first = one.ends()[0]
    assert (first["reason"], first["culprit"][:4], first["cause"]) == (
        "node failure",
        "0001",
        "a node of the job failed",
    )
    assert one.all_done()


def test_a_requeued_job_is_one_launch_with_two_attempts(one: World) -> None:
    job = lambda: one.jobs[0]  # noqa: E731

    def requeue() -> None:
        one.finish(job(), 1)
        one.say(job(), "terminated")
        one.end(job(), "PENDING", 143)
        job().attempt = 1

    assert one.run(
        *(nothing, lambda: one.begin(job()), requeue, *[nothing] * 30),
        *(lambda: one.begin(job()), lambda: one.finish(job()), lambda: one.end(job())),
    )
    (end,) = one.ends()
    assert (end["attempts"], end["reason"]) == (2, "")
    assert any("attempt 2" in note for note in one.notes)


@pytest.fixture
def impatient(tmp_path: Path) -> World:
    return World(tmp_path, set=["axes.workers=[1]", "repeats=3", "hang_timeout_s=30"])


@pytest.mark.parametrize("answers", [True, False])
def test_a_job_that_hangs_tells_where_it_stands_before_it_is_cancelled(impatient: World, *, answers: bool) -> None:
    one = impatient
    one.tells_stacks = answers
    assert one.run(nothing, lambda: one.begin(one.jobs[0]), *[nothing] * 100, *rest(one))
    assert one.asked_for_stacks == one.cancelled == ["100"]
    assert "no sign of life" in one.ends()[0]["cause"]
    assert one.all_done()


@pytest.mark.parametrize("state", ["SUSPENDED", "COMPLETING", "WHATEVER"])
def test_silence_while_a_job_does_not_run_is_no_hang(impatient: World, state: str) -> None:
    one = impatient

    def become(state: str) -> Callable[[], None]:
        return lambda: setattr(one.jobs[0], "state", state)

    def end() -> None:
        one.finish(one.jobs[0])
        one.end(one.jobs[0])

    still = [become(state), *[nothing] * 200, become("RUNNING"), *[nothing] * 25]
    assert one.run(nothing, lambda: one.begin(one.jobs[0]), *[nothing] * 20, *still, end)
    assert one.asked_for_stacks == one.cancelled == []


def test_a_job_that_is_suspended_when_asked_is_asked_again(impatient: World) -> None:
    one = impatient
    one.tells_stacks = False

    def suspend() -> None:
        assert one.asked_for_stacks == ["100"]
        one.jobs[0].state = "SUSPENDED"

    def resume() -> None:
        one.jobs[0].state = "RUNNING"

    def end() -> None:
        one.finish(one.jobs[0])
        one.end(one.jobs[0])

    assert one.run(
        *(nothing, lambda: one.begin(one.jobs[0]), *[nothing] * 40, suspend),
        *([nothing] * 100 + [resume] + [nothing] * 20 + [end]),
    )
    assert (one.asked_for_stacks, one.cancelled) == (["100"], [])


def test_a_job_that_goes_on_after_it_was_asked_is_not_cancelled(impatient: World) -> None:
    """Until it is silent again, and has told where it stands then."""
    one = impatient
    one.tells_stacks = False

    def go_on() -> None:
        assert one.asked_for_stacks == ["100"]
        one.say(one.jobs[0], "stacks")
        trial_id = read_json(one.jobs[0].launch / "launch.json")["trials"][0]
        path = one.folder.trial(trial_id) / "events.jsonl"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text('{"event": "begin"}\n')

    def not_yet() -> None:
        assert (len(one.asked_for_stacks), one.cancelled) == (2, [])

    begun = [nothing, lambda: one.begin(one.jobs[0]), *[nothing] * 40, go_on]
    assert one.run(*begun, *[nothing] * 40, not_yet, *[nothing] * 40, *rest(one))
    assert one.asked_for_stacks == ["100", "100"]
    assert one.cancelled == ["100"]
    assert one.all_done()


def test_an_attempt_is_not_blamed_for_the_silence_of_the_one_before(impatient: World) -> None:
    one = impatient
    one.tells_stacks = False

    def requeue() -> None:
        assert one.asked_for_stacks == ["100"]
        one.say(one.jobs[0], "terminated")
        one.end(one.jobs[0], "PENDING", 143)
        one.jobs[0].attempt = 1
        one.begin(one.jobs[0])  # before Slurm was asked: it was never seen to wait

    def end() -> None:
        one.finish(one.jobs[0])
        one.end(one.jobs[0])

    begun = [nothing, lambda: one.begin(one.jobs[0]), *[nothing] * 60, requeue]
    assert one.run(*begun, *[nothing] * 25, end)
    assert (one.asked_for_stacks, one.cancelled) == (["100"], [])
    assert [end["attempts"] for end in one.ends()] == [2]


def test_an_sbatch_that_fails_after_queueing_submits_once(one: World) -> None:
    one.queue_first = True

    def fail() -> None:
        raise SubmitError("Socket timed out on send/recv operation")

    one.refuse = fail
    assert one.run(nothing, lambda: one.whole(one.jobs[0]))
    assert len(one.jobs) == 1


def test_a_job_that_was_submitted_twice_is_followed_where_it_runs(one: World) -> None:
    """The second finds the launch in other hands, and leaves."""

    def twice() -> None:
        one.begin(one.jobs[0])
        one.jobs.append(replace(one.jobs[0], id="101", state="FAILED"))

    assert one.run(nothing, twice, *[nothing] * 30, lambda: (one.finish(one.jobs[0]), one.end(one.jobs[0]))[0])
    assert [(end["job"], end["reason"]) for end in one.ends()] == [("100", "")]
    assert len(one.jobs) == 2


def test_a_slurm_that_never_answered_is_not_waited_for(one: World) -> None:
    one.away = True
    with pytest.raises(LaunchError, match="nothing was submitted; run `squeue`"):
        one.run()
    assert not one.jobs


def test_an_sbatch_that_cannot_reach_slurm_is_repeated_after_a_look(one: World) -> None:
    tries = 0

    def fail_twice() -> None:
        nonlocal tries
        tries += 1
        one.away = tries == 1
        if tries <= 2:
            raise SubmitError("Unable to contact slurm controller (connect failure)")

    one.refuse = fail_twice

    def back() -> None:
        one.away = False

    assert one.run(nothing, nothing, back, *[nothing] * 4, lambda: one.whole(one.jobs[0]))
    assert tries == 3
    assert len(one.jobs) == 1


def test_a_partition_that_does_not_exist_is_said_at_once(one: World) -> None:
    def refuse() -> None:
        raise SubmitError("sbatch: error: invalid partition specified: nope")

    one.refuse = refuse
    with pytest.raises(LaunchError, match=r"invalid partition specified: nope; change `run_on`"):
        one.run()
    assert one.jobs == []
    one.refuse = lambda: None
    assert one.run(nothing, lambda: one.whole(one.jobs[0]))
    assert [job.id for job in job_statuses(one.folder, one)] == ["100"]  # what was refused was no job


def test_a_driver_that_comes_later_adopts_and_submits_nothing(one: World) -> None:
    assert not one.run(detach=True)
    one.begin(one.jobs[0])
    one.finish(one.jobs[0], 2)
    assert [(job.id, job.state, job.open) for job in job_statuses(one.folder, one)] == [("100", "RUNNING", True)]
    assert one.run(nothing, lambda: one.finish(one.jobs[0]), lambda: one.end(one.jobs[0]))
    assert len(one.jobs) == 1
    assert [(job.state, job.open) for job in job_statuses(one.folder, one)] == [("ended", False)]


def test_what_never_reached_the_queue_is_closed_and_prepared_anew(one: World) -> None:
    """A driver killed before sbatch, or a script that nobody has submitted."""
    work = one.study.prepare()[0]
    prepare_by_hand(work, one.study.spec)
    assert one.run(nothing, lambda: one.whole(one.jobs[0]))
    assert [end["job"] for end in one.ends()] == [None, "100"]  # the first is closed: its script would end at once


def test_detached_jobs_wait_for_one_another(tmp_path: Path) -> None:
    world = World(tmp_path, set=["repeats=4", "run_on.slurm.max_jobs=2"])
    assert not world.run(detach=True)
    assert [job.after for job in world.jobs] == [(), (), ("100",), ("101",), ("102",)]


def test_a_second_detach_submits_what_a_time_limit_left(one: World) -> None:
    assert not one.run(detach=True)
    one.begin(one.jobs[0])
    one.finish(one.jobs[0], 1)
    one.end(one.jobs[0], "TIMEOUT", 143)
    assert not one.run(detach=True)
    assert [(end["reason"], end["culprit"]) for end in one.ends()] == [("time limit", None)]
    assert len(read_json(one.jobs[1].launch / "launch.json")["trials"]) == 2
    one.whole(one.jobs[1])
    assert one.run(detach=True)  # and a search may go on
    assert len(one.jobs) == 2


@pytest.mark.parametrize("state", ["PENDING", "RUNNING", "SUSPENDED"])
def test_a_second_detach_leaves_what_goes_on(one: World, state: str) -> None:
    assert not one.run(detach=True)
    one.jobs[0].state = state
    asked = len(one.asked_at)
    assert not one.run(detach=True)
    assert len(one.asked_at) == asked + 1
    assert (len(one.jobs), one.ends()) == (1, [])


def test_a_second_detach_does_not_wait_for_a_job_on_its_way_out(one: World) -> None:
    """Nothing is left to run: a search goes on, and the next driver sees the end."""
    assert not one.run(detach=True)
    one.begin(one.jobs[0])
    one.finish(one.jobs[0])
    assert one.run(detach=True)
    assert one.ends() == []
    one.end(one.jobs[0])
    assert one.run(detach=True)
    assert [end["reason"] for end in one.ends()] == [""]
    assert len(one.jobs) == 1


def test_a_second_detach_finds_what_slurm_has_forgotten_or_killed(world: World) -> None:
    assert not world.run(detach=True)
    for job in world.jobs:
        world.begin(job)
    world.jobs[0].known = False
    world.jobs[1].state = "PREEMPTED"  # and could not say a word
    assert not world.run(detach=True)
    assert sorted(end["reason"] for end in world.ends()) == ["lost", "preempted"]
    assert len(world.jobs) == 4


def test_a_second_detach_waits_for_an_answer_and_guesses_nothing(one: World) -> None:
    assert not one.run(detach=True)
    one.away = True

    def back() -> None:
        one.away = False

    assert not one.run(*[nothing] * 50, back, detach=True)
    assert (len(one.jobs), one.ends()) == (1, [])


def test_a_second_detach_says_what_was_cancelled_and_a_third_submits_it(one: World) -> None:
    assert not one.run(detach=True)
    one.begin(one.jobs[0])
    one.end(one.jobs[0], "CANCELLED", 143)
    with pytest.raises(LaunchError, match="job 100 was cancelled, trials left: 3; run the same command to submit"):
        one.run(detach=True)
    assert not one.run(detach=True)
    assert len(one.jobs) == 2


def test_commands_and_what_squeue_says() -> None:
    assert sbatch_command(Path("/a b/job.sh"), ["1", "2"]) == [
        *("sbatch", "--parsable", "--dependency=afterany:1:2", "/a b/job.sh"),
    ]
    assert squeue_command(["a", "b"])[-1] == "--name=a,b"
    text = "7|ws-a|PENDING|Priority|\n9|ws-a|RUNNING|None|n[1-2]\nslurm_load_jobs error\n8|ws-b|COMPLETED|None|n1\n"
    found = parse_states(text)
    assert found["ws-a"] == JobState(id="9", state="RUNNING", reason="None", nodes="n[1-2]")
    assert found["ws-b"].state == "COMPLETED"
    assert len(found) == 2


@pytest.mark.parametrize(
    ("states", "followed"),
    [
        (("RUNNING", "FAILED"), "7"),
        (("FAILED", "PENDING"), "8"),
        (("RUNNING", "PENDING"), "8"),
        (("TIMEOUT", "FAILED"), "8"),
        (("SUSPENDED", "COMPLETED"), "7"),
    ],
)
def test_of_two_jobs_of_a_name_the_one_that_has_not_ended_counts(states: tuple[str, str], followed: str) -> None:
    lines = [f"{7 + index}|ws-a|{state}|None|n1\n" for index, state in enumerate(states)]
    for text in ("".join(lines), "".join(reversed(lines))):
        assert parse_states(text)["ws-a"].id == followed


def test_a_stored_launch_is_read_back_as_it_was_prepared(one: World) -> None:
    work = one.study.prepare()[0]
    assert replace(PreparedLaunch.stored(one.folder, work.launch_id, 300.0), folder=work.folder) == work


def test_targets_run_beside_one_another_each_with_its_own_jobs(tmp_path: Path) -> None:
    on = "[{name: slow, slurm: {max_jobs: 1}}, {name: fast, slurm: {max_jobs: 2, partition: fast}}]"
    world = World(tmp_path, STUDY.partition("run_on:")[0] + f"run_on: {on}\n", set=["repeats=3"])
    most: dict[str, int] = {"slow": 0, "fast": 0}

    def step() -> None:
        waiting = [job for job in world.jobs if job.state == "PENDING"]
        for on in most:
            here = [job for job in waiting if job.launch.name.endswith(on)]
            most[on] = max(most[on], len(here))
        for job in waiting:
            world.whole(job)

    assert world.run(*[step, nothing, nothing] * 10)
    assert world.all_done()
    assert most == {"slow": 1, "fast": 2}
    for job in world.jobs:
        scripted = "--partition=fast" in (job.launch / "job.sh").read_text()
        assert scripted == job.launch.name.endswith("fast")
    gaps = [later - earlier for earlier, later in itertools.pairwise(world.asked_at)]
    assert min(gaps, default=5.0) >= 5.0  # one question for both


def test_jobs_of_a_target_are_adopted_as_its_own(tmp_path: Path) -> None:
    on = "[{name: slow, slurm: {max_jobs: 1}}, {name: fast, slurm: {max_jobs: 1}}]"
    world = World(tmp_path, STUDY.partition("run_on:")[0] + f"run_on: {on}\n", set=["axes.workers=[1]"])
    assert not world.run(detach=True)
    assert len(world.jobs) == 2
    assert world.run(lambda: [world.whole(job) for job in world.jobs], *[nothing] * 10)  # type: ignore[arg-type,return-value]
    assert world.all_done()
    assert len(world.jobs) == 2
