"""`workers: auto`, from the file to the last round, on a machine of known laws."""

from __future__ import annotations

import math
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from tests.made import Made, run_plan, write_study
from worldsize.answer.results import Results, load
from worldsize.errors import InputError
from worldsize.folder.record import TrialRecord
from worldsize.folder.study_folder import StudyFolder
from worldsize.launch.target import Progress
from worldsize.machine import Machine
from worldsize.plan.plan import full_grid
from worldsize.spec.study import TrialSpec
from worldsize.study.study import Study

AUTO = """\
name: auto
workload: digits
axes: {workers: auto, batch_per_worker: [16, 32, 64, 128]}
probe: {repeats: 2}
"""
HERE = Machine(cores=16, gpus=0)


def times(trial: TrialSpec) -> dict[str, float]:
    """Up to 8 workers pay; at 16 the cores are all taken."""
    n = trial.workers
    compute = (1e-3 + 1e-4 * trial.samples_per_worker_step) * (1 + 0.02 * (n - 1)) * (2 if n == 16 else 1)
    return {"forward": compute, "communication": 5e-4 * math.log2(n)}


def run(folder: Path, text: str, made: Made, machine: Machine = HERE) -> Results:
    """As `Study.run` would: round after round."""
    study, home = Study.from_text(text, folder=folder, machine=machine), StudyFolder(folder)
    study._write()
    plan = study.plan
    while plan is not None:
        run_plan(home, plan, made, study)
        plan = study._search_on(plan, Progress())
    return load(folder)


def test_auto_is_every_doubling_that_fits() -> None:
    study = Study.from_text(AUTO, machine=Machine(cores=12, gpus=0))
    assert study.spec.axes.workers == (1, 2, 4, 8, 12)
    assert study.spec.adaptive
    first = {(trial.workers, trial.batch_per_worker) for trial in study.plan.trials.values()}
    assert first == {(1, 16), (1, 32), (1, 64), (1, 128), (2, 16), (2, 128)}
    assert Study.from_text(AUTO, {"threads_per_worker": 4}, machine=HERE).spec.axes.workers == (1, 2, 4)
    assert Study.from_text(AUTO, machine=Machine(cores=1, gpus=0)).spec.axes.workers == (1,)


def test_several_optimisers_are_probed_once_and_interleaved() -> None:
    text = AUTO + "train: {epochs: 1}\n"
    study = Study.from_text(text, {"axes.optimizer": ["sgd", "adam"]}, machine=HERE)
    first = {(trial.workers, trial.batch_per_worker) for trial in study.plan.trials.values()}
    assert first == {(1, 16), (1, 32), (1, 64), (1, 128), (2, 16), (2, 128)}


def test_the_answer_of_the_full_grid_for_less(tmp_path: Path) -> None:
    made = Made(times=times)
    adaptive = run(tmp_path / "auto", AUTO, made)
    grid = write_study(tmp_path / "grid", AUTO.replace("workers: auto", "workers: [1, 2, 4, 8, 16]"), made)
    assert adaptive.answer.row is not None
    assert grid.answer.row is not None
    assert adaptive.answer.row.setting == grid.answer.row.setting
    spent = sum(trial.workers for trial in adaptive.trials.values())
    assert spent <= 0.4 * sum(trial.workers for trial in grid.trials.values())
    found = next(each for each in adaptive.answer.findings if each.code == "adaptive")
    assert found.numbers["probes"] == len(adaptive.trials)
    assert found.numbers["of"] == len(grid.trials)
    assert 10 < found.numbers["percent"] <= 40
    assert not [each for each in grid.answer.findings if each.code == "adaptive"]


def test_noise_that_leaves_the_answer_open_is_repeated_where_it_is_cheap(tmp_path: Path) -> None:
    def unquiet(trial: TrialSpec) -> dict[str, float]:
        """One worker is never twice the same: 2 repeats of it say next to nothing."""
        shake = math.exp((0.1, -0.1)[trial.repeat % 2]) if trial.workers == 1 else 1.0
        return {name: value * shake for name, value in times(trial).items()}

    results = run(tmp_path / "auto", AUTO, Made(times=unquiet))
    assert results.answer.verdict == "use"
    row = results.answer.row
    assert row is not None
    assert row.setting.workers == 8
    of = {
        point.setting: sorted(point.repeats) for point in results.setting_times if point.setting.batch_per_worker == 128
    }
    numbers = {setting.workers: repeats for setting, repeats in of.items()}
    assert {workers: len(repeats) for workers, repeats in numbers.items()} == {1: 5, 2: 6, 4: 3, 8: 3, 16: 2}
    # Alone, a repeat could not be told from the drift of its launch.
    assert set(numbers[1][2:]) <= set(numbers[2])


