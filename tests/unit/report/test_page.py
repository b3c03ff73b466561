"""The page: the numbers of the report, every text harmless, only its own scripts."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from dataclasses import replace
from html.parser import HTMLParser
from importlib.resources import files
from pathlib import Path
from xml.etree import ElementTree

import pytest

from tests.made import STUDY, hostile, made_study
from worldsize.analysis.estimate import Estimate
from worldsize.answer.evidence import Evidence
from worldsize.answer.results import load
from worldsize.report.blocks import (
    Code,
    Findings,
    FindingText,
    Listing,
    Prose,
    Report,
    Section,
    Table,
    Tile,
    Tiles,
    Trial,
    TrialGroup,
    Trials,
)
from worldsize.report.document import document
from worldsize.report.figures.model import Axis, Figure, Line, Panel
from worldsize.report.figures.plotly import chart
from worldsize.report.pages import study_report
from worldsize.report.words.glossary import TERMS, find_terms, meaning
from worldsize.report.words.quantities import SPEEDUP
from worldsize.report.write.page import Explanations, to_page
from worldsize.report.write.publish import Published, publish, write_pages
from worldsize.report.write.written import write_files

MIXED = STUDY.replace("lr: 0.05}", "lr: [0.05, 3.0]}, {name: adam, lr: 0.001}")
LIMIT_BYTES = 6_000_000


EXPLANATIONS = ("term", "meaning")
"""Classes of the links to explanations of terms, and of the explanations."""


class Reader(HTMLParser):
    """Tags with their attributes, the text outside scripts, and the scripts."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.scripts: list[str] = []
        self._inside = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        self._inside = tag

    def handle_endtag(self, tag: str) -> None:
        del tag
        self._inside = ""

    def handle_data(self, data: str) -> None:
        if self._inside == "script":
            self.scripts.append(data)
        elif self._inside != "style":
            self.text += data

    def named(self, tag: str, name: str) -> list[str]:
        """Values of an attribute."""
        return [attrs[name] or "" for other, attrs in self.tags if other == tag and name in attrs]

    @property
    def outline(self) -> list[tuple[str, list[str]]]:
        """Tags and names of their attributes. Explanations of terms are left out: they depend on the text."""
        return [(tag, sorted(attrs)) for tag, attrs in self.tags if attrs.get("class") not in EXPLANATIONS]

    @property
    def policy(self) -> str:
        (found,) = (
            attrs["content"] or ""
            for tag, attrs in self.tags
            if tag == "meta" and attrs.get("http-equiv") == "Content-Security-Policy"
        )
        return found


def read(report: Report, *, print_files: bool = False, live: bool = False) -> Reader:
    reader = Reader()
    reader.feed(to_page(report, print_files=print_files, live=live))
    return reader


@pytest.fixture(scope="module")
def evidence(tmp_path_factory: pytest.TempPathFactory) -> Evidence:
    home = made_study(tmp_path_factory.mktemp("study") / "made", MIXED, failing=("0009",))
    return Evidence(load(home.path))


@pytest.fixture(scope="module")
def made(evidence: Evidence) -> Report:
    return study_report(evidence, live=False)


@pytest.fixture(scope="module")
def published(made: Report, evidence: Evidence, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Published]:
    """Drawing every figure takes seconds: the report whose every text is an attack, over an older report."""
    folder = tmp_path_factory.mktemp("published")
    write_files(folder, {"figures/noise.svg": b"old"}, last="figures/noise.svg")
    (folder / "figures" / "mine.svg").write_text("kept")
    return folder, write_pages(hostile(made), document(evidence), folder)


def test_what_pretrained_weights_left_out_is_told_with_the_trial(tmp_path: Path) -> None:
    home = made_study(tmp_path / "made")
    first, second = list(load(home.path).records.values())[:2]
    left_out = tuple(f"head<{number}>: not in the file" for number in range(10))
    home.write_record(first.model_copy(update={"transfer": left_out}))
    evidence = Evidence(load(home.path))
    runs = {run["trial"]: run for run in document(evidence)["runs"]}
    assert runs[first.trial]["pretrained_left_out"] == list(left_out)
    assert "pretrained_left_out" not in runs[second.trial]
    text = read(study_report(evidence, live=False)).text
    assert text.count("pretrained weights not used") == 1
    assert "head<0>: not in the file; head<1>: not in the file;" in text
    assert "head<7>: not in the file; and 2 more" in text


def test_a_folder_with_nothing_measured_has_a_report(tmp_path: Path) -> None:
    home = made_study(tmp_path / "empty")
    for record in home.path.glob("trials/*/record.json"):
        record.unlink()
    made = publish(load(home.path))
    reader = Reader()
    reader.feed(made.page.read_text())
    assert "No trial has finished yet" in reader.text
    assert made.tables == ()


