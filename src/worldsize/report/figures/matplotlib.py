"""Draws figures as SVG, PDF and PNG files for papers: one column wide, fonts embedded, colors as on the page."""

from __future__ import annotations

import io
import logging
import math
import re
import textwrap
import warnings
from collections.abc import Sequence
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure as Canvas
from matplotlib.font_manager import FontProperties
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.textpath import text_to_path
from matplotlib.ticker import FixedLocator, FuncFormatter, MaxNLocator, NullLocator

from worldsize.errors import visible
from worldsize.report.figures.model import FORMATS, PALETTE, Axis, Bars, Figure, Line, Mark, Panel
from worldsize.report.figures.plotly import stretches

UNIT = re.compile(r"(\d) (%|(?:s|ms|us|min|h|x|GB|MB)\b)")
"""A number and its unit, which stay on one line."""


def lines_within(words: str, width_in: float, *, size: float, weight: str = "normal") -> list[str]:
    """Wrap text into lines of at most `width_in` inches at a font size."""
    font = FontProperties(size=size, weight=weight)

    def fits(line: str) -> bool:
        return bool(text_to_path.get_text_width_height_descent(line, font, ismath=False)[0] <= 72 * width_in)

    lines = [""]
    for word in re.split(r"[ \n\t]+", UNIT.sub("\\1\u00a0\\2", visible(words).strip())):
        longer = f"{lines[-1]} {word}".lstrip(" ")
        if fits(longer):
            lines[-1] = longer
        else:
            lines += [word]
            while not fits(lines[-1]):  # break a word that is too long for a line
                most = next(length for length in range(len(lines[-1]) - 1, 0, -1) if fits(lines[-1][:length]))
                lines[-1:] = [lines[-1][:most], lines[-1][most:]]
    return [line for line in lines if line]


WIDTH_IN = 3.4
"""Column width of most journals, in inches."""
PNG_DPI = 300
INK, SOFT, GRID = "#1b2330", "#5b6573", "#e3e6ea"
PANEL_IN = 1.45
BAR_IN = 0.27
MAX_LEGEND = 12
STYLE: Any = {
    "font.family": "sans-serif",
    "font.sans-serif": ["Helvetica", "Arial", "Liberation Sans", "Nimbus Sans", "DejaVu Sans"],
    "font.size": 7.0,
    "text.color": INK,
    "text.parse_math": False,  # a dollar sign in a name is not math
    "axes.labelcolor": SOFT,
    "axes.edgecolor": SOFT,
    "axes.linewidth": 0.6,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "axes.unicode_minus": False,
    "xtick.color": SOFT,
    "ytick.color": SOFT,
    "xtick.labelsize": 6.5,
    "ytick.labelsize": 6.5,
    "xtick.major.width": 0.6,
    "ytick.major.width": 0.6,
    "xtick.major.size": 2.5,
    "ytick.major.size": 0,
    "ytick.minor.size": 0,
    "hatch.linewidth": 0.5,
    "pdf.fonttype": 42,  # TrueType: editable, and journals refuse type 3
    "svg.fonttype": "path",  # text as outlines looks the same everywhere
    "svg.hashsalt": "worldsize",
}
DASHES: dict[str, Any] = {"measured": "-", "projected": (0, (3, 1.6)), "reference": "-"}


def rendered(figure: Figure) -> dict[str, bytes]:
    """Return file contents by name. The same figure always gives the same bytes, because files contain no dates."""
    files = {}
    logging.getLogger("fontTools").setLevel(logging.WARNING)
    with matplotlib.rc_context(STYLE), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing")  # the font may lack a script
        canvas = draw(figure)
        for ending in FORMATS:
            dates: dict[str, Any] = {"svg": {"Date": None}, "pdf": {"CreationDate": None}, "png": {"Software": None}}[
                ending
            ]
            file = io.BytesIO()
            metadata = {"Title": visible(figure.title), **dates}
            canvas.savefig(file, format=ending, dpi=PNG_DPI, metadata=metadata)
            files[f"{figure.key}.{ending}"] = file.getvalue()
    return files


