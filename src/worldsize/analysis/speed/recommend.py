"""Recommends a worker count from the scaling rows, and tells whether the evidence is sufficient.

The knee is the largest count that still pays. One rule for measured, projected and planned counts.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Literal

from worldsize.analysis.estimate import MOST_LOG, Estimate
from worldsize.analysis.speed.scaling import ScalingRow, Series
from worldsize.spec.setting import Setting

LEAST_MARGINAL_EFFICIENCY = 0.5
"""More workers are worth it while a doubling saves at least this share of what perfect scaling would save."""


def marginal_efficiency(gain: float, growth: float) -> float:
    """Time a doubling saves / time perfect scaling would save (half): workers grew by `growth`, speed by `gain`.

    For a step that is not a doubling, the value per doubling. (1 - 1/gain) / (1 - 1/growth) is the same for one
    doubling, but with it any number of workers would pay once they are twice as fast as one.
    """
    return 2 * (1 - math.exp(min(-math.log(gain) / math.log2(growth), MOST_LOG)))


def paying_counts(
    counts: Sequence[int], speeds: Sequence[float], margin: float = LEAST_MARGINAL_EFFICIENCY
) -> list[int]:
    """Indices of the counts that pay, each compared with the previous one that pays; the last is the knee.

    A count that does not pay is skipped, and does not end the climb: further workers may gain what the first exchange
    between workers cost.
    """
    paying = [0]
    for index in range(1, len(counts)):
        last = paying[-1]
        if marginal_efficiency(speeds[index] / speeds[last], counts[index] / counts[last]) >= margin:
            paying.append(index)
    return paying


WIDEST = 0.5
"""A speedup whose relative interval is wider than this is too uncertain for a recommendation."""
WIDE = 0.4
"""So is one this wide if its two ends would give different answers."""
QUIET = 0.1
"""A step up with less than this share of the squared noise of a speedup is not worth repeating."""
METRIC_SLACK = 0.01
"""A setting whose metric is certainly worse than the best by more than this share is not recommended for its speed."""
NOISE_OF_ONE_RUN = 0.05
"""A single run does not show its noise: it is assumed to be off by at most this share of the best metric."""
CAUTIONS = ("cpu-stolen",)
"""Findings that cast doubt on the measurements: shown right below the answer, and with every projection."""


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
    """Settings to repeat beside the next smaller count because noise leaves the answer open, the most informative per
    worker first."""

    @property
    def cautions(self) -> tuple[Finding, ...]:
        return tuple(finding for finding in self.findings if finding.code in CAUTIONS)


def recommend(
    all_series: Sequence[Series], *, higher_is_better: bool = True, trained: bool = False, target: bool = False
) -> Answer:
    """Find the knee of each series among the counts that still learn, take the fastest, and state the doubts about it.

    `trained` means that models were to be trained: then a study without any metric recommends nothing. With a `target`,
    a row has a metric only if it was met.
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
    """The rows that are not certain to learn less than the best of the study: speed must not cost quality."""
    if best is None:
        return list(series.rows)
    return [row for row in series.rows if row.metric is not None and learns_less(row, best) is not True]


def learns_less(row: ScalingRow, best: float) -> bool | None:
    """Whether its metric is worse than the best by more than the slack; None if noise leaves that open."""
    short, reach = _short(row, best)
    if short <= 0:
        return False
    return True if short > reach else None


def _short(row: ScalingRow, best: float) -> tuple[float, float]:
    """How far its metric falls short of the best, beyond the slack, and by how much noise may have moved it."""
    assert row.metric_sample is not None
    known = row.metric_sample.freedom > 0
    reach = row.metric_sample.reach() if known else NOISE_OF_ONE_RUN * abs(best)
    return abs(row.metric_sample.value - best) - METRIC_SLACK * abs(best), reach


