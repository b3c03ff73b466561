"""Studies side by side, worded: the answer first, then the tables. The terminal and a page say the same words."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from rich.console import Group
from rich.text import Text

from worldsize.analysis.estimate import Estimate
from worldsize.analysis.speed.compare import ALPHA, EFFICIENCY, METRIC, PARTS, STEPS, THROUGHPUT, Difference
from worldsize.answer.comparison import StudyComparison
from worldsize.errors import visible
from worldsize.report.words.numbers import LEVEL_WORDS, counted, duration, metric_value, number, percent, whole
from worldsize.report.words.settings import configuration
from worldsize.report.write.console import plain_table
from worldsize.spec.setting import Setting

MOST_LINES = 12
"""Of configuration and of settings that one study alone has; the rest is in --json."""
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
    """How a quantity is called, and how its values and differences are written."""

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


def comparison_page(found: StudyComparison) -> dict[str, Any]:
    """All that a page or a terminal shows, as text: nothing in it is markup, and names may come from anywhere."""
    compared = found.compared
    others = [each for each in compared.significant if each.quantity != THROUGHPUT]
    return {
        "answer": answer_sentence(found),
        "caution": _caution(found),
        "studies": [
            visible(f"{name}: {results.folder.path} ({results.spec.name}, {counted(len(results.records), 'trial')})")
            for name, results in zip(compared.names, found.studies, strict=True)
        ],
        "tables": [
            table
            for table in (
                _speed_table(found),
                _table(found, others, "other differences that are more than noise") if others else None,
            )
            if table is not None
        ],
        "only": [visible(line) for line in _only(found)],
        "configuration": [visible(f"{name}: {line}") for name, lines in found.configuration.items() for line in lines],
        "environment": [visible(f"{key}: {' | '.join(values)}") for key, values in found.environment.items()],
        "notes": list(_notes(found)),
    }


def comparison_view(found: StudyComparison) -> Group:
    page = comparison_page(found)
    parts: list[Any] = [Text(""), Text(page["answer"], style="bold")]
    if page["caution"]:
        parts.append(Text(page["caution"], style="yellow" if found.compared.significant else "dim"))
    parts += [Text(line, style="dim") for line in page["studies"]]
    for each in page["tables"]:
        table = plain_table(each["title"], gap=2)
        for place, header in enumerate(each["headers"]):
            table.add_column(header, justify="left" if place == 0 else "right", overflow="fold")
        for cells, mark in zip(each["rows"], each["significant"], strict=True):
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


def answer_sentence(found: StudyComparison) -> str:
    """`B is 1.23 x as fast as A at 4 workers (1.18 to 1.29); 3 of 12 differences are more than noise.`"""
    compared = found.compared
    if not compared.differences:
        return "Nothing to compare: the studies have no measured setting in common."
    leads = [words for name in compared.names[1:] if (words := _lead(found, name))]
    judged, more = compared.judged, len(compared.significant)
    if not judged:
        count = "whether that is more than noise is not known: one run each"
    elif judged == 1:
        count = "that is more than noise" if more else "that is within the noise"
    else:
        count = f"{more} of {judged} differences {'is' if more == 1 else 'are'} more than noise"
    return "; ".join([*leads, count]) + "."


def _lead(found: StudyComparison, name: str) -> str:
    """Speed where most workers ran, which is what people run more workers for; before that, a difference in it that is
    more than noise."""
    speeds = [each for each in found.compared.differences if each.side == name and each.quantity == THROUGHPUT]
    if not speeds:
        return f"{name} and {found.compared.names[0]} have no setting in common"
    chosen = max(
        speeds,
        key=lambda each: (each.significant is not False, each.setting.workers, abs(math.log(each.estimate.value))),
    )
    ratio, first = chosen.estimate, found.compared.names[0]
    place = _place(chosen.setting, found.compared.common)
    if chosen.significant is False:
        reach = f"{number(ratio.value)} x as fast at {place}{_reach(ratio, number)}, within the noise"
        return f"{name} is not known to be faster or slower than {first}: {reach}"
    return f"{name} is {number(ratio.value)} x as fast as {first} at {place}{_reach(ratio, number)}"


def _speed_table(found: StudyComparison) -> dict[str, Any] | None:
    speeds = [each for each in found.compared.differences if each.quantity == THROUGHPUT]
    if not speeds:
        return None
    first = found.compared.names[0]
    return {
        "title": f"step time in ms, and throughput against {first} with {LEVEL_WORDS}s",
        "headers": ["where", f"step of {first}", "other", "its step", f"throughput / {first}", "the difference is"],
        "rows": [
            [
                _place(each.setting, found.compared.common),
                number(each.setting.global_batch / each.first * 1e3),
                each.side,
                number(each.setting.global_batch / each.other * 1e3),
                f"{number(each.estimate.value)} x{_reach(each.estimate, number)}",
                VERDICTS[each.significant],
            ]
            for each in speeds
        ],
        "significant": [each.significant for each in speeds],
    }


def _table(found: StudyComparison, shown: Iterable[Difference], title: str) -> dict[str, Any]:
    rows, marks = [], []
    for each in shown:
        words = wording(each.quantity, found.metric)
        rows.append(
            [
                _place(each.setting, found.compared.common),
                words.name,
                words.value(each.first),
                each.side,
                words.value(each.other),
                words.difference(each.estimate.value) + _reach(each.estimate, words.difference),
            ]
        )
        marks.append(each.significant)
    headers = ["where", "what", found.compared.names[0], "other", "its value", "difference"]
    return {"title": title, "headers": headers, "rows": rows, "significant": marks}


def _only(found: StudyComparison) -> Iterator[str]:
    everything = [*found.compared.common, *(each for side in found.compared.only.values() for each in side)]
    for name, settings in found.compared.only.items():
        for setting in settings:
            yield f"{name}: {_place(setting, everything)}"


def _notes(found: StudyComparison) -> Iterator[str]:
    compared = found.compared
    if compared.judged:
        yield (
            f"{counted(compared.judged, 'difference')} looked at (speed, efficiency, what was learned, parts of a "
            f"step above 1 %); Holm's correction keeps the chance of even one false alarm below {percent(ALPHA)}. "
            "All of them: --json."
        )
    unknown = len(compared.differences) - compared.judged
    if unknown:
        yield f"{counted(unknown, 'difference')} cannot be judged: one run, or runs that all gave the same value."


def _caution(found: StudyComparison) -> str:
    """What no interval of one study knows."""
    if not found.compared.differences:
        return ""
    words = []
    if found.other_load:
        told = [
            f"{number(cores)} while {name} ran"
            for name, cores in zip(found.compared.names, found.foreign_cores, strict=True)
            if cores is not None
        ]
        words.append(f"Other work kept cores of the machine busy: {', '.join(told)}. They may differ for that alone.")
    if any(found.cautions.values()):
        kept = [
            "{percent:.0f} % in {trials:.0f} of {of:.0f} trials of ".format(**each.numbers) + name
            for name, said in found.cautions.items()
            for each in said
        ]
        words.append(f"A hypervisor kept CPU time from the machine: {', '.join(kept)}. They may differ for that alone.")
    if found.gap_s is not None:
        words.append(
            f"The studies ran up to {duration(found.gap_s)} apart. What the machine itself does from one time to "
            "another is in none of these intervals: to be sure, run them again in the other order."
        )
    return " ".join(words)


def _place(setting: Setting, among: Iterable[Setting]) -> str:
    """`4 workers, batch 64 a worker, fsdp`: the count, and what else tells it from the others."""
    others = list(among)
    words = [counted(setting.workers, "worker")]
    weak = setting.scaling == "weak"
    batches = {each.batch_per_worker if weak else each.global_batch for each in others}
    if len(batches) > 1:
        words.append(f"batch {setting.batch_per_worker} a worker" if weak else f"batch {setting.global_batch} in all")
    if len({each.scaling for each in others}) > 1:
        words.append(f"{setting.scaling} scaling")
    told = configuration(setting, others)
    return ", ".join([*words, told] if told else words)


def _reach(estimate: Estimate, words: Callable[[float], str]) -> str:
    if estimate.low is None or estimate.high is None:
        return ""
    return f" ({words(estimate.low)} to {words(estimate.high)})"


def _cut(line: str) -> str:
    return line if len(line) <= MOST_CHARACTERS else f"{line[: MOST_CHARACTERS - 3]}..."


def _signed(value: float, words: Callable[[float], str]) -> str:
    return f"+{words(value)}" if value > 0 else words(value)
