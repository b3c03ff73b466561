"""Scaling -> the answer: how many workers, and whether the evidence carries it."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from worldsize.analysis.scaling import Row, Series, marginal_efficiency

MARGIN = 0.5
"""More workers are worth it while they save at least this share of what perfect scaling would save."""
WIDEST = 0.5
"""A speedup whose interval is wider than this, relative, carries no recommendation."""
WIDE = 0.4
"""Nor does one as wide as this whose two ends would give different answers."""
METRIC_SLACK = 0.01
"""A setting whose metric is worse than the best by more than this share of it is not recommended for its speed."""


@dataclass(frozen=True, kw_only=True)
class Finding:
    """Something wrong or worth knowing; the report words it."""

    code: str
    numbers: dict[str, float] = field(default_factory=dict)
    names: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Answer:
    verdict: Literal["use", "not enough evidence"]
    row: Row | None
    """The recommended setting; without enough evidence, the best guess so far."""
    findings: tuple[Finding, ...] = ()


def recommend(
    all_series: Sequence[Series], *, higher_is_better: bool = True, trained: bool = False, target: bool = False
) -> Answer:
    """The knee of each series among the counts that still learn, the fastest of these, and the doubts about it.

    `trained` says that models were to be trained: then a study without any metric recommends nothing. With a `target`,
    a row has a metric only where it was met.
    """
    metrics = [row.metric for series in all_series for row in series.rows if row.metric is not None]
    best = (max if higher_is_better else min)(metrics, default=None)
    if trained and best is None:
        code = "nothing-reached" if target and all_series else "nothing-learned"
        return Answer(verdict="not enough evidence", row=None, findings=(Finding(code=code),))
    knees = [(_knee(rows), rows, series) for series in all_series if (rows := _learning(series, best))]
    if not knees:
        return Answer(verdict="not enough evidence", row=None, findings=(Finding(code="nothing-measured"),))
    row, rows, series = max(knees, key=lambda found: found[0].samples_per_s.value)
    doubts = _doubts(row, rows, series)
    verdict: Literal["use", "not enough evidence"] = "not enough evidence" if doubts else "use"
    return Answer(verdict=verdict, row=row, findings=(*doubts, *_remarks(row, series, best)))


def _learning(series: Series, best: float | None) -> list[Row]:
    """Speed that costs the model is no speed: the rows whose metric is about as good as the best of the study."""
    if best is None:
        return list(series.rows)
    slack = METRIC_SLACK * max(abs(best), METRIC_SLACK)
    return [row for row in series.rows if row.metric is not None and abs(row.metric - best) <= slack]


def _knee(rows: Sequence[Row]) -> Row:
    chosen = rows[0]
    for row in rows[1:]:
        if marginal_efficiency(chosen, row) < MARGIN:
            break
        chosen = row
    return chosen


def _doubts(row: Row, rows: Sequence[Row], series: Series) -> tuple[Finding, ...]:
    """Why the numbers do not carry the choice: only those of the chosen count and of the next one matter to it."""
    if len(series.rows) == 1:
        return (Finding(code="one-count", numbers={"workers": series.rows[0].setting.workers}),)
    position = rows.index(row)
    for smaller, larger in itertools.pairwise(rows[max(position - 1, 0) : position + 2]):
        width = larger.speedup.relative_width
        if width > WIDEST or (width > WIDE and _undecided(smaller, larger)):
            return (
                Finding(
                    code="too-noisy",
                    numbers={
                        "workers": larger.setting.workers,
                        "low": larger.speedup.low,
                        "high": larger.speedup.high,
                        "repeats": larger.repeats,
                        "repeats_needed": _repeats_needed(larger),
                    },
                ),
            )
    return ()


def _undecided(smaller: Row, larger: Row) -> bool:
    """Whether the larger count pays at one end of its interval and does not at the other."""
    low, high = (
        replace(larger, speedup=replace(larger.speedup, value=end)) for end in (larger.speedup.low, larger.speedup.high)
    )
    return marginal_efficiency(smaller, low) < MARGIN < marginal_efficiency(smaller, high)


def _repeats_needed(row: Row) -> int:
    """Intervals shrink with the square root of the repeats; narrower than WIDE decides."""
    return max(row.repeats + 2, math.ceil(row.repeats * max(2.0, (row.speedup.relative_width / WIDE) ** 2)))


def _remarks(row: Row, series: Series, best: float | None) -> tuple[Finding, ...]:
    """What else the reader should know about the recommended setting."""
    remarks = []
    larger = [other for other in series.rows if other.setting.workers > row.setting.workers]
    learning = _learning(series, best)
    lost = [other for other in larger if other not in learning]
    if lost and lost[0].metric is not None and best is not None:
        setting = lost[0].setting
        numbers = {"workers": float(setting.workers), "global_batch": float(setting.global_batch)}
        remarks.append(Finding(code="learning-lost", numbers={**numbers, "metric": lost[0].metric, "best": best}))
    if larger and larger[0] in learning:
        following = larger[0]
        numbers = {
            "workers": float(following.setting.workers),
            "speedup": following.speedup.value,
            "low": following.speedup.low,
            "high": following.speedup.high,
            "efficiency_percent": following.efficiency.value * 100,
        }
        remarks.append(Finding(code="next-count-not-worth-it", numbers=numbers))
        if _undecided(row, following):
            remarks.append(Finding(code="close-call", numbers={"workers": float(following.setting.workers)}))
    if not larger and len(series.rows) > 1:
        remarks.append(Finding(code="largest-count-measured", numbers={"workers": row.setting.workers}))
    if row.repeats == 1:
        remarks.append(Finding(code="one-repeat"))
    return tuple(remarks)