def _comparable(row: ScalingRow, series: Series, best: float | None) -> list[ScalingRow]:
    """The rows to compare speed with: those that learn, those that were not trained (an adaptive study trains only one
    setting), and smaller counts, because the recommended one must be faster whatever they learned."""
    learning, own = _learning(series, best), row.setting.workers
    return [other for other in series.rows if other in learning or not other.trained or other.setting.workers < own]


def _learning_against_speed(row: ScalingRow, series: Series, best: float | None) -> Finding | None:
    """A finding if no smaller count learned as well, but by speed alone one would be recommended.

    More workers that are not faster are useless unless learning needs them, which trials of a single length and
    learning rate cannot show.
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
    """The finding that it may learn less, with the repeats after which its interval would be narrow enough to tell."""
    assert row.metric is not None
    assert row.metric_sample is not None
    numbers = {**_trained_at(row), "metric": row.metric, "best": best, "repeats": float(row.metric.n)}
    if not row.metric.has_interval:
        return Finding(code="learning-unclear-once", numbers=numbers)
    needed = row.metric_sample.repeats_for(_short(row, best)[0])
    return Finding(code="learning-unclear", numbers={**numbers, "repeats_needed": float(needed)})


def _trained_at(row: ScalingRow) -> dict[str, float | Estimate]:
    return {"workers": float(row.setting.workers), "global_batch": float(row.setting.global_batch)}


def _knee(rows: Sequence[ScalingRow]) -> ScalingRow:
    return rows[paying_counts([row.setting.workers for row in rows], [row.speedup.value for row in rows])[-1]]


def _open_step(row: ScalingRow, rows: Sequence[ScalingRow]) -> tuple[ScalingRow, ScalingRow] | None:
    """The step up that the evidence does not decide: the one to this row, the next one, or one to a larger count that
    may pay although those between do not."""
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
    """Counts by how much repeating them beside the next smaller one helps per worker: a speedup is the product of these
    steps up, and twice the repeats halve the squared error of a step. Steps with little noise are left out."""
    squares, cost = {}, {}
    for smaller, larger in pairwise(rows):
        squares[larger.setting] = larger.pace.gain_over(smaller.pace).reach() ** 2
        cost[larger.setting] = larger.setting.workers + smaller.setting.workers
    noisy = [setting for setting, square in squares.items() if square >= QUIET * sum(squares.values())]
    return tuple(sorted(noisy, key=lambda setting: squares[setting] / cost[setting], reverse=True))


def _undecided(smaller: ScalingRow, larger: ScalingRow) -> bool:
    """Whether the larger count pays at one end of the interval of its gain, but not at the other."""
    low, high = _marginal(smaller, larger).ends
    return low < LEAST_MARGINAL_EFFICIENCY < high


def _marginal(smaller: ScalingRow, larger: ScalingRow) -> Estimate:
    """Marginal efficiency between two rows. Their repeats are paired, so that drift of the machine cancels, and the
    noise of the baseline, which affects both speedups, plays no part."""
    growth = larger.setting.workers / smaller.setting.workers
    return larger.pace.gain_over(smaller.pace).exp().map(lambda gain: marginal_efficiency(gain, growth))


def _repeats_needed(row: ScalingRow) -> int:
    """Repeats until the interval is narrower than WIDE: it shrinks with the square root of the repeats."""
    return max(row.repeats + 2, math.ceil(row.repeats * max(2.0, (row.speedup.relative_width / WIDE) ** 2)))


def _remarks(row: ScalingRow, series: Series, best: float | None) -> tuple[Finding, ...]:
    """What else the reader should know about the recommended setting."""
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
        if _undecided(row, following) and following in _comparable(row, series, best):
            remarks.append(Finding(code="close-call", numbers={"workers": float(following.setting.workers)}))
    if not larger and len(series.rows) > 1:
        remarks.append(Finding(code="largest-count-measured", numbers={"workers": row.setting.workers}))
    if min(row.repeats, series.rows[0].repeats) == 1:
        remarks.append(Finding(code="one-repeat"))
    return tuple(remarks)
