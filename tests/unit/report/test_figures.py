"""Figures: axes that can be read, bands that flatten nothing, lines that join what belongs together."""

from __future__ import annotations

import pytest
from matplotlib.font_manager import FontProperties
from matplotlib.textpath import TextPath

from tests.made import STUDY, made_study
from worldsize.analysis.estimate import Estimate
from worldsize.analysis.speed.recommend import Finding
from worldsize.answer.evidence import Evidence
from worldsize.answer.results import load
from worldsize.report.figures.matplotlib import draw, lines_within
from worldsize.report.figures.model import Axis, Figure, Line, Panel, axis_for, batch_axis, decades, round_ticks
from worldsize.report.figures.plotly import chart
from worldsize.report.pages import figures
from worldsize.report.words.findings import plural, sentence

STRONG = STUDY.replace("batch_per_worker: [64]", "global_batch: [64, 256]").replace("lr: 0.05}", "lr: [0.05, 3.0]}")


@pytest.fixture(scope="module")
def strong(tmp_path_factory: pytest.TempPathFactory) -> Evidence:
    return Evidence(load(made_study(tmp_path_factory.mktemp("strong") / "made", STRONG).path))


def figure(found: Evidence, key: str) -> Figure:
    return next(figure for figure in figures(found) if figure.key == key)


def lines(panel: Panel) -> list[Line]:
    return [mark for mark in panel.marks if isinstance(mark, Line)]


@pytest.mark.parametrize(
    ("least", "most"), [(0.0149, 0.0186), (0.5, 16), (1, 1000), (3e-9, 4e9), (9.0, 11.0), (1.0, 1.0)]
)
def test_a_log_axis_has_a_few_ticks_inside_its_data(least: float, most: float) -> None:
    inside = [tick for tick, _ in decades([least, most]) if least * 0.999 <= tick <= most * 1.001]
    assert 1 <= len(inside) <= 8
    assert len(inside) > 1 or most < least * 1.5


def test_ticks_of_a_search_leave_room_for_each_other() -> None:
    axis = batch_axis([16, 32, 64, 128, 192, 200, 208, 224, 256], "batch")
    assert axis.ticks is not None
    assert [words for _, words in axis.ticks] == ["16", "32", "64", "128", "192", "256"]
    assert (axis.least, axis.most) == (16, 256)


def test_whole_axes_have_whole_ticks() -> None:
    assert round_ticks(1, 2, whole=True) == [1, 2]
    assert round_ticks(1, 30, whole=True) == [10, 20, 30]
    line = Line(name="a", x=(1.0, 2.0), y=(0.5, 0.6))
    panel = Panel(x=Axis(title="epoch", whole=True), y=Axis(title="loss"), marks=(line,))
    assert chart(panel, [])["layout"]["xaxis"]["ticktext"] == ["1", "2"]


@pytest.mark.parametrize("log", [False, True])
def test_bands_are_cut_where_they_would_flatten_the_lines(log: bool) -> None:
    wild = Line(name="a", x=(1, 2), y=(1.0, 2.0), low=(0.01, 0.01), high=(300.0, 300.0))
    axis = axis_for("speedup", [wild], log=log)
    assert axis.most is not None
    assert axis.cut
    assert 2.0 <= axis.most <= 5
    assert 0 <= axis.least <= 1.0
    calm = axis_for("speedup", [Line(name="a", x=(1, 2), y=(1.0, 2.0), low=(0.9, 1.9), high=(1.1, 2.1))], log=log)
    assert (calm.cut, calm.least, calm.most) == (False, 0.9, 2.1)
    panel = Panel(x=Axis(title="workers"), y=axis, marks=(wild,))
    assert "intervals are cut" in Figure(key="k", title="t", panels=(panel,)).caption


def test_a_number_and_its_unit_stay_on_one_line(strong: Evidence) -> None:
    title = "word " * 9 + "12 s"
    panels = figures(strong)[0].panels
    drawn = draw(Figure(key="k", title=title, panels=panels))
    assert "12\u00a0s" in drawn.texts[0].get_text()


@pytest.mark.filterwarnings("ignore:Glyph .* missing")
@pytest.mark.parametrize(
    "words", ["Wm" * 60, "cheapest with many MW workers " * 5, "ill " * 60, "\u540d" * 70], ids=len
)
def test_lines_for_print_are_as_wide_as_the_picture(words: str) -> None:
    font = FontProperties(size=8.5, weight="bold")
    lines = lines_within(words, 3.2, size=8.5, weight="bold")
    widths = [TextPath((0, 0), line, prop=font).get_extents().width / 72 for line in lines]
    assert max(widths) <= 3.2
    joined = (" " if " " in words else "").join(lines)
    assert joined == words.strip()
    assert min(widths[:-1]) > 1.6  # none is broken too early


def test_no_words_are_no_line() -> None:
    assert [lines_within(words, 3.2, size=5.6) for words in ("", " ", "\u3000")] == [[], [], []]


def test_one_of_a_kind_is_not_several() -> None:
    template = "{trials:.0f} trial(s) of {name}"
    assert plural(template, {"trials": 1}) == "{trials:.0f} trial of {name}"
    assert plural(template, {"trials": 21}) == "{trials:.0f} trials of {name}"
    assert sentence(Finding(code="trials-diverged", numbers={"trials": 1})).startswith("1 trial diverged")


def test_no_one_is_asked_for_thousands_of_repeats() -> None:
    speedup = Estimate(value=1.8, low=0.1, high=32.0, n=2)
    numbers: dict[str, float | Estimate] = {
        "workers": 2.0,
        "speedup": speedup,
        "repeats": 2.0,
        "repeats_needed": 4015.0,
    }
    told = sentence(Finding(code="too-noisy", numbers=numbers))
    assert "4015" not in told
    assert "what else runs on the machine" in told
    assert "About 12 runs would decide" in sentence(
        Finding(code="too-noisy", numbers={**numbers, "repeats_needed": 12.0})
    )
