"""Turns figures into input for plotly.js. Colors are tokens such as `$blue/0.2`, which the page replaces."""

from __future__ import annotations

import html
import math
from collections.abc import Iterator, Sequence
from typing import Any

from worldsize.errors import visible
from worldsize.report.figures.model import Axis, Bars, Line, Panel

DASHES = {"measured": "solid", "projected": "dash", "reference": "solid"}
SYMBOLS = {"none": "circle", "circle": "circle", "open": "circle-open", "cross": "x"}
LINE_PANEL_PX = 280
BAR_PX = 34


def chart(panel: Panel, legend: Sequence[str]) -> dict[str, Any]:
    """Return data and layout of one panel. `meta` of a trace is its index in the legend, which shows and hides it."""
    traces: list[dict[str, Any]] = []
    for mark in panel.marks:
        drawn = [_bars(mark, panel.horizontal)] if isinstance(mark, Bars) else list(_line(mark))
        index = legend.index(mark.name) if mark.name in legend else -1
        traces += [{**trace, "meta": index, "name": text(mark.name), "showlegend": False} for trace in drawn]
    labels = next((mark.places for mark in panel.marks if isinstance(mark, Bars)), ())
    layout: dict[str, Any] = {
        "height": LINE_PANEL_PX if not panel.horizontal else 70 + BAR_PX * max(len(labels), 2),
        "xaxis": _axis(panel.x, panel.ticks[0]),
        "yaxis": {**_axis(panel.y, panel.ticks[1]), "title": None},
    }
    if panel.horizontal:
        shown = [text(label) for label in labels]
        layout["barmode"] = "overlay" if any(isinstance(m, Bars) and m.begin for m in panel.marks) else "stack"
        layout["yaxis"] |= {
            "type": "category",
            "autorange": "reversed",
            "categoryarray": shown,
            "showgrid": False,
        }
    return {"data": traces, "layout": layout}


def text(words: str) -> str:
    """Escape text: plotly interprets a few HTML tags, and tags in names of the user must stay text."""
    return html.escape(visible(words), quote=False)


def _hover(hovers: Sequence[str]) -> list[str]:
    """Return tooltips as HTML: the first line becomes the heading."""
    texts = []
    for hover in hovers:
        head, _, rest = text(hover).partition("\n")
        texts.append(f"<b>{head}</b><br>{rest}".replace("\n", "<br>") if rest else head)
    return texts


def _line(mark: Line) -> Iterator[dict[str, Any]]:
    if mark.low and mark.high:
        yield from _band(mark)
    modes = [*(["lines"] if mark.connected else []), *(["markers"] if mark.symbol != "none" else [])]
    modes += ["text"] if mark.labels else []
    thin = mark.kind == "reference"
    yield {
        "type": "scatter",
        "mode": "+".join(modes) or "lines",
        "x": list(mark.x),
        "y": list(mark.y),
        "opacity": mark.opacity,
        "cliponaxis": mark.symbol not in ("cross", "open") and not mark.labels,
        "line": {
            "color": f"${mark.color}",
            "width": 1.3 if thin else 2.2,
            "dash": "dot" if mark.dotted else DASHES[mark.kind],
        },
        "marker": {
            "color": f"${mark.color}",
            "symbol": SYMBOLS[mark.symbol],
            "size": 10 if mark.symbol == "cross" else 7,
            "line": {"color": f"${mark.color}", "width": 1.8 if mark.symbol == "open" else 0},
        },
        **({"hovertext": _hover(mark.hover), "hoverinfo": "text"} if mark.hover else {"hoverinfo": "skip"}),
        **_labels(mark),
    }


def _labels(mark: Line) -> dict[str, Any]:
    if not mark.labels:
        return {}
    return {"text": [text(label) for label in mark.labels], "textposition": "top center"}


def _band(mark: Line) -> Iterator[dict[str, Any]]:
    """Yield a band around each unbroken stretch of the line whose interval is known."""
    for stretch in stretches(mark):
        x = [point[0] for point in stretch]
        outline = {"x": x + x[::-1], "y": [point[1] for point in stretch] + [point[2] for point in reversed(stretch)]}
        hatch = {
            "fillpattern": {
                "shape": "/",
                "size": 7,
                "solidity": 0.25,
                "fgcolor": f"${mark.color}",
                "fillmode": "overlay",
            }
        }
        yield {
            "type": "scatter",
            "mode": "none",
            **outline,
            "fill": "toself",
            "fillcolor": f"${mark.color}/{0.08 if mark.kind == 'projected' else 0.17 * mark.opacity:.2f}",
            "hoverinfo": "skip",
            **(hatch if mark.kind == "projected" else {}),
        }


def stretches(mark: Line) -> list[list[tuple[float, float, float]]]:
    """Return x, low and high of each run of at least two neighboring points with known intervals."""
    pieces: list[list[tuple[float, float, float]]] = [[]]
    for x, low, high in zip(mark.x, mark.low, mark.high, strict=True):
        if low is None or high is None:
            pieces.append([])
        else:
            pieces[-1].append((x, low, high))
    return [stretch for stretch in pieces if len(stretch) > 1]


def _bars(mark: Bars, horizontal: bool) -> dict[str, Any]:
    labels, values = [text(label) for label in mark.places], list(mark.values)
    return {
        "type": "bar",
        "x": values if horizontal else labels,
        "y": labels if horizontal else values,
        "orientation": "h" if horizontal else "v",
        **({"base": list(mark.begin)} if mark.begin else {}),
        "width": 0.62,
        "marker": {"color": f"${mark.color}", "line": {"color": "$card", "width": 1}},
        "text": _hover(mark.hover),
        "textposition": "none",
        "hoverinfo": "text",
    }


def _axis(axis: Axis, ticks: Sequence[tuple[float, str]] | None) -> dict[str, Any]:
    layout: dict[str, Any] = {
        "title": {"text": text(axis.title)},
        "type": "log" if axis.log else "linear",
        "automargin": True,
    }
    if ticks is not None:
        layout |= {"tickvals": [value for value, _ in ticks], "ticktext": [text(words) for _, words in ticks]}
    if axis.from_zero and not axis.log:
        layout["rangemode"] = "tozero"
    if axis.most is not None:
        low, high = (math.log10(end) if axis.log else end for end in (axis.least, axis.most))
        room = 0.03 * (high - low)
        layout["range"] = [low if axis.least == 0 else low - room, high + room]
    return layout
