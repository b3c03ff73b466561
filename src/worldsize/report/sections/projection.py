"""Projections in the terminal: the answer first, then measured and projected counts, clearly distinguished."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from itertools import groupby
from typing import Any

from rich.console import Group
from rich.table import Table
from rich.text import Text

from worldsize.analysis.projection.choice import Option, speedup_of
from worldsize.analysis.speed.recommend import CAUTIONS
from worldsize.answer.predict.predict import Prediction
from worldsize.answer.predict.table_projection import Projection, choose_in_series
from worldsize.data.catalog import WorkloadFacts
from worldsize.errors import visible
from worldsize.report.words.answers import choice_sentence, extra_sentences
from worldsize.report.words.findings import sentence
from worldsize.report.words.numbers import (
    below,
    counted,
    duration,
    metric_value,
    number,
    percent,
    times_words,
    with_range,
)
from worldsize.report.write.console import plain_table


def prediction_view(prediction: Prediction, facts: WorkloadFacts, metric_goal: str = "") -> Group:
    """`metric_goal`: the goal of the training, in words."""
    parts: list[Any] = [Text(""), Text(choice_sentence(prediction, metric_goal), style="bold")]
    parts += [Text(sentence(finding), style="yellow") for finding in prediction.findings if finding.code in CAUTIONS]
    parts += [Text(line) for line in extra_sentences(prediction, facts.unit, facts.units_per_sample)]
    parts += [Text(sentence(finding), style="dim") for finding in prediction.findings if finding.code not in CAUTIONS]
    parts += [Text(""), options_table(prediction.options, prediction.base, facts)]
    notes: dict[str, list[int]] = defaultdict(list)
    for option in prediction.options:
        for note in option.notes:
            notes[note].append(option.workers)
    for note, counts in notes.items():
        where = f"{', '.join(map(str, counts))} {'worker' if counts == [1] else 'workers'}"
        parts.append(Text(visible(f"note, {where}: {note}"), style="dim"))
    return Group(*parts)


def options_table(options: Sequence[Option], base: Option, facts: WorkloadFacts) -> Table:
    """Projected values are marked with ~, projected rows are italic; 80 % intervals."""
    table = plain_table("measured, and ~ projected, with 80 % intervals")
    columns: dict[str, Callable[[Option], str]] = {
        "workers": lambda option: f"{option.workers}" if option.measured else f"~{option.workers}",
        "nodes": lambda option: str(option.nodes),
        "global\nbatch": lambda option: str(option.global_batch),
        f"{facts.unit}/s": lambda option: below(option.samples_per_s.scaled(facts.units_per_sample)),
        "speedup": lambda option: below(speedup_of(option, base)),
        "effi-\nciency": lambda option: percent(speedup_of(option, base).value * base.workers / option.workers),
        "step": lambda option: duration(option.step_s.value),
        "epoch": lambda option: duration(option.epoch_s.value),
        "training": lambda option: f"~{times_words(option.wall_s)}" if option.wall_s else "not known",
        f"test\n{facts.metric}": lambda option: _metric(option),
        "epochs\nuntil\nstable": lambda option: (
            f"~{below(option.epochs_stable)}" if option.epochs_stable else "not known"
        ),
        "cost": lambda option: f"~{below(option.cost)}" if option.cost else "",
        "energy": lambda option: f"~{number(option.joules.value / 3.6e6)} kWh" if option.joules else "",
    }
    for name in _unused(options, facts.metric):
        del columns[name]
    for header in columns:
        table.add_column(header, justify="right", overflow="fold")
    for option in options:
        style = "" if option.measured else "italic"
        table.add_row(*(column(option) for column in columns.values()), style=style)
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


def _metric(option: Option) -> str:
    if option.metric is None:
        return "not known" if option.learns else "failed"
    mark = "" if option.metric_measured else "~"
    alone = "" if option.metric.has_interval else "\none run"
    return f"{mark}{below(option.metric, metric_value)}{alone}"


WORDS = {
    "samples_per_s": "samples/s",
    "tokens_per_s": "tokens/s",
    "step_s": "seconds a step",
    "epoch_s": "seconds an epoch",
    "train_s": "seconds of training",
}


def table_view(projected: Sequence[Projection]) -> Group:
    """Tables of the series, each with all its measured counts."""
    parts: list[Any] = []
    for series, rows in groupby(projected, key=lambda row: row.series_id):
        series_rows = list(rows)
        smallest = next(row for row in series_rows if row.measured)
        base, rate = smallest.workers, smallest.samples_per_s.value
        parts += [Text(""), Text(visible(answer_sentence(series_rows)), style="bold")]
        legend = "measured, and ~ projected, with 80 % intervals"
        table = plain_table(f"{visible(series)}: {legend}" if series else legend)
        for header in ("workers", WORDS[series_rows[0].unit], "80 % interval", f"of perfect scaling\nfrom {base}"):
            table.add_column(header, justify="right")
        table.add_column("", justify="left", overflow="fold")
        for row in series_rows:
            share = row.samples_per_s.value / rate * base / row.workers
            table.add_row(
                f"{row.workers}" if row.measured else f"~{row.workers}",
                number(row.expected.value),
                "–".join(map(number, row.expected.ends)) if row.expected.has_interval else "",
                f"{share * 100:.0f} %",
                "; ".join(row.notes),
                style="" if row.measured else "italic",
            )
        parts.append(table)
    return Group(*parts)


def answer_sentence(rows: Sequence[Projection]) -> str:
    """The largest worthwhile count, measured or projected with a narrow interval, and what the next one would bring.
    `rows`: one series, in order."""
    base = next(row for row in rows if row.measured)
    choice = choose_in_series(rows)
    chosen, following, vague = choice.knee, choice.following, choice.unsure
    lead = "Use"
    if sum(row.measured for row in rows) == 1:
        lead = "Not enough evidence for a number of workers: only one count was measured. Best guess:"
    words = f"{lead} {counted(chosen.workers, 'worker')} ({'measured' if chosen.measured else 'projected'})"
    words += "." if chosen is base else f": {_against(chosen, base)}."
    if following is None:
        return f"{words} It is the largest count asked about; more may still pay."
    if vague is not None:
        return f"{words} Not enough evidence beyond that: {vague.workers:,} workers may give {_against(vague, base)}."
    return f"{words} {following.workers:,} workers would give only {_against(following, base)}."


def _against(projection: Projection, base: Projection) -> str:
    speedup = projection.samples_per_s.scaled(1 / base.samples_per_s.value)
    efficiency = percent(speedup.value * base.workers / projection.workers)
    return f"{number(speedup.value)} x the rate of {base.workers:,}{with_range(speedup)}, {efficiency} efficient"
