"""Points -> speedup and efficiency, each with the interval of the ratio, against a named baseline count."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from worldsize.analysis.learning import VariantSummary
from worldsize.analysis.points import Point, Setting
from worldsize.analysis.stats import Interval, Sampled, median_step


@dataclass(frozen=True, kw_only=True)
class Pace:
    """Of one setting, as sampled: what a row says with intervals."""

    setting: Setting
    baseline: Setting
    step: Sampled
    speedup: Sampled
    repeats: int

    @property
    def throughput(self) -> Sampled:
        """Samples a second."""
        return self.step.inverse().times(self.setting.global_batch)

    @property
    def efficiency(self) -> Sampled:
        return self.speedup.times(self.baseline.workers / self.setting.workers)


@dataclass(frozen=True, kw_only=True)
class Row:
    """One line of the scaling table."""

    setting: Setting
    baseline_workers: int
    step_s: Interval
    samples_per_s: Interval
    speedup: Interval
    efficiency: Interval
    repeats: int
    trained: bool = False
    metric: float | None = None
    """Of the best variant, mean over its repeats; None where it was not trained, or one of them diverged or missed the
    target."""
    metric_low: float | None = None
    metric_high: float | None = None
    """None, both: one repeat."""
    metric_repeats: int = 0
    variant: str | None = None


@dataclass(frozen=True, kw_only=True)
class Series:
    """Rows that differ in workers only: the same batch a worker (weak) or the same global batch (strong)."""

    rows: tuple[Row, ...]


def scaling(
    points: Iterable[Point],
    best: Mapping[Setting, VariantSummary] = MappingProxyType({}),
    *,
    adaptive: bool = False,
) -> list[Series]:
    """speedup(n) = throughput(n) / throughput(baseline), efficiency = speedup * baseline / n.

    For a fixed global batch that is T(1)/T(n); for a fixed batch a worker, n * T(1)/T(n). `best` is the best that was
    trained at each setting. An `adaptive` study may have repeated some counts alone.
    """
    groups = paces(points, adaptive=adaptive)
    return [Series(rows=tuple(_row(pace, best.get(pace.setting)) for pace in group)) for group in groups]


def paces(points: Iterable[Point], *, adaptive: bool = False) -> list[list[Pace]]:
    """Groups that differ in workers only, each in the order of its counts."""
    groups: dict[tuple[object, ...], list[Point]] = defaultdict(list)
    for point in points:
        setting = point.setting
        batch = setting.batch_per_worker if setting.scaling == "weak" else setting.global_batch
        groups[setting.scaling, batch, setting.accumulation, setting.kind].append(point)
    return [_paces(sorted(group, key=lambda point: point.setting.workers), adaptive) for group in groups.values()]


def _paces(group: list[Point], adaptive: bool) -> list[Pace]:
    base = group[0].setting
    base_step = median_step(group[0].repeats)
    found = []
    for point in group:
        step = median_step(point.repeats)
        speedup = base_step.over(step, repeated_alone=adaptive).times(point.setting.global_batch / base.global_batch)
        found.append(Pace(setting=point.setting, baseline=base, step=step, speedup=speedup, repeats=len(point.repeats)))
    return found


def _row(pace: Pace, best: VariantSummary | None) -> Row:
    return Row(
        setting=pace.setting,
        baseline_workers=pace.baseline.workers,
        step_s=pace.step.interval(),
        samples_per_s=pace.throughput.interval(),
        speedup=pace.speedup.interval(),
        efficiency=pace.efficiency.interval(),
        repeats=pace.repeats,
        trained=best is not None,
        **_learned(best),
    )


def _learned(best: VariantSummary | None) -> dict[str, Any]:
    if best is None or best.metric is None or best.diverged or (best.target is not None and not best.target.always):
        return {}
    return {
        "metric": best.metric.value,
        "metric_low": best.metric.low,
        "metric_high": best.metric.high,
        "metric_repeats": len(best.metrics),
        "variant": best.variant,
    }
