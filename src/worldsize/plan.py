"""StudySpec -> TrialSpecs, grouped into launches, in the order in which they run.

Efficiency compares worker counts, so drift of the machine must not fall on the count:
probes of all counts share one launch at the largest count, interleaved in a seeded order;
training runs in launches of its own count, in rounds that pass over all counts in alternating order.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import math
import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from worldsize.catalog import unfit
from worldsize.machine import Machine
from worldsize.spec import (
    OptimizerSpec,
    Precision,
    SkipSpec,
    Start,
    Strategy,
    StudySpec,
    TrainSpec,
    TrialSpec,
    WorkloadSpec,
)

Loc = tuple[str | int, ...]

PRETRAIN_ID = "0000-pretrain"


@dataclass(frozen=True, kw_only=True)
class Launch:
    """One start of worker processes and the trials it runs, one after another."""

    kind: Literal["probe", "train", "pretrain"]
    workers: int
    trials: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Plan:
    trials: Mapping[str, TrialSpec]
    launches: tuple[Launch, ...]

    def to_dict(self) -> dict[str, Any]:
        return {
            "launches": [dataclasses.asdict(launch) for launch in self.launches],
            "trials": {trial.id: trial.model_dump(mode="json") for trial in self.trials.values()},
        }

    @classmethod
    def from_dict(cls, stored: Mapping[str, Any]) -> Plan:
        launches = [Launch(**{**launch, "trials": tuple(launch["trials"])}) for launch in stored["launches"]]
        trials = {key: TrialSpec.model_validate_json(json.dumps(trial)) for key, trial in stored["trials"].items()}
        return cls(trials=trials, launches=tuple(launches))


@dataclass(frozen=True, kw_only=True)
class Point:
    """One combination of the axes."""

    workers: int
    batch_per_worker: int
    global_batch: int
    """As the axis states it: where it does not divide among the workers, the point is a problem, or skipped."""
    optimizer: OptimizerSpec
    strategy: Strategy
    precision: Precision
    start: Start


def problems(spec: StudySpec, machine: Machine) -> list[tuple[Loc, str]]:
    """What makes this study impossible, each with the place in the study that says so."""
    found: list[tuple[Loc, str]] = []
    axes = spec.axes
    used: list[tuple[Loc, WorkloadSpec]] = [(("workload",), spec.workload)]
    if spec.pretrain is not None:
        used.append((("pretrain", "workload"), spec.pretrain.workload))
    found += [(loc, text) for loc, workload in used if (text := unfit(workload))]
    for axis in type(axes).model_fields:
        values = getattr(axes, axis) or ()
        for index, value in enumerate(values):
            if value in values[:index]:
                shown = value.name if isinstance(value, OptimizerSpec) else value
                text = f"axes.{axis} names {shown} twice, which would run the same trials again; use `repeats` for that"
                found.append((("axes", axis, index), text))
    device = machine.device(spec.device)
    if device == "cuda" and not machine.gpus:
        found.append((("device",), "device=cuda, but no GPU is visible here; use `device: cpu`"))
    places, noun = machine.places(device, spec.threads), "GPUs" if device == "cuda" else "cores"
    counts: list[tuple[Loc, int]] = [
        (("axes", "workers", index), workers) for index, workers in enumerate(axes.workers)
    ]
    if spec.pretrain is not None:
        counts.append((("pretrain", "workers"), spec.pretrain.workers))
    for loc, workers in counts:
        if workers > places and not spec.oversubscribe and not (device == "cuda" and not machine.gpus):
            own = f" of {spec.threads} threads" if spec.threads > 1 and noun == "cores" else ""
            have = machine.gpus if noun == "GPUs" else machine.cores
            text = (
                f"workers={workers}{own} is more than the {have} {noun} here; "
                "use fewer, or `oversubscribe: true` to let them share"
            )
            found.append((loc, text))
    everything = list(_product(spec))
    for index, skip in enumerate(spec.skip):
        if not any(_matches(skip, point) for point in everything):
            found.append((("skip", index), "this `skip` entry matches no point of the study; correct or remove it"))
    points = _points(spec)
    if not points:
        found.append((("skip",), "`skip` leaves out every point; nothing would run"))
    for batch, workers in sorted({(point.global_batch, point.workers) for point in points}):
        if axes.global_batch and batch % workers:
            text = (
                f"global_batch={batch} does not divide among workers={workers}; "
                f"use a multiple of {workers}, or skip the combination"
            )
            found.append((("axes", "global_batch", axes.global_batch.index(batch)), text))
    return found


def make_plan(spec: StudySpec) -> Plan:
    """All trials and launches of a study that has no problems."""
    points = _points(spec)
    rng = random.Random(spec.seed)
    drafts: list[tuple[Launch, list[dict[str, Any]]]] = []
    if spec.pretrain is not None:
        drafts.append((Launch(kind="pretrain", workers=spec.pretrain.workers, trials=()), [_pretrain_fields(spec)]))
    if spec.probe is not None:
        most = max(point.workers for point in points)
        drafts.append((Launch(kind="probe", workers=most, trials=()), _probe_order(spec, points, rng)))
    if spec.train is not None:
        base_batch = spec.train.base_batch or min(point.global_batch for point in points)
        counts = sorted({point.workers for point in points})
        for repeat in range(spec.repeats):
            for workers in counts if repeat % 2 == 0 else reversed(counts):
                here = [_train_fields(spec, point, repeat, base_batch) for point in points if point.workers == workers]
                rng.shuffle(here)
                if drafts and drafts[-1][0].kind == "train" and drafts[-1][0].workers == workers:
                    drafts[-1][1].extend(here)  # one round ends and the next begins with the same count: one start-up
                else:
                    drafts.append((Launch(kind="train", workers=workers, trials=()), here))
    trials: dict[str, TrialSpec] = {}
    launches: list[Launch] = []
    numbers = itertools.count()
    width = max(4, len(str(sum(len(members) for _, members in drafts))))
    for launch, members in drafts:
        ids = []
        for fields in members:
            trial = TrialSpec(id=_trial_id(next(numbers), width, fields, len(spec.starts)), **fields)
            trials[trial.id] = trial
            ids.append(trial.id)
        launches.append(Launch(kind=launch.kind, workers=launch.workers, trials=tuple(ids)))
    return Plan(trials=trials, launches=tuple(launches))


def scaled_rate(optimizer: OptimizerSpec, train: TrainSpec, global_batch: int, base_batch: int) -> float:
    """linear: rate * k, sqrt: rate * sqrt(k), with k = global batch / base batch."""
    rule = train.rate_rule
    if rule == "auto":
        rule = "linear" if optimizer.name == "sgd" else "sqrt"
    factor = global_batch / base_batch
    return optimizer.rate * {"none": 1.0, "linear": factor, "sqrt": math.sqrt(factor)}[rule]


def _points(spec: StudySpec) -> list[Point]:
    return [point for point in _product(spec) if not any(_matches(skip, point) for skip in spec.skip)]


def _product(spec: StudySpec) -> Iterator[Point]:
    axes = spec.axes
    batches = axes.batch_per_worker or axes.global_batch or ()
    for workers, batch, optimizer, strategy, precision, start in itertools.product(
        axes.workers, batches, axes.optimizer, axes.strategy, axes.precision, spec.starts
    ):
        yield Point(
            workers=workers,
            batch_per_worker=batch if axes.batch_per_worker else batch // workers,
            global_batch=batch * workers if axes.batch_per_worker else batch,
            optimizer=optimizer,
            strategy=strategy,
            precision=precision,
            start=start,
        )


def _matches(skip: SkipSpec, point: Point) -> bool:
    wanted = skip.model_dump(exclude_none=True)
    have = {
        "workers": point.workers,
        "batch_per_worker": point.batch_per_worker,
        "global_batch": point.global_batch,
        "optimizer": point.optimizer.name,
        "rate": point.optimizer.rate,
        "strategy": point.strategy,
        "precision": point.precision,
        "start": point.start,
    }
    return bool(wanted) and all(have[key] == value for key, value in wanted.items())


def _probe_order(spec: StudySpec, points: list[Point], rng: random.Random) -> list[dict[str, Any]]:
    """Each repeat passes over all points in an order of its own. Points that learn differently share a probe."""
    assert spec.probe is not None
    distinct: dict[tuple[Any, ...], Point] = {}
    for point in points:
        distinct.setdefault((point.workers, point.batch_per_worker, point.strategy, point.precision), point)
    ordered: list[dict[str, Any]] = []
    for repeat in range(spec.probe.repeats or spec.repeats):
        one_pass = list(distinct.values())
        rng.shuffle(one_pass)
        ordered += [
            _common_fields(spec, point, repeat)
            | {"kind": "probe", "peak_rate": 0.0, "probe": spec.probe}
            # What is frozen changes the pace; with which weights, does not.
            | {"workload": _workload_of(spec, point.start).model_copy(update={"pretrained": None})}
            for point in one_pass
        ]
    return ordered


def _train_fields(spec: StudySpec, point: Point, repeat: int, base_batch: int) -> dict[str, Any]:
    assert spec.train is not None
    rate = scaled_rate(point.optimizer, spec.train, point.global_batch, base_batch)
    return _common_fields(spec, point, repeat) | {"kind": "train", "peak_rate": rate, "train": spec.train}


def _common_fields(spec: StudySpec, point: Point, repeat: int) -> dict[str, Any]:
    return {
        "workload": _workload_of(spec, point.start),
        "workers": point.workers,
        "batch_per_worker": point.batch_per_worker,
        "scaling": spec.axes.scaling,
        "optimizer": point.optimizer,
        "strategy": point.strategy,
        "precision": point.precision,
        "repeat": repeat,
        "seed": spec.seed + repeat,
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
        "strategy": "ddp",
        "precision": spec.axes.precision[0],
        "peak_rate": pretrain.optimizer.rate,
        "train": TrainSpec(epochs=pretrain.epochs, rate_rule="none", schedule=pretrain.schedule, save="weights"),
        "repeat": 0,
        "seed": spec.seed,
        "threads": spec.threads,
    }


def _trial_id(number: int, width: int, fields: Mapping[str, Any], starts: int) -> str:
    if fields["kind"] == "pretrain":
        return PRETRAIN_ID
    what = fields["optimizer"].name if fields["kind"] == "train" else "probe"
    if fields["kind"] == "train" and starts > 1:
        what += "-pretrained" if fields["workload"].pretrained else "-scratch"
    return f"{number:0{width}d}-w{fields['workers']}-b{fields['batch_per_worker']}-{what}-r{fields['repeat']}"
