"""Points -> speedup and efficiency, each with the interval of the ratio, against a named baseline count."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

from worldsize.analysis.points import Point, Setting
from worldsize.analysis.stats import Interval, median_step


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
    metric: float | None
    """Of the best variant, mean over its repeats."""
    metric_low: float | None
    metric_high: float | None
    """Lowest and highest of the repeats."""
    metric_repeats: int
    variant: str | None
    variants: dict[str, tuple[float, ...]]
    """The metric of every variant, one a repeat."""


@dataclass(frozen=True, kw_only=True)
class Series:
    """Rows that differ in workers only: the same batch a worker (weak) or the same global batch (strong)."""

    rows: tuple[Row, ...]


def scaling(points: Iterable[Point], *, higher_is_better: bool = True) -> list[Series]:
    """speedup(n) = throughput(n) / throughput(baseline), efficiency = speedup * baseline / n.

    For a fixed global batch that is T(1)/T(n); for a fixed batch a worker, n * T(1)/T(n).
    """
    groups: dict[tuple[object, ...], list[Point]] = defaultdict(list)
    for point in points:
        setting = point.setting
        batch = setting.batch_per_worker if setting.scaling == "weak" else setting.global_batch
        groups[setting.scaling, batch, setting.strategy, setting.precision].append(point)
    ordered = [sorted(group, key=lambda point: point.setting.workers) for group in groups.values()]
    return [_series(group, higher_is_better) for group in ordered]


def marginal_efficiency(smaller: Row, larger: Row) -> float:
    """Time saved by going from one count to the next, over the time that perfect scaling would save."""
    saved = 1 - smaller.speedup.value / larger.speedup.value
    ideal = 1 - smaller.setting.workers / larger.setting.workers
    return saved / ideal


def best_variant(variants: dict[str, tuple[float, ...]], *, higher_is_better: bool) -> str | None:
    sign = 1 if higher_is_better else -1
    return max(variants, key=lambda name: sign * sum(variants[name]) / len(variants[name]), default=None)


def _series(group: list[Point], higher_is_better: bool) -> Series:
    base = group[0].setting
    base_step = median_step(group[0].repeats)
    rows = []
    for point in group:
        setting, step = point.setting, median_step(point.repeats)
        variant = best_variant(point.variants, higher_is_better=higher_is_better)
        metrics = point.variants.get(variant, ()) if variant else ()
        speedup = base_step.over(step).times(setting.global_batch / base.global_batch)
        rows.append(
            Row(
                setting=setting,
                baseline_workers=base.workers,
                step_s=step.interval(),
                samples_per_s=step.inverse().times(setting.global_batch).interval(),
                speedup=speedup.interval(),
                efficiency=speedup.times(base.workers / setting.workers).interval(),
                repeats=len(point.repeats),
                metric=sum(metrics) / len(metrics) if metrics else None,
                metric_low=min(metrics, default=None),
                metric_high=max(metrics, default=None),
                metric_repeats=len(metrics),
                variant=variant,
                variants=point.variants,
            )
        )
    return Series(rows=tuple(rows))
