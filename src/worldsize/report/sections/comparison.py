"""Studies compared, in words: the answer first, then the tables. The terminal and the page use the same words."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from rich.console import Group
from rich.text import Text

from worldsize.analysis.speed.compare import ALPHA, EFFICIENCY, METRIC, PARTS, STEPS, THROUGHPUT, Difference
from worldsize.answer.comparison import StudyComparison
from worldsize.errors import visible
from worldsize.report.words.numbers import (
    LEVEL_WORDS,
    counted,
    duration,
    metric_value,
    number,
    percent,
    whole,
    with_range,
)
from worldsize.report.words.settings import configuration
from worldsize.report.write.console import plain_table
from worldsize.spec.setting import Setting

MOST_LINES = 12
"""Maximum number of lines for the configuration and for settings found in one study only; --json has the rest."""
MOST_CHARACTERS = 150
VERDICTS = {True: "more than noise", False: "within the noise", None: "not known"}
PART_WORDS = {
    "data": "waiting for data",
    "compute": "computing",
    "communication": "communication",
    "waiting": "waiting for the slowest rank",
}


@dataclass(frozen=True, kw_only=True)
class Wording:
    """Name of a quantity, and how its values and differences are written."""

    name: str
    value: Callable[[float], str]
    difference: Callable[[float], str]


def wording(quantity: str, metric: str) -> Wording:
    if quantity in PARTS:
        return Wording(
            name=f"{PART_WORDS[quantity]}, ms a step",
            value=lambda seconds: number(seconds * 1e3),
            difference=lambda seconds: _signed(seconds * 1e3, number),
        )
    if quantity == EFFICIENCY:
        return Wording(name="efficiency", value=percent, difference=lambda share: f"{share * 100:+.1f} points")
    if quantity == METRIC:
        return Wording(name=f"test {metric}", value=metric_value, difference=lambda value: _signed(value, metric_value))
    name = "steps to the target" if quantity == STEPS else "samples/s"
    return Wording(
        name=name, value=whole if quantity == STEPS else number, difference=lambda ratio: f"{number(ratio)} x"
    )


def comparison_page(comparison: StudyComparison) -> dict[str, Any]:
    """Everything that the page or the terminal shows, as plain text without markup; names may come from anywhere."""
    compared = comparison.compared
    others = [difference for difference in compared.significant if difference.quantity != THROUGHPUT]
    return {
        "answer": answer_sentence(comparison),
        "caution": _caution(comparison),
        "studies": [
            visible(f"{name}: {results.folder.path} ({results.spec.name}, {counted(len(results.records), 'trial')})")
            for name, results in zip(compared.names, comparison.studies, strict=True)
        ],
        "tables": [
            table
            for table in (
                _speed_table(comparison),
                _table(comparison, others, "other differences that are more than noise") if others else None,
            )
            if table is not None
        ],
        "only": [visible(line) for line in _only(comparison)],
        "configuration": [
            visible(f"{name}: {line}") for name, lines in comparison.configuration.items() for line in lines
        ],
        "environment": [visible(f"{key}: {' | '.join(values)}") for key, values in comparison.environment.items()],
        "notes": list(_notes(comparison)),
    }


def comparison_view(comparison: StudyComparison) -> Group:
    page = comparison_page(comparison)
    parts: list[Any] = [Text(""), Text(page["answer"], style="bold")]
    if page["caution"]:
        parts.append(Text(page["caution"], style="yellow" if comparison.compared.significant else "dim"))
    parts += [Text(line, style="dim") for line in page["studies"]]
    for content in page["tables"]:
        table = plain_table(content["title"], gap=2)
        for index, header in enumerate(content["headers"]):
            table.add_column(header, justify="left" if index == 0 else "right", overflow="fold")
        for cells, mark in zip(content["rows"], content["significant"], strict=True):
            table.add_row(*map(Text, cells), style="bold" if mark else "")
        parts += [Text(""), table]
    titles = {
        "only": "in one study alone",
        "configuration": "what was asked for differs",
        "environment": "where they ran",
    }
    for key, title in titles.items():
        lines = page[key]
        if lines:
            parts += [Text(""), Text(title), *(Text(f"  {_cut(line)}") for line in lines[:MOST_LINES])]
        if len(lines) > MOST_LINES:
            parts.append(Text(f"  and {len(lines) - MOST_LINES} more, with --json", style="dim"))
    parts += [Text(""), *(Text(line, style="dim") for line in page["notes"])]
    return Group(*parts)


def answer_sentence(comparison: StudyComparison) -> str:
    """`B is 1.23 x as fast as A at 4 workers (1.18 to 1.29); 3 of 12 differences are more than noise.`"""
    compared = comparison.compared
    if not compared.differences:
        return "Nothing to compare: the studies have no measured setting in common."
    leads = [words for name in compared.names[1:] if (words := _lead(comparison, name))]
    judged, more = compared.judged, len(compared.significant)
    if not judged:
        count = "whether that is more than noise is not known: one run each"
    elif judged == 1:
        count = "that is more than noise" if more else "that is within the noise"
    else:
        count = f"{more} of {judged} differences {'is' if more == 1 else 'are'} more than noise"
    return "; ".join([*leads, count]) + "."


def _lead(comparison: StudyComparison, name: str) -> str:
    """The speed difference at the largest worker count, preferring one that is not within the noise."""
    speeds = [
        difference
        for difference in comparison.compared.differences
        if difference.side == name and difference.quantity == THROUGHPUT
    ]
    if not speeds:
        return f"{name} and {comparison.compared.names[0]} have no setting in common"
    chosen = max(
        speeds,
        key=lambda difference: (
            difference.significant is not False,
            difference.setting.workers,
            abs(math.log(difference.estimate.value)),
        ),
    )
    ratio, first = chosen.estimate, comparison.compared.names[0]
    where = _place(chosen.setting, comparison.compared.common)
    if chosen.significant is False:
        reach = f"{number(ratio.value)} x as fast at {where}{with_range(ratio, number)}, within the noise"
        return f"{name} is not known to be faster or slower than {first}: {reach}"
    return f"{name} is {number(ratio.value)} x as fast as {first} at {where}{with_range(ratio, number)}"


def _speed_table(comparison: StudyComparison) -> dict[str, Any] | None:
    speeds = [difference for difference in comparison.compared.differences if difference.quantity == THROUGHPUT]
    if not speeds:
        return None
    first = comparison.compared.names[0]
    return {
        "title": f"step time in ms, and throughput against {first} with {LEVEL_WORDS}s",
        "headers": ["where", f"step of {first}", "other", "its step", f"throughput / {first}", "the difference is"],
        "rows": [
            [
                _place(difference.setting, comparison.compared.common),
                number(difference.setting.global_batch / difference.first * 1e3),
                difference.side,
                number(difference.setting.global_batch / difference.other * 1e3),
                f"{number(difference.estimate.value)} x{with_range(difference.estimate, number)}",
                VERDICTS[difference.significant],
            ]
            for difference in speeds
        ],
        "significant": [difference.significant for difference in speeds],
    }


def _table(comparison: StudyComparison, shown: Iterable[Difference], title: str) -> dict[str, Any]:
    rows, marks = [], []
    for difference in shown:
        words = wording(difference.quantity, comparison.metric)
        rows.append(
            [
                _place(difference.setting, comparison.compared.common),
                words.name,
                words.value(difference.first),
                difference.side,
                words.value(difference.other),
                words.difference(difference.estimate.value) + with_range(difference.estimate, words.difference),
            ]
        )
        marks.append(difference.significant)
    headers = ["where", "what", comparison.compared.names[0], "other", "its value", "difference"]
    return {"title": title, "headers": headers, "rows": rows, "significant": marks}


def _only(comparison: StudyComparison) -> Iterator[str]:
    everything = [
        *comparison.compared.common,
        *(setting for side in comparison.compared.only.values() for setting in side),
    ]
    for name, settings in comparison.compared.only.items():
        for setting in settings:
            yield f"{name}: {_place(setting, everything)}"


def _notes(comparison: StudyComparison) -> Iterator[str]:
    compared = comparison.compared
    if compared.judged:
        yield (
            f"{counted(compared.judged, 'difference')} looked at (speed, efficiency, what was learned, parts of a "
            f"step above 1 %); Holm's correction keeps the chance of even one false alarm below {percent(ALPHA)}. "
            "All of them: --json."
        )
    unknown = len(compared.differences) - compared.judged
    if unknown:
        yield f"{counted(unknown, 'difference')} cannot be judged: one run, or runs that all gave the same value."


def _caution(comparison: StudyComparison) -> str:
    """Differences between the runs that no interval of a single study covers."""
    if not comparison.compared.differences:
        return ""
    words = []
    if comparison.other_load:
        loads = [
            f"{number(cores)} while {name} ran"
            for name, cores in zip(comparison.compared.names, comparison.foreign_cores, strict=True)
            if cores is not None
        ]
        words.append(f"Other work kept cores of the machine busy: {', '.join(loads)}. They may differ for that alone.")
    if any(comparison.cautions.values()):
        kept = [
            "{percent:.0f} % in {trials:.0f} of {of:.0f} trials of ".format(**finding.numbers) + name
            for name, findings in comparison.cautions.items()
            for finding in findings
        ]
        words.append(f"A hypervisor kept CPU time from the machine: {', '.join(kept)}. They may differ for that alone.")
    if comparison.gap_s is not None:
        words.append(
            f"The studies ran up to {duration(comparison.gap_s)} apart. What the machine itself does from one time to "
            "another is in none of these intervals: to be sure, run them again in the other order."
        )
    return " ".join(words)


def _place(setting: Setting, among: Iterable[Setting]) -> str:
    """`4 workers, batch 64 a worker, fsdp`: the count, and what distinguishes the setting from the others."""
    others = list(among)
    words = [counted(setting.workers, "worker")]
    weak = setting.scaling == "weak"
    batches = {other.batch_per_worker if weak else other.global_batch for other in others}
    if len(batches) > 1:
        words.append(f"batch {setting.batch_per_worker} a worker" if weak else f"batch {setting.global_batch} in all")
    if len({other.scaling for other in others}) > 1:
        words.append(f"{setting.scaling} scaling")
    how = configuration(setting, others)
    return ", ".join([*words, how] if how else words)


def _cut(line: str) -> str:
    return line if len(line) <= MOST_CHARACTERS else f"{line[: MOST_CHARACTERS - 3]}..."


def _signed(value: float, words: Callable[[float], str]) -> str:
    return f"+{words(value)}" if value > 0 else words(value)
