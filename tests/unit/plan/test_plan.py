"""Plans: the product of the axes, launches and their order, rates and steps, what it will cost."""

from __future__ import annotations

import itertools
from collections import Counter
from pathlib import Path
from typing import Any, get_args

import pytest

from worldsize.data.catalog import facts_of
from worldsize.errors import DamagedError
from worldsize.folder.files import read_model, write_json, write_model
from worldsize.machine import Machine
from worldsize.plan.cost import estimate
from worldsize.plan.grid import resolve, scaled_lr, sites
from worldsize.plan.plan import Plan, PlanFile, make_plan
from worldsize.plan.problems import data_problems, machine_lacks, problems
from worldsize.spec.optimizer import OptimizerAxis, OptimizerSpec, Search
from worldsize.spec.study import AxesSpec, ProbeSpec, SkipSpec, StudySpec
from worldsize.spec.training import ScheduleSpec, StrategyName, StrategySpec, TrainSpec, UntilSpec, steps_per_epoch
from worldsize.spec.workload import WorkloadSpec

MACHINE = Machine(cores=16, gpus=0)
FACTS = facts_of(WorkloadSpec(name="digits"), Path())


def spec(**changes: object) -> StudySpec:
    axes = {"workers": (1, 2, 4), "batch_per_worker": (32, 64), **changes.pop("axes", {})}  # type: ignore[dict-item]
    fields = {
        "name": "s",
        "workload": WorkloadSpec(name="digits"),
        "train": TrainSpec(epochs=1),
        "repeats": 3,
        **changes,
    }
    return resolve(StudySpec(axes=AxesSpec(**axes), **fields), MACHINE, FACTS)  # type: ignore[arg-type]


def test_every_point_is_probed_and_trained_in_every_repeat() -> None:
    plan = make_plan(spec())
    seen = Counter((trial.kind, trial.workers, trial.batch_per_worker) for trial in plan.trials.values())
    assert set(seen.values()) == {3}
    assert len(seen) == 2 * 3 * 2
    assert [trial for launch in plan.launches for trial in launch.trials] == list(plan.trials)


def test_probes_of_all_counts_share_one_launch_per_repeat_at_the_largest() -> None:
    plan = make_plan(spec())
    probing, others = plan.launches[:3], plan.launches[3:]
    assert [(launch.kind, launch.workers, len(launch.trials)) for launch in probing] == [("probe", 4, 6)] * 3
    assert [{plan.trials[trial].repeat for trial in launch.trials} for launch in probing] == [{0}, {1}, {2}]
    assert all(launch.kind == "train" for launch in others)


def test_a_round_of_an_adaptive_study_is_one_launch() -> None:
    plan = make_plan(spec(adaptive=True, train=None))
    assert [(launch.kind, len(launch.trials)) for launch in plan.launches] == [("probe", 18)]


def test_probe_repeats_are_interleaved_in_a_seeded_order() -> None:
    def order(seed: int) -> list[tuple[int, int, int]]:
        plan = make_plan(spec(seed=seed))
        trials = [trial for trial in plan.trials.values() if trial.kind == "probe"]
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
    optimizers = (OptimizerAxis(lr=0.1), OptimizerAxis(name="adam", lr=0.001))
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


LAUNCH, TRIALS = ("plan", "launches", 0), ("plan", "trials")


def stored(plan: Plan) -> PlanFile:
    return PlanFile(plan=plan, device={"": "cpu"}, facts=FACTS)


def test_a_plan_survives_its_file(tmp_path: Path) -> None:
    plan = make_plan(spec())
    write_model(tmp_path / "plan.json", stored(plan))
    again = read_model(tmp_path / "plan.json", PlanFile)
    assert again == stored(plan)
    assert again.plan == plan


