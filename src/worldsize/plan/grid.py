"""Fill in the defaults of a study, and expand its axes into points.

Also find the places where points run (`Site`), and the learning rate of each batch.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from worldsize.data.catalog import WorkloadFacts
from worldsize.data.sets import data_root
from worldsize.machine import Machine
from worldsize.spec.optimizer import SGD_KINDS, OptimizerSpec
from worldsize.spec.place import OnSlurm, PlaceSpec, machine_of
from worldsize.spec.setting import Setting
from worldsize.spec.study import Precision, SkipSpec, Start, StudySpec
from worldsize.spec.training import StrategySpec, TrainSpec


@dataclass(frozen=True, kw_only=True)
class StudyPoint:
    """One combination of the axes."""

    workers: int
    batch_per_worker: int
    global_batch: int
    """As listed in the axis. If it does not divide among the workers, the point must be skipped; otherwise it is a
    problem."""
    accumulation: int
    scaling: Literal["strong", "weak"]
    optimizer: OptimizerSpec
    entry: int
    """Index of the optimizer in `axes.optimizer`."""
    strategy: StrategySpec
    precision: Precision
    start: Start
    place: str = ""

    @property
    def setting(self) -> Setting:
        return Setting.of(self)

    @property
    def search(self) -> str:
        """Key of the search that the point belongs to. Points of a search differ only in the values that it tries."""
        batch = f"{self.batch_per_worker}x{self.accumulation}"
        place = f", {self.place}" if self.place else ""
        return f"{self.entry}: {self.workers} x {batch}, {self.strategy.label}, {self.precision}, {self.start}{place}"


def study_points(spec: StudySpec) -> list[StudyPoint]:
    """Return all points of the study, without those that `skip` matches."""
    return [point for point in product(spec) if not any(matches(skip, point) for skip in spec.skip)]


def product(spec: StudySpec) -> Iterator[StudyPoint]:
    """Yield all combinations of the axes, including those that `skip` matches."""
    axes = spec.axes
    assert not axes.is_auto, "resolve the study first"
    optimizers = [(entry, setting) for entry, axis in enumerate(axes.optimizer) for setting in axis.settings()]
    for place, workers, batch, accumulation, (entry, optimizer), strategy, precision, start in itertools.product(
        *(spec.places, axes.workers, axes.batches, axes.accumulation, optimizers),
        *(axes.strategy, axes.precision, spec.starts),
    ):
        micro_batches = workers * accumulation
        yield StudyPoint(
            workers=workers,
            batch_per_worker=batch if axes.batch_per_worker else batch // micro_batches,
            global_batch=batch * micro_batches if axes.batch_per_worker else batch,
            accumulation=accumulation,
            scaling=axes.scaling,
            optimizer=optimizer,
            entry=entry,
            strategy=strategy,
            precision=precision,
            start=start,
            place=place,
        )


def matches(skip: SkipSpec, point: StudyPoint) -> bool:
    """Whether the point has all given values of a `skip` entry. An empty entry matches no point."""
    required = skip.model_dump(exclude_none=True)
    values: dict[str, tuple[Any, ...]] = {
        "workers": (point.workers,),
        "batch_per_worker": (point.batch_per_worker,),
        "global_batch": (point.global_batch,),
        "accumulation": (point.accumulation,),
        "optimizer": (point.optimizer.name, point.optimizer.family),
        "lr": (point.optimizer.lr,),
        "lr_rule": (point.optimizer.lr_rule,),
        "strategy": (point.strategy.name, point.strategy.label),
        "precision": (point.precision,),
        "weights": (point.start,),
        "place": (point.place,),
    }
    return bool(required) and all(value in values[key] for key, value in required.items())


def scaled_lr(optimizer: OptimizerSpec, train: TrainSpec, global_batch: int) -> float:
    """Return the learning rate for a global batch. `base_batch` must be resolved.

    With k = global batch / base batch, the rule `linear` multiplies the learning rate by k, and `sqrt` by sqrt(k).
    """
    assert train.base_batch is not None
    rule = optimizer.lr_rule or train.lr_rule
    if rule == "auto":
        rule = "linear" if optimizer.name in SGD_KINDS else "sqrt"
    factor = global_batch / train.base_batch
    return optimizer.lr * {"none": 1.0, "linear": factor, "sqrt": math.sqrt(factor)}[rule]


def resolve(spec: StudySpec, machine: Machine, facts: WorkloadFacts) -> StudySpec:
    """Return the study with all defaults filled in: `workers: auto`, the base batch, workers per node.

    `machine` is the one that the driver runs on. If `auto` finds no counts, `plan.problems.auto_problems` says why.
    """
    if spec.axes.is_auto:
        axes = spec.axes.model_copy(update={"workers": auto_counts(spec, machine, facts)})
        spec = spec.model_copy(update={"axes": axes, "adaptive": True})
    if spec.train is not None and spec.train.base_batch is None:
        smallest = min((point.global_batch for point in study_points(spec)), default=None)
        spec = spec.model_copy(update={"train": spec.train.model_copy(update={"base_batch": smallest})})
    places = {name: _with_workers_per_node(place, _most_workers(spec, name)) for name, place in spec.places.items()}
    run_on = spec.run_on
    resolved = (
        tuple(named.with_slurm(places[named.name]) for named in run_on) if isinstance(run_on, tuple) else places[""]
    )
    return spec.model_copy(update={"run_on": resolved})


def auto_counts(spec: StudySpec, machine: Machine, facts: WorkloadFacts) -> tuple[int, ...]:
    """Return 1, 2, 4, ... up to the capacity of the machine, and the capacity itself.

    With strong scaling, only counts that divide all global batches. With weak scaling, only counts whose smallest
    global batch is no larger than the data.
    """
    capacity, axes = auto_capacity(spec, machine), spec.axes
    counts = {1, capacity or 1, *(2**power for power in range(capacity.bit_length()) if 2**power <= capacity)}
    if axes.global_batch:
        divisions = [(batch, parts) for batch in axes.global_batch for parts in axes.accumulation]
        fitting = [count for count in sorted(counts) if all(batch % (count * parts) == 0 for batch, parts in divisions)]
    else:
        smallest = min(axes.batches) * min(axes.accumulation)
        fitting = [count for count in sorted(counts) if count * smallest <= facts.train_samples]
    return tuple(fitting) or (1,)


def auto_capacity(spec: StudySpec, machine: Machine) -> int:
    """Return how many workers fit on the place of a study with a single place."""
    (place,) = spec.places.values()
    available = machine_of(_with_workers_per_node(place, most_workers=1), machine, threads=spec.threads_per_worker)
    return available.capacity(available.device(spec.device), spec.threads_per_worker)


def _with_workers_per_node(place: PlaceSpec, most_workers: int) -> PlaceSpec:
    if not isinstance(place, OnSlurm) or place.slurm.workers_per_node is not None:
        return place
    per_node = place.slurm.gpus_per_node or math.ceil(most_workers / place.slurm.nodes)
    return OnSlurm(slurm=place.slurm.model_copy(update={"workers_per_node": per_node}))


def _most_workers(spec: StudySpec, place: str) -> int:
    """Return the largest worker count of a place. All places count pretraining, although only the first runs it."""
    counts = list(spec.axes.workers)
    if place:
        counts = [point.workers for point in study_points(spec) if point.place == place]
    return max([*counts, spec.pretrain.workers if spec.pretrain else 1])


def fitting_counts(spec: StudySpec, machine: Machine) -> tuple[int, ...]:
    """Return the worker counts of a resolved study that fit on all its places on the driver's machine."""
    capacities = [
        site.machine.capacity(site.device, site.spec.threads_per_worker)
        for site in sites(spec, machine).values()
        if site.spec.slurm is None and not spec.oversubscribe
    ]
    return tuple(count for count in spec.axes.workers if all(count <= capacity for capacity in capacities))


