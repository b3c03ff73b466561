"""Recommends a worker count from the scaling rows, or reports that the evidence is not sufficient.

The knee is the largest count that pays. The same rule applies to measured, projected and planned counts.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Literal

from worldsize.analysis.estimate import MAX_LOG, Estimate
from worldsize.analysis.speed.scaling import ScalingRow, Series
from worldsize.spec.setting import Setting

LEAST_MARGINAL_EFFICIENCY = 0.5
"""More workers pay as long as a doubling saves at least this share of the time that perfect scaling would save."""

LEAST_GAIN = 1 / (1 - LEAST_MARGINAL_EFFICIENCY / 2)
"""The gain of a doubling with this marginal efficiency."""


def marginal_efficiency(gain: float, growth: float) -> float:
    """Return the time that a doubling of workers saves, relative to perfect scaling, which saves half of the time.

    Workers grew by the factor `growth`, speed by the factor `gain`. If `growth` is not 2, `gain` is converted to a
    gain per doubling. The simpler (1 - 1/gain) / (1 - 1/growth) is equal for one doubling, but would let any number of
    workers pay once they are twice as fast as one.
    """
    return 2 * (1 - math.exp(min(-math.log(gain) / math.log2(growth), MAX_LOG)))


def paying_counts(
    counts: Sequence[int], speeds: Sequence[float], margin: float = LEAST_MARGINAL_EFFICIENCY
) -> list[int]:
    """Return the indices of the counts that pay, each compared with the previous one that pays; the last is the knee.

    A count that does not pay is skipped, but larger counts are still considered: they may regain what the first
    exchange between workers cost.
    """
    paying = [0]
    for index in range(1, len(counts)):
        last = paying[-1]
        if marginal_efficiency(speeds[index] / speeds[last], counts[index] / counts[last]) >= margin:
            paying.append(index)
    return paying


WIDEST = 0.5
"""A speedup whose relative interval is wider than this is too uncertain to recommend."""
WIDE = 0.4
"""So is a speedup whose relative interval is wider than this, if its two ends would give different answers."""
QUIET = 0.1
"""A step up that contributes less than this share of the squared noise of a speedup is not repeated."""
METRIC_SLACK = 0.01
"""A setting whose metric is certainly worse than the best by more than this share is not recommended, however fast."""
NOISE_OF_ONE_RUN = 0.05
"""Assumed noise of a single run, which does not show its own, as a share of the best metric."""
CAUTIONS = ("machine-busy", "cpu-stolen")
"""Codes of findings that cast doubt on the measurements. They are shown below the answer and with projections."""


@dataclass(frozen=True, kw_only=True)
class Finding:
    """Something wrong or worth knowing; the report puts it into words."""

    code: str
    numbers: Mapping[str, float | Estimate] = field(default_factory=dict)
    names: dict[str, str] = field(default_factory=dict)
    where: dict[str, int | str] = field(default_factory=dict)
    """The fields that identify the setting, such as {"workers": 2, "strategy": "zero"}."""


@dataclass(frozen=True, kw_only=True)
class Answer:
    verdict: Literal["use", "not enough evidence"]
    row: ScalingRow | None
    """The recommended setting; without enough evidence, the best guess so far."""
    findings: tuple[Finding, ...] = ()
    noisy: tuple[Setting, ...] = ()
    """Settings to repeat, each together with the next smaller count, because noise leaves the answer open. The one that
    helps most per worker comes first."""

    @property
    def cautions(self) -> tuple[Finding, ...]:
        return tuple(finding for finding in self.findings if finding.code in CAUTIONS)


def recommend(
    all_series: Sequence[Series], *, higher_is_better: bool = True, trained: bool = False, target: bool = False
) -> Answer:
    """Find the knee of each series among the counts that still learn, and recommend the fastest of them.

    `trained`: whether the study trains. If so, it recommends nothing as long as no row has a metric. `target`: whether
    training has a target. If so, only rows that met it have a metric.
    """
    metrics = [row.metric.value for series in all_series for row in series.rows if row.metric is not None]
    best = (max if higher_is_better else min)(metrics, default=None)
    if trained and best is None:
        code = "nothing-reached" if target and all_series else "nothing-learned"
        return Answer(verdict="not enough evidence", row=None, findings=(Finding(code=code),))
    knees = [(_knee(rows), series) for series in all_series if (rows := _learning(series, best))]
    if not knees:
        return Answer(verdict="not enough evidence", row=None, findings=(Finding(code="nothing-measured"),))
    row, series = max(knees, key=lambda pair: pair[0].samples_per_s.value)
    remarks = _remarks(row, series, best)
    if len(series.rows) == 1:
        alone = Finding(code="one-count", numbers={"workers": row.setting.workers})
        return Answer(verdict="not enough evidence", row=row, findings=(alone, *remarks))
    if (open_step := _open_step(row, _comparable(row, series, best))) is not None:
        doubt = _too_noisy(open_step[1])
        noisy = _by_worth([other for other in series.rows if other.setting.workers <= open_step[1].setting.workers])
        return Answer(verdict="not enough evidence", row=row, findings=(doubt, *remarks), noisy=noisy)
    if (against := _learning_against_speed(row, series, best)) is not None:
        return Answer(verdict="not enough evidence", row=row, findings=(against, *remarks))
    return Answer(verdict="use", row=row, findings=remarks)


def _learning(series: Series, best: float | None) -> list[ScalingRow]:
    """Return the rows that do not certainly learn less than the best of the study: speed must not cost quality."""
    if best is None:
        return list(series.rows)
    return [row for row in series.rows if row.metric is not None and learns_less(row, best) is not True]


def learns_less(row: ScalingRow, best: float) -> bool | None:
    """Whether the metric of a row is worse than the best by more than the slack; None if noise leaves that open."""
    shortfall, half_width = _shortfall(row, best)
    if shortfall <= 0:
        return False
    return True if shortfall > half_width else None


def _shortfall(row: ScalingRow, best: float) -> tuple[float, float]:
    """Return how far the metric falls short of the best, beyond the slack, and how far noise may have moved it."""
    assert row.metric_sample is not None
    known = row.metric_sample.freedom > 0
    half_width = row.metric_sample.half_width() if known else NOISE_OF_ONE_RUN * abs(best)
    return abs(row.metric_sample.value - best) - METRIC_SLACK * abs(best), half_width


def _comparable(row: ScalingRow, series: Series, best: float | None) -> list[ScalingRow]:
    """Return the rows to compare speed with: those that learn, those that were not trained (an adaptive study trains
    only one setting), and smaller counts, because the recommended count must be faster, whatever they learned."""
    learning, own = _learning(series, best), row.setting.workers
    return [other for other in series.rows if other in learning or not other.trained or other.setting.workers < own]


def _learning_against_speed(row: ScalingRow, series: Series, best: float | None) -> Finding | None:
    """Return a finding if no smaller count learned as well, although one of them would be recommended for its speed.

    More workers that are not faster are useless unless learning needs them. Trials of a single length and learning rate
    cannot show that.
    """
    smaller = [other for other in series.rows if other.setting.workers < row.setting.workers]
    faster = _knee([*smaller, row])
    if faster is row or not faster.trained or any(other in _learning(series, best) for other in smaller):
        return None
    numbers: dict[str, float | Estimate] = {
        "few": float(faster.setting.workers),
        "workers": float(row.setting.workers),
        "speedup": row.speedup.value / faster.speedup.value,
    }
    if faster.metric is None or row.metric is None:
        return Finding(code="failing-against-speed", numbers=numbers)
    numbers |= {"metric": faster.metric.value, "best": row.metric.value}
    return Finding(code="learning-against-speed", numbers=numbers)


def learning_unclear(row: ScalingRow, best: float) -> Finding:
    """Return the finding that a row may learn less, with the number of repeats that would decide."""
    assert row.metric is not None
    assert row.metric_sample is not None
    numbers = {**_trained_at(row), "metric": row.metric, "best": best, "repeats": float(row.metric.n)}
    if not row.metric.has_interval:
        return Finding(code="learning-unclear-once", numbers=numbers)
    needed = row.metric_sample.repeats_for(_shortfall(row, best)[0])
    return Finding(code="learning-unclear", numbers={**numbers, "repeats_needed": float(needed)})


def _trained_at(row: ScalingRow) -> dict[str, float | Estimate]:
    return {"workers": float(row.setting.workers), "global_batch": float(row.setting.global_batch)}


def _knee(rows: Sequence[ScalingRow]) -> ScalingRow:
    return rows[paying_counts([row.setting.workers for row in rows], [row.speedup.value for row in rows])[-1]]


def _open_step(row: ScalingRow, rows: Sequence[ScalingRow]) -> tuple[ScalingRow, ScalingRow] | None:
    """Return the step up that the evidence leaves open: the one to this row, or one from it to a larger count.

    A larger count may pay even if the counts in between do not.
    """
    below = [other for other in rows if other.setting.workers < row.setting.workers]
    above = [other for other in rows if other.setting.workers > row.setting.workers]
    if below and row.speedup.relative_width > WIDEST:
        return _knee(below), row
    for smaller, larger in (*([(_knee(below), row)] if below else ()), *((row, larger) for larger in above)):
        if larger.speedup.relative_width > WIDE and _undecided(smaller, larger):
            return smaller, larger
    return None


def _too_noisy(row: ScalingRow) -> Finding:
    numbers: dict[str, float | Estimate] = {
        "workers": row.setting.workers,
        "speedup": row.speedup,
        "repeats": row.repeats,
        "repeats_needed": _repeats_needed(row),
    }
    return Finding(code="too-noisy", numbers=numbers)


def _by_worth(rows: Sequence[ScalingRow]) -> tuple[Setting, ...]:
    """Order the counts by how much it helps per worker to repeat them together with the next smaller count.

    A speedup is the product of these steps up, and twice the repeats halve the squared error of a step. Steps with
    little noise are left out.
    """
    squared_noise, cost = {}, {}
    for smaller, larger in pairwise(rows):
        squared_noise[larger.setting] = larger.pace.gain_over(smaller.pace).half_width() ** 2
        cost[larger.setting] = larger.setting.workers + smaller.setting.workers
    total = sum(squared_noise.values())
    noisy = [setting for setting, noise in squared_noise.items() if noise >= QUIET * total]
    return tuple(sorted(noisy, key=lambda setting: squared_noise[setting] / cost[setting], reverse=True))


def _undecided(smaller: ScalingRow, larger: ScalingRow) -> bool:
    """Whether the larger count pays at one end of the interval of its gain, but not at the other."""
    low, high = _marginal(smaller, larger).ends
    return low < LEAST_MARGINAL_EFFICIENCY < high


def _marginal(smaller: ScalingRow, larger: ScalingRow) -> Estimate:
    """Return the marginal efficiency between two rows. Their repeats are paired, so that drift of the machine cancels.
    The noise of the baseline, which both speedups share, has no effect."""
    growth = larger.setting.workers / smaller.setting.workers
    return larger.pace.gain_over(smaller.pace).exp().map(lambda gain: marginal_efficiency(gain, growth))


def _close_call(row: ScalingRow, rows: Sequence[ScalingRow]) -> Finding | None:
    """Return the finding that noise leaves open whether the recommended count or one beside it pays.

    `workers` is the other count, and `repeats_needed` the repeats that would decide between the two.
    """
    below = [other for other in rows if other.setting.workers < row.setting.workers]
    above = [other for other in rows if other.setting.workers > row.setting.workers]
    steps = [(_knee(below), row)] if below else []
    steps += [(row, other) for other in above[:1]]
    for smaller, larger in steps:
        if _undecided(smaller, larger):
            other = smaller if larger is row else larger
            gain, growth = larger.pace.gain_over(smaller.pace), larger.setting.workers / smaller.setting.workers
            needed = gain.repeats_for(abs(gain.value - math.log2(growth) * math.log(LEAST_GAIN)))
            numbers = {"workers": float(other.setting.workers), "repeats_needed": float(needed)}
            return Finding(code="close-call", numbers=numbers)
    return None


def _repeats_needed(row: ScalingRow) -> int:
    """Return the repeats that narrow the interval to WIDE. Its width shrinks with the square root of the repeats."""
    return max(row.repeats + 2, math.ceil(row.repeats * max(2.0, (row.speedup.relative_width / WIDE) ** 2)))


def _remarks(row: ScalingRow, series: Series, best: float | None) -> tuple[Finding, ...]:
    """Return what else the reader should know about the recommended setting."""
    remarks = []
    larger = [other for other in series.rows if other.setting.workers > row.setting.workers]
    learning = _learning(series, best)
    lost = [other for other in larger if other not in learning]
    if lost and lost[0].metric is not None and best is not None:
        numbers = {**_trained_at(lost[0]), "metric": lost[0].metric.value, "best": best}
        remarks.append(Finding(code="learning-lost", numbers=numbers))
    if row.metric is not None and best is not None and learns_less(row, best) is None:
        remarks.append(learning_unclear(row, best))
    following = larger[0] if larger else None
    if following is not None and _marginal(row, following).value < LEAST_MARGINAL_EFFICIENCY:
        gained: dict[str, float | Estimate] = {
            "workers": float(following.setting.workers),
            "speedup": following.speedup,
            "efficiency": following.efficiency.value,
        }
        remarks.append(Finding(code="next-count-not-worth-it", numbers=gained))
    if (close := _close_call(row, _comparable(row, series, best))) is not None:
        remarks.append(close)
    if not larger and len(series.rows) > 1:
        remarks.append(Finding(code="largest-count-measured", numbers={"workers": row.setting.workers}))
    if min(row.repeats, series.rows[0].repeats) == 1:
        remarks.append(Finding(code="one-repeat"))
    return tuple(remarks)
