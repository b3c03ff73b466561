"""StudySpec -> TrialSpecs, grouped into launches, in the order in which they run.

Efficiency compares worker counts, so drift of the machine must not fall on the count:
probes of all counts share one launch at the largest count, interleaved in a seeded order;
training runs in launches of its own count, in rounds that pass over all counts in alternating order.
"""

from __future__ import annotations

import dataclasses
import itertools
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from worldsize.plan.grid import StudyPoint, base_batch, scaled_rate, study_points
from worldsize.spec.place import TargetOrNone
from worldsize.spec.setting import Setting
from worldsize.spec.study import Start, StudySpec, TrialSpec
from worldsize.spec.training import StrategySpec, TrainSpec
from worldsize.spec.workload import WorkloadSpec

PRETRAIN_ID = "0000-pretrain"


@dataclass(frozen=True, kw_only=True)
class Launch:
    """One start of worker processes and the trials it runs, one after another."""

    kind: Literal["probe", "train", "pretrain"]
    workers: int
    trials: tuple[str, ...]
    on: TargetOrNone = ""
    """The target it runs on, where the study has several."""

    def id(self, number: int) -> str:
        """The name of its folder."""
        return launch_id(number, f"{self.kind}-w{self.workers}", self.on)


@dataclass(frozen=True, kw_only=True)
class Plan:
    trials: Mapping[str, TrialSpec]
    launches: tuple[Launch, ...]

    def to_dict(self) -> dict[str, Any]:
        return {
            "launches": [dataclasses.asdict(launch) for launch in self.launches],
            "trials": {trial.id: trial.model_dump(mode="json") for trial in self.trials.values()},
        }


def make_plan(spec: StudySpec, points: Sequence[StudyPoint] | None = None) -> Plan:
    """Trials and launches of a study that has no problems, for these points (default: all of them).

    A search may add more once these have run.
    """
    points = study_points(spec) if points is None else points
    rng = random.Random(spec.seed)
    drafts: list[Draft] = []
    if spec.pretrain is not None:
        drafts.append(Draft("pretrain", spec.pretrain.workers, [_pretrain_fields(spec)], next(iter(spec.targets))))
    if spec.probe is not None:
        drafts += _probing(spec, [points] * spec.probe_repeats, rng)
    if not spec.axes.adaptive:  # where probes decide what is worth training, they come first
        drafts += _training(spec, points, rng)
    return _numbered(Plan(trials={}, launches=()), drafts)


def full_grid(spec: StudySpec) -> list[TrialSpec]:
    """The probes that an adaptive study would run if it left nothing out."""
    everything = make_plan(spec.model_copy(update={"axes": spec.axes.model_copy(update={"adaptive": False})}))
    return [trial for trial in everything.trials.values() if trial.kind == "probe"]


def with_probes(plan: Plan, spec: StudySpec, passes: Sequence[Sequence[StudyPoint]]) -> Plan:
    """The same plan, and probes after it, in one launch a target: of each pass, one of every point.

    Their repeats are numbered on: those of one number ran side by side, and no earlier ones did.
    """
    first = 1 + max((trial.repeat for trial in plan.trials.values() if trial.kind == "probe"), default=-1)
    drafts = _probing(spec, passes, random.Random(spec.seed + len(plan.trials)), first)
    return _numbered(plan, drafts)


def extended(plan: Plan, spec: StudySpec, points: Sequence[StudyPoint]) -> Plan:
    """The same plan, and training of more points after it."""
    return _numbered(plan, _training(spec, points, random.Random(spec.seed + len(plan.trials))))


@dataclass
class Draft:
    """A launch whose trials have no names yet."""

    kind: Literal["probe", "train", "pretrain"]
    workers: int
    members: list[dict[str, Any]]
    on: str


def _by_target(spec: StudySpec, points: Sequence[StudyPoint]) -> dict[str, list[StudyPoint]]:
    found = {on: [point for point in points if point.on == on] for on in spec.targets}
    return {on: here for on, here in found.items() if here}


def _probing(
    spec: StudySpec, passes: Sequence[Sequence[StudyPoint]], rng: random.Random, first_repeat: int = 0
) -> list[Draft]:
    """One launch a target, at the largest of its counts."""
    drafts = []
    for on, everything in _by_target(spec, [point for points in passes for point in points]).items():
        here = [[point for point in points if point.on == on] for points in passes]
        workers = max(point.workers for point in everything)
        drafts.append(Draft("probe", workers, _probe_order(spec, here, rng, first_repeat), on))
    return drafts


def _training(spec: StudySpec, points: Sequence[StudyPoint], rng: random.Random) -> list[Draft]:
    """Rounds over all counts of a target in alternating order, one a repeat."""
    if spec.train is None:
        return []
    base = base_batch(spec)
    drafts: list[Draft] = []
    for on, there in _by_target(spec, points).items():
        counts = sorted({point.workers for point in there})
        for repeat in range(spec.repeats):
            for workers in counts if repeat % 2 == 0 else reversed(counts):
                here = [_train_fields(spec, point, repeat, base) for point in there if point.workers == workers]
                rng.shuffle(here)
                if drafts and (drafts[-1].workers, drafts[-1].on) == (workers, on):
                    drafts[-1].members.extend(here)  # one round ends and the next begins with this count: one start-up
                else:
                    drafts.append(Draft("train", workers, here, on))
    return drafts


