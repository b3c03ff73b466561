"""Setting: the values that two trials must share for their throughput to be comparable. Plain data, without torch."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from worldsize.spec.training import StrategySpec


@dataclass(frozen=True, kw_only=True)
class Method:
    """A setting without its worker count and its batch. Counts and batches are compared within a method."""

    accumulation: int
    scaling: Literal["strong", "weak"]
    strategy: StrategySpec
    precision: str
    place: str

    @property
    def undivided(self) -> Method:
        """The same method without accumulation. How a batch is divided does not affect what a model learns."""
        return replace(self, accumulation=1)


@dataclass(frozen=True, kw_only=True)
class SeriesKey:
    """The values that all settings of one scaling curve share: all except the worker count."""

    method: Method
    batch: int
    """Global batch for strong scaling, batch per worker for weak scaling."""


@dataclass(frozen=True, kw_only=True)
class Setting:
    """The values that two trials must share for their throughput to be comparable."""

    workers: int
    batch_per_worker: int
    accumulation: int = 1
    scaling: Literal["strong", "weak"]
    strategy: StrategySpec
    precision: str
    place: str = ""
    """Name of the place it runs on; empty if the study has a single place. Results of different places are never
    compared."""

    @classmethod
    def of(cls, source: object) -> Setting:
        """Return the setting of a trial or a point, which have its fields among others."""
        return cls(**{field.name: getattr(source, field.name) for field in fields(cls)})

    @property
    def samples_per_worker_step(self) -> int:
        """Number of samples that a worker processes in one step."""
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
        """Return the setting of the same series with this number of workers."""
        if self.scaling == "weak":
            return replace(self, workers=workers)
        batch_per_worker = self.global_batch // (workers * self.accumulation)
        return replace(self, workers=workers, batch_per_worker=batch_per_worker)


def setting_order(setting: Setting) -> tuple[str, str, str, int, int, int]:
    counts = setting.accumulation, setting.batch_per_worker, setting.workers
    return setting.place, setting.strategy.label, setting.precision, *counts