def test_page_and_report_have_the_same_numbers(made: Report) -> None:
    reader = read(made)
    cells = [cell for table in made.all(Table) for row in table.rows for cell in row if not isinstance(cell, str)]
    known = [cell if isinstance(cell, Estimate) else Estimate(value=cell) for cell in cells if cell is not None]
    for end in ("value", "low", "high"):
        shown = [float(number) for number in reader.named("td", f"data-{end}")]
        assert shown == [number for cell in known if (number := getattr(cell, end)) is not None]
    told = [
        *(block.text for block in made.all(Prose)),
        *(one.text for all in made.all(Findings) for one in all.findings),
    ]
    assert all(sentence.replace("`", "") in reader.text for sentence in told)  # `...` is drawn as code


def test_page_shows_failures_commands_environments_and_what_was_left_out(made: Report, evidence: Evidence) -> None:
    reader = read(made)
    assert "rank 0, after step 3: RuntimeError: <b>planted</b>" in reader.text
    assert "<script>alert('log')</script>" in reader.text
    for run in evidence.trial_runs.runs:
        assert run.command in reader.text
    told = document(evidence)
    assert all(words in reader.text for words in told["left_out"])
    assert "2.13" in reader.text
    assert "1 failed" in reader.text
    assert {"tag failed", "tag diverged"} == set(reader.named("span", "class")) & {"tag failed", "tag diverged"}


def test_hostile_text_stays_text(made: Report, published: tuple[Path, Published]) -> None:
    bad = hostile(made)
    content = to_page(bad, print_files=True, live=True)
    reader = Reader()
    reader.feed(content)
    plain = read(made, print_files=True, live=True)
    assert reader.outline == plain.outline  # text neither adds nor hides an element
    assert not [tag for tag, _ in reader.tags if tag == "img"]
    assert len([tag for tag, _ in reader.tags if tag == "script"]) == 3
    assert not [name for _, attrs in reader.tags for name in attrs if name.startswith("on")]
    assert not re.search("[\x00\x1b\x7f]", content.partition("<script>")[0])
    figures = bad.all(Figure)
    for figure in figures:
        for panel in figure.panels:
            texts = json.dumps(chart(panel, list(figure.legend)))
            assert not re.search(r"<(?!/?b>|br>)", texts)
    pictures = [published[0] / "figures" / f"{figure.key}.svg" for figure in figures]
    assert len(pictures) == 11
    for path in pictures:
        for element in ElementTree.parse(path).iter():  # strict XML: what is not well-formed raises
            assert not element.tag.endswith("script")
            assert not [name for name in element.attrib if name.startswith("on")]


EVERY_BLOCK = (
    Prose(role="answer", text="Use 2 workers."),
    Prose(role="why", text="Exchanging gradients adds 2 ms."),
    Prose(role="next", text="a larger batch", command="worldsize run quickstart"),
    Tiles(tiles=(Tile(quantity=SPEEDUP, value=Estimate(value=1.29, low=1.07, high=1.56), note="2 runs"),)),
    Findings(findings=tuple(FindingText(code="straggler", text=f"rank {rank} is slow") for rank in range(9))),
    Code(title="A study", text="name: x\n"),
    Listing(title="Environment 1", pairs=(("torch", "2.13"),)),
    Listing(title="Every block", pairs=(("", "a line"),)),
    Trials(
        lead="One trial.",
        groups=(TrialGroup(title="probe", trials=(Trial(title="0001", outcome="failed", command="run", log="end"),)),),
    ),
)
EVERY = Report(title="made", subtitle="up", sections=(Section(key="all", title="Every block", blocks=EVERY_BLOCK),))


def test_every_kind_of_block_is_drawn_and_escaped() -> None:
    reader, bad = read(EVERY), read(hostile(EVERY))
    for words in ("Use 2 workers.", "Why", "worldsize run quickstart", "1.29x", "1.07–1.56, 2 runs", "a line", "2.13"):
        assert words in reader.text
    assert bad.outline == reader.outline
    assert bad.policy == "default-src 'none'; style-src 'unsafe-inline'"
    assert bad.scripts == []


def test_many_findings_of_a_kind_are_folded() -> None:
    text = read(EVERY).text
    assert "6 more like this" in text
    assert all(f"rank {rank} is slow" in text for rank in range(9))


def test_only_our_scripts_may_run(made: Report) -> None:
    reader = read(made)
    data, *scripts = reader.scripts
    assert json.loads(data)
    hashes = [base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() for script in scripts]
    allowed = " ".join(f"'sha256-{digest}'" for digest in hashes)
    assert reader.policy == (
        f"default-src 'none'; style-src 'unsafe-inline'; img-src data: blob:; script-src {allowed}"
    )


def test_charts_are_numbered_in_the_order_of_the_page(made: Report) -> None:
    panels = sum(len(figure.panels) for figure in made.all(Figure))
    reader = read(made)
    assert reader.named("div", "data-chart") == [str(number) for number in range(panels)]
    assert len(json.loads(reader.scripts[0])) == panels


