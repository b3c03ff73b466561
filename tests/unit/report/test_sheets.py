"""Tables: read back strictly, the document's own numbers in all of them, hostile text harmless."""

from __future__ import annotations

import csv
import io
import re
from pathlib import Path
from typing import Any

import pytest

from tests.made import HOSTILE, STUDY, Made, hostile, made_study, write_study
from worldsize.answer.results import load
from worldsize.report.blocks import Cell, Column, Document, Sheet
from worldsize.report.document import document
from worldsize.report.pages import sheets
from worldsize.report.words.numbers import decimals
from worldsize.report.write.tables import csv_text, latex_text, markdown_text, to_csv, to_latex, to_markdown
from worldsize.spec.study import TrialSpec

MANY = STUDY.replace("[64]", "[32, 64]").replace("lr: 0.05}", "lr: [0.05, 3.0]}, {name: adam, lr: 0.001}")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Document:
    return document(load(made_study(tmp_path_factory.mktemp("study") / "made", MANY).path))


def numbers(value: Any) -> set[float]:
    if isinstance(value, dict):
        return set().union(*map(numbers, value.values())) if value else set()
    if isinstance(value, list):
        return set().union(*map(numbers, value)) if value else set()
    return {float(value)} if isinstance(value, int | float) and not isinstance(value, bool) else set()


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


def test_the_tables_of_a_study_with_everything(made: Document) -> None:
    keys = ["scaling", "laws", "batch", "steps", "optimizers", "large-batch"]
    assert [sheet.key for sheet in sheets(made)] == keys


def test_a_study_of_one_point_has_only_what_it_has(tmp_path: Path) -> None:
    text = STUDY.replace("[1, 2, 4]", "[1]").replace("train: {epochs: 30}\n", "")
    found = sheets(document(load(made_study(tmp_path / "one", text).path)))
    assert [sheet.key for sheet in found] == ["scaling", "steps"]
    assert "test accuracy" not in [column.title for column in found[0].columns]


def sheet_of(found: Document, key: str) -> Sheet:
    return next(sheet for sheet in sheets(found) if sheet.key == key)


def column(sheet: Sheet, key: str) -> list[Any]:
    place = [each.key for each in sheet.columns].index(key)
    return [row[place].value for row in sheet.rows]


def test_classical_laws_describe_a_scaling_of_known_law(tmp_path: Path) -> None:
    """USL with a contention of 10 %: t(n) = n / rate grows by a tenth of t(1) for every worker more."""

    def times(trial: TrialSpec) -> dict[str, float]:
        return {"forward": 0.005, "backward": 0.005 * (1 + 0.2 * (trial.workers - 1))}

    text = STUDY.replace("[1, 2, 4]", "[1, 2, 4, 8]").replace("train: {epochs: 30}\n", "")
    found = document(write_study(tmp_path / "usl", text, Made(times=times, noise=0.0)))
    table = sheet_of(found, "laws")
    laws = column(table, "law")
    assert laws[:3] == ["Amdahl (curve only)", "Gustafson", "USL"]
    assert column(table, "contention")[2] == pytest.approx(0.1, abs=1e-3)
    assert column(table, "residual")[2] == pytest.approx(0, abs=1e-3)
    assert column(table, "workers")[3:] == [2, 4, 8]
    # e = (1/S - 1/n) / (1 - 1/n) with S = n / (1 + 0.1 (n - 1)) is 0.1 at every count.
    assert column(table, "serial_fraction")[3:] == pytest.approx([0.1] * 3, abs=1e-3)


def test_steps_to_a_target_against_batch_have_their_model(tmp_path: Path) -> None:
    def accuracy(trial: TrialSpec, steps: int) -> float:
        """Linear in steps: 0.9 after S_min (1 + B_crit / B) of them, with S_min = 300 and B_crit = 400."""
        return min(0.99, 0.9 * steps / (300 * (1 + 400 / trial.global_batch)))

    text = STUDY.replace("batch_per_worker: [64]", "batch_per_worker: [32, 128, 512]").replace("[1, 2, 4]", "[1, 2]")
    target = "{until: {metric: accuracy, at_least: 0.9, max_epochs: 40}, lr_rule: linear}"
    results = write_study(
        tmp_path / "batches",
        text.replace("{epochs: 30}", target).replace("lr: 0.05", "lr: 0.0001"),
        Made(times=lambda _: {"forward": 0.01, "backward": 0.01}, accuracy=accuracy),
    )
    table = sheet_of(document(results), "batch-model")
    (row,) = table.rows
    cells = dict(zip([each.key for each in table.columns], row, strict=True))
    for key, truth in (("least_steps", 300), ("critical_batch", 400)):
        value, low, high = cells[key].value, cells[key].low, cells[key].high
        assert isinstance(value, float)
        assert low is not None
        assert high is not None
        assert value == pytest.approx(truth, rel=0.2)
        assert low <= value <= high
    assert cells["law"].value == "as the law says"


