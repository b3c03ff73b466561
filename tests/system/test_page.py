"""The page in a real browser: no error, no request, no dialog, charts that answer to the mouse, no sideways scrolling.

Needs Debian's chromium; WORLDSIZE_CHROMIUM names another. Without one these tests fail, they do not skip.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, sync_playwright

import worldsize
from tests.made import STUDY, hostile, made_study
from worldsize.report.document import document
from worldsize.report.publish import publish, publish_document
from worldsize.report.words import number

pytestmark = pytest.mark.long

WIDTHS = (1440, 390)
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
        started = play.chromium.launch(executable_path=found, args=["--no-sandbox"])
        yield started
        started.close()


@pytest.fixture(scope="module", params=["quickstart", "failed-and-diverged", "hostile"])
def report(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a report."""
    home = tmp_path_factory.mktemp(request.param)
    if request.param == "quickstart":
        results = worldsize.Study.from_file("quickstart", small=True, set=["oversubscribe=true"]).run(home / "study")
        return publish(results).page.parent
    text = STUDY.replace("rate: 0.05}", "rate: [0.05, 3.0]}, {name: adam, rate: 0.001}")
    made = document(worldsize.load(made_study(home / "study", text, failing=("0009",)).path))
    if request.param == "hostile":
        made = hostile(made)
    return publish_document(made, home / "report").page.parent


def opened(browser: Browser, report: Path, width: int, theme: str = "light") -> tuple[Page, list[str]]:
    """The page, looked at from top to bottom, and all that it should not have done."""
    context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=theme)  # type: ignore[arg-type]
    page = context.new_page()
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
    page.wait_for_function("document.querySelectorAll('.chart:not([data-drawn])').length === 0")
    return page, wrong


@pytest.mark.parametrize("width", WIDTHS)
def test_it_opens_quietly_and_fits(browser: Browser, report: Path, width: int) -> None:
    page, wrong = opened(browser, report, width)
    assert wrong == []
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    drawn = page.evaluate(
        "[...document.querySelectorAll('.chart')].map(e => e.querySelectorAll('.trace, .bars').length)"
    )
    assert drawn
    assert all(drawn)


def test_it_opens_with_the_answer(browser: Browser, report: Path) -> None:
    page, _ = opened(browser, report, 1440)
    told = json.loads((report / "report.json").read_text())["words"]["answer"]
    shown = page.locator(".answer").all_text_contents()
    assert [words.split() for words in shown] == [worldsize.errors.visible(words).split() for words in told]
    assert page.locator("h1, [role=heading][aria-level='1']").count() == 1


def test_the_mouse_reads_values_and_the_keyboard_switches_series(browser: Browser, report: Path) -> None:
    page, _ = opened(browser, report, 1440)
    figure = page.locator("#figure-speedup")
    point = figure.locator(".chart").first.locator(".scatterlayer .point").last
    point.scroll_into_view_if_needed()
    box = point.bounding_box()
    assert box is not None
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    page.wait_for_selector(".hoverlayer .hovertext")
    said = page.locator(".hoverlayer .hovertext").first.text_content() or ""
    told = json.loads((report / "report.json").read_text())
    furthest = told["projection"][-1]  # the last point of the figure
    speedup = furthest["samples_per_s"]["value"] / told["table"][0]["samples_per_s"]["value"]
    assert f"{furthest['workers']:,} workers, projected" in said
    assert f"speedup {number(speedup)} x" in said
    button = figure.locator(".legend button").last
    before = figure.locator(".scatterlayer .point").count()
    button.focus()
    page.keyboard.press("Enter")
    assert button.get_attribute("aria-pressed") == "false"
    assert figure.locator(".scatterlayer .point").count() < before


def test_dark_and_light_differ_and_paper_is_light(browser: Browser, report: Path) -> None:
    colour = (
        "getComputedStyle(document.querySelector('.chart .js-line, .chart .bars path, .chart .scatter path')).stroke"
    )
    shades = {theme: opened(browser, report, 1440, theme)[0].evaluate(colour) for theme in ("light", "dark")}
    assert shades["light"] != shades["dark"]
    page, wrong = opened(browser, report, 1440, "dark")
    assert page.pdf(format="A4").startswith(b"%PDF")
    assert wrong == []


def test_pictures_for_the_docs(browser: Browser, report: Path, tmp_path: Path) -> None:
    """WORLDSIZE_PICTURES=docs/images keeps those of the quickstart, so that what the docs show is what is."""
    wanted = os.environ.get("WORLDSIZE_PICTURES") if "quickstart" in str(report) else None
    images = Path(wanted) if wanted else tmp_path
    for width, theme in ((1440, "light"), (390, "dark")):
        page, _ = opened(browser, report, width, theme)
        path = images / f"report-{width}-{theme}.png"
        page.screenshot(path=path)
        assert path.stat().st_size < 300_000