def figure(name: str, y: float = 1.0) -> Report:
    axis = Axis(title="x")
    drawn = Figure(key="k", title="t", panels=(Panel(x=axis, y=axis, marks=(Line(name=name, x=(1.0,), y=(y,)),)),))
    return Report(title="t", subtitle="", sections=(Section(key="k", title="t", blocks=(drawn,)),))


def test_data_of_charts_cannot_end_their_script() -> None:
    reader = read(figure("a</script><!--\u2028\u2029"))
    data = reader.scripts[0]
    assert not re.search("[<>&\u2028\u2029]", data)
    assert json.loads(data)[0]["data"][0]["name"].startswith("a&lt;/script&gt;")
    with pytest.raises(ValueError, match="not JSON compliant"):
        read(figure("a", float("nan")))


def test_only_our_own_files_are_not_escaped() -> None:
    templates = files("worldsize.report.write") / "templates"
    texts = [path.read_text(encoding="utf-8") for path in templates.iterdir() if path.name.endswith(".html")]
    assert sorted(re.findall(r"\{\{\s*(\S+?)\|safe\s*\}\}", "".join(texts))) == ["css", "js", "plotly"]
    assert len(re.findall(r"\bsafe\b", "".join(texts))) == 3
    assert not re.search("autoescape|Markup|forceescape", "".join(texts))


def test_a_page_without_files_beside_it_links_to_none(made: Report) -> None:
    without = read(replace(made, command="compare"))
    assert not [link for link in without.named("a", "href") if not link.startswith("#")]
    beside = [link for link in read(made, print_files=True).named("a", "href") if not link.startswith("#")]
    assert {link.partition("/")[0] for link in beside} == {"report.json", "tables", "figures"}


def test_files_sizes_and_what_an_older_report_left(
    made: Report, evidence: Evidence, published: tuple[Path, Published]
) -> None:
    folder, found = published
    assert found.size_bytes == found.page.stat().st_size < LIMIT_BYTES
    assert not (folder / "figures" / "noise.svg").exists()
    assert (folder / "figures" / "mine.svg").exists()
    assert list(found.figures) == [figure.key for figure in made.all(Figure)]
    for key in found.figures:
        assert all((folder / "figures" / f"{key}.{ending}").stat().st_size for ending in ("svg", "pdf", "png"))
    assert b"/Type3" not in (folder / "figures" / "speedup.pdf").read_bytes()
    assert {path.stem for path in (folder / "tables").iterdir()} == set(found.tables)
    assert json.loads((folder / "report.json").read_text()) == document(evidence)


def test_terms_are_explained_where_they_first_appear() -> None:
    blocks = (
        Prose(role="answer", text="Use 2 workers: <b> & MFU."),
        Prose(role="evidence", text="1 worker, projected."),
    )
    page = to_page(
        Report(title="t", subtitle="", sections=(Section(key="k", title="Worker", blocks=blocks),)),
        print_files=False,
        live=False,
    )
    reader = Reader()
    reader.feed(page)
    links = [attrs for tag, attrs in reader.tags if attrs.get("class") == "term"]
    assert [link["href"] for link in links] == ["#term-worker", "#term-mfu", "#term-projection"]
    assert links[0]["title"] == meaning("worker")
    assert [f"#{anchor}" for anchor in reader.named("dt", "id")] == ["#term-mfu", "#term-projection", "#term-worker"]
    assert "&lt;b&gt; &amp; " in page
    assert "Use 2 workers: <b> & MFU." in reader.text


def test_every_term_is_in_the_glossary() -> None:
    glossary = (Path(__file__).parents[3] / "docs" / "glossary.md").read_text(encoding="utf-8")
    headings = {line.removeprefix("## ") for line in glossary.splitlines() if line.startswith("## ")}
    assert {term.name for term in TERMS} <= headings


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("Use a batch of 64 per worker.", ["Batch per worker"]),
        ("Weakly scaled series of 2 launches", ["Weak scaling", "Series", "Launch"]),
        ("The global batch and critical batch sizes", ["Global batch", "Critical batch size"]),
        ("ranking, workerless, trialled", []),
    ],
)
def test_forms_of_terms(text: str, names: list[str]) -> None:
    assert [term.name for term, _, _ in find_terms(text)] == names


def test_text_between_backticks_is_code() -> None:
    linked = Explanations().link("Set `repeats: 3 <b>` to `find")
    assert linked == "Set <code>repeats: 3 &lt;b&gt;</code> to `find"


def test_a_table_has_its_main_columns_on_a_phone(made: Report) -> None:
    page = to_page(made, print_files=False, live=False)
    sheets = re.findall(r'<div class="sheet" id="table-(\w[\w-]*)">.*?<thead>(.*?)</thead>', page, re.DOTALL)
    assert sheets
    for key, head in sheets:
        columns = re.findall(r"<th scope=\"col\"([^>]*)>", head)
        assert any("minor" not in column for column in columns), key
    assert any("minor" in head for _, head in sheets)
