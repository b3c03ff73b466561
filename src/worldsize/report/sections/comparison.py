"""Comparison of studies: the answer first, then the tables."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

from rich.console import Group

from worldsize.analysis.estimate import Estimate
from worldsize.analysis.speed.compare import ALPHA, EFFICIENCY, METRIC, PARTS, STEPS, THROUGHPUT, Difference
from worldsize.answer.comparison import StudyComparison
from worldsize.report.blocks import Block, Column, Listing, Prose, Report, Section, Table, table
from worldsize.report.words import quantities
from worldsize.report.words.findings import number_of
from worldsize.report.words.gate import gate_count, gate_sentence, more_repeats, place_words
from worldsize.report.words.numbers import (
    LEVEL_WORDS,
    counted,
    duration,
    integer,
    metric_value,
    number,
    percent,
    with_range,
)
from worldsize.report.words.quantities import GLUED, SPEEDUP, STEP_TIME, Quantity, test_metric
from worldsize.report.write.terminal import to_terminal

MAX_LINES = 12
"""Maximum number of lines of a list in a terminal; --json has the rest."""
MAX_CHARACTERS = 150
VERDICTS = {True: "more than noise", False: "within the noise", None: "unknown"}
PART_WORDS = {
    "data": "waiting for data",
    "compute": "computing",
    "communication": "communication",
    "waiting": "waiting for the slowest worker",
}
WHERE = Quantity(key="where", title="setting")
WHAT = Quantity(key="what", title="quantity")
SIDE = Quantity(key="study", title="study")
VERDICT = Quantity(key="verdict", title="difference is")
RATIO = Quantity(key="throughput_ratio", title="ratio", unit="x")
OTHERS = "Other differences"
RANGES = f"In parentheses: {LEVEL_WORDS}s."


@dataclass(frozen=True, kw_only=True)
class Compared:
    """Formats of a compared quantity: of its values and of their difference."""

    values: Quantity
    difference: Quantity


def compared_quantity(name: str, comparison: StudyComparison) -> Compared:
    """Return the formats of the quantity with this name in a `Difference`."""
    if name in PARTS:
        values = STEP_TIME.titled(f"{PART_WORDS[name]}, per step")
        return Compared(values=values, difference=replace(values, digits=lambda value: _signed(value, number(value))))
    if name == EFFICIENCY:
        points = Quantity(
            key=name, title=name, unit="points", factor=100, digits=lambda value: _signed(value, number(value))
        )
        return Compared(values=quantities.EFFICIENCY, difference=points)
    if name == METRIC:
        values = test_metric(comparison.studies[0].facts)
        return Compared(
            values=values, difference=replace(values, digits=lambda value: _signed(value, metric_value(value)))
        )
    assert name == STEPS
    return Compared(values=quantities.STEPS.titled("steps to the target"), difference=RATIO)


def _signed(value: float, words: str) -> str:
    return f"+{words}" if value > 0 else words


def comparison_report(comparison: StudyComparison) -> Report:
    """Return the comparison as blocks for the page and the terminal."""
    compared = comparison.compared
    others = [difference for difference in compared.significant if difference.quantity != THROUGHPUT]
    opening = [*_opening(comparison)]
    if caution := _caution(comparison):
        opening.append(Prose(role="caution", text=caution))
    opening += [
        Prose(
            role="note",
            text=f"{name}: {results.folder.path} ({results.spec.name}, {counted(len(results.records), 'trial')})",
        )
        for name, results in zip(compared.names, comparison.studies, strict=True)
    ]
    if comparison.gate is not None:
        opening += [
            Prose(role="next", text=why, command=command) for command, why in more_repeats(comparison, comparison.gate)
        ]
    changes = [f"{name}: {line}" for name, lines in comparison.configuration.items() for line in lines]
    environment = [(key, " | ".join(values)) for key, values in comparison.environment.items()]
    sections: list[tuple[str, str, list[Block | None]]] = [
        ("answer", "Answer", [*opening]),
        ("speed", "Speed", [_speed_table(comparison)]),
        ("others", OTHERS, [_table(comparison, others)]),
        ("only", "In one study only", [_listing("In one study only", [("", line) for line in _unmatched(comparison)])]),
        (
            "configuration",
            "Different configuration",
            [_listing("Different configuration", [("", line) for line in changes])],
        ),
        ("environment", "Different environment", [_listing("Different environment", environment)]),
        ("method", "Method", [Prose(role="note", text=note) for note in _notes(comparison)]),
    ]
    kept = [(key, title, tuple(block for block in blocks if block is not None)) for key, title, blocks in sections]
    return Report(
        title="Comparison of studies",
        subtitle=", ".join(results.spec.name for results in comparison.studies),
        sections=tuple(Section(key=key, title=title, blocks=blocks) for key, title, blocks in kept if blocks),
        command="compare",
    )


def _opening(comparison: StudyComparison) -> Iterator[Prose]:
    """Yield the verdict of the gate, or else the main result, and its evidence."""
    evidence = [count_sentence(comparison)] if comparison.compared.differences else []
    if (gate := comparison.gate) is not None:
        sentence = gate_sentence(comparison, gate)
        yield Prose(role="doubt" if gate.verdict == "cannot_tell" else "answer", text=sentence)
        evidence = [gate_count(gate), *evidence]
    else:
        yield Prose(role="answer", text=answer_sentence(comparison))
    if text := " ".join(filter(None, evidence)):
        yield Prose(role="evidence", text=text)


def _listing(title: str, pairs: list[tuple[str, str]]) -> Listing | None:
    return Listing(title=title, pairs=tuple(pairs), is_open=True) if pairs else None


def comparison_view(comparison: StudyComparison) -> Group:
    """Draw the comparison for a terminal. Of long lists, it shows only the beginning."""
    blocks = [block for section in comparison_report(comparison).sections for block in section.blocks]
    return to_terminal(_shortened(block) if isinstance(block, Listing) else block for block in blocks)


def _shortened(listing: Listing) -> Listing:
    pairs = [("", _cut(f"  {name}: {text}" if name else f"  {text}")) for name, text in listing.pairs]
    more = len(pairs) - MAX_LINES
    end = [("", f"  and {more} more, with --json")] if more > 0 else []
    return replace(listing, pairs=(*pairs[:MAX_LINES], *end))


def answer_sentence(comparison: StudyComparison) -> str:
    """Return the main result: `B is 1.23x as fast as A with 4 workers (1.18x to 1.29x).`"""
    compared = comparison.compared
    if not compared.differences:
        return "Nothing to compare: the studies have no measured setting in common."
    return "; ".join(_lead(comparison, name) for name in compared.names[1:]) + "."


def count_sentence(comparison: StudyComparison) -> str:
    """Return how many differences are significant: `3 of 12 differences are more than noise.`"""
    compared = comparison.compared
    judged, more = compared.judged, len(compared.significant)
    if not judged:
        return "It is unknown whether the differences are more than noise: each setting ran only once."
    if judged == 1:
        return f"The difference is {'more than' if more else 'within the'} noise."
    return f"{more} of {judged} differences {'is' if more == 1 else 'are'} more than noise."


def _lead(comparison: StudyComparison, name: str) -> str:
    """Describe the speed difference at the largest worker count, preferring one that is more than noise."""
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
    where = place_words(chosen.setting, comparison.compared.common)
    if chosen.significant is False:
        speed = f"{SPEEDUP.said(ratio.value)} as fast with {where}{with_range(ratio, SPEEDUP.said)}, within the noise"
        return f"{name} is not known to be faster or slower than {first}: {speed}"
    return f"{name} is {SPEEDUP.said(ratio.value)} as fast as {first} with {where}{with_range(ratio, SPEEDUP.said)}"


def _speed_table(comparison: StudyComparison) -> Table | None:
    """Return step time and throughput at each common setting. The step time follows from the throughput."""
    first, *others = comparison.compared.names
    speeds = [difference for difference in comparison.compared.differences if difference.quantity == THROUGHPUT]
    columns: list[Column[Difference]] = [
        *_where(comparison),
        Column(
            quantity=replace(STEP_TIME, key="first_step_s", title=f"step time of {first}"),
            of=lambda difference: difference.setting.global_batch / difference.first,
        ),
        Column(
            quantity=STEP_TIME.titled("its step time" if others[1:] else f"step time of {others[0]}"),
            of=lambda difference: difference.setting.global_batch / difference.other,
        ),
        Column(
            quantity=replace(RATIO, title=f"throughput relative to {first}", short=f"throughput\n/ {first}"),
            of=lambda difference: difference.estimate,
        ),
        Column(quantity=VERDICT, of=lambda difference: VERDICTS[difference.significant]),
    ]
    return table("speed", "Step time and throughput", speeds, columns, note=RANGES)


def _where(comparison: StudyComparison) -> Iterator[Column[Difference]]:
    """Yield a column for the setting, and with more than two studies one for the study compared with the first."""
    yield Column(quantity=WHERE, of=lambda difference: place_words(difference.setting, comparison.compared.common))
    if len(comparison.studies) > 2:
        yield Column(quantity=SIDE, of=lambda difference: difference.side)


def _table(comparison: StudyComparison, shown: list[Difference]) -> Table | None:
    """Return differences other than in speed. Rows have different quantities, so their values are texts."""
    first, *others = comparison.compared.names

    def formats(difference: Difference) -> Compared:
        return compared_quantity(difference.quantity, comparison)

    columns: list[Column[Difference]] = [
        *_where(comparison),
        Column(quantity=WHAT, of=lambda difference: formats(difference).values.title),
        Column(
            quantity=Quantity(key="first", title=first),
            of=lambda difference: formats(difference).values.said(difference.first),
        ),
        Column(
            quantity=Quantity(key="other", title="its value" if others[1:] else others[0]),
            of=lambda difference: formats(difference).values.said(difference.other),
        ),
        Column(
            quantity=Quantity(key="difference", title="difference"),
            of=lambda difference: _with_range(formats(difference).difference, difference.estimate),
        ),
    ]
    return table("differences", OTHERS, shown, columns, note=f"Only differences that are more than noise. {RANGES}")


def _with_range(quantity: Quantity, estimate: Estimate) -> str:
    """`-1.99 (-2.05 to -1.93) ms`: short, because text that is too long for a terminal is cut."""
    interval = quantity.range(estimate)
    if not interval or quantity.unit in GLUED:
        return quantity.full(estimate)
    return f"{quantity.text(estimate.value)} ({interval}) {quantity.unit}"


def _unmatched(comparison: StudyComparison) -> Iterator[str]:
    everything = [
        *comparison.compared.common,
        *(setting for side in comparison.compared.only.values() for setting in side),
    ]
    for name, settings in comparison.compared.only.items():
        for setting in settings:
            yield f"{name}: {place_words(setting, everything)}"


def _notes(comparison: StudyComparison) -> Iterator[str]:
    compared = comparison.compared
    if compared.judged:
        yield (
            f"{counted(compared.judged, 'difference')} tested: speed, efficiency, learning, and parts of a step above "
            f"1 %. Holm's correction keeps the chance of even one false alarm below {percent(ALPHA)}. --json lists all."
        )
    unknown = len(compared.differences) - compared.judged
    if unknown:
        yield f"{counted(unknown, 'difference')} cannot be tested: only one run, or equal values in all runs."


def _caution(comparison: StudyComparison) -> str:
    """Return reasons for differences that the intervals do not cover; empty if there are none."""
    if not comparison.compared.differences:
        return ""
    words = []
    if comparison.other_load:
        loads = [
            f"{number(cores)} while {name} ran"
            for name, cores in zip(comparison.compared.names, comparison.foreign_cores, strict=True)
            if cores is not None
        ]
        words.append(f"Other processes kept cores busy: {', '.join(loads)}. That alone may explain a difference.")
    if any(comparison.cautions.values()):
        shares = [
            f"{percent(number_of(finding, 'percent') / 100)} in {integer(number_of(finding, 'trials'))} of "
            f"{integer(number_of(finding, 'of'))} trials of {name}"
            for name, findings in comparison.cautions.items()
            for finding in findings
        ]
        words.append(f"A hypervisor took CPU time: {', '.join(shares)}. That alone may explain a difference.")
    if comparison.gap_s is not None:
        words.append(
            f"The studies ran up to {duration(comparison.gap_s)} apart. The intervals do not cover how the machine "
            "changes over time. To be sure, run them in turn with `worldsize compare --runs`, or again in the "
            "opposite order."
        )
    return " ".join(words)


def _cut(line: str) -> str:
    return line if len(line) <= MAX_CHARACTERS else f"{line[: MAX_CHARACTERS - 3]}..."
