"""A setting: what two trials must share to be comparable in throughput. Plain data that every room may use."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from worldsize.spec.training import StrategySpec


@dataclass(frozen=True, kw_only=True)
class Method:
    """How workers train, apart from their number and their batch: counts and batches are compared within a method."""

    accumulation: int
    scaling: Literal["strong", "weak"]
    strategy: StrategySpec
    precision: str
    place: str

    @property
    def undivided(self) -> Method:
        """The same method without accumulation: what a model learns does not depend on how its batch is divided."""
        return replace(self, accumulation=1)


@dataclass(frozen=True, kw_only=True)
class SeriesKey:
    """What settings on one scaling curve share: everything but the workers."""

    method: Method
    batch: int
    """Global for strong scaling, per worker for weak scaling."""


@dataclass(frozen=True, kw_only=True)
class Setting:
    """What makes two trials comparable in throughput."""

    workers: int
    batch_per_worker: int
    accumulation: int = 1
    scaling: Literal["strong", "weak"]
    strategy: StrategySpec
    precision: str
    place: str = ""
    """Where it runs, if the study has several places. Different kinds of hardware are never compared."""

    @classmethod
    def of(cls, source: object) -> Setting:
        """The setting of a trial or a point, which have its fields among others."""
        return cls(**{field.name: getattr(source, field.name) for field in fields(cls)})

    @property
    def samples_per_worker_step(self) -> int:
        """Samples that a worker processes in one step."""
        return self.batch_per_worker * self.accumulation

    @property
    def global_batch(self) -> int:
        return self.workers * self.samples_per_worker_step

    @property
    def method(self) -> Method:
        return Method(
            accumulation=self.accumulation,
            scaling=self.scaling,
            strategy=self.strategy,
            precision=self.precision,
            place=self.place,
        )

    @property
    def series(self) -> SeriesKey:
        batch = self.batch_per_worker if self.scaling == "weak" else self.global_batch
        return SeriesKey(method=self.method, batch=batch)

    def with_workers(self, workers: int) -> Setting:
        """The setting of the same series with this many workers."""
        if self.scaling == "weak":
            return replace(self, workers=workers)
        share = self.global_batch // (workers * self.accumulation)
        return replace(self, workers=workers, batch_per_worker=share)


def setting_order(setting: Setting) -> tuple[str, str, str, int, int, int]:
    counts = setting.accumulation, setting.batch_per_worker, setting.workers
    return setting.place, setting.strategy.label, setting.precision, *counts
