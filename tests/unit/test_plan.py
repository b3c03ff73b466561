"""Plans: the product of the axes, launches and their order, rates and steps, what it will cost."""

from __future__ import annotations

from collections import Counter

import pytest

from worldsize.catalog import WORKLOADS
from worldsize.estimate import estimate
from worldsize.machine import Machine
from worldsize.plan import Plan, make_plan, scaled_rate
from worldsize.spec import (
    AxesSpec,
    OptimizerSpec,
    ProbeSpec,
    SkipSpec,
    StudySpec,
    TrainSpec,
    WorkloadSpec,
    steps_per_epoch,
)

MACHINE = Machine(cores=16, gpus=0)
FACTS = WORKLOADS["digits"].facts


def spec(**changes: object) -> StudySpec:
    axes = {"workers": (1, 2, 4), "batch_per_worker": (32, 64), **changes.pop("axes", {})}  # type: ignore[dict-item]
    fields = {
        "name": "s",
        "workload": WorkloadSpec(name="digits"),
        "train": TrainSpec(epochs=1),
        "repeats": 3,
        **changes,
    }
    return StudySpec(axes=AxesSpec(**axes), **fields)  # type: ignore[arg-type]


def test_every_point_is_probed_and_trained_in_every_repeat() -> None:
    plan = make_plan(spec())
    seen = Counter((trial.kind, trial.workers, trial.batch_per_worker) for trial in plan.trials.values())
    assert set(seen.values()) == {3}
    assert len(seen) == 2 * 3 * 2
    assert [trial for launch in plan.launches for trial in launch.trials] == list(plan.trials)


def test_probes_of_all_counts_share_one_launch_at_the_largest() -> None:
    plan = make_plan(spec())
    first, *others = plan.launches
    assert (first.kind, first.workers, len(first.trials)) == ("probe", 4, 18)
    assert all(launch.kind == "train" for launch in others)


def test_probe_repeats_are_interleaved_in_a_seeded_order() -> None:
    def order(seed: int) -> list[tuple[int, int, int]]:
        plan = make_plan(spec(seed=seed))
        trials = [plan.trials[trial_id] for trial_id in plan.launches[0].trials]
        return [(trial.repeat, trial.workers, trial.batch_per_worker) for trial in trials]

    passes = order(0)
    assert [repeat for repeat, _, _ in passes] == sorted(repeat for repeat, _, _ in passes)
    assert passes == order(0) != order(1)
    assert passes[:6] != [(0, *rest) for _, *rest in passes[6:12]]


def test_training_rounds_alternate_and_share_start_up_where_they_meet() -> None:
    plan = make_plan(spec(probe=None))
    assert [launch.workers for launch in plan.launches] == [1, 2, 4, 2, 1, 2, 4]
    met = plan.launches[2]
    assert [plan.trials[trial].repeat for trial in met.trials] == [0, 0, 1, 1]


def test_optimisers_share_a_probe_but_not_training() -> None:
    optimizers = (OptimizerSpec(rate=0.1), OptimizerSpec(name="adam", rate=0.001))
    plan = make_plan(spec(axes={"optimizer": optimizers}, repeats=1))
    kinds = Counter(trial.kind for trial in plan.trials.values())
    assert kinds == {"probe": 6, "train": 12}


def test_strong_scaling_shares_the_batch_out() -> None:
    plan = make_plan(spec(axes={"batch_per_worker": None, "global_batch": (64,)}, repeats=1))
    assert {(t.workers, t.batch_per_worker, t.global_batch) for t in plan.trials.values()} == {
        (1, 64, 64),
        (2, 32, 64),
        (4, 16, 64),
    }
    assert {trial.scaling for trial in plan.trials.values()} == {"strong"}


def test_skip_leaves_points_out() -> None:
    plan = make_plan(spec(skip=(SkipSpec(workers=4, batch_per_worker=64), SkipSpec(workers=2)), repeats=1))
    assert {(t.workers, t.batch_per_worker) for t in plan.trials.values()} == {(1, 32), (1, 64), (4, 32)}


def test_seeds_follow_the_repeats() -> None:
    plan = make_plan(spec(seed=7))
    assert {(trial.repeat, trial.seed) for trial in plan.trials.values()} == {(0, 7), (1, 8), (2, 9)}


def test_probe_repeats_can_differ_from_training() -> None:
    plan = make_plan(spec(probe=ProbeSpec(repeats=5), repeats=1))
    assert Counter(trial.kind for trial in plan.trials.values()) == {"probe": 30, "train": 6}


def test_a_plan_survives_its_file() -> None:
    plan = make_plan(spec())
    again = Plan.from_dict(plan.to_dict())
    assert again == plan


@pytest.mark.parametrize(
    ("name", "rule", "factor"),
    [
        ("sgd", "auto", 4),
        ("adam", "auto", 2),
        ("adamw", "auto", 2),
        ("sgd", "sqrt", 2),
        ("adam", "linear", 4),
        ("sgd", "none", 1),
    ],
)
def test_rate_rules(name: str, rule: str, factor: float) -> None:
    optimizer = OptimizerSpec(name=name, rate=0.1)  # type: ignore[arg-type]
    train = TrainSpec(epochs=1, rate_rule=rule)  # type: ignore[arg-type]
    assert scaled_rate(optimizer, train, 256, 64) == pytest.approx(0.1 * factor)


def test_the_base_batch_is_the_smallest_of_the_study_unless_stated() -> None:
    def rates(**train: int) -> dict[int, float]:
        plan = make_plan(
            spec(train=TrainSpec(epochs=1, **train), probe=None, repeats=1, axes={"batch_per_worker": (32,)})
        )
        return {trial.workers: trial.peak_rate for trial in plan.trials.values()}

    assert rates() == pytest.approx({1: 0.05, 2: 0.1, 4: 0.2})
    assert rates(base_batch=128) == pytest.approx({1: 0.0125, 2: 0.025, 4: 0.05})


def test_epochs_and_steps_convert() -> None:
    # 40 epochs of 60,000 samples at a global batch of 128 are 40 x 469 steps.
    assert TrainSpec(epochs=40).total_steps(60_000, 128) == 40 * 469
    assert TrainSpec(steps=3_120).total_steps(60_000, 128) == 3_120
    assert steps_per_epoch(60_000, 128) == 469
    assert steps_per_epoch(128, 128) == 1


def test_the_estimate_follows_measured_steps() -> None:
    study = spec(probe=None, repeats=1, axes={"workers": (2,), "batch_per_worker": (60,)})
    plan = make_plan(study)
    guess = estimate(study, plan, MACHINE, FACTS, {})
    known = estimate(study, plan, MACHINE, FACTS, {(2, 60): 0.5})
    assert not guess.measured
    assert known.measured
    assert known.wall_s == pytest.approx(6 + 100 * 0.5 + 2_000 / 120 * 0.5 / 3)
    assert known.worker_s == pytest.approx(2 * known.wall_s)