@dataclass(frozen=True, kw_only=True)
class Site:
    """A place of a study: the part of the study that runs there, its machine and its data."""

    spec: StudySpec
    machine: Machine
    data: Path = field(default_factory=data_root)
    """Folder with the data sets."""

    @property
    def device(self) -> Literal["cpu", "cuda"]:
        return self.machine.device(self.spec.device)


def sites(spec: StudySpec, machine: Machine, data: Path | None = None) -> dict[str, Site]:
    """Return the sites of a resolved study by the name of the place. `machine` is the one that the driver runs on."""
    return {
        name: Site(
            spec=at_place(spec, name),
            machine=machine_of(place, machine, threads=spec.threads_per_worker),
            data=data_root(data),
        )
        for name, place in spec.places.items()
    }


def at_place(spec: StudySpec, place: str) -> StudySpec:
    """Return the part of the study that runs on this place, with only its counts. Learning rates stay the same."""
    if not isinstance(spec.run_on, tuple):
        return spec
    counts = {point.workers for point in study_points(spec) if point.place == place}
    workers = tuple(count for count in spec.axes.workers if count in counts)
    skip = tuple(entry.model_copy(update={"place": None}) for entry in spec.skip if entry.place in (None, place))
    axes = spec.axes.model_copy(update={"workers": workers})
    return spec.model_copy(update={"run_on": spec.places[place], "axes": axes, "skip": skip})