def test_every_count_is_repeated_beside_the_next_one(tmp_path: Path) -> None:
    """All launches after the first are slower: what they share with it tells by how much, and speedups are right."""

    def drifting(trial: TrialSpec) -> dict[str, float]:
        return {name: value * (1.15 if trial.repeat > 2 else 1.0) for name, value in times(trial).items()}

    results = run(tmp_path / "auto", AUTO.replace("repeats: 2", "repeats: 3"), Made(times=drifting))
    row = results.answer.row
    assert row is not None
    assert (row.setting.workers, row.setting.batch_per_worker) == (8, 128)
    series = {point.setting.workers: point for point in results.setting_times if point.setting.batch_per_worker == 128}
    assert {workers: len(point.repeats) for workers, point in series.items()} == {1: 3, 2: 4, 4: 3, 8: 3, 16: 2}
    for smaller, larger in ((2, 4), (4, 8), (8, 16)):
        assert series[smaller].repeats.keys() & series[larger].repeats.keys()
    rows = {each.setting.workers: each for each in results.rows if each.setting.batch_per_worker == 128}
    still = run(tmp_path / "still", AUTO.replace("repeats: 2", "repeats: 3"), Made(times=times))
    truth = {each.setting.workers: each for each in still.rows if each.setting.batch_per_worker == 128}
    for workers, row in rows.items():
        assert row.speedup.value == pytest.approx(truth[workers].speedup.value, rel=0.02)
        assert row.speedup.relative_width < 0.1
    others = [point for point in results.setting_times if point.setting.batch_per_worker in (32, 64)]
    assert all(len(point.repeats) == 3 for point in others)


THREE = AUTO.replace("repeats: 2", "repeats: 3")


def ends(trial: TrialSpec) -> dict[str, float]:
    """Beyond 2 workers nothing is gained."""
    return {"forward": 0.01 * max(1.0, trial.workers / 2)}


def test_what_clearly_does_not_pay_is_not_repeated_again(tmp_path: Path) -> None:
    results = run(tmp_path / "auto", THREE.replace("[16, 32, 64, 128]", "[64]"), Made(times=ends))
    assert {point.setting.workers: len(point.repeats) for point in results.setting_times} == {1: 3, 2: 4, 4: 3, 8: 2}
    assert results.answer.verdict == "use"
    assert results.answer.row is not None
    assert results.answer.row.setting.workers == 2


def test_a_count_that_may_pay_has_all_its_repeats(tmp_path: Path) -> None:
    """The two of 8 workers leave open whether that is too many; the last is run beside one of 4."""

    def open_end(trial: TrialSpec) -> dict[str, float]:
        shake = math.exp((0.15, -0.15)[trial.repeat % 2]) if trial.workers == 8 else 1.0
        return {"forward": {1: 0.01, 2: 0.01, 4: 0.018, 8: 0.023}[trial.workers] * shake}

    text = THREE.replace("[16, 32, 64, 128]", "[64]")
    results = run(tmp_path / "auto", text, Made(times=open_end), Machine(cores=8, gpus=0))
    before, last = (set(point.repeats) for point in results.setting_times if point.setting.workers in (4, 8))
    assert len(last) >= 3
    assert len(last & before) == 2


def test_the_largest_count_is_done_in_one_round_where_it_is_predicted_to_pay(tmp_path: Path) -> None:
    results = run(tmp_path / "auto", THREE, Made(times=lambda _: {"forward": 0.01}))
    assert results.answer.row is not None
    assert results.answer.row.setting.workers == 16
    launches = [record.launch for name, record in results.records.items() if results.trials[name].workers == 16]
    assert len(launches) == 3
    assert len(set(launches)) == 1


@pytest.mark.parametrize("cores", [2, 3, 4, 8, 9, 16, 17])
@pytest.mark.parametrize("repeats", [1, 2, 3, 5])
def test_one_batch_costs_little_more_than_its_grid(tmp_path: Path, cores: int, repeats: int) -> None:
    text = AUTO.replace("repeats: 2", f"repeats: {repeats}").replace("[16, 32, 64, 128]", "[64]")
    results = run(tmp_path / "auto", text, Made(times=lambda _: {"forward": 0.01}), Machine(cores=cores, gpus=0))
    spent = sum(trial.workers for trial in results.trials.values())
    # Of two repeats none is left out for the one beside the next count.
    most = {1: 1.0, 2: 1.4}.get(repeats, 1.15)
    assert spent <= most * sum(trial.workers for trial in full_grid(results.spec))


@pytest.mark.parametrize("number", ["0004", "0005", "0006"])
def test_a_count_has_two_tries(tmp_path: Path, number: str) -> None:
    """A probe of the round of 4 workers fails, one of theirs or that of 2: that is not the end of their batch."""
    text = AUTO.replace("[16, 32, 64, 128]", "[64]")
    results = run(tmp_path / "auto", text, Made(times=times, failing=(number,)))
    assert {point.setting.workers for point in results.setting_times} >= {1, 2, 4, 8}


