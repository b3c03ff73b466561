"""Draw the blocks of a report in a terminal, at the width of the terminal. Numbers are never split or cut."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.text import Text

from worldsize.analysis.estimate import Estimate
from worldsize.errors import visible
from worldsize.report.blocks import Block, Cell, Code, Findings, Listing, Prose, Table
from worldsize.report.words.numbers import counted
from worldsize.report.words.quantities import Quantity
from worldsize.report.write.console import ACCENT

GAP = 2
"""Spaces between columns."""
MIN_TEXT_WIDTH = 26
"""Columns of text are cut to no fewer characters than this."""
LABELS = {"why": "Why", "next": "Next", "fix": "Fix"}
INDENT = 6
"""Width of a label, including the space after it."""
STYLES = {
    "answer": "bold",
    "doubt": "bold yellow",
    "evidence": "",
    "caution": "yellow",
    "outlook": "",
    "note": "dim",
}


def to_terminal(blocks: Iterable[Block]) -> Group:
    """Draw blocks one after another. Figures and lists of trials are left out; only the page has them."""
    drawn: list[RenderableType] = []
    previous: Block | None = None
    for block in blocks:
        lines = list(_draw(block))
        if lines and _needs_gap(previous, block):
            drawn.append(Text(""))
        drawn += lines
        previous = block if lines else previous
    return Group(*drawn)


def _needs_gap(previous: Block | None, block: Block) -> bool:
    """Whether an empty line belongs between two blocks."""
    if isinstance(previous, Prose) and isinstance(block, Prose):
        return (previous.role in LABELS) != (block.role in LABELS)
    return previous is not None


def _draw(block: Block) -> Iterator[RenderableType]:
    if isinstance(block, Prose):
        yield from _prose(block)
    elif isinstance(block, Findings):
        yield from (_text(finding.text, style="" if finding.is_bad else "dim") for finding in block.findings)
    elif isinstance(block, Table):
        if not block.terminal or any(block.terminal):
            yield TerminalTable(block)
    elif isinstance(block, Code):
        yield _text(block.title, style="dim")
        yield Text("\n".join(map(visible, block.text.splitlines())))
    elif isinstance(block, Listing):
        yield _text(block.title, style="bold")
        yield from (_text(f"{name}: {value}" if name else value) for name, value in block.pairs)


UNSPLIT = re.compile(r"(?<=\d) (?=%|(?:ms|us|s|min|h|KB|MB|GB|GB/s)\b)")
"""The space between a number and its unit, where no line may end."""
KEPT = "\ue000"
"""Stands for such a space while lines are wrapped: a character of private use, as wide as a space."""


@dataclass
class Paragraph:
    """Text, wrapped at the width of the terminal, but not between a number and its unit."""

    words: str
    style: str = ""
    label: Text | None = None
    """Stands before the first line. The others are indented as far, as is the first without a label."""
    indent: int = 0

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        # Control characters become visible before anything is measured or wrapped.
        text = Text(UNSPLIT.sub(KEPT, visible(self.words)))
        for index, line in enumerate(text.wrap(console, options.max_width - self.indent)):
            lead = self.label if self.label is not None and index == 0 else " " * self.indent
            yield Text.assemble(lead, (line.plain.rstrip().replace(KEPT, " "), self.style))


def _text(words: str, *, style: str = "") -> Paragraph:
    return Paragraph(words, style)


def _prose(block: Prose) -> Iterator[RenderableType]:
    if block.role not in LABELS:
        yield _text(block.text, style=STYLES[block.role])
        return
    label = Text(f"{LABELS[block.role]:<{INDENT}}", style=f"bold {ACCENT}")
    if block.command:
        yield _Command(label, visible(block.command))
        yield Paragraph(f"({block.text})", style="dim", indent=INDENT)
    else:
        yield Paragraph(block.text, label=label, indent=INDENT)


@dataclass
class _Command:
    """A command to copy. In a narrow terminal, backslashes continue it on the next line."""

    label: Text
    command: str

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        lines = [""]
        for word in self.command.split(" "):
            longer = f"{lines[-1]} {word}".strip()
            if len(longer) > options.max_width - INDENT - len(" \\") and lines[-1]:
                lines[-1] += " \\"
                lines.append(f"  {word}")
            else:
                lines[-1] = longer if len(lines) == 1 else f"{lines[-1]} {word}"
        for index, line in enumerate(lines):
            lead = self.label if index == 0 else " " * INDENT
            yield Text.assemble(lead, line, no_wrap=True, overflow="ignore")


@dataclass
class TerminalTable:
    """A table that fits the terminal.

    Intervals are next to their values if there is space, otherwise below them. If that is still too wide, text is cut
    and the last columns are dropped.
    """

    table: Table

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        indices = range(len(self.table.quantities))
        shown = [index for index in indices if not self.table.terminal or self.table.terminal[index]]
        for stacked in (False, True):
            columns = [self._column(index, stacked=stacked) for index in shown]
            for row in self.table.projected:
                columns[0].cells[row] = [f"~{columns[0].cells[row][0]}"]
            if _width(columns) <= options.max_width:
                break
        while len(columns) > 1 and _least_width(columns) > options.max_width:
            columns.pop()
        columns = _cut(columns, options.max_width)
        if self.table.title:
            yield _text(self.table.title, style="bold")
        yield from _lines(columns, self.table.marked)
        dropped = len(shown) - len(columns)
        notes = [
            "~ projected." if self.table.projected else "",
            self.table.note,
            f"{counted(dropped, 'more column')} in a wider terminal." if dropped else "",
        ]
        if any(notes):
            yield _text(" ".join(filter(None, notes)), style="dim")

    def _column(self, index: int, *, stacked: bool) -> _TerminalColumn:
        quantity = self.table.quantities[index]
        cells = [row[index] for row in self.table.rows]
        return _TerminalColumn(
            head=_head(quantity),
            cells=[_cell(quantity, cell, stacked=stacked) for cell in cells],
            is_text=self.table.is_text(index),
        )


@dataclass
class _TerminalColumn:
    head: list[str]
    """Lines of the heading."""
    cells: list[list[str]]
    """Lines of each cell: the value, then its interval."""
    is_text: bool

    @property
    def width(self) -> int:
        return max(len(line) for lines in (self.head, *self.cells) for line in lines or [""])


def _head(quantity: Quantity) -> list[str]:
    return (quantity.short or quantity.title).split("\n")


def _cell(quantity: Quantity, cell: Cell, *, stacked: bool) -> list[str]:
    """Return the lines of a cell. The value has its unit, unless the heading names the unit."""
    value = cell.value if isinstance(cell, Estimate) else cell
    if value is None or isinstance(value, str):
        return [visible(value or "")]
    unit_in_heading = quantity.unit and quantity.unit in (quantity.short or quantity.title)
    text = quantity.text(value) if unit_in_heading else quantity.said(value)
    interval = quantity.range(cell) if isinstance(cell, Estimate) else ""
    if not interval:
        return [text]
    return [text, interval] if stacked else [f"{text} ({interval})"]


def _width(columns: Sequence[_TerminalColumn]) -> int:
    return sum(column.width for column in columns) + GAP * (len(columns) - 1)


def _least_width(columns: Sequence[_TerminalColumn]) -> int:
    """Return the width if all text is cut as far as possible."""
    spare = sum(max(column.width - MIN_TEXT_WIDTH, 0) for column in columns if column.is_text)
    return _width(columns) - spare


def _cut(columns: list[_TerminalColumn], width: int) -> list[_TerminalColumn]:
    """Cut columns of text as far as needed to fit into `width`, the widest first."""
    excess = _width(columns) - width
    for column in sorted((column for column in columns if column.is_text), key=lambda column: -column.width):
        limit = max(column.width - excess, MIN_TEXT_WIDTH)
        if excess > 0 and limit < column.width:
            excess -= column.width - limit
            column.cells = [
                [line if len(line) <= limit else f"{line[: limit - 1]}…" for line in lines] for lines in column.cells
            ]
    return columns


def _lines(columns: Sequence[_TerminalColumn], marked: int | None) -> Iterator[Text]:
    height = max(len(column.head) for column in columns)
    for level in range(height):
        heads = [([""] * (height - len(column.head)) + column.head)[level] for column in columns]
        yield _line(columns, heads, style=f"bold {ACCENT}")
    for row in range(len(columns[0].cells)):
        for level in range(max(len(column.cells[row]) for column in columns)):
            words = [column.cells[row][level] if level < len(column.cells[row]) else "" for column in columns]
            yield _line(columns, words, style="dim" if level else "bold" if row == marked else "")


def _line(columns: Sequence[_TerminalColumn], words: Sequence[str], *, style: str) -> Text:
    padded = [
        word.ljust(column.width) if column.is_text else word.rjust(column.width)
        for column, word in zip(columns, words, strict=True)
    ]
    return Text((" " * GAP).join(padded).rstrip(), style=style, no_wrap=True, overflow="ignore")
