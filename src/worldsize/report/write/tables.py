"""Tables as files: CSV for programs, Markdown for notes, LaTeX for papers. Text from outside is escaped."""

from __future__ import annotations

import csv
import io
import re
import textwrap
import unicodedata
from collections.abc import Sequence

from worldsize.errors import visible
from worldsize.report.blocks import Cell, Column, Sheet

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
HEAD_WIDTH = 10
"""Characters per line of a heading in LaTeX."""
UNSET = "«»ÐÞðþĄąĐđĘęĦħĮįĸĿŀŉŊŋŦŧŲųſ"
"""European letters that pdfLaTeX lacks in its default encoding."""
SIGNS = "—‘’“”…•†‡€™→"
"""Other characters that pdfLaTeX has in its default encoding."""


def to_csv(sheet: Sheet) -> str:
    """The document's numbers in its own units, not rounded; low and high next to values with an interval."""
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    spread = [any(row[index].low is not None for row in sheet.rows) for index in range(len(sheet.columns))]
    names: list[str] = []
    for column, has in zip(sheet.columns, spread, strict=True):
        key = csv_text(column.key)
        names += [key, f"{key}_low", f"{key}_high"] if has else [key]
    writer.writerow(names)
    for row in sheet.rows:
        cells: list[str] = []
        for cell, has in zip(row, spread, strict=True):
            values = (cell.value, cell.low, cell.high) if has else (cell.value,)
            cells += [
                csv_text(value) if isinstance(value, str) else "" if value is None else repr(value) for value in values
            ]
        writer.writerow(cells)
    return stream.getvalue()


def csv_text(words: str) -> str:
    """A leading quote keeps a spreadsheet from running text that looks like a formula."""
    words = visible(words)
    return f"'{words}" if words.startswith(("=", "+", "-", "@", "\t", "\r", "\n")) else words


def to_markdown(sheet: Sheet) -> str:
    heads = [markdown_text(_head(column)) for column in sheet.columns]
    rules = ["---" if sheet.is_text(index) else "---:" for index in range(len(sheet.columns))]
    lines = [f"**{markdown_text(sheet.title)}**", "", _piped(heads), _piped(rules)]
    for row in sheet.rows:
        lines.append(
            _piped([markdown_text(_both(column, cell)) for column, cell in zip(sheet.columns, row, strict=True)])
        )
    return "\n".join([*lines, *(["", markdown_text(sheet.note)] if sheet.note else [])]) + "\n"


def markdown_text(words: str) -> str:
    """One line with all markup escaped."""
    flat = re.sub(r"\s+", " ", visible(words))
    return re.sub(r"([\\`*_\[\]<>|~#&!])", r"\\\1", flat)


def _piped(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |"


def to_latex(sheet: Sheet) -> str:
    """A table with booktabs' rules, narrow enough for a page: multi-line headings, intervals below values."""
    alignment = "".join("l" if sheet.is_text(index) else "r" for index in range(len(sheet.columns)))
    lines = [
        "% needs \\usepackage{booktabs}",
        "\\begin{table}",
        "\\centering\\footnotesize\\setlength{\\tabcolsep}{3pt}",
        f"\\caption{{{latex_text(sheet.title)}. {latex_text(sheet.note)}}}",
        f"\\label{{tab:{sheet.key}}}",
        f"\\begin{{tabular}}{{{alignment}}}",
        "\\toprule",
        *_latex_heads(sheet),
        "\\midrule",
    ]
    for row in sheet.rows:
        cells = list(zip(sheet.columns, row, strict=True))
        lines.append(_latex_row([latex_text(column.words(cell)) for column, cell in cells]))
        reach = [latex_text(column.range(cell)) for column, cell in cells]
        if any(reach):
            lines.append(_latex_row([f"{{\\scriptsize {words}}}" if words else "" for words in reach]))
    return "\n".join([*lines, "\\bottomrule", "\\end{tabular}", "\\end{table}"]) + "\n"


def _latex_heads(sheet: Sheet) -> list[str]:
    """Lines of all headings, aligned at the bottom, with units below."""
    wrapped = [
        textwrap.wrap(visible(column.title), HEAD_WIDTH, break_long_words=False) or [""] for column in sheet.columns
    ]
    height = max(map(len, wrapped))
    padded = [[""] * (height - len(words)) + words for words in wrapped]
    units = [f"({column.unit})" if column.unit else "" for column in sheet.columns]
    rows = [*zip(*padded, strict=True), *([units] if any(units) else [])]
    return [_latex_row([latex_text(words) for words in row]) for row in rows]


def _latex_row(cells: Sequence[str]) -> str:
    return " & ".join(cells) + " \\\\"


def latex_text(words: str) -> str:
    return "".join(map(_latex_character, unicodedata.normalize("NFC", visible(words))))


def _latex_character(character: str) -> str:
    """The character as it is, escaped, or as its code point: pdfLaTeX stops at unknown characters."""
    if character in LATEX:
        return LATEX[character]
    known = character < "\x7f" or "\xa0" <= character <= "\u017e" or character in SIGNS
    return character if known and character not in UNSET else f"[U+{ord(character):04X}]"


def _head(column: Column) -> str:
    return f"{column.title}, {column.unit}" if column.unit else column.title


def _both(column: Column, cell: Cell) -> str:
    words, reach = column.words(cell), column.range(cell)
    return f"{words} ({reach})" if reach else words
