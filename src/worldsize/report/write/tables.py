"""Tables as CSV, Markdown and LaTeX. Text from outside is escaped."""

from __future__ import annotations

import csv
import io
import re
import textwrap
import unicodedata
from collections.abc import Sequence
from dataclasses import replace

from worldsize.analysis.estimate import Estimate
from worldsize.errors import visible
from worldsize.report.blocks import Cell, Table
from worldsize.report.words.quantities import Quantity

LATEX = {
    "\\": r"\textbackslash{}",
    "{": r"\{",
    "}": r"\}",
    "$": r"\$",
    "&": r"\&",
    "#": r"\#",
    "%": r"\%",
    "_": r"\_",
    "^": r"\textasciicircum{}",
    "~": r"\textasciitilde{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    '"': r"\symbol{34}",
    "–": "--",
    **dict.fromkeys("\n\t\u2028\u2029", " "),
}
HEAD_WIDTH = 8
"""Characters per line of a heading in LaTeX."""
MAX_COLUMNS = 14
"""Maximum number of columns in LaTeX, so that a table fits on a page in portrait."""
UNSET = "«»ÐÞðþĄąĐđĘęĦħĮįĸĿŀŉŊŋŦŧŲųſ"
"""European letters that pdfLaTeX lacks in its default encoding."""
SIGNS = "—‘’“”…•†‡€™→"
"""Other characters that pdfLaTeX has in its default encoding."""


def to_csv(table: Table) -> str:
    """Return a table as CSV: stored numbers, not rounded, with columns for both ends of intervals."""
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    with_ends = [any(_has_interval(row[index]) for row in table.rows) for index in range(len(table.quantities))]
    names: list[str] = []
    for quantity, has_ends in zip(table.quantities, with_ends, strict=True):
        key = csv_text(quantity.key)
        names += [key, f"{key}_low", f"{key}_high"] if has_ends else [key]
    writer.writerow(names)
    for row in table.rows:
        cells: list[str] = []
        for cell, has_ends in zip(row, with_ends, strict=True):
            values = cell_ends(cell) if has_ends else (cell_value(cell),)
            cells += [
                csv_text(value) if isinstance(value, str) else "" if value is None else repr(value) for value in values
            ]
        writer.writerow(cells)
    return stream.getvalue()


def _has_interval(cell: Cell) -> bool:
    return isinstance(cell, Estimate) and cell.has_interval


def cell_value(cell: Cell) -> float | int | str | None:
    """Return the value of a cell, without its interval."""
    return cell.value if isinstance(cell, Estimate) else cell


def cell_ends(cell: Cell) -> tuple[float | int | str | None, ...]:
    """Return value, low end and high end of a cell."""
    return (cell.value, cell.low, cell.high) if isinstance(cell, Estimate) else (cell, None, None)


def csv_text(words: str) -> str:
    """Return text for CSV. A leading quote keeps a spreadsheet from running text that looks like a formula."""
    words = visible(words)
    return f"'{words}" if words.startswith(("=", "+", "-", "@", "\t", "\r", "\n")) else words


def to_markdown(table: Table) -> str:
    """Return a table in Markdown, with its title and note."""
    heads = [markdown_text(quantity.heading) for quantity in table.quantities]
    rules = ["---" if table.is_text(index) else "---:" for index in range(len(table.quantities))]
    lines = [f"**{markdown_text(table.title)}**", "", _piped(heads), _piped(rules)]
    for row in table.rows:
        cells = zip(table.quantities, row, strict=True)
        lines.append(_piped([markdown_text(" ".join(filter(None, _words(*cell)))) for cell in cells]))
    return "\n".join([*lines, *(["", markdown_text(table.note)] if table.note else [])]) + "\n"


def _words(quantity: Quantity, cell: Cell) -> tuple[str, str]:
    """Return the value of a cell as text, and its interval in parentheses."""
    interval = cell_range(quantity, cell)
    return quantity.text(cell_value(cell)), f"({interval})" if interval else ""


def cell_range(quantity: Quantity, cell: Cell) -> str:
    """Return the interval of a cell as text; empty without one."""
    return quantity.range(cell) if isinstance(cell, Estimate) else ""


def markdown_text(words: str) -> str:
    """Return text on one line, with all markup escaped."""
    flat = re.sub(r"\s+", " ", visible(words))
    return re.sub(r"([\\`*_\[\]<>|~#&!])", r"\\\1", flat)


def _piped(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |"


def to_latex(table: Table) -> str:
    """Return a table for booktabs, narrow enough for a page, with multi-line headings and intervals below values.

    A very wide table has only the columns that a terminal shows; the CSV file has all of them.
    """
    if len(table.quantities) > MAX_COLUMNS and any(table.terminal):
        table = _narrow(table)
    alignment = "".join("l" if table.is_text(index) else "r" for index in range(len(table.quantities)))
    lines = [
        "% needs \\usepackage{booktabs}",
        "\\begin{table}",
        "\\centering\\footnotesize\\setlength{\\tabcolsep}{3pt}",
        f"\\caption{{{latex_text(table.title)}. {latex_text(table.note)}}}",
        f"\\label{{tab:{table.key}}}",
        f"\\begin{{tabular}}{{{alignment}}}",
        "\\toprule",
        *_latex_heads(table),
        "\\midrule",
    ]
    for row in table.rows:
        cells = list(zip(table.quantities, row, strict=True))
        lines.append(_latex_row([latex_text(quantity.text(cell_value(cell))) for quantity, cell in cells]))
        intervals = [latex_text(cell_range(quantity, cell)) for quantity, cell in cells]
        if any(intervals):
            lines.append(_latex_row([f"{{\\scriptsize {interval}}}" if interval else "" for interval in intervals]))
    return "\n".join([*lines, "\\bottomrule", "\\end{tabular}", "\\end{table}"]) + "\n"


def _narrow(table: Table) -> Table:
    """Return a table with only the columns that a terminal shows."""
    shown = [index for index, is_shown in enumerate(table.terminal) if is_shown]
    return replace(
        table,
        quantities=tuple(table.quantities[index] for index in shown),
        rows=tuple(tuple(row[index] for index in shown) for row in table.rows),
        terminal=(),
        note=f"{table.note} {len(table.quantities) - len(shown)} more columns are in the CSV file.".strip(),
    )


def _latex_heads(table: Table) -> list[str]:
    """Return the lines of all headings, aligned at the bottom, with units below."""
    wrapped = [
        textwrap.wrap(visible(quantity.title), HEAD_WIDTH, break_long_words=False) or [""]
        for quantity in table.quantities
    ]
    height = max(map(len, wrapped))
    padded = [[""] * (height - len(words)) + words for words in wrapped]
    units = [f"({quantity.unit})" if quantity.unit else "" for quantity in table.quantities]
    rows = [*zip(*padded, strict=True), *([units] if any(units) else [])]
    return [_latex_row([latex_text(words) for words in row]) for row in rows]


def _latex_row(cells: Sequence[str]) -> str:
    return " & ".join(cells) + " \\\\"


def latex_text(words: str) -> str:
    """Return text with all special characters escaped."""
    return "".join(map(_latex_character, unicodedata.normalize("NFC", visible(words))))


def _latex_character(character: str) -> str:
    """Return a character as it is, escaped, or as its code point, because pdfLaTeX stops at unknown characters."""
    if character in LATEX:
        return LATEX[character]
    is_known = character < "\x7f" or "\xa0" <= character <= "\u017e" or character in SIGNS
    return character if is_known and character not in UNSET else f"[U+{ord(character):04X}]"
