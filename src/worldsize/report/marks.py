"""What a figure is made of, whoever draws it: panels, axes, lines, bars. Plain text and numbers; drawers escape."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

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
ORDER = ("blue", "vermilion", "green", "purple", "orange", "sky", "brown")
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
    """Ticks of a log axis: at powers of ten, at most six of them; more closely where there is hardly one."""
    known = [math.log10(value) for value in values if value is not None and value > 0]
    low, high = math.floor(min(known, default=0.0)), math.ceil(max(known, default=1.0))
    every = -(-(high - low) // 6) or 1
    steps = (1, 2, 5) if high - low <= 2 else (1,)
    ticks = [step * 10.0**power for power in range(low, high + 1, every) for step in steps]
    return tuple(
        (
            tick,
            f"{tick:,.10g}"
            if 1e-3 <= tick < 1e5
            else f"{tick:.0e}".replace("e-0", "e-").replace("e+0", "e").replace("e+", "e"),
        )
        for tick in ticks
    )


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
    joined: bool = True
    symbol: Literal["none", "circle", "open", "cross"] = "circle"
    fade: float = 1.0
    """Opacity: of many lines in one hue, the weaker ones."""
    says: tuple[str, ...] = ()
    """Of each point: the exact value and its interval, shown on hover. Lines are separated by newlines."""
    label: str = ""
    """Written at the last point; for references."""
    listed: bool = True
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
    says: tuple[str, ...] = ()


Mark = Line | Bars


@dataclass(frozen=True, kw_only=True)
class Panel:
    x: Axis
    y: Axis
    """Its title stands above the panel and names it. Of bars that lie: what the categories are."""
    marks: tuple[Mark, ...]

    across: bool = False
    """Bars lie: categories on the y axis, values on the x axis."""

    @property
    def ticks(self) -> tuple[tuple[tuple[float, str], ...] | None, tuple[tuple[float, str], ...] | None]:
        """Of both axes; None: the drawer's choice."""
        lines = [mark for mark in self.marks if isinstance(mark, Line)]
        x = decades(value for line in lines for value in line.x) if self.x.log else None
        y = decades(v for line in lines for v in (*line.y, *line.low, *line.high)) if self.y.log else None
        return self.x.ticks or x, self.y.ticks or y


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
            f"{panel.y.title if not panel.across else panel.x.title}"
            + (f" against {panel.x.title}" if not panel.across else "")
            for panel in self.panels
        )
        return f"{self.title}. {shown}. {self.note}".strip()

    @property
    def legend(self) -> dict[str, Mark]:
        """Names in order of appearance, with the mark that shows their look."""
        found: dict[str, Mark] = {}
        for panel in self.panels:
            for mark in panel.marks:
                if not isinstance(mark, Line) or mark.listed:
                    found.setdefault(mark.name, mark)
        return found
