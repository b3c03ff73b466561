"""A setting: what two trials must share to be comparable in throughput. Plain data, for every room."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, kw_only=True)
class Setting:
    """What makes two trials comparable in throughput."""

    workers: int
    batch_per_worker: int
    accumulation: int = 1
    scaling: Literal["strong", "weak"]
    strategy: str
    precision: str
    on: str = ""
    """The target, where the study has several: kinds of hardware are never compared with one another."""

    @property
    def kind(self) -> tuple[str, str, str]:
        """What counts and batches are compared within."""
        return self.strategy, self.precision, self.on

    @property
    def worker_batch(self) -> int:
        """Samples that a worker computes in one step."""
        return self.batch_per_worker * self.accumulation

    @property
    def global_batch(self) -> int:
        return self.workers * self.worker_batch


def setting_order(setting: Setting) -> tuple[str, str, str, int, int, int]:
    counts = setting.accumulation, setting.batch_per_worker, setting.workers
    return setting.on, setting.strategy, setting.precision, *counts
