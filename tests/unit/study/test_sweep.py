"""Searches that go on from what has run: the edge of divergence."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from worldsize.folder.record import Epoch, Outcome, TrialRecord
from worldsize.plan.plan import Plan, make_plan
from worldsize.spec.optimizer import OptimizerAxis, OptimizerSpec, Search
from worldsize.spec.study import AxesSpec, StudySpec
from worldsize.spec.training import TrainSpec
from worldsize.spec.workload import WorkloadSpec
from worldsize.study.search_rounds import next_search_round

Truth = Callable[[OptimizerSpec], tuple[Outcome, float]]


def study(*optimizers: OptimizerAxis, repeats: int = 1) -> StudySpec:
    return StudySpec(
        name="s",
        workload=WorkloadSpec(name="digits"),
        axes=AxesSpec(workers=(1, 2), batch_per_worker=(32,), optimizer=optimizers),
        train=TrainSpec(epochs=4, base_batch=32),
        repeats=repeats,
        probe=None,
    )


def run(spec: StudySpec, truth: Truth, rounds: int = 100) -> tuple[Plan, dict[str, TrialRecord], int]:
    """A study whose trials end as `truth` says, round after round."""
    plan, records = make_plan(spec), dict[str, TrialRecord]()
    for number in range(rounds):
        records |= {
            trial.id: record(trial.id, *truth(trial.optimizer))
            for trial in plan.trials.values()
            if trial.id not in records
        }
        more = next_search_round(spec, plan, records)
        if more is None:
            return plan, records, number
        assert list(more.trials)[: len(plan.trials)] == list(plan.trials)
        assert more.launches[: len(plan.launches)] == plan.launches
        plan = more
    raise AssertionError("the search does not end")


def record(trial: str, outcome: Outcome, accuracy: float) -> TrialRecord:
    epoch = Epoch(
        epoch=0, steps=1, samples=1, train_loss=1.0, test={"accuracy": accuracy}, train_s=1.0, evaluation_s=0.0
    )
    return TrialRecord(trial=trial, outcome=outcome, launch="0001", started_at=0.0, wall_s=1.0, epochs=(epoch,))


def test_the_edge_is_found_to_the_precision_asked_for() -> None:
    spec = study(OptimizerAxis(lr=Search(search=(0.01, 10), points=7, divergence_within=0.05)))
    plan, records, rounds = run(spec, lambda s: ("diverged" if s.lr > 2.0 else "finished", 0.9))
    for workers in (1, 2):
        ends = {
            trial.optimizer.lr: records[trial.id].outcome for trial in plan.trials.values() if trial.workers == workers
        }
        held = max(rate for rate, outcome in ends.items() if outcome == "finished")
        lost = min(rate for rate, outcome in ends.items() if outcome == "diverged")
        assert held <= 2.0 < lost <= held * 1.05
    assert rounds <= 6


def test_no_edge_inside_the_range_ends_the_search() -> None:
    spec = study(OptimizerAxis(lr=Search(search=(0.01, 10), points=3, divergence_within=0.05)))
    for outcome in ("finished", "diverged"):
        assert run(spec, lambda _, outcome=outcome: (outcome, 0.9))[2] == 0  # type: ignore[misc]


def test_each_momentum_has_an_edge_of_its_own() -> None:
    axis = OptimizerAxis(
        name="momentum", lr=Search(search=(0.1, 10), points=3, divergence_within=0.2), momentum=(0.5, 0.9)
    )
    plan, records, _ = run(study(axis), lambda s: ("diverged" if s.lr > 2 * (1 + s.momentum) else "finished", 0.9))
    for momentum in (0.5, 0.9):
        here = [trial for trial in plan.trials.values() if trial.optimizer.momentum == momentum]
        held = max(t.optimizer.lr for t in here if records[t.id].outcome == "finished")
        assert held == pytest.approx(2 * (1 + momentum), rel=0.2)


def test_a_failed_trial_halts_its_search() -> None:
    spec = study(OptimizerAxis(lr=Search(search=(0.01, 10), points=7, divergence_within=0.05)))
    plan = make_plan(spec)
    records = {trial.id: record(trial.id, "failed", 0.0) for trial in plan.trials.values()}
    assert next_search_round(spec, plan, records) is None
