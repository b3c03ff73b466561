"""Records -> points: one for each workers x batch x strategy x precision, its repeats together."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

import numpy as np

from worldsize.analysis.stats import Floats, warmup_end


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


@dataclass(frozen=True, kw_only=True)
class Measured:
    """What one finished trial says about its setting."""

    setting: Setting
    kind: Literal["probe", "train"]
    repeat: int
    step_s: Floats
    """After warm-up, one row a step, one column a rank."""


@dataclass(frozen=True, kw_only=True)
class Point:
    setting: Setting
    repeats: dict[int, Floats]
    """Step times of each repeat, by its number: of the slowest rank, step by step."""


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
        if timed:
            found.append(Point(setting=setting, repeats=_repeats(timed)))
    return sorted(found, key=lambda point: setting_order(point.setting))


def _repeats(trials: list[Measured]) -> dict[int, Floats]:
    """Trials of one repeat that differ only in what they learn ran at the same pace: their steps are pooled."""
    found: dict[int, list[Floats]] = defaultdict(list)
    for trial in trials:
        # Rank 0 alone would hide a straggler: a step ends when its slowest rank does.
        slowest = trial.step_s.max(axis=1)
        found[trial.repeat].append(slowest[warmup_end(slowest) :])
    return {repeat: np.concatenate(steps) for repeat, steps in found.items()}


def block_means(step_s: Floats, period: int) -> Floats:
    """Means of `period` steps in a row: where every period-th one exchanges, a median of single steps would miss it."""
    if period == 1 or not len(step_s):
        return step_s
    whole = max(len(step_s) // period, 1)
    kept = step_s[: whole * period]
    return np.asarray(kept.reshape(whole, -1, step_s.shape[1]).mean(axis=1))


def setting_order(setting: Setting) -> tuple[str, str, str, int, int, int]:
    counts = setting.accumulation, setting.batch_per_worker, setting.workers
    return setting.on, setting.strategy, setting.precision, *counts