def draw(figure: Figure) -> Canvas:
    """Draw a figure, from top to bottom: title, panels, legend, caption. Heights are in inches."""
    head: dict[str, Any] = {"size": 8.5, "weight": "bold"}
    title = lines_within(figure.title, 0.96 * WIDTH_IN, **head)
    note = lines_within(figure.caption, 0.96 * WIDTH_IN, size=5.6)
    listed = list(figure.legend.items())
    listed = listed[:MAX_LEGEND] if len(listed) > 1 else []
    more = len(figure.legend) - len(listed) if listed else 0
    columns = 1 if max((len(name) for name, _ in listed), default=0) > 28 else 2
    rows = -(-(len(listed) + (1 if more else 0)) // columns)
    heights = [_height(panel) for panel in figure.panels]
    several = len(figure.panels) > 1
    shared = several and len({panel.x for panel in figure.panels}) == 1
    top, above = 0.1 + 0.145 * len(title), 0.06 if figure.panels[0].horizontal else 0.2
    below = [0.2 if shared and panel is not figure.panels[-1] else 0.34 for panel in figure.panels]
    bottom = 0.04 + 0.135 * rows + (0.06 if rows else 0) + 0.1 * len(note)
    total = top + sum(heights) + above * len(heights) + sum(below) + bottom
    canvas = Canvas(figsize=(WIDTH_IN, total))
    FigureCanvasAgg(canvas)
    canvas.text(0.02, 1 - 0.06 / total, "\n".join(title), va="top", ha="left", linespacing=1.2, **head)
    edge = total - top
    for panel, height, under in zip(figure.panels, heights, below, strict=True):
        left = _left(panel)
        edge -= height + above
        axes = canvas.add_axes((left / WIDTH_IN, edge / total, (WIDTH_IN - left - 0.12) / WIDTH_IN, height / total))
        _panel(axes, panel, labeled=not shared or panel is figure.panels[-1])
        edge -= under
    if listed:
        handles = [_handle(mark) for _, mark in listed] + ([Line2D([], [], alpha=0)] if more else [])
        names = [_cut(name) for name, _ in listed] + ([f"and {more} more"] if more else [])
        y = (0.06 + 0.1 * len(note) + 0.03) / total
        canvas.legend(
            handles,
            names,
            loc="lower left",
            bbox_to_anchor=(0.01, y),
            ncol=columns,
            frameon=False,
            fontsize=6.5,
            borderpad=0,
            handlelength=1.7,
            columnspacing=1.2,
            labelspacing=0.35,
        )
    canvas.text(0.02, 0.05 / total, "\n".join(note), va="bottom", ha="left", fontsize=5.6, color=SOFT, linespacing=1.25)
    return canvas


def _height(panel: Panel) -> float:
    labels = next((mark.places for mark in panel.marks if isinstance(mark, Bars)), ())
    return BAR_IN * max(len(labels), 2) + 0.1 if panel.horizontal else PANEL_IN


def _left(panel: Panel) -> float:
    if not panel.horizontal:
        return 0.46
    labels = next(mark.places for mark in panel.marks if isinstance(mark, Bars))
    longest = max(len(line) for label in labels for line in _wrapped(label).split("\n"))
    return min(0.12 + 0.05 * longest, 1.6)


def _wrapped(label: str) -> str:
    return "\n".join(textwrap.wrap(visible(label), 29)[:2])


def _cut(name: str) -> str:
    name = visible(name).replace("\n", " ")
    name = name if len(name) <= 56 else name[:53] + "..."
    return f" {name}" if name.startswith("_") else name  # matplotlib hides labels that begin with _


def _panel(axes: Axes, panel: Panel, *, labeled: bool) -> None:
    if not panel.horizontal:  # above the panel, the title takes no width
        axes.set_title(visible(panel.y.title), loc="left", fontsize=7, color=SOFT, pad=4, x=-0.36 / (WIDTH_IN - 0.6))
    if panel.horizontal:
        _bars(axes, panel)
    for mark in panel.marks:
        if isinstance(mark, Line):
            _line(axes, mark)
    _axis(axes, panel.x, "x", panel.ticks[0])
    if labeled:
        axes.set_xlabel(visible(panel.x.title), fontsize=6.8, labelpad=2)
    if panel.horizontal:
        axes.spines["left"].set_visible(False)
        axes.grid(axis="x", color=GRID, linewidth=0.6)
    else:
        _axis(axes, panel.y, "y", panel.ticks[1])
        axes.grid(axis="y", color=GRID, linewidth=0.6)
        axes.spines["left"].set_visible(False)


def _line(axes: Axes, mark: Line) -> None:
    hue = PALETTE[mark.color][0]
    for stretch in stretches(mark) if mark.low and mark.high else ():
        x, low, high = zip(*stretch, strict=True)
        if mark.kind == "projected":
            axes.fill_between(x, low, high, facecolor="none", edgecolor=hue, hatch="//////", linewidth=0, alpha=0.45)
        else:
            axes.fill_between(x, low, high, color=hue, alpha=0.16 * mark.opacity, linewidth=0)
    y = [float("nan") if value is None else value for value in mark.y]
    marker = {"none": "", "circle": "o", "open": "o", "cross": "X"}[mark.symbol]
    axes.plot(
        mark.x,
        y,
        color=hue,
        alpha=mark.opacity,
        linestyle=((0, (1, 1.4)) if mark.dotted else DASHES[mark.kind]) if mark.connected else "",
        linewidth=0.8 if mark.kind == "reference" else 1.3,
        marker=marker,
        markersize=5 if mark.symbol == "cross" else 3.2,
        markerfacecolor="white" if mark.symbol == "open" else hue,
        markeredgewidth=0.8 if mark.symbol == "open" else 0,
        clip_on=mark.symbol != "cross",
        zorder=4 if mark.symbol == "cross" else 2,
    )
    style: Any = {"xytext": (0, 3), "textcoords": "offset points", "fontsize": 6, "color": INK, "ha": "center"}
    for position, height, label in zip(mark.x, y, mark.labels, strict=False):
        axes.annotate(visible(label), (position, height), **style)


def _bars(axes: Axes, panel: Panel) -> None:
    bars = [mark for mark in panel.marks if isinstance(mark, Bars)]
    labels = bars[0].places
    heights = list(range(len(labels)))
    filled = [0.0] * len(labels)
    for mark in bars:
        begin = list(mark.begin) if mark.begin else filled
        axes.barh(
            heights,
            mark.values,
            left=begin,
            height=0.66,
            color=PALETTE[mark.color][0],
            edgecolor="white",
            linewidth=0.4,
        )
        filled = [start + value for start, value in zip(begin, mark.values, strict=True)]
    axes.set_yticks(heights, [_wrapped(label) for label in labels])
    axes.set_ylim(len(labels) - 0.5, -0.5)


def _axis(axes: Axes, axis: Axis, which: str, ticks: Sequence[tuple[float, str]] | None) -> None:
    scale = getattr(axes, f"set_{which}scale")
    limits = getattr(axes, f"set_{which}lim")
    if axis.log:
        scale("log")
    elif axis.from_zero:
        low, high = getattr(axes, f"get_{which}lim")()
        highest = getattr(axes.dataLim, f"{which}1")  # matplotlib leaves no room above a constant line
        limits(min(0.0, low) if low < 0 and not _none_below(axes, which) else 0.0, max(high, 1.04 * highest))
    if axis.most is not None:
        low, high = (math.log(end) if axis.log else end for end in (axis.least, axis.most))
        ends = (low if axis.least == 0 else low - 0.03 * (high - low), high + 0.03 * (high - low))
        limits(*(math.exp(end) if axis.log else end for end in ends))
    side = getattr(axes, f"{which}axis")
    if ticks is not None:
        low, high = getattr(axes, f"get_{which}lim")()
        side.set_major_locator(FixedLocator([value for value, _ in ticks if low <= value <= high]))
        words = {value: visible(label) for value, label in ticks}
        side.set_major_formatter(FuncFormatter(lambda value, _: words.get(value, "")))
        side.set_minor_locator(NullLocator())
    else:
        side.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.10g}"))
        side.set_major_locator(
            MaxNLocator(6, integer=axis.whole, steps=[1, 2, 2.5, 5, 10] if not axis.whole else [1, 2, 5, 10])
        )


def _none_below(axes: Axes, which: str) -> bool:
    """Return whether all data are at least 0, so that only the margin reaches below 0."""
    data = getattr(axes.dataLim, f"{which}0")
    return bool(data >= 0)


def _handle(mark: Mark) -> Any:
    hue = PALETTE[mark.color][0]
    if isinstance(mark, Bars):
        return Patch(color=hue)
    symbol = {"none": "", "circle": "o", "open": "o", "cross": "X"}[mark.symbol]
    face = "white" if mark.symbol == "open" else hue
    return Line2D(
        [],
        [],
        color=hue,
        alpha=mark.opacity,
        linestyle=DASHES[mark.kind] if mark.connected else "",
        linewidth=0.8 if mark.kind == "reference" else 1.3,
        marker=symbol,
        markersize=3.2,
        markerfacecolor=face,
        markeredgewidth=0.8,
    )
