"""The report: one document behind everything, figures by data, a page with the same numbers."""

from __future__ import annotations

import json
import re
import shlex
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from typer.testing import CliRunner

from tests.made import STUDY, hostile, made_study
from worldsize.answer.curves import thinned
from worldsize.answer.results import load
from worldsize.cli.main import app
from worldsize.plan.plan import make_plan
from worldsize.report.blocks import Document
from worldsize.report.document import document
from worldsize.report.figures.matplotlib import rendered
from worldsize.report.figures.plotly import chart
from worldsize.report.pages import figures, sheets
from worldsize.report.write.page import page, script_json
from worldsize.report.write.publish import Published, publish, publish_document, to_json
from worldsize.report.write.written import write_files
from worldsize.spec.file import StudyFile

MIXED = STUDY.replace("lr: 0.05}", "lr: [0.05, 3.0]}, {name: adam, lr: 0.001}")
PROBES = STUDY.replace("[1, 2, 4]", "[1]").replace("train: {epochs: 30}\n", "").replace("[64]", "[32, 64]")
LIMIT_BYTES = 6_000_000


class Reader(HTMLParser):
    """Tags with their attributes, and the text outside scripts."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self._inside = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        self._inside = tag

    def handle_endtag(self, tag: str) -> None:
        del tag
        self._inside = ""

    def handle_data(self, data: str) -> None:
        if self._inside not in ("script", "style"):
            self.text += data


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Document:
    home = made_study(tmp_path_factory.mktemp("study") / "made", MIXED, failing=("0009",))
    return document(load(home.path))


@pytest.fixture(scope="module")
def published(made: Document, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Published]:
    """Drawing every figure takes seconds: the document whose every text is an attack, over an older report."""
    folder = tmp_path_factory.mktemp("published")
    write_files(folder, {"figures/noise.svg": b"old"}, last="figures/noise.svg")
    (folder / "figures" / "mine.svg").write_text("kept")
    return folder, publish_document(hostile(made), folder)


def keys(found: Document) -> list[str]:
    return [figure.key for figure in figures(found)]


def read(content: str) -> Reader:
    reader = Reader()
    reader.feed(content)
    return reader


def test_the_document_is_strict_json_and_reads_back(made: Document) -> None:
    assert json.loads(to_json(made)) == made


def test_what_pretrained_weights_left_out_is_told_with_the_trial(tmp_path: Path) -> None:
    home = made_study(tmp_path / "made")
    first, second = list(load(home.path).records.values())[:2]
    left_out = tuple(f"head<{number}>: not in the file" for number in range(10))
    home.write_record(first.model_copy(update={"transfer": left_out}))
    found = document(load(home.path))
    runs = {run["trial"]: run for run in found["runs"]}
    assert runs[first.trial]["pretrained_left_out"] == list(left_out)
    assert "pretrained_left_out" not in runs[second.trial]
    text = read(page(found, [], [])).text
    assert text.count("pretrained weights left out") == 1
    assert "head<0>: not in the file; head<1>: not in the file;" in text
    assert "head<7>: not in the file; and 2 more" in text


def test_figures_of_a_study_that_trains(made: Document) -> None:
    wanted = [
        "speedup",
        "pareto",
        "outcome",
        "step",
        "timeline",
        "wall-time",
        "devices",
        "curves",
        "stable",
        "convergence",
    ]
    assert keys(made) == wanted
    for figure in figures(made):
        assert figure.title
        assert figure.alt
        assert all(panel.x.title and panel.y.title for panel in figure.panels)


def test_figures_only_where_there_is_data(tmp_path: Path) -> None:
    found = document(load(made_study(tmp_path / "probe", PROBES).path))
    assert keys(found) == ["step", "wall-time", "batch", "devices"]


def test_a_folder_with_nothing_measured_has_a_report(tmp_path: Path) -> None:
    home = made_study(tmp_path / "empty")
    for record in home.path.glob("trials/*/record.json"):
        record.unlink()
    made = publish(load(home.path))
    assert "no trial has finished" in read(made.page.read_text()).text
    assert made.tables == ()


def test_projection_is_dashed_and_hatched_beyond_what_was_measured(made: Document) -> None:
    pace = made["table"][-1]["samples_per_s"]["value"]
    beyond = {"workers": 16, "samples_per_s": {"value": pace * 3, "low": pace * 2, "high": pace * 4}, "measured": False}
    speedup = figures({**made, "projection": [beyond]})[0]
    line = next(mark for mark in speedup.panels[0].marks if mark.name == "projected")
    assert line.x == (4, 16)
    assert line.y[-1] == pytest.approx(pace * 3 / made["table"][0]["samples_per_s"]["value"])
    drawn = chart(speedup.panels[0], list(speedup.legend))["data"]
    assert any(trace.get("line", {}).get("dash") == "dash" for trace in drawn)
    assert any("fillpattern" in trace for trace in drawn)


def test_time_against_worker_hours(made: Document) -> None:
    def about(value: float) -> dict[str, float | None]:
        return {"value": value, "low": 0.9 * value, "high": 1.2 * value}

    points = [
        {
            "workers": n,
            "place": None,
            "of": "an epoch",
            "time_s": about(100 / n**0.8),
            "worker_hours": about(n**0.2),
            "how": "measured" if n < 4 else "projected",
            "best": True,
        }
        for n in (1, 2, 4)
    ]
    points[0]["time_s"] = {"value": 100.0, "low": 90.0, "high": None}  # no end is known
    figure = next(figure for figure in figures({**made, "pareto": points}) if figure.key == "pareto")
    assert figure.title == "Fastest with 4 workers (projected), cheapest with 1 worker"
    lines = figure.panels[0].marks
    bars = [mark for mark in lines if not mark.in_legend]
    assert [(bar.kind, bar.x, bar.y) for bar in bars] == [
        (
            kind,
            tuple(pytest.approx(end * 100 / n**0.8) for end in (0.9, 1.2)),
            pytest.approx((0.9 * n**0.2, 1.2 * n**0.2)),
        )
        for kind, n in (("measured", 2), ("projected", 4))
    ]
    assert lines[-1].hover == ("4 workers, projected\n33 s (30 s to 40 s)\n1.32 worker-hours (1.19 to 1.58)",)
    assert figure.note.endswith("together. Dashed, blue: projected.")
    whole = [{**point, "how": "put together" if point["workers"] < 4 else "projected"} for point in points]
    put_together = next(each for each in figures({**made, "pareto": whole}) if each.key == "pareto")
    assert put_together.title == figure.title
    assert "Put together: of measured steps" in put_together.note
    assert [name for name in put_together.legend if name != "nothing is both faster and cheaper"] == [
        "put together",
        "projected",
    ]
    assert not [mark for mark in put_together.panels[0].marks if mark.kind == "measured"]
    assert figure.panels[0].x.least == pytest.approx(90 / 4**0.8)
    assert figure.panels[0].x.most == 100.0


def test_batches_that_do_not_fit_are_crosses_and_a_row(made: Document) -> None:
    tries = [{"workers": 1, "batch_per_worker": 8192, "outcome": "out_of_memory"}]
    found = {**made, "tries": tries}
    batch = next(figure for figure in figures(found) if figure.key == "batch")
    assert "8,192 runs out of memory" in batch.title
    assert any(mark.name == "out of memory" for mark in batch.panels[0].marks)
    sheet = next(sheet for sheet in sheets(found) if sheet.key == "batch")
    assert "out of memory" in [cell.value for row in sheet.rows for cell in row]


@pytest.mark.parametrize(("device", "title"), [("cpu", "largest process, GB"), ("cuda", "fullest GPU, GB")])
def test_a_search_for_the_largest_batch_shows_what_each_try_held(made: Document, device: str, title: str) -> None:
    tries = [{"workers": row["workers"], "batch_per_worker": 64, "outcome": "finished"} for row in made["table"]]
    weighed = [{**each, "memory_bytes": 2e9} for each in tries]
    full = {"workers": 1, "batch_per_worker": 8192, "outcome": "out_of_memory"}
    found = {**made, "tries": [*weighed, full], "hardware": [], "environments": [{"device": device}]}
    batch = next(figure for figure in figures(found) if figure.key == "batch")
    (panel,) = [panel for panel in batch.panels if panel.y.title == title]
    assert all(value == 2.0 for mark in panel.marks for value in mark.y)  # type: ignore[union-attr]


def test_diverged_curves_end_in_a_cross_inside_the_picture(made: Document) -> None:
    figure = next(figure for figure in figures(made) if figure.key == "convergence")
    crosses = [mark for mark in figure.panels[0].marks if getattr(mark, "symbol", "") == "cross"]
    assert len(crosses) == 1
    assert "diverged" in figure.title
    highest = max(value for mark in figure.panels[0].marks for value in mark.y if value is not None)  # type: ignore[union-attr]
    assert highest < 1000


def test_page_and_document_have_the_same_numbers(made: Document) -> None:
    reader = read(page(made, figures(made), sheets(made)))
    shown = [float(attrs["data-value"] or "nan") for tag, attrs in reader.tags if tag == "td" and "data-value" in attrs]
    cells = [cell.value for sheet in sheets(made) for row in sheet.rows for cell in row]
    assert shown == [value for value in cells if isinstance(value, int | float)]
    for end in ("low", "high"):
        ends = [float(attrs[f"data-{end}"] or "nan") for tag, attrs in reader.tags if f"data-{end}" in attrs]
        held = [getattr(cell, end) for sheet in sheets(made) for row in sheet.rows for cell in row]
        assert ends == [value for value in held if value is not None]
    for sentence in [*made["words"]["answer"], *(found["text"] for found in made["words"]["findings"])]:
        assert sentence in reader.text


def test_page_shows_failures_commands_environments_and_what_was_left_out(made: Document) -> None:
    text = read(page(made, [], [])).text
    assert "RuntimeError: <b>planted</b>" in text
    assert "<script>alert('log')</script>" in text
    for run in made["runs"]:
        assert run["command"] in text
    assert all(words in text for words in made["left_out"])
    assert "2.13" in text


def test_hostile_text_stays_text(made: Document, published: tuple[Path, Published]) -> None:
    bad = hostile(made)
    drawn = figures(bad)
    content = page(bad, drawn, sheets(bad))
    reader = read(content)
    assert not [tag for tag, _ in reader.tags if tag == "img"]
    assert len([tag for tag, _ in reader.tags if tag == "script"]) == 3
    assert not [name for _, attrs in reader.tags for name in attrs if name.startswith("on")]
    assert "\x1b" not in content.partition("<script>")[0]
    for figure in drawn:
        for panel in figure.panels:
            texts = json.dumps(chart(panel, list(figure.legend)))
            assert not re.search(r"<(?!/?b>|br>)", texts)
    pictures = [published[0] / "figures" / f"{figure.key}.svg" for figure in drawn]
    assert len(pictures) == 10
    for path in pictures:
        for element in ElementTree.parse(path).iter():  # strict XML: what is not well-formed raises
            assert not element.tag.endswith("script")
            assert not [name for name in element.attrib if name.startswith("on")]


def test_json_in_a_script_cannot_end_it() -> None:
    assert not re.search("[<>\u2028\u2029]", script_json({"a</script>": "<!--\u2028\u2029"}))
    assert json.loads(script_json({"a</script>": "\u2028"})) == {"a</script>": "\u2028"}


def test_files_sizes_and_what_an_older_report_left(made: Document, published: tuple[Path, Published]) -> None:
    folder, found = published
    assert found.size_bytes == found.page.stat().st_size < LIMIT_BYTES
    assert not (folder / "figures" / "noise.svg").exists()
    assert (folder / "figures" / "mine.svg").exists()
    assert list(found.figures) == keys(made)
    for key in found.figures:
        assert all((folder / "figures" / f"{key}.{ending}").stat().st_size for ending in ("svg", "pdf", "png"))
    assert b"/Type3" not in (folder / "figures" / "speedup.pdf").read_bytes()
    assert {path.stem for path in (folder / "tables").iterdir()} == set(found.tables)
    assert json.loads((folder / "report.json").read_text()) == hostile(made)


def test_the_same_document_gives_the_same_bytes(made: Document) -> None:
    figure = figures(made)[0]
    assert rendered(figure) == rendered(figure)


def test_the_recommended_study_can_be_run(made: Document) -> None:
    spec = StudyFile(made["recommended_study"], "snippet").spec()
    row = made["answer"]["setting"]
    assert (spec.axes.workers, spec.axes.batch_per_worker) == ((row["workers"],), (row["batch_per_worker"],))
    trial = next(trial for trial in make_plan(spec).trials.values() if trial.kind == "train")
    assert trial.peak_lr == pytest.approx(
        next(
            e["peak_lr"] for e in made["training"] if e["workers"] == row["workers"] and e["variant"] == row["variant"]
        )
    )


def test_the_command_of_a_trial_plans_exactly_that_trial(tmp_path: Path) -> None:
    home = made_study(tmp_path / "made", MIXED)
    results = load(home.path)
    for run in document(results)["runs"]:
        words = shlex.split(run["command"])
        file = StudyFile.read(home.study_file)
        for assignment in (value for option, value in pairwise(words) if option == "--set"):
            file.override_text(assignment)
        (again,) = make_plan(file.spec()).trials.values()
        first = results.trials[run["trial"]]
        told = {"id", "repeat", "probe", "train"}
        assert again.model_dump(exclude=told) == first.model_dump(exclude=told)


def test_thinning_keeps_ends_and_beginnings() -> None:
    assert thinned(5, 80) == [0, 1, 2, 3, 4]
    places = thinned(1000, 80)
    assert (places[0], places[1], places[-1]) == (0, 1, 999)
    assert len(places) <= 81


def test_the_command_line(tmp_path: Path) -> None:
    home = made_study(tmp_path / "made", PROBES)
    asked = CliRunner().invoke(app, ["report", str(home.path), "--json"])
    assert json.loads(asked.output)["study"] == "made"
    assert not (home.path / "report").exists()
    written = CliRunner().invoke(app, ["report", str(home.path)])
    assert written.exit_code == 0, written.output
    assert (home.path / "report" / "index.html").exists()
    assert "figures" in written.output
    unknown: Any = CliRunner().invoke(app, ["report", str(tmp_path)])
    assert unknown.exit_code != 0
