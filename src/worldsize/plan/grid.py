"""A study multiplied out: the points of its axes, which of them each target runs, and the rate of each batch."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

from worldsize.machine import Machine
from worldsize.spec.optimizer import SGD_KINDS, OptimizerSpec
from worldsize.spec.place import machine_of
from worldsize.spec.setting import Setting
from worldsize.spec.study import Precision, SkipSpec, Start, StudySpec
from worldsize.spec.training import StrategySpec, TrainSpec


@dataclass(frozen=True, kw_only=True)
class StudyPoint:
    """One combination of the axes."""

    workers: int
    batch_per_worker: int
    global_batch: int
    """As the axis states it: where it does not divide among the workers, the point is a problem, or skipped."""
    accumulation: int
    scaling: Literal["strong", "weak"]
    optimizer: OptimizerSpec
    entry: int
    """Of `axes.optimizer`, from which the optimiser comes."""
    strategy: StrategySpec
    precision: Precision
    start: Start
    on: str = ""

    @property
    def setting(self) -> Setting:
        return Setting(
            workers=self.workers,
            batch_per_worker=self.batch_per_worker,
            accumulation=self.accumulation,
            scaling=self.scaling,
            strategy=self.strategy,
            precision=self.precision,
            place=self.on,
        )

    @property
    def search(self) -> str:
        """Points of one search differ in the values searched for and in nothing else."""
        batch = f"{self.batch_per_worker}x{self.accumulation}"
        where = f", {self.on}" if self.on else ""
        return f"{self.entry}: {self.workers} x {batch}, {self.strategy.label}, {self.precision}, {self.start}{where}"


def study_points(spec: StudySpec) -> list[StudyPoint]:
    """The product of the axes, without what `skip` names."""
    return [point for point in product(spec) if not any(matches(skip, point) for skip in spec.skip)]


def product(spec: StudySpec) -> Iterator[StudyPoint]:
    axes = spec.axes
    optimizers = [(entry, setting) for entry, each in enumerate(axes.optimizer) for setting in each.settings()]
    for on, workers, batch, accumulation, (entry, optimizer), strategy, precision, start in itertools.product(
        *(spec.targets, axes.workers, axes.batches, axes.accumulation, optimizers),
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
            on=on,
        )


def matches(skip: SkipSpec, point: StudyPoint) -> bool:
    wanted = skip.model_dump(exclude_none=True)
    have: dict[str, tuple[Any, ...]] = {
        "workers": (point.workers,),
        "batch_per_worker": (point.batch_per_worker,),
        "global_batch": (point.global_batch,),
        "accumulation": (point.accumulation,),
        "optimizer": (point.optimizer.name, point.optimizer.family),
        "rate": (point.optimizer.rate,),
        "rate_rule": (point.optimizer.rate_rule,),
        "strategy": (point.strategy.name, point.strategy.label),
        "precision": (point.precision,),
        "start": (point.start,),
        "on": (point.on,),
    }
    return bool(wanted) and all(value in have[key] for key, value in wanted.items())


def base_batch(spec: StudySpec) -> int:
    """The global batch at which rates are as written: what the rate rule scales from."""
    given = spec.train.base_batch if spec.train else None
    return given or min(point.global_batch for point in study_points(spec))


def scaled_rate(optimizer: OptimizerSpec, train: TrainSpec, global_batch: int, base_batch: int) -> float:
    """linear: rate * k, sqrt: rate * sqrt(k), with k = global batch / base batch."""
    rule = optimizer.rate_rule or train.rate_rule
    if rule == "auto":
        rule = "linear" if optimizer.name in SGD_KINDS else "sqrt"
    factor = global_batch / base_batch
    return optimizer.rate * {"none": 1.0, "linear": factor, "sqrt": math.sqrt(factor)}[rule]


def on_target(spec: StudySpec, on: str) -> StudySpec:
    """The study as this target alone would run it: its counts, and where it runs. Rates stay what they are."""
    if not isinstance(spec.on, dict):
        return spec
    counts = {point.workers for point in study_points(spec) if point.on == on}
    workers = tuple(count for count in spec.axes.workers if count in counts)
    skip = tuple(each.model_copy(update={"on": None}) for each in spec.skip if each.on in (None, on))
    axes = spec.axes.model_copy(update={"workers": workers})
    train = spec.train.model_copy(update={"base_batch": base_batch(spec)}) if spec.train and counts else spec.train
    return spec.model_copy(update={"on": spec.on[on], "axes": axes, "skip": skip, "train": train})


def machines_of(spec: StudySpec, here: Machine) -> dict[str, Machine]:
    """What the workers of each target find; `here` is where the driver runs."""
    return {
        on: machine_of(place, here, threads=spec.threads, most_workers=on_target(spec, on).most_workers)
        for on, place in spec.targets.items()
    }
