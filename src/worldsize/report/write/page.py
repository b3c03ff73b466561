"""Draw a report as a page: one self-contained file that opens from disk."""

from __future__ import annotations

import base64
import hashlib
import itertools
import re
from collections.abc import Iterator, Sequence
from functools import cache
from importlib.resources import files
from typing import Any, get_args

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape

from worldsize import __version__
from worldsize.errors import ReportError, visible
from worldsize.report.blocks import Block, Cell, Findings, FindingText, Report, Table
from worldsize.report.figures.model import FORMATS, PALETTE, Bars, Figure, Line, Mark
from worldsize.report.figures.plotly import chart
from worldsize.report.words.glossary import Term, find_terms
from worldsize.report.words.numbers import counted
from worldsize.report.write.tables import cell_ends, cell_range, cell_value

THEMES = {
    "light": {
        "page": "#ffffff",
        "card": "#ffffff",
        "well": "#f3f5f7",
        "ink": "#16202c",
        "soft": "#5a6675",
        "line": "#e2e6ea",
        "axis": "#b4bcc6",
    },
    "dark": {
        "page": "#11161d",
        "card": "#171e27",
        "well": "#1d2631",
        "ink": "#e9edf2",
        "soft": "#9aa6b5",
        "line": "#2a3542",
        "axis": "#4b5867",
    },
}
REFRESH_S = 15
"""Time after which the page of a running study refreshes itself."""
LONG = 150
"""Answers with more characters use a smaller font."""
MAX_PER_CODE = 4
"""Up to this many findings with the same code are shown in full. Otherwise all but the first three are collapsed."""


class Explanations:
    """Links each term of art to its explanation where the term first appears on the page."""

    def __init__(self) -> None:
        self.terms: list[Term] = []
        """The terms that have appeared so far."""

    def link(self, text: str) -> Markup:
        """Return text as HTML, with `...` as code.

        A term that appears for the first time becomes a link, with its meaning as a tooltip.
        """
        parts = BETWEEN_BACKTICKS.split(visible(text))
        return Markup().join(CODE.format(part) if index % 2 else self._link(part) for index, part in enumerate(parts))

    def _link(self, shown: str) -> Markup:
        html, position = Markup(), 0
        for term, start, end in find_terms(shown):
            if term not in self.terms:
                self.terms.append(term)
                html += escape(shown[position:start]) + LINK.format(term.anchor, term.meaning, shown[start:end])
                position = end
        return html + escape(shown[position:])

    def sorted(self) -> list[Term]:
        """Return the terms that have appeared, in alphabetical order."""
        return sorted(self.terms, key=lambda term: term.name.lower())


BETWEEN_BACKTICKS = re.compile(r"`([^`\n]+)`")
CODE = Markup("<code>{}</code>")
LINK = Markup('<a class="term" href="#{}" title="{}">{}</a>')


def to_page(report: Report, *, print_files: bool, live: bool) -> str:
    """Return a report as HTML.

    `print_files`: figures for print are next to the page. `live`: the study still runs, and the page refreshes itself.
    """
    figures = report.all(Figure)
    charts = [chart(panel, list(figure.legend)) for figure in figures for panel in figure.panels]
    panels_before = itertools.accumulate((len(figure.panels) for figure in figures), initial=0)
    scripts = {"plotly": plotly_js(), "js": _file("page.js")} if figures else {}
    return (
        _templates()
        .get_template("page.html")
        .render(
            scripts,
            report=report,
            explanations=Explanations(),
            charts=charts,
            first_chart=dict(zip((figure.key for figure in figures), panels_before, strict=False)),
            css=f"{_palette()}\n{_file('page.css')}",
            hashes=" ".join(f"'sha256-{_digest(script)}'" for script in scripts.values()),
            refresh_s=REFRESH_S if live else None,
            print_files=print_files,
            has_files=report.command == "report",
            scripted=bool(scripts),
        )
    )