def test_one_repeat_stays_one(tmp_path: Path) -> None:
    results = run(tmp_path / "auto", AUTO.replace("repeats: 2", "repeats: 1"), Made(times=times))
    assert {len(point.repeats) for point in results.setting_times} == {1}


def test_a_machine_that_is_never_quiet_is_not_waited_for(tmp_path: Path) -> None:
    def wild(trial: TrialSpec) -> dict[str, float]:
        shake = math.exp((2.0, -2.0)[trial.repeat % 2]) if trial.workers == 1 else 1.0
        return {name: value * shake for name, value in times(trial).items()}

    results = run(tmp_path / "auto", AUTO + "train: {epochs: 1}\n", Made(times=wild))
    assert results.answer.verdict == "not enough evidence"
    most = max(len(point.repeats) for point in results.setting_times)
    assert most == 9
    assert any(trial.kind == "train" for trial in results.trials.values())


def rounds_of_noise(results: Results) -> list[list[TrialSpec]]:
    """Those whose largest count had all its repeats before: that of a round of the climb lacks some."""
    seen: Counter[tuple[int, int]] = Counter()
    found = []
    for launch in results.plan.launches:
        trials = [results.trials[trial] for trial in launch.trials]
        probes = [(trial.workers, trial.samples_per_worker_step) for trial in trials]
        if seen[max(probes)] >= results.spec.probe_repeats:
            found.append(trials)
        seen.update(probes)
    return found


@pytest.mark.parametrize("repeats", [2, 3, 5])
@pytest.mark.parametrize("batches", ["[16, 32, 64, 128]", "[64]"])
def test_noise_costs_at_most_a_third_of_the_climb(tmp_path: Path, repeats: int, batches: str) -> None:
    def wild(trial: TrialSpec) -> dict[str, float]:
        shake = math.exp((1.0, -1.0)[trial.repeat % 2])
        return {name: value * shake for name, value in times(trial).items()}

    text = AUTO.replace("repeats: 2", f"repeats: {repeats}").replace("[16, 32, 64, 128]", batches)
    results = run(tmp_path / "auto", text, Made(times=wild))
    assert results.answer.verdict == "not enough evidence"
    spent = sum(trial.workers for trial in results.trials.values())
    noise = sum(trial.workers for each in rounds_of_noise(results) for trial in each)
    assert 0 < noise <= (spent - noise) / 3


def test_a_noisy_setting_is_run_as_often_again(tmp_path: Path) -> None:
    def unquiet(trial: TrialSpec) -> dict[str, float]:
        shake = math.exp((0.8, -0.8)[trial.repeat % 2]) if trial.workers == 1 else 1.0
        return {name: value * shake for name, value in times(trial).items()}

    results = run(tmp_path / "auto", THREE, Made(times=unquiet))
    first = rounds_of_noise(results)[0]
    assert Counter(trial.workers for trial in first) == {2: 3, 4: 3}


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("noise", [0.05, 0.1, 0.3])
def test_noise_does_not_cost_what_the_climb_saves(tmp_path: Path, seed: int, noise: float) -> None:
    def shaken(trial: TrialSpec) -> dict[str, float]:
        of_trial = (seed, trial.workers, trial.samples_per_worker_step, trial.repeat)
        shake = math.exp(np.random.default_rng(of_trial).normal(0, noise))
        return {name: value * shake for name, value in times(trial).items()}

    results = run(tmp_path / "auto", THREE, Made(times=shaken))
    spent = sum(trial.workers for trial in results.trials.values())
    assert spent <= 0.4 * sum(trial.workers for trial in full_grid(results.spec))
    row = results.answer.row
    assert row is not None
    assert (row.setting.workers, row.setting.batch_per_worker) == (8, 128)
    assert results.answer.verdict == "use" or noise > 0.05


def test_two_counts_of_one_batch_leave_room_for_a_repeat(tmp_path: Path) -> None:
    """Their grid is 9 workers' probes; a third of that is one of each."""

    def wild(trial: TrialSpec) -> dict[str, float]:
        shake = math.exp((0.5, -0.5)[trial.repeat % 2]) if trial.workers == 1 else 1.0
        return {name: value * shake for name, value in times(trial).items()}

    text = AUTO.replace("repeats: 2", "repeats: 3").replace("[16, 32, 64, 128]", "[64]")
    results = run(tmp_path / "auto", text, Made(times=wild), Machine(cores=2, gpus=0))
    assert {point.setting.workers: len(point.repeats) for point in results.setting_times} == {1: 4, 2: 4}


