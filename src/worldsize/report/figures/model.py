"""What a figure is made of, whoever draws it: panels, axes, lines, bars. Plain text and numbers; drawers escape."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from worldsize.report.blocks import Document
from worldsize.report.words.settings import series

Number = float | None
Kind = Literal["measured", "projected", "reference"]
"""Measured is solid, projected is dashed and hatched, a reference is a thin grey line: everywhere."""
FORMATS = ("svg", "pdf", "png")
"""Of figures for print."""

PALETTE = {
    "blue": ("#0072b2", "#5cb3ea"),
    "vermilion": ("#d55e00", "#ff8a4c"),
    "green": ("#008f68", "#2fc79b"),
    "purple": ("#b0568c", "#e29ac4"),
    "orange": ("#dd9400", "#f3b73e"),
    "sky": ("#56b4e9", "#9bd6fa"),
    "brown": ("#7a5c3a", "#c4a27a"),
    "grey": ("#8a919c", "#8d95a3"),
}
"""On light and on dark. Okabe and Ito's colours, which the colour-blind tell apart, a little darker for lines on white;
brown instead of a yellow that white swallows."""
ORDER = ("blue", "vermilion", "green", "purple", "orange", "sky", "brown", "grey")
"""Of series. Grey, which references have, comes last: for the eighth device of a node."""
SPAN_COLOURS = {
    "data": "orange",
    "copy": "brown",
    "forward": "sky",
    "backward": "blue",
    "communication": "vermilion",
    "waiting": "purple",
    "optimizer": "green",
    "rest": "grey",
    "step": "blue",
}
"""Computing is blue; what keeps it from computing is warm."""


def decades(values: Iterable[Number]) -> tuple[tuple[float, str], ...]:
    """Ticks of a log axis: at powers of ten, at most six of them; more closely where there are hardly any."""
    known = [value for value in values if value is not None and value > 0]
    least, most = min(known, default=1.0), max(known, default=10.0)
    span = math.log10(most / least)
    if span < 0.7:
        return tuple((tick, tick_words(tick)) for tick in round_ticks(least, most))
    low, high = math.floor(math.log10(least)), math.ceil(math.log10(most))
    every = -(-(high - low) // 6) or 1
    steps = (1, 2, 5) if span <= 2 else (1,)
    ticks = [step * 10.0**power for power in range(low, high + 1, every) for step in steps]
    return tuple((tick, tick_words(tick)) for tick in ticks)


def round_ticks(least: float, most: float, *, whole: bool = False) -> list[float]:
    """Round numbers at equal distances, about five of them; `whole`: only whole ones."""
    rough = max(most - least, abs(most) * 1e-6, 1e-300) / 5
    size = 10.0 ** math.floor(math.log10(rough))
    step = next(size * factor for factor in (1, 2, 5, 10) if size * factor >= rough * 0.999)
    step = max(step, 1.0) if whole else step
    return [float(f"{place * step:.10g}") for place in range(math.ceil(least / step), math.floor(most / step) + 1)]


def tick_words(tick: float) -> str:
    if 1e-3 <= abs(tick) < 1e5 or tick == 0:
        return f"{tick:,.10g}"
    return f"{tick:.3g}".replace("e-0", "e-").replace("e+0", "e").replace("e+", "e")


def colour(place: int) -> str:
    return ORDER[place % len(ORDER)]


@dataclass(frozen=True, kw_only=True)
class Axis:
    title: str
    """With its unit."""
    log: bool = False
    ticks: tuple[tuple[float, str], ...] | None = None
    """Where ticks stand and what they say; None: the drawer's choice."""
    from_zero: bool = False
    least: float = 0.0
    most: Number = None
    """Where the axis begins and ends, where data alone would choose badly: both count if `most` is given."""
    cut: bool = False
    """Bands reach beyond it."""
    whole: bool = False
    """Only whole numbers mean something: epochs, steps."""


@dataclass(frozen=True, kw_only=True)
class Line:
    name: str
    """In the legend; lines of one name are switched together."""
    x: tuple[float, ...]
    y: tuple[Number, ...]
    low: tuple[Number, ...] = ()
    high: tuple[Number, ...] = ()
    """A band, with the line's hue. Empty: none."""
    colour: str = "blue"
    kind: Kind = "measured"
    dotted: bool = False
    """Of what is measured too, but stands behind: training samples beside test samples."""
    connected: bool = True
    symbol: Literal["none", "circle", "open", "cross"] = "circle"
    opacity: float = 1.0
    """Opacity: of many lines in one hue, the weaker ones."""
    hover: tuple[str, ...] = ()
    """Of each point: the exact value and its interval, shown on hover. Lines are separated by newlines."""
    labels: tuple[str, ...] = ()
    """Of each point, written beside it."""
    in_legend: bool = True
    """Whether the legend names it."""


@dataclass(frozen=True, kw_only=True)
class Bars:
    """One part of stacked bars, or blocks that begin anywhere."""

    name: str
    places: tuple[str, ...]
    values: tuple[float, ...]
    begin: tuple[float, ...] | None = None
    """None: on top of the bars before."""
    colour: str = "blue"
    hover: tuple[str, ...] = ()


Mark = Line | Bars


