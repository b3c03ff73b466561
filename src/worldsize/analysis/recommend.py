"""Scaling -> the answer: how many workers, and whether the evidence carries it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from worldsize.analysis.scaling import Row, Series, marginal_efficiency

MARGIN = 0.5
"""More workers are worth it while they save at least this share of what perfect scaling would save."""
WIDEST = 0.5
"""A speedup whose interval is wider than this, relative, carries no recommendation; nor does one that spans 1."""
METRIC_SLACK = 0.01
"""A setting that ends this much below the best metric is not recommended for its speed."""


@dataclass(frozen=True, kw_only=True)
class Finding:
    """Something wrong or worth knowing; the report words it."""

    code: str
    numbers: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Answer:
    verdict: Literal["use", "not enough evidence"]
    row: Row | None
    """The recommended setting; without enough evidence, the best guess so far."""
    findings: tuple[Finding, ...] = ()


def recommend(all_series: Sequence[Series]) -> Answer:
    """The knee of each series, the fastest of them that still learns, and the doubts about it."""
    knees = [(_knee(series), series) for series in all_series]
    if not knees:
        return Answer(verdict="not enough evidence", row=None, findings=(Finding(code="nothing-measured"),))
    metrics = [row.metric for row, _ in knees if row.metric is not None]
    best_metric = max(metrics, default=None)
    learning = [
        (row, series)
        for row, series in knees
        if best_metric is None or (row.metric is not None and row.metric >= best_metric - METRIC_SLACK)
    ]
    row, series = max(learning, key=lambda pair: pair[0].samples_per_s.value)
    findings = _doubts(series)
    verdict: Literal["use", "not enough evidence"] = "not enough evidence" if findings else "use"
    return Answer(verdict=verdict, row=row, findings=(*findings, *_remarks(row, series)))


def _knee(series: Series) -> Row:
    chosen = series.rows[0]
    for row in series.rows[1:]:
        if marginal_efficiency(chosen, row) < MARGIN:
            break
        chosen = row
    return chosen


def _doubts(series: Series) -> tuple[Finding, ...]:
    """Why the numbers do not carry a recommendation."""
    if len(series.rows) == 1:
        return (Finding(code="one-count", numbers={"workers": series.rows[0].setting.workers}),)
    widest = max(series.rows[1:], key=lambda row: row.speedup.relative_width)
    undecided = widest.speedup.low < 1 < widest.speedup.high
    if undecided or widest.speedup.relative_width > WIDEST:
        return (
            Finding(
                code="too-noisy",
                numbers={
                    "workers": widest.setting.workers,
                    "low": widest.speedup.low,
                    "high": widest.speedup.high,
                    "repeats": widest.repeats,
                    "repeats_needed": _repeats_needed(widest),
                },
            ),
        )
    return ()


def _repeats_needed(row: Row) -> int:
    """Intervals shrink with the square root of the repeats; half as wide decides most cases."""
    return max(row.repeats + 2, math.ceil(row.repeats * max(4.0, (row.speedup.relative_width / WIDEST) ** 2)))


def _remarks(row: Row, series: Series) -> tuple[Finding, ...]:
    """What else the reader should know about the recommended setting."""
    remarks = []
    position = series.rows.index(row)
    if position + 1 < len(series.rows):
        following = series.rows[position + 1]
        remarks.append(
            Finding(
                code="next-count-not-worth-it",
                numbers={
                    "workers": following.setting.workers,
                    "speedup": following.speedup.value,
                    "efficiency": following.efficiency.value,
                },
            )
        )
    elif len(series.rows) > 1:
        remarks.append(Finding(code="largest-count-measured", numbers={"workers": row.setting.workers}))
    if row.repeats == 1:
        remarks.append(Finding(code="one-repeat"))
    return tuple(remarks)
