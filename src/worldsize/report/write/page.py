"""The page: one self-contained file that opens from disk. Templates draw the blocks of a report."""

from __future__ import annotations

import base64
import hashlib
import itertools
from collections.abc import Iterator, Sequence
from functools import cache
from importlib.resources import files
from typing import Any, get_args

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from worldsize import __version__
from worldsize.errors import ReportError, visible
from worldsize.report.blocks import Block, Cell, Findings, FindingText, Report, Table
from worldsize.report.figures.model import FORMATS, PALETTE, Bars, Figure, Line, Mark
from worldsize.report.figures.plotly import chart
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
LONG = 150
"""Answers with more characters use a smaller font."""
MOST_ALIKE = 4
"""Up to this many findings of one code are shown in full; otherwise all but the first three are collapsed."""


def to_page(report: Report, *, print_files: bool, live: bool) -> str:
    """`print_files`: figures for print are next to the page.

    `live`: the study still runs, and the page refreshes itself.
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
        "hue": _hue,
        "look": _look,
        "numbers": _numbers,
        "range": cell_range,
        "text_columns": _text_columns,
        "value": cell_value,
    }
    return environment


def _visible(value: Any) -> Any:
    """Makes control characters visible in everything that a template prints; Jinja escapes it after that."""
    return visible(value) if isinstance(value, str) and not isinstance(value, Markup) else value


def _is(kind: type) -> Any:
    return lambda block: isinstance(block, kind)


def _folded(block: Findings) -> Iterator[tuple[FindingText, list[str]]]:
    """Findings by code; where there are many of one code, the last of them as texts to collapse."""
    kinds: dict[str, list[FindingText]] = {}
    for finding in block.findings:
        kinds.setdefault(finding.code, []).append(finding)
    for alike in kinds.values():
        shown = len(alike) if len(alike) <= MOST_ALIKE else MOST_ALIKE - 1
        yield from ((finding, []) for finding in alike[:shown])
        if alike[shown:]:
            yield alike[shown], [finding.text for finding in alike[shown:]]


def _text_columns(table: Table) -> Sequence[bool]:
    return [table.is_text(index) for index in range(len(table.quantities))]


def _numbers(cell: Cell) -> Iterator[tuple[str, str]]:
    """The exact numbers of a cell, by name."""
    for name, number in zip(("value", "low", "high"), cell_ends(cell), strict=True):
        if number is not None:
            yield name, repr(number)


def _look(mark: Mark) -> str:
    if isinstance(mark, Bars):
        return "bar"
    if mark.symbol == "cross":
        return "cross"
    if not mark.connected:
        return "rings" if mark.symbol == "open" else "dots"
    return mark.kind


def _hue(mark: Mark) -> str:
    if isinstance(mark, Line) and mark.symbol == "cross":
        return f"color:var(--{mark.color})"
    filled = isinstance(mark, Bars) or (not mark.connected and mark.symbol != "open")
    fade = "" if isinstance(mark, Bars) else f";opacity:{mark.opacity:.2f}"
    return f"{'background' if filled else 'border-color'}:var(--{mark.color}){fade}"


def plotly_js() -> str:
    """plotly.js as shipped in the plotly package."""
    try:
        return (files("plotly") / "package_data" / "plotly.min.js").read_text(encoding="utf-8")
    except (ImportError, FileNotFoundError) as error:
        raise ReportError(
            "the page needs plotly's plotly.min.js, which is not installed here; pip install plotly, "
            "or copy the study folder to a machine that has it"
        ) from error


def _digest(script: str) -> str:
    """Hash for the content security policy, which lets the browser run only our scripts."""
    return base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()


def _file(name: str) -> str:
    return (files("worldsize.report.write") / "templates" / name).read_text(encoding="utf-8")


def _palette() -> str:
    def variables(index: int, theme: str) -> str:
        every = {**{name: shades[index] for name, shades in PALETTE.items()}, **THEMES[theme]}
        return "".join(f"--{name}:{value};" for name, value in every.items())

    light, dark = variables(0, "light"), variables(1, "dark")
    # Paper is always light; the class `paper` is set while the charts are drawn for print.
    return f":root{{{light}}}\n@media screen and (prefers-color-scheme: dark){{:root:not(.paper){{{dark}}}}}"
