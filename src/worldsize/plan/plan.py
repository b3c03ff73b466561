"""Turn a StudySpec into TrialSpecs, grouped into launches, in the order in which they run.

Efficiency compares worker counts, so drift of the machine must not look like an effect of the count. Therefore the
probes of one repeat share a launch with the largest count, in which they take turns. Each repeat has a launch of its
own, because processes differ: a repeat in the same processes would hide that. Each training launch has one count, and
the rounds go through the counts in alternating order.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, Self

from pydantic import model_validator

from worldsize.data.catalog import WorkloadFacts
from worldsize.folder.launches import LaunchKind
from worldsize.plan.grid import StudyPoint, scaled_lr, study_points
from worldsize.spec.base import Frozen
from worldsize.spec.optimizer import USUAL_LR
from worldsize.spec.place import PlaceOrNone
from worldsize.spec.setting import Setting
from worldsize.spec.study import Start, StudySpec, TrialSpec
from worldsize.spec.training import StrategySpec, TrainSpec
from worldsize.spec.workload import WorkloadSpec

PRETRAIN_ID = "0000-pretrain"
UNNAMED = "unnamed"
"""Id of a trial that has no number yet."""


class Launch(Frozen):
    """One start of worker processes, and the trials that it runs: probes of one repeat in turns, others one by one."""

    kind: LaunchKind
    workers: int
    trials: tuple[str, ...]
    place: PlaceOrNone = ""
    """Name of the place it runs on, if the study has several."""

    def id(self, number: int) -> str:
        """Return the name of its folder, like `0003-train-w4`, followed by the place if the study has several."""
        return f"{number:04d}-{self.kind}-w{self.workers}" + (f"-{self.place}" if self.place else "")


class Plan(Frozen):
    launches: tuple[Launch, ...]
    trials: dict[str, TrialSpec]
    """Trials by id."""

    @model_validator(mode="after")
    def _ids_agree(self) -> Self:
        for key, trial in self.trials.items():
            if key != trial.id:
                raise ValueError(f"the trial {trial.id} has the key {key!r}")
        for launch in self.launches:
            if unknown := [trial_id for trial_id in launch.trials if trial_id not in self.trials]:
                raise ValueError(f"a launch has the trial {unknown[0]!r}, which does not exist")
        return self


class PlanFile(Frozen):
    """plan.json: the plan of a study, its devices, and facts about its workload."""

    plan: Plan
    device: dict[str, Literal["cpu", "cuda"]]
    """Device of each place."""
    facts: WorkloadFacts


def make_plan(spec: StudySpec, points: Sequence[StudyPoint] | None = None) -> Plan:
    """Return the trials and launches of a study without problems, for these points (default: all).

    Searches and adaptive studies add more trials later.
    """
    points = study_points(spec) if points is None else points
    rng = random.Random(spec.seed)
    drafts: list[Draft] = []
    if spec.pretrain is not None:
        drafts.append(Draft("pretrain", spec.pretrain.workers, [_pretrain_trial(spec)], next(iter(spec.places))))
    if spec.probe is not None:
        drafts += _probing(spec, [points] * spec.probe_repeats, rng)
    if not spec.adaptive:  # in an adaptive study, probes decide what to train
        drafts += _training(spec, points, rng)
    return _numbered(Plan(trials={}, launches=()), drafts)


def full_grid(spec: StudySpec) -> list[TrialSpec]:
    """Return the probes that an adaptive study would run if it skipped none."""
    plan = make_plan(spec.model_copy(update={"adaptive": False}))
    return [trial for trial in plan.trials.values() if trial.kind == "probe"]


def with_probes(plan: Plan, spec: StudySpec, passes: Sequence[Sequence[StudyPoint]]) -> Plan:
    """Return the plan with more probes at the end. Each pass probes all its points once.

    Repeat numbers continue those of the plan, because the analysis pairs repeats with the same number.
    """
    first = 1 + max((trial.repeat for trial in plan.trials.values() if trial.kind == "probe"), default=-1)
    drafts = _probing(spec, passes, random.Random(spec.seed + len(plan.trials)), first)
    return _numbered(plan, drafts)


def with_training(plan: Plan, spec: StudySpec, points: Sequence[StudyPoint]) -> Plan:
    """Return the plan with training of these points added at the end."""
    return _numbered(plan, _training(spec, points, random.Random(spec.seed + len(plan.trials))))


@dataclass
class Draft:
    """A launch whose trials are not numbered yet."""

    kind: Literal["probe", "train", "pretrain"]
    workers: int
    members: list[TrialSpec]
    place: str


def _by_place(spec: StudySpec, points: Sequence[StudyPoint]) -> dict[str, list[StudyPoint]]:
    by_place = {place: [point for point in points if point.place == place] for place in spec.places}
    return {place: group for place, group in by_place.items() if group}


def _probing(
    spec: StudySpec, passes: Sequence[Sequence[StudyPoint]], rng: random.Random, first_repeat: int = 0
) -> list[Draft]:
    """Return a launch per place and pass, with the largest count of its points. A pass of a place is one repeat.

    A round of an adaptive study is one launch: its passes repeat counts, so that rounds can be compared.
    """
    drafts = []
    for place, place_points in _by_place(spec, [point for points in passes for point in points]).items():
        place_passes = [[point for point in points if point.place == place] for points in passes]
        trials = _probe_order(spec, place_passes, rng, first_repeat)
        workers = max(point.workers for point in place_points)
        if spec.adaptive:
            drafts.append(Draft("probe", workers, trials, place))
        else:
            by_repeat = itertools.groupby(trials, key=lambda trial: trial.repeat)
            drafts += [Draft("probe", workers, list(members), place) for _, members in by_repeat]
    return drafts


def _training(spec: StudySpec, points: Sequence[StudyPoint], rng: random.Random) -> list[Draft]:
    """Return one round per repeat. Rounds go through the counts of a place in alternating order."""
    if spec.train is None:
        return []
    drafts: list[Draft] = []
    for place, place_points in _by_place(spec, points).items():
        counts = sorted({point.workers for point in place_points})
        for repeat in range(spec.repeats):
            for workers in counts if repeat % 2 == 0 else reversed(counts):
                trials = [_train_trial(spec, point, repeat) for point in place_points if point.workers == workers]
                rng.shuffle(trials)
                if drafts and (drafts[-1].workers, drafts[-1].place) == (workers, place):
                    drafts[-1].members.extend(trials)  # two rounds that meet at the same count share a launch
                else:
                    drafts.append(Draft("train", workers, trials, place))
    return drafts


def _numbered(plan: Plan, drafts: list[Draft]) -> Plan:
    trials, launches = dict(plan.trials), list(plan.launches)
    numbers = itertools.count(len(trials))
    width = max(4, len(str(len(trials) + sum(len(draft.members) for draft in drafts))))
    for draft in drafts:
        ids = []
        for member in draft.members:
            trial = member.model_copy(update={"id": _trial_id(next(numbers), width, member)})
            trials[trial.id] = trial
            ids.append(trial.id)
        launches.append(Launch(kind=draft.kind, workers=draft.workers, trials=tuple(ids), place=draft.place))
    return Plan(trials=trials, launches=tuple(launches))


def _probe_order(
    spec: StudySpec, passes: Sequence[Sequence[StudyPoint]], rng: random.Random, first_repeat: int
) -> list[TrialSpec]:
    """Return the trials of all passes. Each pass has its own random order and repeat number.

    Points with the same setting share a probe.
    """
    ordered: list[TrialSpec] = []
    for repeat, points in enumerate(passes, first_repeat):
        distinct: dict[Setting, StudyPoint] = {}
        for point in points:
            distinct.setdefault(point.setting, point)
        one_pass = list(distinct.values())
        rng.shuffle(one_pass)
        ordered += [_probe_trial(spec, point, repeat) for point in one_pass]
    return ordered


def _probe_trial(spec: StudySpec, point: StudyPoint, repeat: int) -> TrialSpec:
    assert spec.probe is not None
    return _trial(
        spec,
        point,
        repeat,
        kind="probe",
        # Frozen layers change the speed; the initial weights do not.
        workload=_workload_of(spec, point.start).model_copy(update={"pretrained": None}),
        # Probes learn a little: on a CPU, steps of an untrained model take up to 10 % longer, because branches in max
        # pooling are harder to predict. A usual rate keeps the weights finite, whatever rates the study tries.
        peak_lr=min(point.optimizer.lr, USUAL_LR[point.optimizer.name]),
        probe=spec.probe,
        largest=spec.axes.largest,
    )


def _train_trial(spec: StudySpec, point: StudyPoint, repeat: int) -> TrialSpec:
    assert spec.train is not None
    entry = spec.axes.optimizer[point.entry]
    return _trial(
        spec,
        point,
        repeat,
        kind="train",
        workload=_workload_of(spec, point.start),
        peak_lr=scaled_lr(point.optimizer, spec.train, point.global_batch),
        train=spec.train,
        start=point.start if len(spec.starts) > 1 else None,
        search=point.search if entry.searched() else None,
        prune=entry.prunes,
    )


def _trial(spec: StudySpec, point: StudyPoint, repeat: int, **own: Any) -> TrialSpec:
    """Return a trial of a point. `own` has the fields that differ between probes and training trials."""
    return TrialSpec(
        id=UNNAMED,
        workers=point.workers,
        batch_per_worker=point.batch_per_worker,
        accumulation=point.accumulation,
        scaling=spec.axes.scaling,
        optimizer=point.optimizer,
        strategy=point.strategy,
        precision=point.precision,
        repeat=repeat,
        seed=spec.seed_of(repeat),
        threads_per_worker=spec.threads_per_worker,
        place=point.place,
        **own,
    )


def _workload_of(spec: StudySpec, start: Start) -> WorkloadSpec:
    """Return the workload with these initial weights. From scratch, nothing is frozen, because a frozen backbone with
    random weights would not be a fair comparison."""
    if start == "scratch":
        return spec.workload.model_copy(update={"pretrained": None, "freeze": None, "unfreeze_epoch": None})
    if spec.pretrain is not None:
        return spec.workload.model_copy(update={"pretrained": f"trials/{PRETRAIN_ID}/weights.pt"})
    return spec.workload


def _pretrain_trial(spec: StudySpec) -> TrialSpec:
    assert spec.pretrain is not None
    pretrain = spec.pretrain
    return TrialSpec(
        id=UNNAMED,
        kind="pretrain",
        workload=pretrain.workload,
        workers=pretrain.workers,
        batch_per_worker=pretrain.batch_per_worker,
        scaling=spec.axes.scaling,
        optimizer=pretrain.optimizer,
        strategy=StrategySpec(),
        precision=spec.axes.precision[0],
        peak_lr=pretrain.optimizer.lr,
        repeat=0,
        seed=spec.seed,
        threads_per_worker=spec.threads_per_worker,
        train=TrainSpec(epochs=pretrain.epochs, lr_rule="none", schedule=pretrain.schedule, save_weights=True),
        place=next(iter(spec.places)),
    )


def _trial_id(number: int, width: int, trial: TrialSpec) -> str:
    if trial.kind == "pretrain":
        return PRETRAIN_ID
    label = trial.optimizer.family if trial.kind == "train" else "probe"
    if trial.start:
        label += f"-{trial.start}"
    if trial.strategy.name != "ddp":
        label += f"-{trial.strategy.name}"
    batch = "largest" if trial.largest else f"b{trial.batch_per_worker}"
    place = f"-{trial.place}" if trial.place else ""
    return f"{number:0{width}d}-w{trial.workers}-{batch}-{label}-r{trial.repeat}{place}"