@dataclass(frozen=True, kw_only=True)
class Panel:
    x: Axis
    y: Axis
    """Its title stands above the panel and names it. Of bars that lie: what the categories are."""
    marks: tuple[Mark, ...]

    horizontal: bool = False
    """Bars lie: categories on the y axis, values on the x axis."""

    @property
    def ticks(self) -> tuple[tuple[tuple[float, str], ...] | None, tuple[tuple[float, str], ...] | None]:
        """Of both axes; None: the drawer's choice."""
        lines = [mark for mark in self.marks if isinstance(mark, Line)]
        x = _ticks(self.x, [value for line in lines for value in line.x])
        y = _ticks(self.y, [value for line in lines for value in (*line.y, *line.low, *line.high)])
        return self.x.ticks or x, self.y.ticks or y


def _ticks(axis: Axis, values: Sequence[Number]) -> tuple[tuple[float, str], ...] | None:
    known = [value for value in values if value is not None]
    if axis.most is not None:
        known = [min(max(value, axis.least), axis.most) for value in known]
    if axis.log:
        return decades(known)
    if axis.whole and known:
        return tuple((tick, tick_words(tick)) for tick in round_ticks(min(known), max(known), whole=True))
    return None


def axis_for(title: str, lines: Sequence[Line], *, from_zero: bool = False, log: bool = False) -> Axis:
    """Of y, around lines and their bands."""
    values = [value for line in lines for value in line.y if value is not None]
    reach = [value for line in lines for value in (*line.low, *line.high) if value is not None]
    return axis_around(title, values, reach, from_zero=from_zero, log=log)


def axis_around(
    title: str, values: Sequence[float], reach: Sequence[float], *, from_zero: bool = False, log: bool = False
) -> Axis:
    """Two runs that disagree have intervals so wide that the lines would be flat: intervals are cut, values never."""
    if not values or not reach:
        return Axis(title=title, from_zero=from_zero, log=log)
    low, high = min(values), max(values)
    if log:
        room = max(high / low, 1.5)
        floor, ceiling = low / room, high * room
    else:
        room = max(high - low, 0.1 * abs(high))
        floor, ceiling = (0.0 if from_zero else low - room), high + room
    cut = min(reach) < floor or max(reach) > ceiling
    least = 0.0 if from_zero and not log else max(min(*reach, low), floor)
    return Axis(title=title, log=log, least=least, most=min(max(*reach, high), ceiling), cut=cut)


@dataclass(frozen=True, kw_only=True)
class Figure:
    key: str
    """Its file's name."""
    section: str
    title: str
    """What it says: a message, not a name."""
    panels: tuple[Panel, ...]
    note: str = ""
    """What band, marks and gaps mean; what was thinned or left out."""

    @property
    def alt(self) -> str:
        """For those who cannot see it."""
        shown = "; ".join(
            f"{panel.y.title if not panel.horizontal else panel.x.title}"
            + (f" against {panel.x.title}" if not panel.horizontal else "")
            for panel in self.panels
        )
        return f"{self.title}. {shown}. {self.caption}".strip()

    @property
    def caption(self) -> str:
        cut = any(panel.x.cut or panel.y.cut for panel in self.panels)
        return self.note + (" Intervals are cut where they leave the picture." if cut else "")

    @property
    def legend(self) -> dict[str, Mark]:
        """Names in order of appearance, with the mark that shows their look."""
        found: dict[str, Mark] = {}
        for panel in self.panels:
            for mark in panel.marks:
                if not isinstance(mark, Line) or mark.in_legend:
                    found.setdefault(mark.name, mark)
        return found


def series_colours(document: Document) -> dict[tuple[Any, ...], str]:
    """A series has one hue in all figures that show it."""
    return {key: colour(place) for place, key in enumerate(series(document))}


def worker_axis(counts: Iterable[float]) -> Axis:
    """Ticks at the counts themselves; equal distances for equal factors once they span much."""
    ordered = sorted(set(counts))
    spread = ordered[-1] / ordered[0] if ordered else 1
    powers = [count for count in ordered if math.log2(count).is_integer() or count == ordered[-1]]
    shown = ordered if len(ordered) <= 8 else powers
    return Axis(title="workers", log=spread >= 8, ticks=tuple((count, f"{count:,.0f}") for count in shown))


def batch_axis(sizes: Iterable[float], title: str) -> Axis:
    ordered = sorted(set(sizes))
    several = len(ordered) > 1
    log = several and ordered[-1] / ordered[0] >= 8
    return Axis(
        title=title,
        # All panels reach as far, also those that say nothing of what did not fit.
        least=ordered[0] if several else 0.0,
        most=ordered[-1] if several else None,
        log=log,
        ticks=tuple((size, short(size)) for size in apart(ordered, log=log)),
    )


def apart(ordered: Sequence[float], *, log: bool) -> list[float]:
    """Of values to be ticks, those that leave room for their labels: a search halves its steps at its end."""
    places = [math.log(value) if log else value for value in ordered]
    room = (places[-1] - places[0]) / 12 if places else 0.0
    kept: list[int] = []
    for at in range(len(ordered)):
        if not kept or places[at] - places[kept[-1]] >= room:
            kept.append(at)
    return [ordered[at] for at in kept]


def short(size: float) -> str:
    """1,024 as 1k: ticks are narrow."""
    if size >= 1024 and size % 1024 == 0:
        return f"{size / 1024:.0f}k" if size < 1024**2 else f"{size / 1024**2:.0f}M"
    return f"{size:,.0f}"
