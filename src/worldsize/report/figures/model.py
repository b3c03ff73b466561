"""Figures as data: panels, axes, lines and bars. Texts are plain; the modules that draw them escape them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeVar

from worldsize.analysis.estimate import Estimate
from worldsize.answer.results import Results
from worldsize.report.words.quantities import Quantity
from worldsize.spec.setting import SeriesKey

T = TypeVar("T")

Number = float | None
Kind = Literal["measured", "projected", "reference"]
"""In all figures, measured lines are solid, projected ones dashed with hatched bands, references thin and gray."""
FORMATS = ("svg", "pdf", "png")
"""File formats of figures for print."""

PALETTE = {
    "blue": ("#0072b2", "#5cb3ea"),
    "vermilion": ("#d55e00", "#ff8a4c"),
    "green": ("#008f68", "#2fc79b"),
    "purple": ("#b0568c", "#e29ac4"),
    "orange": ("#dd9400", "#f3b73e"),
    "sky": ("#56b4e9", "#9bd6fa"),
    "brown": ("#7a5c3a", "#c4a27a"),
    "gray": ("#8a919c", "#8d95a3"),
}
"""Each color on light and on dark background. Based on Okabe and Ito's palette for color-blind readers, slightly darker
for lines on white, and with brown instead of yellow, which is hard to see on white."""
ORDER = ("blue", "vermilion", "green", "purple", "orange", "sky", "brown", "gray")
"""Order in which lines get colors. Gray, the color of references, comes last: only an eighth line uses it."""
SPAN_COLORS = {
    "data": "orange",
    "copy": "brown",
    "forward": "sky",
    "backward": "blue",
    "communication": "vermilion",
    "waiting": "purple",
    "optimizer": "green",
    "rest": "gray",
    "step": "blue",
}
"""Computing is blue; waiting and overhead have warm colors."""


def decades(values: Iterable[Number]) -> tuple[tuple[float, str], ...]:
    """Return the ticks of a log axis: about six powers of ten, or more ticks per decade for a narrow range."""
    known = [value for value in values if value is not None and value > 0]
    least, most = min(known, default=1.0), max(known, default=10.0)
    span = math.log10(most / least)
    if span < 0.7:
        return tuple((tick, tick_words(tick)) for tick in round_ticks(least, most))
    low, high = math.floor(math.log10(least)), math.ceil(math.log10(most))
    stride = -(-(high - low) // 6) or 1
    steps = (1, 2, 5) if span <= 2 else (1,)
    ticks = [step * 10.0**power for power in range(low, high + 1, stride) for step in steps]
    return tuple((tick, tick_words(tick)) for tick in ticks)


def round_ticks(least: float, most: float, *, whole: bool = False) -> list[float]:
    """Return about five round numbers at equal distances; only whole numbers if `whole`."""
    rough = max(most - least, abs(most) * 1e-6, 1e-300) / 5
    size = 10.0 ** math.floor(math.log10(rough))
    step = next(size * factor for factor in (1, 2, 5, 10) if size * factor >= rough * 0.999)
    step = max(step, 1.0) if whole else step
    return [
        float(f"{multiple * step:.10g}") for multiple in range(math.ceil(least / step), math.floor(most / step) + 1)
    ]


def tick_words(tick: float) -> str:
    if 1e-3 <= abs(tick) < 1e5 or tick == 0:
        return f"{tick:,.10g}"
    return f"{tick:.3g}".replace("e-0", "e-").replace("e+0", "e").replace("e+", "e")


def color(index: int) -> str:
    """Return the color of a line by its position."""
    return ORDER[index % len(ORDER)]


@dataclass(frozen=True, kw_only=True)
class Axis:
    title: str
    """Includes the unit."""
    log: bool = False
    ticks: tuple[tuple[float, str], ...] | None = None
    """Position and label of each tick; None: the drawing library chooses."""
    from_zero: bool = False
    least: float = 0.0
    most: Number = None
    """Limits of the axis. None: the drawing library chooses both, and `least` is ignored."""
    cut: bool = False
    """Whether bands extend beyond the axis."""
    whole: bool = False
    """Whether only whole numbers are meaningful, such as epochs."""


@dataclass(frozen=True, kw_only=True)
class Line:
    name: str
    """Name in the legend, which shows and hides all lines of the same name together."""
    x: tuple[float, ...]
    y: tuple[Number, ...]
    low: tuple[Number, ...] = ()
    high: tuple[Number, ...] = ()
    """Ends of a band around the line. Empty: no band."""
    color: str = "blue"
    kind: Kind = "measured"
    dotted: bool = False
    """For secondary measured data, such as training samples next to test samples."""
    connected: bool = True
    symbol: Literal["none", "circle", "open", "cross"] = "circle"
    opacity: float = 1.0
    """Lower for less important lines of the same color."""
    hover: tuple[str, ...] = ()
    """Tooltip of each point: a heading line, then the exact value with its interval and more lines."""
    labels: tuple[str, ...] = ()
    """Text written next to each point."""
    in_legend: bool = True
    """Whether the legend lists it."""


@dataclass(frozen=True, kw_only=True)
class Bars:
    """One part of stacked bars, or blocks with their own start."""

    name: str
    places: tuple[str, ...]
    values: tuple[float, ...]
    begin: tuple[float, ...] | None = None
    """Start of each block; None: stacked on the previous bars."""
    color: str = "blue"
    hover: tuple[str, ...] = ()


Mark = Line | Bars


@dataclass(frozen=True, kw_only=True)
class Panel:
    x: Axis
    y: Axis
    """Its title is shown above the panel. For horizontal bars, it names the categories."""
    marks: tuple[Mark, ...]

    horizontal: bool = False
    """True for horizontal bars: categories on the y axis, values on the x axis."""

    @property
    def ticks(self) -> tuple[tuple[tuple[float, str], ...] | None, tuple[tuple[float, str], ...] | None]:
        """Ticks of the x and the y axis; None: the drawing library chooses."""
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
    """Return the y axis that fits lines and their bands."""
    values = [value for line in lines for value in line.y if value is not None]
    reach = [value for line in lines for value in (*line.low, *line.high) if value is not None]
    return axis_around(title, values, reach, from_zero=from_zero, log=log)


def axis_around(
    title: str, values: Sequence[float], reach: Sequence[float], *, from_zero: bool = False, log: bool = False
) -> Axis:
    """Return an axis that shows all values but cuts very wide intervals, which would flatten the lines."""
    if len(set(values)) == 1 and not from_zero and set(reach) <= set(values):
        # A constant line. By default, the drawing libraries show 1 below and above it, even for shares.
        margin = 0.1 * abs(values[0]) or 1.0
        return Axis(title=title, least=values[0] - margin, most=values[0] + margin)
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
    """File name without its suffix."""
    title: str
    """The result that the figure shows, as a headline."""
    panels: tuple[Panel, ...]
    note: str = ""
    """What the figure shows, what bands and marks mean, and what was left out."""

    @property
    def alt(self) -> str:
        """Description for readers who cannot see the figure."""
        shown = "; ".join(
            f"{panel.y.title if not panel.horizontal else panel.x.title}"
            + (f" against {panel.x.title}" if not panel.horizontal else "")
            for panel in self.panels
        )
        return f"{self.title}. {shown}. {self.caption}".strip()

    @property
    def caption(self) -> str:
        """The note, and whether intervals are cut."""
        cut = any(panel.x.cut or panel.y.cut for panel in self.panels)
        return self.note + (" Very wide intervals are cut at the edge." if cut else "")

    @property
    def legend(self) -> dict[str, Mark]:
        """Names in order of appearance, each with the first mark of that name, which shows its style."""
        marks: dict[str, Mark] = {}
        for panel in self.panels:
            for mark in panel.marks:
                if not isinstance(mark, Line) or mark.in_legend:
                    marks.setdefault(mark.name, mark)
        return marks


def worker_axis(counts: Iterable[float]) -> Axis:
    """Return an axis with ticks at the worker counts, logarithmic if they span a factor of 8 or more."""
    ordered = sorted(set(counts))
    spread = ordered[-1] / ordered[0] if ordered else 1
    powers = [count for count in ordered if math.log2(count).is_integer() or count == ordered[-1]]
    shown = ordered if len(ordered) <= 8 else powers
    return Axis(title="workers", log=spread >= 8, ticks=tuple((count, f"{count:,.0f}") for count in shown))


def batch_axis(sizes: Iterable[float], title: str) -> Axis:
    """Return an axis with ticks at the batch sizes, logarithmic if they span a factor of 8 or more."""
    ordered = sorted(set(sizes))
    several = len(ordered) > 1
    log = several and ordered[-1] / ordered[0] >= 8
    return Axis(
        title=title,
        # Fixed limits, so that panels without data for the batches that did not fit have the same axis.
        least=ordered[0] if several else 0.0,
        most=ordered[-1] if several else None,
        log=log,
        ticks=tuple((size, short(size)) for size in apart(ordered, log=log)),
    )


def apart(ordered: Sequence[float], *, log: bool) -> list[float]:
    """Return the values whose tick labels do not overlap; the last steps of a batch search are close together."""
    positions = [math.log(value) if log else value for value in ordered]
    room = (positions[-1] - positions[0]) / 12 if positions else 0.0
    kept: list[int] = []
    for index in range(len(ordered)):
        if not kept or positions[index] - positions[kept[-1]] >= room:
            kept.append(index)
    return [ordered[index] for index in kept]


def short(size: float) -> str:
    """Return a short tick label: 1k for 1,024."""
    if size >= 1024 and size % 1024 == 0:
        return f"{size / 1024:.0f}k" if size < 1024**2 else f"{size / 1024**2:.0f}M"
    return f"{size:,.0f}"


def colors_of_series(results: Results) -> dict[SeriesKey, str]:
    """Return the color of each series, the same in all figures."""
    return {series.rows[0].setting.series: color(index) for index, series in enumerate(results.series)}


def line(
    name: str,
    rows: Sequence[T],
    quantity: Quantity,
    *,
    x: Callable[[T], float],
    y: Callable[[T], Estimate | float | None],
    lead: Callable[[T], str],
    after: Callable[[T], str] = lambda _: "",
    **look: Any,
) -> Line:
    """Return a line whose values, band and tooltips come from one quantity; rows without a value are left out.

    `lead` and `after` give the lines of the tooltip before and after the value.
    """
    points = [(row, value) for row in rows if (value := y(row)) is not None]
    estimates = [value if isinstance(value, Estimate) else Estimate(value=value) for _, value in points]
    scaled = [estimate.scaled(quantity.factor) for estimate in estimates]
    has_band = any(estimate.has_interval for estimate in scaled)
    return Line(
        name=name,
        x=tuple(x(row) for row, _ in points),
        y=tuple(estimate.value for estimate in scaled),
        low=tuple(estimate.ends[0] for estimate in scaled) if has_band else (),
        high=tuple(estimate.ends[1] for estimate in scaled) if has_band else (),
        hover=tuple(
            "\n".join(filter(None, (lead(row), f"{quantity.title} {quantity.full(estimate)}", after(row))))
            for (row, _), estimate in zip(points, estimates, strict=True)
        ),
        **look,
    )


def with_gaps(drawn: Line, x: Sequence[float]) -> Line:
    """Return the line with gaps at the positions in `x` where it has no value; unchanged if it has no values."""
    if not drawn.x or len(drawn.x) == len(x):
        return drawn
    index = {position: number for number, position in enumerate(drawn.x)}

    def spread(values: Sequence[Number]) -> tuple[Number, ...]:
        return tuple(values[index[position]] if position in index else None for position in x) if values else ()

    hover = tuple(drawn.hover[index[position]] if position in index else "" for position in x)
    return replace(drawn, x=tuple(x), y=spread(drawn.y), low=spread(drawn.low), high=spread(drawn.high), hover=hover)


def spans_decades(lines: Sequence[Line]) -> bool:
    """Return whether the values span so many decades that a log axis is better."""
    values = [value for drawn in lines for value in drawn.y if value is not None]
    return bool(values) and min(values) > 0 and max(values) / min(values) > 30
