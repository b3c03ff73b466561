"""Projections of tables from elsewhere, in the terminal: for each series the answer, then its counts; measured and
projected ones never look alike."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import Any

from rich.console import Group
from rich.text import Text

from worldsize.analysis.knee import MARGIN, climb, marginal_efficiency
from worldsize.analysis.recommend import WIDEST
from worldsize.errors import visible
from worldsize.report.tables import plain_table
from worldsize.report.words import counted, number, percent
from worldsize.tableprojection import Projection

WORDS = {
    "samples_per_s": "samples/s",
    "tokens_per_s": "tokens/s",
    "step_s": "seconds a step",
    "epoch_s": "seconds an epoch",
    "train_s": "seconds of training",
}


def table_view(projected: Sequence[Projection]) -> Group:
    """Of series with all their measured counts."""
    parts: list[Any] = []
    for series, rows in groupby(projected, key=lambda each: each.series_id):
        here = list(rows)
        smallest = next(each for each in here if each.measured)
        base, rate = smallest.workers, smallest.samples_per_s
        parts += [Text(""), Text(visible(answer_sentence(here)), style="bold")]
        legend = "measured, and ~ projected, with 80 % intervals"
        table = plain_table(f"{visible(series)}: {legend}" if series else legend)
        for header in ("workers", WORDS[here[0].unit], "80 % interval", f"of perfect scaling\nfrom {base}"):
            table.add_column(header, justify="right")
        table.add_column("", justify="left", overflow="fold")
        for each in here:
            share = each.samples_per_s / rate * base / each.workers
            table.add_row(
                f"{each.workers}" if each.measured else f"~{each.workers}",
                number(each.value),
                f"{number(each.value_low)}–{number(each.value_high)}",
                f"{share * 100:.0f} %",
                "; ".join(each.notes),
                style="" if each.measured else "italic",
            )
        parts.append(table)
    return Group(*parts)


def answer_sentence(rows: Sequence[Projection]) -> str:
    """The largest count that pays, by what was measured and what is projected narrowly enough; and what the next one
    would bring. `rows` of one series, in order."""
    base = next(each for each in rows if each.measured)
    asked = [each for each in rows if each.workers >= base.workers]
    sure = [each for each in asked if each.measured or (each.high - each.low) / each.samples_per_s <= WIDEST]
    chosen = sure[climb([each.workers for each in sure], [each.samples_per_s for each in sure])[-1]]
    lead = "Use"
    if sum(each.measured for each in rows) == 1:
        lead = "Not enough evidence for a number of workers: only one count was measured. Best guess:"
    words = f"{lead} {counted(chosen.workers, 'worker')} ({'measured' if chosen.measured else 'projected'})"
    words += "." if chosen is base else f": {_against(chosen, base)}."
    following = [each for each in asked if each.workers > chosen.workers]
    if not following:
        return f"{words} It is the largest count asked about; more may still pay."
    # As in a study: the first that would pay if it were not known too vaguely, else the next one, which does not.
    vague = next((each for each in following if each not in sure and _pays(chosen, each)), None)
    if vague is not None:
        return f"{words} Not enough evidence beyond that: {vague.workers:,} workers may give {_against(vague, base)}."
    return f"{words} {following[0].workers:,} workers would give only {_against(following[0], base)}."


def _pays(smaller: Projection, larger: Projection) -> bool:
    gain, growth = larger.samples_per_s / smaller.samples_per_s, larger.workers / smaller.workers
    return marginal_efficiency(gain, growth) >= MARGIN


def _against(one: Projection, base: Projection) -> str:
    speedup, low, high = (end / base.samples_per_s for end in (one.samples_per_s, one.low, one.high))
    ends = f" ({number(low)} to {number(high)})" if low < high else ""
    efficiency = percent(speedup * base.workers / one.workers)
    return f"{number(speedup)} x the rate of {base.workers:,}{ends}, {efficiency} efficient"
