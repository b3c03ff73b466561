"""The page in a real browser: no error, no request, no dialog, charts that answer to the mouse, no sideways scrolling.

Needs Debian's chromium; WORLDSIZE_CHROMIUM names another. Without one these tests fail, they do not skip.
"""

from __future__ import annotations

import json
import os
import shutil
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal

import pytest
from playwright.sync_api import Browser, Page, sync_playwright

import worldsize
from tests.made import hostile
from tests.system.everything import everything
from tests.system.wide import ROOM, imported_bytes, run_wide
from worldsize.report.document import document
from worldsize.report.pages import study_report
from worldsize.report.words.numbers import number
from worldsize.report.write.publish import publish, write_pages

pytestmark = pytest.mark.long

WIDTHS = (1440, 390)
PICTURES = {"optimizers_linear": "#figure-curves", "largest_batch": "#figure-batch"}
MARKS = ".scatterlayer .trace, .barlayer .bars"
UNDRAWN = "[...document.querySelectorAll('.chart:not([data-drawn])')].map(chart => chart.dataset.chart)"
STARVED = """
window.IntersectionObserver = class { observe() {} };
window.requestIdleCallback = (work, how) => { if (how && how.timeout) setTimeout(work, how.timeout); };
let plotly;
Object.defineProperty(window, 'Plotly', {
  get: () => plotly,
  set: (found) => {
    const react = found.react;
    found.react = (...given) => { found.react = react; throw new Error('planted'); };
    plotly = found;
  },
});
"""
SCROLL = """async () => {
  for (let y = 0; y < document.body.scrollHeight; y += 500) {
    scrollTo({top: y, behavior: 'instant'}); await new Promise(done => setTimeout(done, 30));
  }
  scrollTo({top: 0, behavior: 'instant'});
}"""


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    found = os.environ.get("WORLDSIZE_CHROMIUM") or shutil.which("chromium")
    if found is None:
        pytest.fail("no chromium to look at pages with: apt-get install chromium, or set WORLDSIZE_CHROMIUM")
    with sync_playwright() as play:
        started = play.chromium.launch(executable_path=found, args=["--no-sandbox", "--disable-gpu"])
        yield started
        started.close()


def quickstart(home: Path) -> Path:
    """As it was run for all tests."""
    return publish(worldsize.load(home)).page.parent


def optimizers_linear(home: Path) -> Path:
    """A built-in study in full: 33 or so trials of a search, some of which diverge."""
    return publish(worldsize.Study("optimizers-linear", folder=home / "study").run()).page.parent


def largest_batch(home: Path) -> Path:
    """A real search for the largest batch, up to out of memory on both ranks."""
    run_wide(home, imported_bytes() + ROOM, "{largest: true, first: 16, stop_early: false}")
    return publish(worldsize.load(home / "study")).page.parent


def ended_badly(home: Path) -> Path:
    """Real trials that failed (an error planted in the third), diverged and ran out of memory."""
    found = run_wide(
        home,
        imported_bytes() + ROOM,
        "[16, 1024]",
        workers="[1]",
        rates="[0.01, 0.1, 1.0e+6]",
        train="{epochs: 2}",
        skip="[{batch_per_worker: 1024, lr: 0.1}, {batch_per_worker: 1024, lr: 1.0e+6}]",
        expected=1,
        PLANTED="raise:0:0003:2",
        PLANTED_MARKER=str(home / "planted"),
    )
    assert Counter(found["trials"].values()) == {"finished": 2, "out_of_memory": 2, "diverged": 1, "failed": 1}
    return publish(worldsize.load(home / "study")).page.parent


def hostile_names(home: Path) -> Path:
    """Every figure and table, and every name in them an attack."""
    evidence = everything(home)
    report = hostile(study_report(evidence, live=False))
    return write_pages(report, document(evidence), home / "report").page.parent


REPORTS = (quickstart, optimizers_linear, largest_batch, ended_badly, hostile_names)


