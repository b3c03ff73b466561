"""Tables as files: CSV, Markdown and LaTeX read back strictly, and hostile text is harmless in all of them."""

from __future__ import annotations

import csv
import io
import re

import pytest

from tests.made import HOSTILE, STUDY, hostile, made_study
from worldsize.analysis.estimate import Estimate
from worldsize.answer.evidence import Evidence
from worldsize.answer.results import load
from worldsize.report.blocks import Table
from worldsize.report.pages import tables
from worldsize.report.words.quantities import STEP_TIME, Quantity
from worldsize.report.write.tables import csv_text, latex_text, markdown_text, to_csv, to_latex, to_markdown

MANY = STUDY.replace("[64]", "[32, 64]").replace("lr: 0.05}", "lr: [0.05, 3.0]}, {name: adam, lr: 0.001}")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> list[Table]:
    evidence = Evidence(load(made_study(tmp_path_factory.mktemp("study") / "made", MANY).path))
    return tables(evidence)


def parsed_latex(text: str) -> list[list[str]]:
    """The rows of one booktabs table. Raises for what LaTeX would stumble over: specials, braces, columns."""
    plain = re.sub(r"(?<!\\)%.*", "", text)
    found = re.fullmatch(
        r"\s*\\begin\{table\}\s*\\centering\\footnotesize\\setlength\{\\tabcolsep\}\{3pt\}\s*\\caption\{(?P<caption>.*)\}\s*\\label\{tab:[a-z-]+\}\s*"
        r"\\begin\{tabular\}\{(?P<places>[lr]+)\}\s*\\toprule\s(?P<head>.*)\\midrule\s(?P<body>.*)\\bottomrule\s*"
        r"\\end\{tabular\}\s*\\end\{table\}\s*",
        plain,
        re.DOTALL,
    )
    assert found, text
    rows: list[list[str]] = []
    for line in found["body"].strip().splitlines():
        cells = parsed_row(line, len(found["places"]))
        if all(cell == "" or "scriptsize" in cell for cell in cells):  # intervals, below their values
            rows[-1] = [
                " ".join(filter(None, [value, untexed(cell)])) for value, cell in zip(rows[-1], cells, strict=True)
            ]
        else:
            rows.append([untexed(cell) for cell in cells])
    heads = [parsed_row(line, len(found["places"])) for line in found["head"].strip().splitlines()]
    untexed(found["caption"])
    return [[" ".join(filter(None, map(untexed, head))) for head in zip(*heads, strict=True)], *rows]


def parsed_row(line: str, places: int) -> list[str]:
    assert line.endswith(r" \\"), line
    cells = re.split(r"(?<!\\)&", line.removesuffix(r"\\"))
    assert len(cells) == places, line
    return [cell.strip() for cell in cells]


def untexed(words: str) -> str:
    """Text again; any special character left over is an error."""
    names = {"textbackslash": "\\", "textasciicircum": "^", "textasciitilde": "~", "textless": "<"}
    names |= {"textgreater": ">", "textbar": "|"}
    words = words.replace(r"\symbol{34}", '"')  # of no meaning inside text
    words = re.sub(r"\{\\scriptsize ([^{}]*)\}", r"(\1)", words)
    out, place = "", 0
    while place < len(words):
        named = re.match(r"\\(text[a-z]+)\{\}", words[place:])
        if named:
            out += names[named[1]]
            place += len(named[0])
        elif words[place] == "\\":
            assert words[place + 1] in "{}$&#%_", words
            out += words[place + 1]
            place += 2
        else:
            assert words[place] not in "{}$&#%_^~<>|\\\x00\x1b", words
            out += words[place]
            place += 1
    return out


def parsed_markdown(text: str) -> list[list[str]]:
    lines = [line for line in text.splitlines() if line.startswith("|")]
    rows = [[cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in lines]
    assert {len(row) for row in rows} == {len(rows[0])}
    return [[re.sub(r"\\(.)", r"\1", cell) for cell in row] for row in rows]


def test_markdown_and_latex_say_the_same(made: list[Table]) -> None:
    for sheet in made:
        markdown, latex = parsed_markdown(to_markdown(sheet)), parsed_latex(to_latex(sheet))
        assert [[cell.replace("--", "–") for cell in row] for row in latex[1:]] == markdown[2:]
        assert len(markdown) == len(sheet.rows) + 2


def test_hostile_text_steers_no_table(made: list[Table]) -> None:
    for sheet in hostile(tuple(made)):
        for row in csv.reader(io.StringIO(to_csv(sheet)), strict=True):
            assert not any(cell.startswith(("=", "+", "@")) for cell in row)
            assert not any(re.match(r"-\D", cell) for cell in row)
        assert "\x1b" not in to_csv(sheet) + to_markdown(sheet) + to_latex(sheet)
        assert len(parsed_markdown(to_markdown(sheet))) == len(sheet.rows) + 2
        assert len(parsed_latex(to_latex(sheet))) == len(sheet.rows) + 1


@pytest.mark.parametrize("start", ["=", "+", "-", "@", "\t", "\n"])
def test_no_text_is_a_formula(start: str) -> None:
    assert csv_text(f"{start}cmd|' /C calc'!A0").startswith("'")


def test_negative_numbers_stay_numbers() -> None:
    table = Table(key="k", title="t", quantities=(Quantity(key="a", title="a"),), rows=((-1.5,),))
    assert to_csv(table) == "a\n-1.5\n"


def test_escapes_read_back() -> None:
    plain = HOSTILE.replace("\x1b", "").replace("\x00", "").replace("\u2028", "")
    assert untexed(latex_text(plain)) == plain
    assert re.sub(r"\\(.)", r"\1", markdown_text(plain)) == plain


def test_letters_that_latex_lacks_are_written_as_their_code_points() -> None:
    assert latex_text("café Łódź – “α”") == "café Łódź -- “[U+03B1]”"
    assert latex_text("e\u0301 中") == "é [U+4E2D]"  # composed where it can be


def test_intervals_and_their_absence() -> None:
    assert STEP_TIME.text(0.0123) == "12.3"
    assert STEP_TIME.range(Estimate(value=0.0123, low=0.011, high=0.013)) == "11.0–13.0"
    assert STEP_TIME.range(Estimate(value=1.0, low=1.0, high=1.0)) == ""
    assert STEP_TIME.range(Estimate(value=1.0, low=-0.001, high=0.002)) == "-1.00 to 2.00"
    assert STEP_TIME.text(None) == ""
    assert STEP_TIME.text(0.0) == "0"
