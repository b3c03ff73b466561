"""The search for the largest batch, without processes: what it tries next, what it answers, what it refuses."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.made import study_set
from worldsize.analysis.estimate import Estimate
from worldsize.analysis.speed.largest_batch import BatchTry, largest_batches
from worldsize.analysis.speed.recommend import Finding
from worldsize.errors import InputError
from worldsize.folder.launches import LaunchFolder, RankFailure
from worldsize.folder.record import Try
from worldsize.folder.study_folder import StudyFolder
from worldsize.launch.autopsy import find_cause, reported_tries
from worldsize.launch.commands import worker_environment
from worldsize.launch.prepare import memory_limit_gb
from worldsize.machine import Machine
from worldsize.report.words.findings import sentence
from worldsize.spec.setting import Setting
from worldsize.spec.study import LEAST, LargestSpec
from worldsize.spec.training import StrategySpec
from worldsize.study.study import Study
from worldsize.worker.largest_batch import CLOSE, next_batch

MANY = 10**9


def searched(spec: LargestSpec, capacity: int, room: int = MANY, pace: float = 1.0) -> list[Try]:
    """All tries on a machine where `capacity` samples fit and throughput grows with the batch to the power `pace`."""
    tries: list[Try] = []
    while (batch := next_batch(tries, spec, room)) is not None:
        assert batch not in [each.batch_per_worker for each in tries]
        fits = batch <= capacity
        tries.append(
            Try(
                batch_per_worker=batch,
                outcome="finished" if fits else "out_of_memory",
                samples_per_s=float(batch**pace) if fits else None,
            )
        )
    return tries


def batches(tries: list[Try], outcome: str = "finished") -> list[int]:
    return [each.batch_per_worker for each in tries if each.outcome == outcome]


def test_it_doubles_then_halves_the_gap_to_a_twentieth() -> None:
    tries = searched(LargestSpec(largest=True), 5000)
    assert [each.batch_per_worker for each in tries] == [*(32 * 2**n for n in range(9)), 6144, 5120, 4608, 4864, 4992]
    assert (max(batches(tries)), min(batches(tries, "out_of_memory"))) == (4992, 5120)


@given(st.integers(LEAST, 10**6), st.integers(LEAST, 5000), st.integers(LEAST, 10**6))
def test_whatever_fits_is_found_to_a_twentieth(capacity: int, start: int, room: int) -> None:
    tries = searched(LargestSpec(largest=True, first=start, stop_early=False), capacity, room)
    largest, too_large = max(batches(tries)), min(batches(tries, "out_of_memory"), default=None)
    assert largest <= min(capacity, room)
    assert largest == room if too_large is None else too_large - largest <= max(1, CLOSE * largest)
    assert len(tries) <= 45


def test_a_start_that_does_not_fit_is_halved() -> None:
    tries = searched(LargestSpec(largest=True, first=64), 9)
    assert [each.batch_per_worker for each in tries] == [64, 32, 16, 8, 12, 10, 9]


def test_where_nothing_fits_it_ends() -> None:
    tries = searched(LargestSpec(largest=True, first=8), 0)
    assert batches(tries, "out_of_memory") == [8, 4, 2]


def test_it_stops_where_throughput_no_longer_rises_unless_told_otherwise() -> None:
    flat = searched(LargestSpec(largest=True, first=32), MANY, room=50_000, pace=0.0)
    assert batches(flat) == [32, 64, 128]
    everything = searched(LargestSpec(largest=True, first=32, stop_early=False), MANY, room=50_000, pace=0.0)
    assert batches(everything)[-2:] == [32768, 50_000]


def test_one_slow_try_does_not_stop_it() -> None:
    paces = [1.0, 2.0, 1.5, 4.0]
    tries = [Try(batch_per_worker=32 * 2**n, outcome="finished", samples_per_s=pace) for n, pace in enumerate(paces)]
    spec = LargestSpec(largest=True)
    assert [next_batch(tries[:n], spec, MANY) for n in (3, 4)] == [256, 512]


def test_no_more_than_most_is_tried() -> None:
    assert batches(searched(LargestSpec(largest=True, first=32, max=100), MANY)) == [32, 64, 100]


def setting(batch: int, workers: int = 1) -> Setting:
    return Setting(workers=workers, batch_per_worker=batch, scaling="weak", strategy=StrategySpec(), precision="fp32")


def tried(batch: int, *, fits: bool = True, workers: int = 1) -> BatchTry:
    return BatchTry(setting=setting(batch, workers), fits=fits, samples_per_s=1.0, memory_bytes=1e6 * batch)


PACES = {
    setting(batch): Estimate(value=pace, low=pace - 1, high=pace + 1)
    for batch, pace in ((32, 50.0), (64, 96.0), (128, 100.0))
}


def test_the_answer_has_what_fits_and_what_is_enough() -> None:
    once = [tried(32), tried(64), tried(128), tried(256, fits=False)]
    (found,) = largest_batches(once * 2, PACES, train_samples=1000, most=None)
    assert (found.fits, found.too_large, found.enough, found.ended) == (128, 256, 64, "memory")
    assert [(row.batch_per_worker, row.fits, row.tries) for row in found.rows] == [
        *((batch, True, 2) for batch in (32, 64, 128)),
        (256, False, 2),
    ]
    epoch = found.rows[2].epoch_s
    assert epoch is not None
    assert (epoch.value, epoch.low, epoch.high) == pytest.approx((10, 1000 / 101, 1000 / 99))
    assert found.rows[3].samples_per_s is None


def test_what_failed_in_one_repeat_does_not_fit() -> None:
    repeats = [tried(32), tried(64), tried(128), tried(256, fits=False), tried(32), tried(64), tried(128, fits=False)]
    (found,) = largest_batches(repeats, PACES, train_samples=1000, most=None)
    assert (found.fits, found.too_large, found.enough) == (64, 128, 64)


def test_what_ended_a_search_that_never_ran_out() -> None:
    ends = [
        largest_batches([tried(32), tried(64)], PACES, train_samples=samples, most=most)[0].ended
        for samples, most in ((1000, None), (1000, 64), (64, None))
    ]
    assert ends == ["throughput", "most", "most"]
    (none,) = largest_batches([tried(2, fits=False)], {}, train_samples=1000, most=None)
    assert (none.fits, none.enough, none.too_large) == (None, None, 2)


def test_counts_are_searched_apart() -> None:
    found = largest_batches([tried(32), tried(32, workers=2)], PACES, train_samples=1000, most=None)
    assert [each.setting.workers for each in found] == [1, 2]


def test_every_end_has_its_sentence() -> None:
    numbers = {"workers": 2.0, "fits": 1024.0, "tried": 1088.0, "enough": 256.0}
    for end, words in {
        "memory": "that fits is 1,024 (1,088 runs out of memory)",
        "throughput": "throughput no longer rises",
        "most": "the largest that the study allows",
        "none": "No batch fits: even 1,088",
    }.items():
        finding = Finding(code=f"largest-batch-{end}", numbers=numbers, where={"workers": 2})
        assert sentence(finding).startswith("With 2 workers: ")
        assert words in sentence(finding)


STUDY = "name: s\nworkload: digits\naxes:\n  workers: [1, 2]\n  batch_per_worker: {largest: true}\nmemory_limit_gb: 4\n"


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ("train: {epochs: 1}", "line 7: train needs a known batch"),
        ("small: {}", ""),
        ("--set axes.strategy=[fsdp]", "fsdp communicates during forward"),
        ("--set axes.strategy=[{name: ddp, sync_batch_norm: true}]", "ddp sync batch norm communicates during forward"),
        ("--set axes.batch_per_worker={largest: true, max: 16}", "max=16 is less than first=32"),
        ("--set axes.batch_per_worker={largest: false}", "largest=false has no meaning; write largest: true"),
        ("--set axes.batch_per_worker={largest: true, frist: 8}", 'Did you mean "first"?'),
        ("--set memory_limit_gb=0", "memory_limit_gb=0: input should be greater than 0"),
    ],
)
def test_what_cannot_be_searched_is_refused_before_anything_runs(more: str, said: str) -> None:
    assignments = [more.removeprefix("--set ")] if more.startswith("--set") else []
    text = STUDY if assignments else STUDY + more + "\n"
    machine = Machine(cores=4, gpus=2 if "sync_batch_norm" in more else 0)
    if not said:
        plan = study_set(text, *assignments, machine=machine).plan
        assert {(trial.kind, trial.batch_per_worker, trial.largest is not None) for trial in plan.trials.values()} == {
            ("probe", 32, True)
        }
        assert next(iter(plan.trials)).startswith("0000-w")
        assert "-largest-" in next(iter(plan.trials))
        return
    with pytest.raises(InputError) as refused:
        study_set(text, *assignments, machine=machine)
    assert said in str(refused.value)


def test_a_search_on_a_cpu_has_a_limit_in_any_case() -> None:
    machine = Machine(cores=4, gpus=0)
    given = Study.from_text(STUDY, machine=machine).spec
    free = Study.from_text(STUDY, {"memory_limit_gb": None}, machine=machine).spec
    overrides = {"memory_limit_gb": None, "axes.batch_per_worker": [32]}
    listed = Study.from_text(STUDY, overrides, machine=machine).spec
    assert [memory_limit_gb(spec, "cpu", 2, 10e9) for spec in (given, free, listed)] == [4.0, 4.0, None]
    assert memory_limit_gb(free, "cuda", 2, 10e9) is None


def failed(folder: Path, rank: int, at: float, error: str, *, full: bool) -> None:
    failure = RankFailure(rank=rank, at=at, trial="t", step=3, type="RuntimeError", error=error, out_of_memory=full)
    LaunchFolder(folder).write(failure)


def test_the_rank_that_is_out_of_memory_is_blamed_and_the_trial_not_tried_again(tmp_path: Path) -> None:
    failed(tmp_path, 0, 1.0, "something else went wrong", full=False)
    failed(tmp_path, 1, 2.0, "DefaultCPUAllocator: can't allocate memory", full=True)
    cause = find_cause(tmp_path, "t", workers=2, hung=False, patience_s=1, last_step=None)
    assert (cause.outcome, cause.retryable, cause.failure.rank, cause.failure.step) == ("out_of_memory", False, 1, 3)


def test_a_search_that_died_keeps_its_tries(tmp_path: Path) -> None:
    folder = StudyFolder(tmp_path)
    plan = Study.from_text(STUDY, machine=Machine(cores=4, gpus=0)).plan
    trial = next(iter(plan.trials.values()))
    done = Try(batch_per_worker=32, outcome="finished", samples_per_s=10.0)
    told: list[dict[str, object]] = [
        {"event": "start"},
        {"event": "trying", "batch_per_worker": 16},
        {"event": "start"},  # an earlier attempt was killed
        {"event": "trying", "batch_per_worker": 32},
        {"at": 1.0, "event": "try", **done.model_dump(mode="json")},
        {"event": "trying", "batch_per_worker": 64},
    ]
    folder.trial(trial.id).mkdir(parents=True)
    (folder.trial(trial.id) / "events.jsonl").write_text("".join(json.dumps(line) + "\n" for line in told))
    assert reported_tries(folder, trial.id) == (done, Try(batch_per_worker=64, outcome="out_of_memory"))


def test_under_a_limit_the_allocator_is_pinned() -> None:
    free, limited = worker_environment(1, keep_freed_memory=False), worker_environment(1, 1.0)
    assert dict(set(limited.items()) - set(free.items())) == {
        "MALLOC_ARENA_MAX": "1",
        "MALLOC_MMAP_THRESHOLD_": str(10**9 // 512),
    }
    assert worker_environment(1, 100.0)["MALLOC_MMAP_THRESHOLD_"] == str(2**25)  # glibc takes no more
