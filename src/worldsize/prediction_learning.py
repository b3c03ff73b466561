"""Whether a model still learns at a setting: as it was trained there, or as other batches let expect."""

from __future__ import annotations

from dataclasses import dataclass

from worldsize.analysis.batch_study import BatchStudy
from worldsize.analysis.intervals import NARROWER
from worldsize.analysis.points import Setting
from worldsize.analysis.recommend import METRIC_SLACK
from worldsize.analysis.stats import Interval
from worldsize.results import Results


@dataclass(frozen=True, kw_only=True)
class Learned:
    metric: Interval | None
    measured: bool
    why_not: str | None
    """Why speed there is no speed; None: nothing speaks against it."""


def what_is_learned(results: Results, setting: Setting, batches: BatchStudy | None) -> Learned:
    """Held against the best metric of the study, as the study's own answer does."""
    metrics = {row.setting: row for row in results.rows}
    best = _best(results)
    trained = {contest.setting for contest in results.contests}
    samples = results.facts.train_samples
    if setting.global_batch > samples:
        too_many = f"{_where(setting)}, a step would take more than the {samples:,} training samples"
        return Learned(metric=None, measured=False, why_not=too_many)
    row = metrics.get(setting)
    if setting in trained:
        if row is None or row.metric is None:
            return Learned(
                metric=None, measured=True, why_not=f"{_where(setting)}, training diverged or missed its target"
            )
        low = row.metric if row.metric_low is None else row.metric_low
        high = row.metric if row.metric_high is None else row.metric_high
        why = f"{_where(setting)}, the model learned less" if _behind(results, row.metric, best) else None
        # Rows have 90 %, and all that is told beside it here 80 %; plainly, since metrics may be 0.
        down, up = NARROWER * (row.metric - low), NARROWER * (high - row.metric)
        return Learned(metric=Interval(row.metric, row.metric - down, row.metric + up), measured=True, why_not=why)
    if batches is None or batches.metric is None:
        return Learned(metric=None, measured=False, why_not=None)
    expected = batches.metric.predict(setting.global_batch)
    if expected.unknown == "failed-there":
        return Learned(metric=None, measured=False, why_not=f"{_where(setting)} and less, training failed")
    # Of what is only expected, the end that promises most must fall behind.
    ends = (expected.value.low, expected.value.high) if expected.value else ()
    hopeful = (max if results.facts.higher_is_better else min)(ends, default=None)
    why = (
        f"{_where(setting)}, the model is expected to learn less"
        if hopeful is not None and _behind(results, hopeful, best)
        else None
    )
    return Learned(metric=expected.value, measured=False, why_not=why)


def _best(results: Results) -> float | None:
    metrics = [row.metric for row in results.rows if row.metric is not None]
    sign = 1.0 if results.facts.higher_is_better else -1.0
    return max(metrics, key=lambda metric: sign * metric, default=None)


def _behind(results: Results, metric: float, best: float | None) -> bool:
    if best is None:
        return False
    short = best - metric if results.facts.higher_is_better else metric - best
    return short > METRIC_SLACK * max(abs(best), METRIC_SLACK)


def _where(setting: Setting) -> str:
    return f"at a global batch of {setting.global_batch}"