def test_repeats_decide_between_the_first_two_counts(tmp_path: Path) -> None:
    """Those of the first round disagree; later ones do not."""

    def settling(trial: TrialSpec) -> dict[str, float]:
        first = trial.repeat < 2 and trial.workers == 1
        shake = math.exp((0.15, -0.15)[trial.repeat % 2]) if first else 1.0
        return {name: value * shake for name, value in times(trial).items()}

    text = AUTO.replace("[16, 32, 64, 128]", "[64, 128]")
    results = run(tmp_path / "auto", text, Made(times=settling))
    assert results.answer.verdict == "use"
    speedups = {row.setting.workers: row for row in results.rows if row.setting.batch_per_worker == 128}
    still = run(tmp_path / "still", text, Made(times=times))
    truth = {row.setting.workers: row for row in still.rows if row.setting.batch_per_worker == 128}
    for workers, row in speedups.items():
        assert row.speedup.value == pytest.approx(truth[workers].speedup.value, rel=0.02)


def test_only_what_is_recommended_is_trained(tmp_path: Path) -> None:
    results = run(tmp_path / "auto", AUTO + "train: {epochs: 1}\nrepeats: 2\n", Made(times=times))
    trained = {(trial.workers, trial.batch_per_worker) for trial in results.trials.values() if trial.kind == "train"}
    assert len(trained) == 1
    row = results.answer.row
    assert row is not None
    assert trained == {(row.setting.workers, row.setting.batch_per_worker)}
    assert row.metric is not None
    assert row.metric.value == 0.9
    # What nobody trained is still known to be no faster.
    assert "next-count-not-worth-it" in [finding.code for finding in results.answer.findings]


def test_a_stopped_study_goes_on_with_the_same_rounds(tmp_path: Path) -> None:
    made = Made(times=times)
    whole = run(tmp_path / "whole", AUTO, made)
    home = StudyFolder(tmp_path / "parts")
    study = Study.from_text(AUTO, folder=home.path, machine=HERE)
    study._write()
    run_plan(home, study.plan, made, study)
    again = Study.from_text(AUTO, folder=home.path, machine=HERE)  # another process
    plan = again._search_on(load(home.path).plan, Progress())
    assert plan is not None
    assert set(plan.trials) <= set(whole.trials)


def test_a_round_reads_every_record_once_and_none_follows_a_damaged_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    study = Study.from_text(AUTO, folder=tmp_path / "study", machine=HERE)
    home, plan = StudyFolder(tmp_path / "study"), study.plan
    study._write()
    run_plan(home, plan, Made(times=times), study)
    read: list[str] = []
    record = StudyFolder.record

    def counted(self: StudyFolder, trial_id: str) -> TrialRecord | None:
        read.append(trial_id)
        return record(self, trial_id)

    monkeypatch.setattr(StudyFolder, "record", counted)
    assert study._search_on(plan, Progress()) is not None
    assert sorted(read) == sorted(plan.trials)
    damaged = home.trial(next(iter(plan.trials))) / "record.json"
    damaged.write_text("{")
    assert study._search_on(load(home.path).plan, Progress()) is None


def test_strong_scaling_and_errors_elsewhere(tmp_path: Path) -> None:
    text = AUTO.replace("batch_per_worker: [16, 32, 64, 128]", "global_batch: [128, 512]")
    results = run(tmp_path / "strong", text, Made(times=times))
    assert results.answer.row is not None
    with pytest.raises(InputError, match='unknown key "zzz"'):
        Study.from_text(AUTO + "zzz: 1\n", machine=HERE)
    with pytest.raises(InputError, match=r"axes\.workers"):
        Study.from_text(AUTO.replace("workers: auto", "workers: [1, auto]"), machine=HERE)
    with pytest.raises(InputError, match=r"no count above 1: global_batch=\[33\] does not divide"):
        Study.from_text(AUTO.replace("batch_per_worker: [16, 32, 64, 128]", "global_batch: [33]"), machine=HERE)
    with pytest.raises(InputError, match="probe"):
        Study.from_text(AUTO + "train: {epochs: 1}\n", {"probe": False}, machine=HERE)


def test_auto_leaves_out_what_the_study_could_not_run() -> None:
    strong = AUTO.replace("batch_per_worker: [16, 32, 64, 128]", "global_batch: [64]")
    assert Study.from_text(strong, machine=Machine(cores=6, gpus=0)).spec.axes.workers == (1, 2, 4)
    large = AUTO.replace("[16, 32, 64, 128]", "[256]")
    assert Study.from_text(large, machine=Machine(cores=64, gpus=0)).spec.axes.workers == (1, 2, 4, 8, 16, 32)
    with pytest.raises(InputError, match="GPU"):
        Study.from_text(AUTO, {"device": "cuda"}, machine=HERE).run()
