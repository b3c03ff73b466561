"""Tables as files: CSV for programs, Markdown for notes, LaTeX for papers. Text from outside steers none of them."""

from __future__ import annotations

import csv
import io
import re

from worldsize.errors import visible
from worldsize.report.sheet import Cell, Column, Sheet

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
    '"': r"\textquotedbl{}",
    "–": "--",
    **dict.fromkeys("\n\t\u2028\u2029", " "),
}


def to_csv(sheet: Sheet) -> str:
    """The document's own numbers in its own units, never rounded; low and high beside what has an interval."""
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    spread = [any(row[place].low is not None for row in sheet.rows) for place in range(len(sheet.columns))]
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
    """A spreadsheet takes text that begins like this for a formula."""
    words = visible(words)
    return f"'{words}" if words.startswith(("=", "+", "-", "@", "\t", "\r", "\n")) else words


def to_markdown(sheet: Sheet) -> str:
    heads = [markdown_text(_head(column)) for column in sheet.columns]
    rules = ["---" if sheet.is_text(place) else "---:" for place in range(len(sheet.columns))]
    lines = [f"**{markdown_text(sheet.title)}**", "", _piped(heads), _piped(rules)]
    for row in sheet.rows:
        lines.append(
            _piped([markdown_text(_both(column, cell)) for column, cell in zip(sheet.columns, row, strict=True)])
        )
    return "\n".join([*lines, *(["", markdown_text(sheet.note)] if sheet.note else [])]) + "\n"


def markdown_text(words: str) -> str:
    """One line, and no character of it is markup."""
    flat = re.sub(r"\s+", " ", visible(words))
    return re.sub(r"([\\`*_\[\]<>|~#&!])", r"\\\1", flat)


def _piped(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |"


def to_latex(sheet: Sheet) -> str:
    """A table with booktabs' rules; the interval small, in brackets."""
    places = "".join("l" if sheet.is_text(place) else "r" for place in range(len(sheet.columns)))
    heads = " & ".join(latex_text(column.title) for column in sheet.columns)
    units = " & ".join(latex_text(f"({column.unit})") if column.unit else "" for column in sheet.columns)
    lines = [
        "% needs \\usepackage{booktabs}; \\textquotedbl needs \\usepackage[T1]{fontenc}",
        "\\begin{table}",
        "\\centering",
        f"\\caption{{{latex_text(sheet.title)}. {latex_text(sheet.note)}}}",
        f"\\label{{tab:{sheet.key}}}",
        f"\\begin{{tabular}}{{{places}}}",
        "\\toprule",
        f"{heads} \\\\",
        f"{units} \\\\",
        "\\midrule",
    ]
    for row in sheet.rows:
        lines.append(
            " & ".join(_latex_cell(column, cell) for column, cell in zip(sheet.columns, row, strict=True)) + " \\\\"
        )
    return "\n".join([*lines, "\\bottomrule", "\\end{tabular}", "\\end{table}"]) + "\n"


def latex_text(words: str) -> str:
    return "".join(LATEX.get(character, character) for character in visible(words))


def _latex_cell(column: Column, cell: Cell) -> str:
    words, reach = latex_text(column.words(cell)), latex_text(column.reach(cell))
    return f"{words} {{\\footnotesize ({reach})}}" if reach else words


def _head(column: Column) -> str:
    return f"{column.title}, {column.unit}" if column.unit else column.title


def _both(column: Column, cell: Cell) -> str:
    words, reach = column.words(cell), column.reach(cell)
    return f"{words} ({reach})" if reach else words