def test_computing_and_communication_as_probes_timed_them(made: Document) -> None:
    exposed = {"seconds": {"value": 0.002, "low": 0.0015, "high": 0.0025}, "with_s": 0.012, "without_s": 0.01}
    traffic = {"bytes": 4e6, "seconds": 0.004, "workers": 2, "algbw": 1e9, "busbw": 1.2e9}
    timed = [
        each
        if each["setting"]["workers"] == 1
        else {**each, "exposed": exposed, "traffic": traffic, "total_s": {"value": 0.004, "low": None, "high": None}}
        for each in made["steps"]
    ]
    table = sheet_of({**made, "steps": timed}, "exchange")
    assert len(table.rows) == len(made["steps"])
    assert column(table, "busbw_bytes_per_s").count(1.2e9) == len(timed) - 2  # all but one worker's
    assert column(table, "exposed_s")[0] is None
    assert "10.00" in to_markdown(table)
    assert "2.00 (1.50–2.50)" in to_markdown(table)


def test_times_of_a_table_have_one_resolution() -> None:
    say = decimals(8.11)
    assert [say(value) for value in (8.11, 12.549, 0.0136, -0.0005)] == ["8.11", "12.55", "0.01", "0.00"]
    assert decimals(0.53)(0.0698) == "0.070"
    assert decimals(964.0)(964.123) == "964.12"


def test_one_count_has_no_speedup(tmp_path: Path) -> None:
    found = document(load(made_study(tmp_path / "one", STUDY.replace("[1, 2, 4]", "[2]")).path))
    table = sheet_of(found, "scaling")
    assert table.title == "Throughput with 2 workers"
    assert not {"speedup", "efficiency"} & {each.key for each in table.columns}


def test_csv_has_the_documents_own_numbers(made: Document) -> None:
    known = numbers(made)
    for sheet in sheets(made):
        rows = list(csv.DictReader(io.StringIO(to_csv(sheet)), strict=True))
        assert len(rows) == len(sheet.rows)
        for row in rows:
            for name, cell in row.items():
                if re.fullmatch(r"-?[\d.]+(e-?\d+)?", cell):
                    assert float(cell) in known, (sheet.key, name, cell)
        assert {"repeats", "counts", "runs", "repetitions"} & set(rows[0])  # n of every table
    table = list(csv.DictReader(io.StringIO(to_csv(sheets(made)[0]))))
    lows = [float(row["speedup_low"]) if row["speedup_low"] else None for row in table]
    assert lows == [row["speedup"]["low"] for row in made["table"]]
    assert any(lows)


def test_utilization_stands_beside_its_batch(made: Document) -> None:
    row = made["table"][0]
    used = {key: value for key, value in row.items() if not isinstance(value, dict)}
    told = {**made, "mfu": [{**used, "value": 0.4, "low": 0.35, "high": 0.45}]}
    rows = list(csv.DictReader(io.StringIO(to_csv(sheet_of(told, "batch")))))
    assert [(row["workers"], row["mfu"], row["mfu_low"]) for row in rows if row["mfu"]] == [("1", "0.4", "0.35")]


def test_markdown_and_latex_say_the_same(made: Document) -> None:
    for sheet in sheets(made):
        markdown, latex = parsed_markdown(to_markdown(sheet)), parsed_latex(to_latex(sheet))
        assert [[cell.replace("--", "–") for cell in row] for row in latex[1:]] == markdown[2:]
        assert len(markdown) == len(sheet.rows) + 2


def test_hostile_text_steers_no_table(made: Document) -> None:
    for sheet in sheets(hostile(made)):
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
    sheet = Sheet(key="k", section="s", title="t", columns=(Column(key="a", title="a"),), rows=((Cell(value=-1.5),),))
    assert to_csv(sheet) == "a\n-1.5\n"


def test_escapes_read_back() -> None:
    plain = HOSTILE.replace("\x1b", "").replace("\x00", "").replace("\u2028", "")
    assert untexed(latex_text(plain)) == plain
    assert re.sub(r"\\(.)", r"\1", markdown_text(plain)) == plain


def test_letters_that_latex_lacks_are_written_as_their_code_points() -> None:
    assert latex_text("café Łódź – “α”") == "café Łódź -- “[U+03B1]”"
    assert latex_text("e\u0301 中") == "é [U+4E2D]"  # composed where it can be


def test_intervals_and_their_absence() -> None:
    column = Column(key="step_s", title="step", unit="ms", factor=1e3)
    assert column.words(Cell(value=0.0123)) == "12.3"
    assert column.range(Cell(value=0.0123, low=0.011, high=0.013)) == "11.0–13.0"
    assert column.range(Cell(value=1.0, low=1.0, high=1.0)) == ""
    assert column.range(Cell(value=1.0, low=-0.001, high=0.002)) == "-1.00 to 2.00"
    assert column.words(Cell(value=None)) == ""
    assert column.words(Cell(value=0.0)) == "0"
