"""What was trained, as a table: the best of each setting first, and only the columns that the study has values for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from rich.table import Table
from rich.text import Text

from worldsize.analysis.bests import Contest
from worldsize.analysis.estimates import Estimate
from worldsize.analysis.learning import VariantSummary
from worldsize.analysis.stable import Stable
from worldsize.report.tables import how, plain_table, where
from worldsize.report.words import LEVEL_WORDS, duration, metric_value, whole
from worldsize.results import Results

MOST_ROWS = 40
"""A search may have hundreds; the rest is in --json."""


def learning_view(results: Results) -> list[Any]:
    """Nothing where nothing was trained, or where the scaling table already says all of it."""
    shown = [(contest, variant) for contest in results.contests for variant in contest.variants]
    plain = all(len(contest.variants) == 1 for contest in results.contests) and results.target is None
    if not shown or (plain and not any(variant.stable and variant.stable.plateau is not None for _, variant in shown)):
        return []
    parts: list[Any] = [Text(""), _table(results, shown[:MOST_ROWS])]
    if len(shown) > MOST_ROWS:
        parts.append(Text(f"and {len(shown) - MOST_ROWS} more, all of them with --json", style="dim"))
    return parts


def how_words(results: Results) -> str:
    """Strategy, precision and accumulation of the recommended setting, where the study has several of them."""
    row = results.answer.row
    return "" if row is None else how(row.setting, [other.setting for other in results.rows])


def _table(results: Results, shown: Sequence[tuple[Contest, VariantSummary]]) -> Table:
    metric = results.facts.metric
    variants = [variant for _, variant in shown]
    table = plain_table(f"what was trained, with {LEVEL_WORDS}s over repeats")
    columns: dict[str, Callable[[VariantSummary], str]] = {f"test\n{metric}": lambda one: _metric(one.metric)}
    if any(variant.target for variant in variants):
        columns["steps to\ntarget"] = lambda one: _estimate(one.target.steps if one.target else None, whole)
        columns["epochs to\ntarget"] = lambda one: _estimate(one.target.epochs if one.target else None, whole)
        columns["training\ntime"] = lambda one: _time(one.target.seconds if one.target else None)
        columns["examples"] = lambda one: _examples(one.target.samples if one.target else None)
    if any(variant.stable and variant.stable.plateau is not None for variant in variants):
        columns["epochs until\nstable"] = lambda one: _stable(one.stable)
    if any(variant.gap and variant.metric and _matters(variant.gap, variant.metric) for variant in variants):
        columns["train\n- test"] = lambda one: _metric(one.gap)
    columns["runs"] = _runs
    several = len(results.contests) > 1
    settings = [contest.setting for contest in results.contests]
    if several:
        table.add_column("where", overflow="fold")
    table.add_column("trained with", overflow="fold")
    for header in columns:
        table.add_column(header, justify="right", overflow="fold")
    for contest, variant in shown:
        place = [where(contest.setting, settings)] if several else []
        cells = [value(variant) for value in columns.values()]
        table.add_row(*place, variant.variant, *cells, style="bold" if variant in contest.bests else "")
    return table


def _estimate(estimate: Estimate | None, words: Callable[[float], str]) -> str:
    if estimate is None:
        return "not reached"
    if estimate.low is None or estimate.high is None or estimate.low == estimate.high:
        return words(estimate.value)
    return f"{words(estimate.value)}\n{words(estimate.low)}–{words(estimate.high)}"


def _matters(gap: Estimate, metric: Estimate) -> bool:
    """A thousandth of the metric is where four digits begin to show it."""
    return abs(gap.value) >= 1e-3 * abs(metric.value)


def _metric(estimate: Estimate | None) -> str:
    return "" if estimate is None else _estimate(estimate, metric_value)


def _time(estimate: Estimate | None) -> str:
    return "" if estimate is None else _estimate(estimate, duration)


def _examples(estimate: Estimate | None) -> str:
    return "" if estimate is None else f"{estimate.value:,.0f}"


def _stable(stable: Stable | None) -> str:
    if stable is None:
        return ""
    return "not reached" if stable.epoch is None else f"{stable.epoch}\n{stable.low}–{stable.high}"


def _runs(variant: VariantSummary) -> str:
    """How many, and how those ended that did not run to their end."""
    ends = {"diverged": variant.diverged, "stopped": variant.stopped, "plateaued": variant.plateaued}
    words = [f"{count} {name}" for name, count in ends.items() if count]
    if variant.target is not None and 0 < variant.target.reached < variant.repeats:
        words.append(f"{variant.target.reached} reached it")
    return "\n".join([str(variant.repeats), *words])