@pytest.mark.parametrize(
    ("where", "key", "value"),
    [
        *(
            ((), "device", None),
            ((), "device", "cpu"),
            ((), "more", 1),
            (("facts",), "metric", 1),
            (("facts",), "x", 1),
        ),
        *((LAUNCH, "workers", "2"), (LAUNCH, "trials", ["none"]), (LAUNCH, "x", 1), (TRIALS, "0001", None)),
    ],
)
def test_a_changed_plan_file_is_named(tmp_path: Path, where: tuple[Any, ...], key: str, value: object) -> None:
    content = stored(make_plan(spec())).model_dump(mode="json")
    inner: Any = content
    for part in where:
        inner = inner[part]
    inner[key] = value
    write_json(tmp_path / "plan.json", content)
    with pytest.raises(DamagedError, match=r"plan\.json is damaged or of another version"):
        read_model(tmp_path / "plan.json", PlanFile)


@pytest.mark.parametrize(
    ("name", "rule", "factor"),
    [
        ("sgd", "auto", 4),
        ("adam", "auto", 2),
        ("adamw", "auto", 2),
        ("sgd", "sqrt", 2),
        ("adam", "linear", 4),
        ("sgd", "none", 1),
        ("momentum", "auto", 4),
        ("nesterov", "auto", 4),
        ("lars", "auto", 4),
        ("lamb", "auto", 2),
        ("adadelta", "auto", 2),
    ],
)
def test_rate_rules(name: str, rule: str, factor: float) -> None:
    optimizer = OptimizerSpec(name=name, lr=0.1)  # type: ignore[arg-type]
    train = TrainSpec(epochs=1, lr_rule=rule, base_batch=64)  # type: ignore[arg-type]
    assert scaled_lr(optimizer, train, 256) == pytest.approx(0.1 * factor)


def test_the_base_batch_is_the_smallest_of_the_study_unless_stated() -> None:
    def rates(**train: int) -> dict[int, float]:
        plan = make_plan(
            spec(train=TrainSpec(epochs=1, **train), probe=None, repeats=1, axes={"batch_per_worker": (32,)})
        )
        return {trial.workers: trial.peak_lr for trial in plan.trials.values()}

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
    plan, there = make_plan(study), sites(study, MACHINE)
    guess = estimate(there, plan, FACTS, {})
    (trial,) = plan.trials.values()
    known = estimate(there, plan, FACTS, {trial.setting: 0.5})
    assert not guess.measured
    assert known.measured
    assert known.wall_s == pytest.approx(6 + 100 * 0.5 + 2_000 / 120 * 0.5 / 3)
    assert known.worker_s == pytest.approx(2 * known.wall_s)


def test_an_optimiser_may_bring_its_own_rule() -> None:
    optimizer = OptimizerSpec(name="sgd", lr=0.1, lr_rule="none")
    assert scaled_lr(optimizer, TrainSpec(epochs=1, lr_rule="linear", base_batch=64), 256) == pytest.approx(0.1)


def trained(**axes: object) -> list[OptimizerSpec]:
    plan = make_plan(spec(axes={"workers": (1,), "batch_per_worker": (32,), **axes}, probe=None, repeats=1))
    return [trial.optimizer for trial in plan.trials.values()]


def test_a_grid_is_every_momentum_with_every_rate() -> None:
    grid = OptimizerAxis(name="momentum", lr=(0.01, 0.1), momentum=(0.5, 0.9, 0.99))
    found = {(setting.lr, setting.momentum) for setting in trained(optimizer=(grid,))}
    assert found == {(rate, momentum) for rate in (0.01, 0.1) for momentum in (0.5, 0.9, 0.99)}


def test_a_search_is_spread_evenly_on_a_log_scale() -> None:
    rates = sorted(setting.lr for setting in trained(optimizer=(OptimizerAxis(lr=Search(search=(1e-4, 1.0))),)))
    assert len(rates) == 9
    assert [b / a for a, b in itertools.pairwise(rates)] == pytest.approx([10**0.5] * 8, rel=1e-3)
    assert (rates[0], rates[-1]) == (1e-4, 1.0)


