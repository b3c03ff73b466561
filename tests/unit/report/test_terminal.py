"""Blocks in a terminal: they fit its width, and no number is ever split."""

from __future__ import annotations

import io
import re
from collections.abc import Iterable
from itertools import pairwise

import pytest

from worldsize.analysis.estimate import Estimate
from worldsize.report.blocks import Block, Findings, FindingText, Prose, Table
from worldsize.report.words.quantities import EFFICIENCY, SPEEDUP, STEP_TIME, VARIANT, WORKERS, Quantity
from worldsize.report.write.console import PlainConsole
from worldsize.report.write.terminal import to_terminal

SPEEDS = Quantity(key="samples_per_s", title="throughput", short="samples/s", unit="samples/s")


def shown(blocks: Iterable[Block], width: int = 80) -> list[str]:
    stream = io.StringIO()
    console = PlainConsole(file=stream, width=width, markup=False, emoji=False, highlight=False)
    console.print(to_terminal(blocks))
    return [line.rstrip() for line in stream.getvalue().splitlines()]


def around(value: float) -> Estimate:
    return Estimate(value=value, low=0.9 * value, high=1.1 * value, n=3)


def speeds(*quantities: Quantity, rows: int = 3, name: str = "nesterov with a very long name") -> Table:
    """Workers and a name, then numbers of six digits."""
    return Table(
        key="speeds",
        title="Weak scaling against 1 worker",
        quantities=(WORKERS, VARIANT, *quantities),
        rows=tuple((2**row, name, *(around(123_456.0 * (row + 1)) for _ in quantities)) for row in range(rows)),
        note="Intervals: 90 %.",
        marked=1,
    )


@pytest.mark.parametrize("width", [40, 80, 120])
@pytest.mark.parametrize("columns", [1, 3, 6])
def test_no_number_is_split_and_no_line_is_too_long(width: int, columns: int) -> None:
    table = speeds(*[SPEEDS] * columns)
    lines = shown([table], width)
    assert max(map(len, lines)) <= width
    numbers = {word for line in lines for word in re.findall(r"[\d,.–]*\d{3,}[\d,.–]*", line)}
    whole = {SPEEDS.text(value * 1.0) for row in range(3) for value in (123_456.0 * (row + 1),)}
    ranges = {SPEEDS.range(around(123_456.0 * (row + 1))) for row in range(3)}
    assert numbers <= whole | ranges
    assert len(lines) >= 1 + 1 + 3  # the title, the heading, and every row


def test_columns_that_do_not_fit_are_counted() -> None:
    said = " ".join(shown([speeds(*[SPEEDS] * 6)], 80))
    assert re.search(r"Intervals: 90 %\. \d more columns in a wider terminal\.", said)
    assert "more column" not in " ".join(shown([speeds(*[SPEEDS] * 6)], 200))


def test_an_interval_stands_beside_its_value_or_below() -> None:
    table = Table(
        key="scaling",
        title="Weak scaling",
        quantities=(WORKERS, STEP_TIME, SPEEDUP, EFFICIENCY),
        rows=(
            (1, Estimate(value=0.0112, n=1), Estimate(value=1.0), Estimate(value=1.0)),
            (2, around(0.0174), around(1.29), around(0.64)),
        ),
    )
    assert shown([table], 80)[-2:] == [
        "      1              11.2 ms              1.00x         100 %",
        "      2  17.4 ms (15.7–19.1)  1.29x (1.16–1.42)  64 % (58–70)",
    ]
    assert shown([table], 50)[-2:] == [
        "      2    17.4 ms      1.29x        64 %",
        "         15.7–19.1  1.16–1.42       58–70",
    ]


def test_an_answer_reads_from_top_to_bottom_and_its_command_can_be_copied() -> None:
    command = (
        "worldsize run runs/quickstart/study.yaml --set axes.batch_per_worker=[64,256] --dir runs/quickstart-larger"
    )
    blocks = [
        Prose(role="answer", text="Use 1 worker."),
        Prose(role="evidence", text="2 workers are 1.29x as fast as 1 (1.07x to 1.56x), which is 64 % efficient."),
        Prose(
            role="why",
            text="On 2 workers, exchanging gradients adds 2.3 ms to each 17.4 ms step, and this sentence is long.",
        ),
        Prose(role="next", text="a larger batch exchanges gradients less often", command=command),
        Findings(findings=(FindingText(code="trials-failed", text="1 trial failed.", is_bad=True),)),
    ]
    lines = shown(blocks)
    assert lines[:3] == [
        "Use 1 worker.",
        "2 workers are 1.29x as fast as 1 (1.07x to 1.56x), which is 64 % efficient.",
        "",
    ]
    assert lines[3].startswith("Why   On 2 workers")
    assert lines[4].startswith("      ")
    start = next(index for index, line in enumerate(lines) if line.startswith("Next  "))
    end = next(index for index, line in enumerate(lines) if line.startswith("      ("))
    copied = "\n".join(line[6:] for line in lines[start:end])
    assert " ".join(copied.replace("\\\n", " ").split()) == command
    assert max(map(len, lines)) <= 80
    assert lines[-1] == "1 trial failed."


def test_control_characters_and_markup_are_shown_as_they_are() -> None:
    bad = "[bold]\x1b[31m\r<b>&"
    lines = shown([Prose(role="answer", text=bad), speeds(SPEEDS, name=bad)])
    assert not any(character in "".join(lines) for character in "\x1b\r")
    assert lines[0].startswith("[bold]\\x1b[31m\\x0d<b>&")


@pytest.mark.parametrize("width", range(30, 60))
def test_a_number_is_not_separated_from_its_unit(width: int) -> None:
    text = "Exchanging gradients adds 2.26 ms to each 14.7 ms step, in 90 % intervals over 12 runs of 40 s each."
    for block in (Prose(role="note", text=text), Prose(role="why", text=text)):
        lines = shown([block], width)
        assert " ".join(" ".join(lines).removeprefix("Why").split()) == text
        assert not any(re.search(r"\d$", line) and re.match(r"\s*(ms|%|s)\b", after) for line, after in pairwise(lines))
