"""A projection in the terminal: the answer first, then measured and projected counts, never looking alike."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from rich.console import Group
from rich.table import Table
from rich.text import Text

from worldsize.analysis.choice import Option, eligible, is_sure, marginal, speedup_of
from worldsize.analysis.knee import MARGIN
from worldsize.analysis.recommend import CAUTIONS, Finding
from worldsize.analysis.stats import Interval
from worldsize.catalog import WorkloadFacts
from worldsize.errors import visible
from worldsize.prediction import Prediction, Question
from worldsize.report.sentences import finding_sentence, plural
from worldsize.report.tables import plain_table
from worldsize.report.words import (
    counted,
    duration,
    metric_value,
    number,
    percent,
    target_words,
)
from worldsize.results import Results

SENTENCES = {
    "limit-data": (
        "Limit: data. From {from:.0f} to {workers:.0f} workers {percent:.0f} % of what perfect scaling would give goes "
        "into waiting for data."
    ),
    "limit-compute": (
        "Limit: computing. With {workers:.0f} workers each one computes more slowly, because they share cores, memory "
        "or power: that takes {percent:.0f} % of what perfect scaling from {from:.0f} would give."
    ),
    "limit-fixed-cost": (
        "Limit: what a step costs however small its batch is. From {from:.0f} to {workers:.0f} workers each one has "
        "less to compute and is not as much faster: {percent:.0f} % of what perfect scaling would give."
    ),
    "limit-not-measured": (
        "From {from:.0f} to {workers:.0f} workers {percent:.0f} % of what perfect scaling would give is expected to be "
        "lost; what limits it was not measured there."
    ),
    "limit-communication": (
        "Limit: communication. From {from:.0f} to {workers:.0f} workers exchanging gradients, and waiting for the "
        "slowest at it, takes {percent:.0f} % of what perfect scaling would give."
    ),
    "limit-learning": (
        "Limit: statistical efficiency. A global batch of {global_batch:.0f} needs more epochs, which takes "
        "{percent:.0f} % of what perfect scaling from {from:.0f} to {workers:.0f} workers would give."
    ),
    "limit-above-the-step": (
        "Limit: what lies outside the steps. Start, preparation and evaluation do not shrink with workers: "
        "{percent:.0f} % of what perfect scaling from {from:.0f} to {workers:.0f} would give."
    ),
    "limit-data-set-too-small": (
        "Limit: the data set. With {workers:.0f} workers an epoch has only {steps_an_epoch:.0f} steps of "
        "{global_batch:.0f} samples: too few updates to learn from."
    ),
    "nothing-limits": "Up to {workers:.0f} workers nothing limits it that is known.",
    "projected-from-one-count": (
        "Only {workers:.0f} worker(s) ran: how it scales is the experience of others, not of this study."
    ),
    "node-never-left": (
        "{workers:.0f} workers need more than one node of {places:.0f}, and no run had two: what that costs is a "
        "guess, and the interval is wide. A measured or declared network (--network) would narrow it."
    ),
    "projected-too-widely": "with {workers:.0f} worker(s) it may be anything from {low:,.4g} to {high:,.4g} samples/s.",
    "nothing-learns": "nothing was found to learn at any of these batches.",
    "target-time-not-known": "the time to {target:g} is not known at any of these counts.",
    "measure-next": "Measure {workers:.0f} workers next: that would narrow these intervals most.",
    "measure-two-nodes": (
        "One machine like this takes {places:.0f}. Measure {workers:.0f} workers on two of them next, or declare the "
        "network."
    ),
}


def prediction_view(found: Prediction, facts: WorkloadFacts, metric_goal: str = "") -> Group:
    """`metric_goal`: what the training is for, in words."""
    parts: list[Any] = [Text(""), Text(choice_sentence(found, metric_goal), style="bold")]
    parts += [Text(sentence(each), style="yellow") for each in found.findings if each.code in CAUTIONS]
    parts += [Text(line) for line in extra_sentences(found, facts.unit, facts.units_per_sample)]
    parts += [Text(sentence(each), style="dim") for each in found.findings if each.code not in CAUTIONS]
    parts += [Text(""), options_table(found.options, found.base, facts)]
    notes: dict[str, list[int]] = defaultdict(list)
    for option in found.options:
        for note in option.notes:
            notes[note].append(option.workers)
    for note, counts in notes.items():
        where = f"{', '.join(map(str, counts))} {'worker' if counts == [1] else 'workers'}"
        parts.append(Text(visible(f"note, {where}: {note}"), style="dim"))
    return Group(*parts)


def goal_words(results: Results, question: Question) -> str:
    """What the training is for: `accuracy of at least 0.99`, `5 epochs`."""
    train = results.spec.train
    if question.target is not None:
        return f"{results.facts.metric} {question.target:g}"
    if train is None:
        return ""
    if train.until is not None:
        return target_words(train.until)
    return counted(train.epochs, "epoch") if train.epochs else counted(train.steps or 0, "step")


def sentence(finding: Finding) -> str:
    """Of a prediction, or of the study that it is made from."""
    if finding.code not in SENTENCES:
        return finding_sentence(finding)
    return plural(SENTENCES[finding.code], finding.numbers).format(**finding.numbers, **finding.names)


def choice_sentence(found: Prediction, goal: str = "") -> str:
    """`Use 8 workers (projected): 5.1 x the throughput of 1 (4.6 to 5.4), 64 % efficient. ...`"""
    chosen, base = found.choice.knee, found.base
    rate = f", rate {chosen.rate:.3g}" if chosen.rate is not None else ""
    lead = "Use"
    if found.doubt is not None:
        lead = f"Not enough evidence for a number of workers: {sentence(found.doubt)} Best guess:"
    words = (
        f"{lead} {counted(chosen.workers, 'worker')} with a batch of {chosen.batch_per_worker} each, "
        f"{chosen.global_batch} in all{rate} ({'measured' if chosen.measured else 'projected'})"
    )
    if chosen.workers != base.workers:
        speedup = speedup_of(chosen, base)
        efficiency = speedup.value * base.workers / chosen.workers
        words += f": {number(speedup.value)} x the throughput of {base.workers} ({_span(speedup)})"
        words += f", {percent(efficiency)} efficient"
    if chosen.wall_s:
        included = "start and evaluation included" if chosen.above_s is not None else "steps alone"
        words += f"; {goal or 'the whole training'} in {_times(chosen.wall_s)}, {included}"
    return words + "."


def extra_sentences(found: Prediction, unit: str, per_sample: int) -> Iterable[str]:
    choice, question = found.choice, found.question
    if (more := next_that_does_not_pay(found)) is not None:
        of = "" if more.wall_s else " for an epoch"
        why = "that saves too little to pay" if more.time_s < choice.knee.time_s else "no faster"
        yield f"{more.workers:,} workers would take {_times(more.time)}{of}: {why}."
    if choice.unsure is not None:
        option = choice.unsure
        yield (
            f"Not enough evidence beyond that: {counted(option.workers, 'worker')} would pay if the projection held, "
            f"but its {unit}/s may lie anywhere from {number(option.samples_per_s.low * per_sample)} to "
            f"{number(option.samples_per_s.high * per_sample)}."
        )
    if choice.limit is not None:
        yield sentence(choice.limit)
    if choice.fastest_in_budget is not None:
        option = choice.fastest_in_budget
        assert option.cost is not None
        yield (
            f"Fastest within the budget: {counted(option.workers, 'worker')}, {_times(option.time)} for "
            f"{number(option.cost.value)} ({_span(option.cost)}){_may_exceed(option.cost, question.budget)}."
        )
    elif question.budget is not None:
        yield f"No count is known to cost {number(question.budget)} or less."
    if choice.cheapest_in_time is not None:
        option = choice.cheapest_in_time
        yield (
            f"Cheapest within the deadline: {counted(option.workers, 'worker')}, {_times(option.time)}"
            f"{_may_exceed(option.time, question.deadline_s)}."
        )
    elif question.deadline_s is not None:
        yield f"No count is known to be done within {duration(question.deadline_s)}."
    if question.price is not None and not any(option.cost for option in found.options):
        yield "No cost is told: the time of the whole training is not known."
    if len(choice.pareto) > 1:
        yield f"Each faster than all that take fewer worker-hours: {', '.join(map(str, choice.pareto))} workers."


def next_that_does_not_pay(found: Prediction) -> Option | None:
    """The count after the one that is chosen, if it is known well enough to say so."""
    knee = found.choice.knee
    following = next((option for option in eligible(found.options) if option.workers > knee.workers), None)
    if found.doubt or following is None or not is_sure(following) or marginal(knee, following) >= MARGIN:
        return None
    return following


def options_table(options: Sequence[Option], base: Option, facts: WorkloadFacts) -> Table:
    """What is projected is marked with ~, whole rows of it are slanted; intervals of 80 %."""
    table = plain_table("measured, and ~ projected, with 80 % intervals")
    columns: dict[str, Callable[[Option], str]] = {
        "workers": lambda option: f"{option.workers}" if option.measured else f"~{option.workers}",
        "nodes": lambda option: str(option.nodes),
        "global\nbatch": lambda option: str(option.global_batch),
        f"{facts.unit}/s": lambda option: _both(option.samples_per_s, facts.units_per_sample),
        "speedup": lambda option: _both(speedup_of(option, base)),
        "effi-\nciency": lambda option: percent(speedup_of(option, base).value * base.workers / option.workers),
        "step": lambda option: duration(option.step_s.value),
        "epoch": lambda option: duration(option.epoch_s.value),
        "training": lambda option: f"~{_times(option.wall_s)}" if option.wall_s else "not known",
        f"test\n{facts.metric}": lambda option: _metric(option),
        "epochs\nuntil\nstable": lambda option: (
            f"~{_both(option.epochs_stable)}" if option.epochs_stable else "not known"
        ),
        "cost": lambda option: f"~{_both(option.cost)}" if option.cost else "",
        "energy": lambda option: f"~{number(option.joules.value / 3.6e6)} kWh" if option.joules else "",
    }
    for name in _unused(options, facts.metric):
        del columns[name]
    for header in columns:
        table.add_column(header, justify="right", overflow="fold")
    for option in options:
        style = "" if option.measured else "italic"
        table.add_row(*(tell(option) for tell in columns.values()), style=style)
    return table


def _unused(options: Sequence[Option], metric: str) -> Iterable[str]:
    if not any(option.metric for option in options):
        yield f"test\n{metric}"
    if not any(option.epochs_stable for option in options):
        yield "epochs\nuntil\nstable"
    if all(option.nodes == 1 for option in options):
        yield "nodes"
    if not any(option.wall_s for option in options):
        yield "training"
    if not any(option.cost for option in options):
        yield "cost"
    if not any(option.joules for option in options):
        yield "energy"


def _both(interval: Interval, factor: float = 1.0) -> str:
    if interval.low == interval.high:
        return number(interval.value * factor)  # the base, by definition
    return f"{number(interval.value * factor)}\n{number(interval.low * factor)}–{number(interval.high * factor)}"


def _metric(option: Option) -> str:
    if option.metric is None:
        return "not known" if option.learns else "failed"
    mark = "" if option.metric_measured else "~"
    value, low, high = option.metric.value, option.metric.low, option.metric.high
    ends = f"{metric_value(low)}–{metric_value(high)}" if low < high else "one run"
    return f"{mark}{metric_value(value)}\n{ends}"


def _may_exceed(spent: Interval, most: float | None) -> str:
    return "; it may take more" if most is not None and spent.high > most else ""


def _times(interval: Interval) -> str:
    return f"{duration(interval.value)} ({duration(interval.low)} to {duration(interval.high)})"


def _span(interval: Interval) -> str:
    return f"{number(interval.low)} to {number(interval.high)}"
