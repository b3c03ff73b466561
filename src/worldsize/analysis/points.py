"""Records -> points: one for each workers x batch x strategy x precision, its repeats together."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from worldsize.analysis.stats import Floats


@dataclass(frozen=True, kw_only=True)
class Setting:
    """What makes two trials comparable in throughput."""

    workers: int
    batch_per_worker: int
    scaling: Literal["strong", "weak"]
    strategy: str
    precision: str

    @property
    def global_batch(self) -> int:
        return self.workers * self.batch_per_worker


@dataclass(frozen=True, kw_only=True)
class Measured:
    """What one finished trial says about its setting."""

    setting: Setting
    kind: Literal["probe", "train"]
    repeat: int
    step_s: Floats
    """After warm-up, one row a step, one column a rank."""
    optimizer: str
    metric: float | None


@dataclass(frozen=True, kw_only=True)
class Point:
    setting: Setting
    repeats: tuple[Floats, ...]
    """Step times of each repeat: of the slowest rank, step by step."""
    optimizer: str | None
    """The one that ended best, where several were trained."""
    metrics: tuple[float, ...]
    """Of that optimiser, one a repeat."""


def points(trials: Iterable[Measured]) -> list[Point]:
    """In the order of workers and batch. Probes speak for throughput; where there are none, training does."""
    by_setting: dict[Setting, list[Measured]] = defaultdict(list)
    for trial in trials:
        by_setting[trial.setting].append(trial)
    found = []
    for setting, here in by_setting.items():
        here.sort(key=lambda trial: trial.repeat)
        timed = [trial for trial in here if len(trial.step_s)]
        timed = [trial for trial in timed if trial.kind == "probe"] or timed
        optimizer, metrics = _best_optimizer(here)
        if timed:
            found.append(
                Point(
                    setting=setting,
                    # Rank 0 alone would hide a straggler: a step ends when its slowest rank does.
                    repeats=tuple(trial.step_s.max(axis=1) for trial in timed),
                    optimizer=optimizer,
                    metrics=metrics,
                )
            )
    return sorted(found, key=lambda point: _order(point.setting))


def _order(setting: Setting) -> tuple[str, str, int, int]:
    return setting.strategy, setting.precision, setting.batch_per_worker, setting.workers


def _best_optimizer(trials: list[Measured]) -> tuple[str | None, tuple[float, ...]]:
    """The highest mean metric."""
    by_optimizer: dict[str, list[float]] = defaultdict(list)
    for trial in trials:
        if trial.metric is not None:
            by_optimizer[trial.optimizer].append(trial.metric)
    if not by_optimizer:
        return None, ()
    best = max(by_optimizer, key=lambda name: sum(by_optimizer[name]) / len(by_optimizer[name]))
    return best, tuple(by_optimizer[best])