def test_only_trials_of_a_search_compete() -> None:
    optimizers = (OptimizerAxis(lr=0.1), OptimizerAxis(name="adam", lr=Search(search=(0.001, 0.1), points=3)))
    plan = make_plan(spec(axes={"optimizer": optimizers}, probe=None, repeats=2))
    searches = Counter(trial.search for trial in plan.trials.values())
    assert searches.pop(None) == 12
    assert set(searches.values()) == {6}  # 3 rates in 2 repeats, for each of 3 counts x 2 batches
    assert all(trial.prune == (trial.search is not None) for trial in plan.trials.values())


def test_nothing_is_stopped_where_an_edge_is_looked_for() -> None:
    plan = make_plan(spec(axes={"optimizer": (OptimizerAxis(lr=Search(search=(0.1, 10), divergence_within=0.1)),)}))
    assert not any(trial.prune for trial in plan.trials.values())


def test_accumulation_is_an_axis_of_both_kinds_of_scaling() -> None:
    weak = make_plan(spec(axes={"workers": (2,), "batch_per_worker": (32,), "accumulation": (1, 4)}, repeats=1))
    assert {(t.batch_per_worker, t.accumulation, t.global_batch) for t in weak.trials.values()} == {
        (32, 1, 64),
        (32, 4, 256),
    }
    axes = {"workers": (2,), "batch_per_worker": None, "global_batch": (64,), "accumulation": (1, 4)}
    strong = make_plan(spec(axes=axes, repeats=1))
    assert {(t.batch_per_worker, t.accumulation, t.global_batch) for t in strong.trials.values()} == {
        (32, 1, 64),
        (8, 4, 64),
    }


def test_strategies_are_probed_apart() -> None:
    strategies = (StrategySpec(), StrategySpec(name="local-sgd", every=4), StrategySpec(name="local-sgd", every=8))
    plan = make_plan(spec(axes={"strategy": strategies}, train=None, repeats=1))
    assert len(plan.trials) == 3 * 3 * 2


def test_seeds_can_be_named() -> None:
    study = StudySpec(
        name="s",
        workload=WorkloadSpec(name="digits"),
        axes=AxesSpec(workers=(1,), batch_per_worker=(32,), seed=(5, 11)),
        train=TrainSpec(epochs=1, base_batch=32),
    )
    assert study.repeats == 2
    assert {(trial.repeat, trial.seed) for trial in make_plan(study).trials.values()} == {(0, 5), (1, 11)}


NOISE = TrainSpec(epochs=1, measure_noise_scale=True)


def impossible(machine: Machine = MACHINE, **changes: object) -> str:
    study = spec(**changes)
    return " | ".join(text for _, text in (*problems(study, machine), *machine_lacks(study, machine)))


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (
            {"axes": {"strategy": (StrategySpec(sync_batch_norm=True),)}},
            "sync_batch_norm: torch supports it on GPUs only",
        ),
        ({"axes": {"strategy": (StrategySpec(name="zero"),), "workers": (1,)}}, "zero needs several workers"),
        (
            {
                "axes": {"strategy": (StrategySpec(name="fsdp"),)},
                "workload": WorkloadSpec(name="digits", pretrained="x.pt", freeze="backbone", unfreeze_epoch=2),
            },
            "fsdp shards a model once",
        ),
        (
            {"axes": {"strategy": (StrategySpec(), StrategySpec(name="fsdp"))}, "train": NOISE},
            "which fsdp does not keep separate; use ddp",
        ),
        ({"axes": {"workers": (1,)}, "train": NOISE}, "every point has one worker and no accumulation"),
        ({"axes": {"optimizer": (OptimizerAxis(lr=(0.1, 0.1)),)}}, "lists sgd 0.1 twice"),
        ({"axes": {"optimizer": (OptimizerAxis(lr=0.1), OptimizerAxis(lr=(0.2, 0.1)))}}, "lists sgd 0.1 twice"),
        (
            {"axes": {"optimizer": (OptimizerAxis(lr=Search(search=(0.1, 1))),)}, "train": None},
            "a search compares the results of training",
        ),
        (
            {"axes": {"batch_per_worker": None, "global_batch": (64,), "accumulation": (3,)}},
            "does not divide evenly among workers=1 x accumulation=3; use a multiple of 3",
        ),
    ],
)
def test_what_cannot_run_is_said_before_anything_runs(changes: dict[str, object], said: str) -> None:
    assert said in impossible(**changes)


