"""Any text in any field of a report is shown by every writer and obeyed by none."""

from __future__ import annotations

import csv
import io
from html.parser import HTMLParser

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.made import HOSTILE, hostile
from tests.system.everything import everything
from tests.unit.report.test_page import EXPLANATIONS
from tests.unit.report.test_tables import parsed_latex, parsed_markdown
from tests.unit.report.test_terminal import shown
from worldsize.errors import visible
from worldsize.report.blocks import Code, Findings, Prose, Report, Table
from worldsize.report.pages import study_report
from worldsize.report.write.page import to_page
from worldsize.report.write.tables import to_csv, to_latex, to_markdown

PIECES = [
    "<script>",
    "</script>",
    "<!--",
    "]]>",
    '"',
    "'",
    "&#60;",
    "{{",
    "%}",
    "\x1b[31m",
    "\r",
    "\n",
    "|",
    "\\",
    "=1+1",
]
ATTACKS = st.lists(st.sampled_from(PIECES) | st.text(max_size=4), min_size=1, max_size=6).map("".join)
FEW = settings(max_examples=8, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Report:
    return study_report(everything(tmp_path_factory.mktemp("hostile")), live=False)


class Outline(HTMLParser):
    """The tags of a page with the names of their attributes, without any text."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, tuple[str, ...]]] = []
        self.words = ""
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if dict(attrs).get("class") not in EXPLANATIONS:  # whether a term is explained depends on the text
            self.tags.append((tag, tuple(name for name, _ in attrs)))

    def handle_data(self, data: str) -> None:
        self.words += data


def outline(report: Report) -> Outline:
    return Outline(to_page(report, print_files=True, live=False))


@FEW
@given(attack=ATTACKS)
def test_a_page_has_the_same_tags_whatever_its_texts(report: Report, attack: str) -> None:
    # Only the number of folded findings may depend on their texts, and titles are not repeated by chance.
    plain, attacked = outline(hostile(report, "harmless")), outline(hostile(report, attack))
    assert attacked.tags == plain.tags
    assert not set(attacked.words) & set("\x1b\x00")


@FEW
@given(attack=ATTACKS)
def test_tables_keep_their_rows_and_columns(report: Report, attack: str) -> None:
    for table in hostile(tuple(report.all(Table)), attack):
        rows = list(csv.reader(io.StringIO(to_csv(table)), strict=True))
        assert len(rows) == len(table.rows) + 1
        assert len({len(row) for row in rows}) == 1
        assert len(parsed_markdown(to_markdown(table))) == len(table.rows) + 2
        parsed_latex(to_latex(table))


@FEW
@given(attack=ATTACKS)
def test_a_terminal_obeys_nothing(report: Report, attack: str) -> None:
    for section in hostile(report, attack).sections:
        printed = "".join(shown(section.blocks))
        assert not set(printed) & set("\x1b\x07\x08\r\x00")


def test_every_block_reaches_the_page(report: Report) -> None:
    attacked = hostile(report)

    def plain(text: str) -> str:
        return " ".join(visible(text).replace("`", "").split())  # text between backticks is drawn as code

    words = plain(outline(attacked).words)
    for block in (*attacked.all(Prose), *attacked.all(Code)):
        assert plain(block.text) in words
    for findings in attacked.all(Findings):
        assert all(plain(finding.text) in words for finding in findings.findings)
    assert visible(HOSTILE)[:20] in words