@cache
def _templates() -> Environment:
    environment = Environment(
        loader=PackageLoader("worldsize.report.write"),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=_visible,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.policies["json.dumps_kwargs"] = {"allow_nan": False, "separators": (",", ":")}
    environment.globals |= {"version": __version__, "long": LONG, "formats": FORMATS}
    environment.tests |= {kind.__name__: _is(kind) for kind in get_args(Block)}
    environment.filters |= {
        "counted": counted,
        "folded": _folded,
        "key_style": _key_style,
        "key_class": _key_class,
        "numbers": _numbers,
        "range": cell_range,
        "text_columns": _text_columns,
        "value": cell_value,
    }
    return environment


def _visible(value: Any) -> Any:
    """Make control characters visible in everything that a template prints. Jinja escapes it after that."""
    return visible(value) if isinstance(value, str) and not isinstance(value, Markup) else value


def _is(kind: type) -> Any:
    return lambda block: isinstance(block, kind)


def _folded(block: Findings) -> Iterator[tuple[FindingText, list[str]]]:
    """Yield findings by code. Where there are many with one code, the last item has the texts to collapse."""
    by_code: dict[str, list[FindingText]] = {}
    for finding in block.findings:
        by_code.setdefault(finding.code, []).append(finding)
    for findings in by_code.values():
        shown = len(findings) if len(findings) <= MAX_PER_CODE else MAX_PER_CODE - 1
        yield from ((finding, []) for finding in findings[:shown])
        if findings[shown:]:
            yield findings[shown], [finding.text for finding in findings[shown:]]


def _text_columns(table: Table) -> Sequence[bool]:
    return [table.is_text(index) for index in range(len(table.quantities))]


def _numbers(cell: Cell) -> Iterator[tuple[str, str]]:
    """Yield the exact numbers of a cell, by name."""
    for name, number in zip(("value", "low", "high"), cell_ends(cell), strict=True):
        if number is not None:
            yield name, repr(number)


def _key_class(mark: Mark) -> str:
    """Return the CSS class of a mark in the legend."""
    if isinstance(mark, Bars):
        return "bar"
    if mark.symbol == "cross":
        return "cross"
    if not mark.connected:
        return "rings" if mark.symbol == "open" else "dots"
    return mark.kind


def _key_style(mark: Mark) -> str:
    """Return the color of a mark in the legend, as CSS."""
    if isinstance(mark, Line) and mark.symbol == "cross":
        return f"color:var(--{mark.color})"
    filled = isinstance(mark, Bars) or (not mark.connected and mark.symbol != "open")
    fade = "" if isinstance(mark, Bars) else f";opacity:{mark.opacity:.2f}"
    return f"{'background' if filled else 'border-color'}:var(--{mark.color}){fade}"


def plotly_js() -> str:
    """Return plotly.js from the plotly package."""
    try:
        return (files("plotly") / "package_data" / "plotly.min.js").read_text(encoding="utf-8")
    except (ImportError, FileNotFoundError) as error:
        raise ReportError(
            "the page needs plotly's plotly.min.js, which is not installed here; pip install plotly, "
            "or copy the study folder to a machine that has it and write the report there"
        ) from error


def _digest(script: str) -> str:
    """Return the hash of a script for the content security policy, which lets the browser run only our scripts."""
    return base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()


def _file(name: str) -> str:
    return (files("worldsize.report.write") / "templates" / name).read_text(encoding="utf-8")


def _palette() -> str:
    """Return the colors of both themes as CSS variables."""

    def variables(index: int, theme: str) -> str:
        colors = {**{name: shades[index] for name, shades in PALETTE.items()}, **THEMES[theme]}
        return "".join(f"--{name}:{value};" for name, value in colors.items())

    light, dark = variables(0, "light"), variables(1, "dark")
    # Paper is always light; the class `paper` is set while the charts are drawn for print.
    return f":root{{{light}}}\n@media screen and (prefers-color-scheme: dark){{:root:not(.paper){{{dark}}}}}"