@pytest.fixture(scope="module", params=REPORTS, ids=lambda make: make.__name__)
def report(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a report."""
    if request.param is quickstart:
        return quickstart(request.getfixturevalue("whole_quickstart")[0])
    made: Path = request.param(tmp_path_factory.mktemp(request.param.__name__))
    return made


Seen = tuple[Page, list[str]]
Open = Callable[..., Seen]


@pytest.fixture(scope="module")
def opened(browser: Browser, report: Path) -> Iterator[Open]:
    """The page, looked at from top to bottom, and all that it should not have done. Opened once a width and theme."""
    seen: dict[tuple[int, str], Seen] = {}

    def look(width: int, theme: Literal["light", "dark"] = "light") -> Seen:
        if (width, theme) not in seen:
            seen[width, theme] = _open(browser, report, width, theme)
        return seen[width, theme]

    yield look
    for page, _ in seen.values():
        page.context.close()


def _open(browser: Browser, report: Path, width: int, theme: Literal["light", "dark"]) -> Seen:
    page = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=theme).new_page()
    wrong: list[str] = []
    page.on("console", lambda message: wrong.append(f"{message.type}: {message.text}"))
    page.on("pageerror", lambda error: wrong.append(str(error)))
    page.on("dialog", lambda dialog: (wrong.append("dialog"), dialog.dismiss()))
    page.on(
        "request",
        lambda request: wrong.append(request.url) if request.url != (report / "index.html").as_uri() else None,
    )
    page.goto((report / "index.html").as_uri())
    page.evaluate(SCROLL)
    wait_for_charts(page, wrong)
    return page, wrong


def wait_for_charts(page: Page, wrong: list[str], left: int = 0) -> None:
    for _ in range(600):  # in our own time: the browser's way of waiting ends with its frames
        if len(undrawn := page.evaluate(UNDRAWN)) <= left:
            return
        page.wait_for_timeout(100)
    pytest.fail(f"charts {undrawn} are not drawn after a minute; {wrong}")


@pytest.mark.parametrize("width", WIDTHS)
def test_it_opens_quietly_and_fits(opened: Open, width: int) -> None:
    page, wrong = opened(width)
    assert wrong == []
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    drawn = page.evaluate(
        "[...document.querySelectorAll('.chart')].map(e => e.querySelectorAll('.trace, .bars').length)"
    )
    assert drawn
    assert all(drawn)


def test_without_frames_and_after_a_chart_that_fails_the_others_are_drawn(browser: Browser, report: Path) -> None:
    page = browser.new_page()
    page.add_init_script(STARVED)
    wrong: list[str] = []
    page.on("pageerror", lambda error: wrong.append(str(error)))
    page.goto((report / "index.html").as_uri())
    wait_for_charts(page, wrong, left=1)
    assert wrong == ["planted"]
    page.context.close()


def test_it_opens_with_the_answer(opened: Open, report: Path) -> None:
    page, _ = opened(1440)
    told = json.loads((report / "report.json").read_text())["words"]["answer"]
    shown = page.locator(".answer").all_text_contents()
    assert len(shown) == len(told)
    for words, sentence in zip(shown, told, strict=True):
        assert " ".join(words.split()).endswith(" ".join(sentence.split()))  # hostile text stands before it
    assert page.locator("h1, [role=heading][aria-level='1']").count() == 1


def hovered(page: Page, figure: str, point: str) -> str:
    """What the page says of a point that the mouse is on."""
    spot = page.locator(f"#figure-{figure} .chart").first.locator(point).last
    spot.scroll_into_view_if_needed()
    box = spot.bounding_box()
    assert box is not None
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    page.wait_for_selector(".hoverlayer .hovertext")
    return page.locator(".hoverlayer .hovertext").first.text_content() or ""


def expected(told: Any) -> tuple[str, str, list[str]]:
    """A figure, a point of it and what must be said there, by report.json."""
    if told["projection"] and len(told["table"]) > 1:  # the last point of the speedup is the furthest count
        furthest = told["projection"][-1]
        speedup = furthest["samples_per_s"]["value"] / chosen_base(told)
        words = [f"{furthest['workers']:,} workers, projected", f"speedup {number(speedup)}x"]
        return "speedup", ".scatterlayer .point", words
    full = [one["batch_per_worker"] for one in [*told["tries"], *told["runs"]] if one["outcome"] == "out_of_memory"]
    if full:
        return "batch", ".scatterlayer .point", [f"batch {max(full):,} per worker", "out of memory"]
    return "curves", ".scatterlayer .point", ["1 of 1 diverged, at step"]


def chosen_base(told: Any) -> float:
    """Throughput of the smallest count of the series that the answer speaks of."""
    best = told["answer"]["setting"]
    rows = [row for row in told["table"] if row["batch_per_worker"] == best["batch_per_worker"]]
    return float(rows[0]["samples_per_s"]["value"])


def test_the_mouse_reads_exact_values(opened: Open, report: Path) -> None:
    page, _ = opened(1440)
    told = json.loads((report / "report.json").read_text())
    figure, point, words = expected(told)
    said = hovered(page, figure, point)
    assert all(one in said for one in words), (said, words)


def test_the_keyboard_switches_series(opened: Open) -> None:
    page, _ = opened(1440)
    figure = page.locator("figure", has=page.locator(".legend button")).first
    button = figure.locator(".legend button").last
    before = figure.locator(MARKS).count()
    button.focus()
    page.keyboard.press("Enter")
    assert button.get_attribute("aria-pressed") == "false"
    assert figure.locator(MARKS).count() < before
    page.keyboard.press("Enter")
    assert figure.locator(MARKS).count() == before


def test_what_ended_badly_is_there_to_read(opened: Open, report: Path) -> None:
    page, _ = opened(390)
    told = json.loads((report / "report.json").read_text())
    ended = [run for run in told["runs"] if run.get("failure")]
    failures = page.locator("#failures details, #out-of-memory details")
    assert failures.count() == len(ended)
    for run in ended:
        entry = failures.filter(has_text=run["trial"]).first
        assert run["command"] in (entry.text_content() or "")
        # What failed lies open; running out of memory is a result.
        assert (entry.get_attribute("open") is not None) == (run["outcome"] == "failed")
    for run in told["runs"]:
        if run["outcome"] == "diverged":
            assert page.locator(".tag.diverged").count() > 0


def test_dark_and_light_differ_and_paper_is_light(opened: Open) -> None:
    color = (
        "getComputedStyle(document.querySelector('.chart .js-line, .chart .bars path, .chart .scatter path')).stroke"
    )
    shades = {theme: opened(1440, theme)[0].evaluate(color) for theme in ("light", "dark")}
    assert shades["light"] != shades["dark"]
    page, wrong = opened(1440, "dark")
    assert page.pdf(format="A4").startswith(b"%PDF")
    assert wrong == []


def test_pictures_for_the_docs(opened: Open, report: Path, tmp_path: Path) -> None:
    """WORLDSIZE_PICTURES=docs/images keeps them, so that what the docs show is what is."""
    images = Path(os.environ.get("WORLDSIZE_PICTURES", tmp_path))
    taken = []
    if "quickstart" in str(report):
        for width, theme in ((1440, "light"), (390, "dark")):
            page, _ = opened(width, theme)
            page.evaluate("scrollTo({top: 0, behavior: 'instant'})")
            taken.append(images / f"report-{width}-{theme}.png")
            page.screenshot(path=taken[-1])
    for study, part in PICTURES.items():
        if study in str(report):
            taken.append(images / f"{part.removeprefix('#figure-').removeprefix('#')}.png")
            opened(1440)[0].locator(part).screenshot(path=taken[-1])
    assert all(path.stat().st_size < 300_000 for path in taken)