def test_fsdp_wants_a_gpu_for_each_worker() -> None:
    """Torch's shards over gloo end in a segmentation fault when two workers share a GPU."""
    fsdp = {"strategy": (StrategySpec(name="fsdp"),)}
    assert "4 workers would share 2" in impossible(Machine(cores=16, gpus=2), axes=fsdp, oversubscribe=True)
    assert impossible(Machine(cores=16, gpus=4), axes=fsdp) == ""


def test_one_rise_of_the_rate_is_enough() -> None:
    train = TrainSpec(epochs=4, schedule=ScheduleSpec(name="one-cycle"))
    said = impossible(axes={"optimizer": (OptimizerAxis(lr=0.1, warmup_epochs=1.0),)}, train=train)
    assert "warmup_epochs and the one-cycle schedule both start with a warm-up" in said


def test_what_can_run_is_not_refused() -> None:
    strategies = tuple(StrategySpec(name=name) for name in get_args(StrategyName))
    assert impossible(axes={"strategy": strategies, "accumulation": (1, 2)}) == ""
    assert impossible(train=NOISE) == ""
    assert impossible(axes={"workers": (1,), "accumulation": (1, 2)}, train=NOISE) == ""
    sync = StrategySpec(sync_batch_norm=True)
    assert impossible(Machine(cores=16, gpus=4), axes={"strategy": (sync,)}) == ""


@pytest.mark.parametrize(
    ("train", "said"),
    [
        (TrainSpec(until=UntilSpec(metric="acuracy", at_least=0.9)), "use one of loss, accuracy, top5"),
        (TrainSpec(epochs=1, label_smoothing=0.1), ""),
        (TrainSpec(until=UntilSpec(metric="top5", at_least=0.9)), ""),
    ],
)
def test_targets_name_what_is_measured(train: TrainSpec, said: str) -> None:
    found = " | ".join(text for _, text in data_problems(spec(train=train), FACTS))
    assert said in found
    assert bool(said) == bool(found)


@pytest.mark.parametrize(
    ("until", "said"),
    [
        (UntilSpec(metric="loss", at_least=0.5), "a lower loss is better; use at_most"),
        (UntilSpec(metric="accuracy", at_most=0.9), "a higher accuracy is better; use at_least"),
        (UntilSpec(metric="accuracy", at_least=90), "accuracy is at most 1; write 0.9 for 90 %"),
    ],
)
def test_a_target_lies_on_the_right_side(until: UntilSpec, said: str) -> None:
    ((_, text),) = data_problems(spec(train=TrainSpec(until=until)), FACTS)
    assert said in text


def test_a_warm_up_ends_before_training_does() -> None:
    ((loc, text),) = data_problems(spec(train=TrainSpec(steps=5, warmup_epochs=10)), FACTS)
    assert loc == ("train", "warmup_epochs")
    assert "more than the 5 steps of training; use a shorter warm-up" in text


def test_the_same_optimiser_under_two_names_is_named_twice() -> None:
    twice = (OptimizerAxis(name="sgd", lr=0.1, momentum=0.9), OptimizerAxis(name="momentum", lr=0.1))
    assert "lists momentum 0.1 twice" in impossible(axes={"optimizer": twice})


def test_labels_are_smoothed_where_there_are_some() -> None:
    found = data_problems(
        spec(train=TrainSpec(epochs=1, label_smoothing=0.1)), facts_of(WorkloadSpec(name="linear"), Path())
    )
    assert "needs a built-in workload with classes" in found[-1][1]