def _numbered(plan: Plan, drafts: list[Draft]) -> Plan:
    trials, launches = dict(plan.trials), list(plan.launches)
    numbers = itertools.count(len(trials))
    width = max(4, len(str(len(trials) + sum(len(draft.members) for draft in drafts))))
    for draft in drafts:
        ids = []
        for fields in draft.members:
            fields["on"] = draft.on
            trial = TrialSpec(id=_trial_id(next(numbers), width, fields), **fields)
            trials[trial.id] = trial
            ids.append(trial.id)
        launches.append(Launch(kind=draft.kind, workers=draft.workers, trials=tuple(ids), on=draft.on))
    return Plan(trials=trials, launches=tuple(launches))


def _probe_order(
    spec: StudySpec, passes: Sequence[Sequence[StudyPoint]], rng: random.Random, first_repeat: int
) -> list[dict[str, Any]]:
    """Each pass in an order of its own, with the number of a repeat. Points that learn differently share a probe."""
    assert spec.probe is not None
    ordered: list[dict[str, Any]] = []
    for repeat, points in enumerate(passes, first_repeat):
        distinct: dict[Setting, StudyPoint] = {}
        for point in points:
            distinct.setdefault(point.setting, point)
        one_pass = list(distinct.values())
        rng.shuffle(one_pass)
        ordered += [
            _common_fields(spec, point, repeat)
            | {"kind": "probe", "peak_rate": 0.0, "probe": spec.probe, "largest": spec.axes.largest}
            # What is frozen changes the pace; with which weights, does not.
            | {"workload": _workload_of(spec, point.start).model_copy(update={"pretrained": None})}
            for point in one_pass
        ]
    return ordered


def _train_fields(spec: StudySpec, point: StudyPoint, repeat: int, base_batch: int) -> dict[str, Any]:
    assert spec.train is not None
    entry = spec.axes.optimizer[point.entry]
    return _common_fields(spec, point, repeat) | {
        "kind": "train",
        "peak_rate": scaled_rate(point.optimizer, spec.train, point.global_batch, base_batch),
        "train": spec.train,
        "start": point.start if len(spec.starts) > 1 else None,
        "search": point.search if entry.searched() else None,
        "stop_hopeless": entry.stops_hopeless,
    }


def _common_fields(spec: StudySpec, point: StudyPoint, repeat: int) -> dict[str, Any]:
    return {
        "workload": _workload_of(spec, point.start),
        "workers": point.workers,
        "batch_per_worker": point.batch_per_worker,
        "accumulation": point.accumulation,
        "scaling": spec.axes.scaling,
        "optimizer": point.optimizer,
        "strategy": point.strategy,
        "precision": point.precision,
        "repeat": repeat,
        "seed": spec.seed_of(repeat),
        "threads": spec.threads,
    }


def _workload_of(spec: StudySpec, start: Start) -> WorkloadSpec:
    """From scratch everything is trained: a frozen backbone of random weights would be no comparison."""
    if start == "scratch":
        return spec.workload.model_copy(update={"pretrained": None, "freeze": None, "unfreeze_epoch": None})
    if spec.pretrain is not None:
        return spec.workload.model_copy(update={"pretrained": f"trials/{PRETRAIN_ID}/weights.pt"})
    return spec.workload


def _pretrain_fields(spec: StudySpec) -> dict[str, Any]:
    assert spec.pretrain is not None
    pretrain = spec.pretrain
    return {
        "kind": "pretrain",
        "workload": pretrain.workload,
        "workers": pretrain.workers,
        "batch_per_worker": pretrain.batch_per_worker,
        "scaling": spec.axes.scaling,
        "optimizer": pretrain.optimizer,
        "strategy": StrategySpec(),
        "precision": spec.axes.precision[0],
        "peak_rate": pretrain.optimizer.rate,
        "train": TrainSpec(epochs=pretrain.epochs, rate_rule="none", schedule=pretrain.schedule, save="weights"),
        "repeat": 0,
        "seed": spec.seed,
        "threads": spec.threads,
    }


def _trial_id(number: int, width: int, fields: Mapping[str, Any]) -> str:
    if fields["kind"] == "pretrain":
        return PRETRAIN_ID
    what = fields["optimizer"].family if fields["kind"] == "train" else "probe"
    if start := fields.get("start"):
        what += f"-{start}"
    if fields["strategy"].name != "ddp":
        what += f"-{fields['strategy'].name}"
    batch = "largest" if fields.get("largest") else f"b{fields['batch_per_worker']}"
    where = f"-{fields['on']}" if fields["on"] else ""
    return f"{number:0{width}d}-w{fields['workers']}-{batch}-{what}-r{fields['repeat']}{where}"


def launch_id(number: int, what: str, on: str) -> str:
    """`0003-train-w4`, and the target where the study has several."""
    return f"{number:04d}-{what}" + (f"-{on}" if on else "")
