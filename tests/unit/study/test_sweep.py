"""Searches that go on from what has run: the edge of divergence, and Optuna's proposals."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest

from worldsize.data.catalog import WORKLOADS
from worldsize.folder.record import Epoch, Outcome, TrialRecord
from worldsize.plan.plan import Plan, make_plan
from worldsize.spec.optimizer import OptimizerAxis, OptimizerSpec, Search
from worldsize.spec.study import AxesSpec, StudySpec
from worldsize.spec.training import TrainSpec
from worldsize.spec.workload import WorkloadSpec
from worldsize.study.search_rounds import next_round

FACTS = WORKLOADS["digits"].facts
Truth = Callable[[OptimizerSpec], tuple[Outcome, float]]


def study(*optimizers: OptimizerAxis, repeats: int = 1) -> StudySpec:
    return StudySpec(
        name="s",
        workload=WorkloadSpec(name="digits"),
        axes=AxesSpec(workers=(1, 2), batch_per_worker=(32,), optimizer=optimizers),
        train=TrainSpec(epochs=4),
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
        more = next_round(spec, plan, records, FACTS)
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
    spec = study(OptimizerAxis(rate=Search(search=(0.01, 10), points=7, edge=0.05)))
    plan, records, rounds = run(spec, lambda s: ("diverged" if s.rate > 2.0 else "finished", 0.9))
    for workers in (1, 2):
        ends = {
            trial.optimizer.rate: records[trial.id].outcome
            for trial in plan.trials.values()
            if trial.workers == workers
        }
        held = max(rate for rate, outcome in ends.items() if outcome == "finished")
        lost = min(rate for rate, outcome in ends.items() if outcome == "diverged")
        assert held <= 2.0 < lost <= held * 1.05
    assert rounds <= 6


def test_no_edge_inside_the_range_ends_the_search() -> None:
    spec = study(OptimizerAxis(rate=Search(search=(0.01, 10), points=3, edge=0.05)))
    for outcome in ("finished", "diverged"):
        assert run(spec, lambda _, outcome=outcome: (outcome, 0.9))[2] == 0  # type: ignore[misc]


def test_each_momentum_has_an_edge_of_its_own() -> None:
    axis = OptimizerAxis(name="momentum", rate=Search(search=(0.1, 10), points=3, edge=0.2), momentum=(0.5, 0.9))
    plan, records, _ = run(study(axis), lambda s: ("diverged" if s.rate > 2 * (1 + s.momentum) else "finished", 0.9))
    for momentum in (0.5, 0.9):
        here = [trial for trial in plan.trials.values() if trial.optimizer.momentum == momentum]
        held = max(t.optimizer.rate for t in here if records[t.id].outcome == "finished")
        assert held == pytest.approx(2 * (1 + momentum), rel=0.2)


def test_a_failed_trial_halts_its_search() -> None:
    spec = study(OptimizerAxis(rate=Search(search=(0.01, 10), points=7, edge=0.05)))
    plan = make_plan(spec)
    records = {trial.id: record(trial.id, "failed", 0.0) for trial in plan.trials.values()}
    assert next_round(spec, plan, records, FACTS) is None


def near(best: float) -> Truth:
    """Best at one rate; far too large rates diverge; far too small ones are stopped."""

    def truth(setting: OptimizerSpec) -> tuple[Outcome, float]:
        off = math.log10(setting.rate / best)
        outcome: Outcome = "diverged" if off > 1.5 else "stopped" if off < -2 else "finished"
        return outcome, 0.95 - 0.1 * off**2

    return truth


def test_tpe_proposes_as_many_as_asked_and_comes_near_the_best() -> None:
    axis = OptimizerAxis(name="adam", rate=Search(search=(1e-5, 1.0)), tpe=24)
    plan, _, rounds = run(study(axis), near(0.003))
    rates = [trial.optimizer.rate for trial in plan.trials.values() if trial.workers == 1]
    assert len(rates) == len(set(rates)) == 24
    assert rounds == 3
    assert all(1e-5 <= rate <= 1.0 for rate in rates)
    far = [abs(math.log10(rate / 0.003)) for rate in rates]
    assert min(far) < 0.2
    assert sum(far[12:]) < sum(far[:12])  # it learns from the first half


def test_tpe_searches_several_values_at_once_and_is_repeatable() -> None:
    axis = OptimizerAxis(rate=Search(search=(1e-3, 1.0)), weight_decay=Search(search=(1e-6, 1e-2)), tpe=8)
    plans = [run(study(axis, repeats=2), near(0.1))[0] for _ in range(2)]
    assert plans[0] == plans[1]
    for workers in (1, 2):  # each count has a search of its own
        settings = {trial.optimizer for trial in plans[0].trials.values() if trial.workers == workers}
        assert len({setting.weight_decay for setting in settings}) == len({setting.rate for setting in settings}) == 8
    assert len(plans[0].trials) == 8 * 2 * 2
