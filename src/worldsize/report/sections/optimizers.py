"""Comparison of optimizers and learning rates: learning curves, convergence, and the effect of the learning rate."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from worldsize.analysis.estimate import Estimate
from worldsize.analysis.learning.variants import DivergenceEdge, Goal, VariantRanking, VariantSummary
from worldsize.answer.curves import Curve, CurvePoint
from worldsize.answer.evidence import Evidence
from worldsize.answer.results import Results
from worldsize.report.figures.model import (
    Axis,
    Figure,
    Line,
    Panel,
    axis_around,
    axis_for,
    color,
    line,
    spans_decades,
    with_gaps,
)
from worldsize.report.words.headline import either, ties
from worldsize.report.words.numbers import LEVEL_WORDS, counted, metric_value, whole
from worldsize.report.words.quantities import LEARNING_RATE, Quantity, test_metric
from worldsize.report.words.settings import distinguished

LOSS = Quantity(key="loss", title="loss", digits=metric_value)
STEPS_TO_TARGET = Quantity(key="steps_to_target", title="steps to target", short="steps to\ntarget", digits=whole)
MAX_PANELS = 6
MAX_LINES = 7
MAX_CONVERGENCE = 40
MAX_PER_OPTIMIZER = 30
"""Maximum number of curves per panel; a search may have hundreds."""
THIN = 0.3
"""Opacity of the curves of variants other than the best of each optimizer."""

ValueOf = Callable[[CurvePoint], Estimate | None]
CUT = 30.0
"""Multiple of the median first loss above which losses are cut, since diverging runs would flatten the others."""


@dataclass(frozen=True, kw_only=True)
class Contender:
    """A variant that is compared with others of the same setting, with its learning curve."""

    summary: VariantSummary
    curve: Curve

    @property
    def name(self) -> str:
        return self.curve.variant

    @property
    def optimizer(self) -> str:
        return self.curve.variant_without_lr


def comparison(results: Results) -> VariantRanking | None:
    """Return the ranking of the setting with the most variants; None if no setting has several."""
    ranking = max(results.variant_rankings, key=lambda ranking: len(ranking.variants), default=None)
    return ranking if ranking is not None and len(ranking.variants) > 1 else None


def contenders(evidence: Evidence, ranking: VariantRanking) -> list[Contender]:
    """Return the variants of a ranking that have a learning curve, best first."""
    by_variant = {curve.variant: curve for curve in evidence.curves if curve.setting == ranking.setting}
    return [
        Contender(summary=summary, curve=by_variant[summary.variant])
        for summary in ranking.variants
        if summary.variant in by_variant
    ]


def optimizer_colors(ranked: Sequence[Contender]) -> dict[str, str]:
    """Return the color of each optimizer, the same in all figures and for all its learning rates."""
    return {
        optimizer: color(index)
        for index, optimizer in enumerate(dict.fromkeys(contender.optimizer for contender in ranked))
    }


def optimizer_curves(evidence: Evidence, ranking: VariantRanking) -> Figure | None:
    """Draw the metric by epoch, one panel per optimizer. Its best learning rate stands out from the others."""
    facts = evidence.results.facts
    ranked = contenders(evidence, ranking)
    hues = optimizer_colors(ranked)
    # Momentum 0.5 and 0.9 count as two optimizers as long as there is room for both.
    by_family = len(hues) > MAX_PANELS
    groups: dict[str, list[Contender]] = {}
    for contender in ranked:
        groups.setdefault(contender.curve.family if by_family else contender.optimizer, []).append(contender)
    shown = dict(list(groups.items())[:MAX_PANELS])
    quantity = test_metric(facts)
    most = math.inf if facts.higher_is_better else _cut(ranked, lambda point: point.test_metric)
    drawn = {
        name: _strong_and_thin(group[:MAX_PER_OPTIMIZER], quantity, hues[group[0].optimizer], most)
        for name, group in shown.items()
    }
    lines = [drawn_line for marks in drawn.values() for drawn_line in marks]
    longest = max((position for drawn_line in lines for position in drawn_line.x), default=0.0)
    if longest < 2:
        return None
    goal = evidence.results.goal
    until = evidence.results.spec.train.until if evidence.results.spec.train else None
    if until is None or until.metric != facts.metric:
        goal = None
    x = Axis(title="epoch", least=1.0, most=longest, log=longest > 100, whole=True)
    y = _common_axis(lines, goal, log=not facts.higher_is_better and spans_decades(lines))
    target = [_target_line(goal, longest)] if goal else []
    diverged = sum(1 for contender in ranked if contender.curve.diverged)
    return Figure(
        key="curves",
        title=f"All {len(ranked)} variants diverged"
        if diverged == len(ranked)
        else f"{_best_words(ranking)} of {len(ranked)} variants" + (f"; {diverged} diverged" if diverged else ""),
        panels=tuple(
            Panel(x=x, y=replace(y, title=f"{name}: {quantity.heading}"), marks=(*target, *marks))
            for name, marks in drawn.items()
        ),
        note="".join(
            (
                "Strong lines: the best learning rate of each optimizer. Faint lines: its other learning rates.",
                " Means over repeats." if any(contender.curve.repeats > 1 for contender in ranked) else "",
                " Crosses: training diverged." if diverged else "",
                " Values far above the first ones are not drawn." if _is_cut(ranked, most) else "",
                f" Only the {MAX_PER_OPTIMIZER} best of each optimizer."
                if any(len(group) > MAX_PER_OPTIMIZER for group in shown.values())
                else "",
                f" Only the best {len(shown)} of {len(groups)} optimizers." if len(groups) > len(shown) else "",
                _where(evidence, ranking),
            )
        ),
    )


def _strong_and_thin(group: Sequence[Contender], quantity: Quantity, hue: str, most: float) -> tuple[Line, ...]:
    """Return the line of the best variant on top of the others, and crosses on top of all."""
    lines: list[Line] = []
    crosses: list[Line] = []
    for rank, contender in enumerate(group):
        drawn = _compared_line(contender, quantity, lambda point: point.test_metric, most)
        if drawn is not None:
            shown = _strong(drawn, hue) if rank == 0 else _thin(drawn, hue)
            cross = _cross(contender.curve, shown)
            if len(drawn.x) > 1 or not cross:  # below a cross, a single point could not be pointed at
                lines.append(shown)
            crosses += cross
    return (*reversed(lines), *crosses)


def _strong(drawn: Line, hue: str) -> Line:
    return replace(drawn, color=hue)


def _thin(drawn: Line, hue: str) -> Line:
    symbol = drawn.symbol if len(drawn.x) == 1 else "none"  # a curve of one epoch is a point
    return replace(drawn, color=hue, opacity=THIN, in_legend=False, symbol=symbol)


def _common_axis(lines: Sequence[Line], goal: Goal | None, *, log: bool) -> Axis:
    values = [value for drawn in lines for value in drawn.y if value is not None]
    values += [goal.value] if goal else []
    least, most = min(values), max(values)
    return (
        Axis(title="", log=log and least > 0, least=least, most=most) if least < most else axis_around("", values, [])
    )


def _target_line(goal: Goal, longest: float) -> Line:
    return Line(
        name="target",
        x=(1.0, longest),
        y=(goal.value, goal.value),
        kind="reference",
        color="gray",
        symbol="none",
        hover=(f"target {metric_value(goal.value)}",) * 2,
    )


def _where(evidence: Evidence, ranking: VariantRanking) -> str:
    """Name the setting, if there are several."""
    among = evidence.results.variant_rankings
    return f" At {distinguished(ranking, among)}." if len(among) > 1 else ""


def _cut(ranked: Sequence[Contender], of: ValueOf) -> float:
    starts = sorted(start for contender in ranked if (start := _first(contender.curve, of)) is not None)
    return CUT * (starts[len(starts) // 2] if starts else 1.0)


def _first(curve: Curve, of: ValueOf) -> float | None:
    return next((value.value for point in curve.points if (value := of(point)) and value.value > 0), None)


def _is_cut(ranked: Sequence[Contender], most: float) -> bool:
    return any(
        (value := point.test_metric) is not None and value.value > most
        for contender in ranked
        for point in contender.curve.points
    )


def _compared_line(contender: Contender, quantity: Quantity, of: ValueOf, most: float) -> Line | None:
    """Return the curve up to `most`; None if all of it is above."""
    curve = contender.curve
    points = [
        (point, value.value)
        for point in curve.points
        if (value := of(point)) is not None and (value.value > 0 or math.isinf(most))
    ]
    beyond = next((index for index, (_, value) in enumerate(points) if value > most), len(points))
    if curve.diverged == curve.repeats:  # the line ends with a cross at the top of the figure
        points = [(point, min(value, most)) for point, value in points[: beyond + 1]]
    inside = [(point, value) for point, value in points if value <= most]
    drawn = line(
        contender.name,
        inside,
        quantity,
        x=lambda pair: float(pair[0].epoch),
        y=lambda pair: pair[1],
        lead=lambda pair: f"{contender.name}, epoch {pair[0].epoch}",
        symbol="none" if len(points) > 12 else "circle",
    )
    # A line that comes back below `most` has a gap.
    return with_gaps(drawn, [float(point.epoch) for point, _ in points]) if drawn.x else None


def _cross(curve: Curve, drawn: Line) -> list[Line]:
    """Return a cross at the end of a curve that diverged."""
    if not curve.diverged:
        return []
    cross: Any = {
        "connected": False,
        "symbol": "cross",
        "in_legend": False,
        "opacity": 1.0,
        "hover": (_diverged_words(curve),),
    }
    return [replace(drawn, x=drawn.x[-1:], y=drawn.y[-1:], **cross)]


def _diverged_words(curve: Curve) -> str:
    at = f", at step {curve.diverged_at_steps[0]}" if curve.diverged_at_steps else ""
    return f"{curve.variant}\n{curve.diverged} of {curve.repeats} diverged{at}"


MAX_CONVERGENCE = 40


def convergence(evidence: Evidence) -> Figure | None:
    """Draw the loss of every variant by epoch on a log axis; None if the metric is the loss, which `curves` shows."""
    ranking = comparison(evidence.results)
    if ranking is None or evidence.results.facts.metric == "loss":
        return None
    ranked = contenders(evidence, ranking)
    hues = optimizer_colors(ranked)
    on_training = bool(ranked) and any(point.train_loss for point in ranked[0].curve.points)
    of: ValueOf = (lambda point: point.train_loss) if on_training else (lambda point: point.test_loss)
    most = _cut(ranked, of)
    shown = ranked[:MAX_CONVERGENCE]
    strong: dict[str, Line] = {}
    thin: list[Line] = []
    crosses: list[Line] = []
    for contender in shown:
        drawn = _compared_line(contender, LOSS, of, most)
        if drawn is None:
            continue
        if contender.optimizer not in strong:
            strong[contender.optimizer] = drawn = _strong(drawn, hues[contender.optimizer])
        else:
            thin.append(drawn := _thin(drawn, hues[contender.optimizer]))
        crosses += _cross(contender.curve, drawn)
    if len(strong) + len(thin) < 2:
        return None
    diverged = sum(1 for contender in shown if contender.curve.diverged)
    crossed = " Crosses: training diverged; losses far above the first ones are not drawn." if diverged else ""
    more = (
        f" Only the best {len(shown)} of {len(ranked)} variants; the table has all." if len(ranked) > len(shown) else ""
    )
    axis = Axis(title="epoch", whole=True, log=max(contender.curve.epochs for contender in shown) > 100)
    panel = Panel(
        x=axis,
        y=Axis(title=f"{'training' if on_training else 'test'} loss", log=True),
        marks=(*thin, *strong.values(), *crosses),
    )
    return Figure(
        key="convergence",
        title=f"Loss of {len(shown)} variants" + (f"; {diverged} diverged" if diverged else ""),
        panels=(panel,),
        note="Lower curves learn faster. One color per optimizer: strong for its best learning rate, faint for "
        f"the others. Means over repeats.{crossed}" + _where(evidence, ranking) + more,
    )


def steps_by_rate(evidence: Evidence) -> Figure | None:
    """Draw steps to the target, or else the final metric, by learning rate, with one line per optimizer."""
    ranking = comparison(evidence.results)
    if ranking is None:
        return None
    ranked = contenders(evidence, ranking)
    hues = optimizer_colors(ranked)
    groups: dict[str, list[Contender]] = {}
    for contender in sorted(ranked, key=lambda contender: contender.curve.peak_lr):
        groups.setdefault(contender.optimizer, []).append(contender)
    # In the order of the colors, best optimizer first.
    groups = {name: groups[name] for name in list(hues)[:MAX_LINES]}
    if all(len({contender.curve.peak_lr for contender in group}) < 2 for group in groups.values()):
        return None
    results = evidence.results
    quantity = STEPS_TO_TARGET if results.goal else test_metric(results.facts)
    of = _steps if results.goal else _metric
    lines = [drawn for name, group in groups.items() if (drawn := _by_rate(group, quantity, of, hues[name])).x]
    if not lines:
        return None
    fitted = axis_for(quantity.heading, lines, log=results.goal is not None or spans_decades(lines))
    diverging = [group for group in groups.values() if any(contender.curve.diverged for contender in group)]
    y, heights = _with_rows_above(fitted, lines, len(diverging))
    crosses = [
        _crosses(group, height, hues[group[0].optimizer]) for group, height in zip(diverging, heights, strict=True)
    ]
    edges = {
        name: edge
        for name, group in groups.items()
        if (edge := results.edges.get((ranking.setting, group[0].curve.family, name)))
    }
    best_end = "highest" if results.goal is None and results.facts.higher_is_better else "lowest"
    limits = [_edge_line(name, edge, hues[name], y) for name, edge in edges.items()]
    return Figure(
        key="steps-by-rate",
        title=_rate_title(ranking, ranked[0], quantity, of(ranked[0])),
        panels=(Panel(x=Axis(title=LEARNING_RATE.title, log=True), y=y, marks=(*limits, *lines, *crosses)),),
        note="".join(
            (
                f"The {best_end} point of a line is the best learning rate of its optimizer. ",
                f"Bands: {LEVEL_WORDS}s over repeats." if any(drawn.low for drawn in lines) else "One run each.",
                " Crosses: training diverged." if crosses else "",
                " Dotted: learning rate above which the optimizer of that color diverges." if limits else "",
                " Learning rates without a point did not reach the target." if _is_missing(ranked, of) else "",
                f" Only the best {len(groups)} of {len(hues)} optimizers." if len(hues) > len(groups) else "",
                _where(evidence, ranking),
            )
        ),
    )


def _best_words(ranking: VariantRanking) -> str:
    """`adam rate 0.01 is the best`, or that several variants are equally good."""
    equal = ties(ranking)
    if not equal:
        return f"{ranking.best_variants[0].variant} is the best"
    return f"{either(ranking.best_variants[0].variant, *(variant.variant for variant in equal))} may be the best"


def _rate_title(ranking: VariantRanking, best: Contender, quantity: Quantity, value: Estimate | None) -> str:
    if value is None or ties(ranking):  # the best overall did not reach the target, or is not alone
        return f"{quantity.title} by learning rate".capitalize()
    if quantity is STEPS_TO_TARGET:
        return f"{best.name} reaches the target in the fewest steps: {quantity.said(value.value)}"
    return f"{best.name} ends with the best {quantity.title}: {quantity.said(value.value)}"


def _steps(contender: Contender) -> Estimate | None:
    return contender.summary.target.steps if contender.summary.target else None


def _metric(contender: Contender) -> Estimate | None:
    return contender.summary.metric


def _is_missing(ranked: Sequence[Contender], of: Callable[[Contender], Estimate | None]) -> bool:
    return of is _steps and any(of(contender) is None and not contender.curve.diverged for contender in ranked)


def _by_rate(
    group: Sequence[Contender], quantity: Quantity, of: Callable[[Contender], Estimate | None], hue: str
) -> Line:
    return line(
        group[0].optimizer,
        group,
        quantity,
        x=lambda contender: contender.curve.peak_lr,
        y=of,
        lead=lambda contender: contender.name,
        after=lambda contender: counted(contender.curve.repeats, "run"),
        color=hue,
    )


ROW = 0.07
"""Distance between rows of crosses, as a share of the height of the lines."""


def _with_rows_above(axis: Axis, lines: Sequence[Line], count: int) -> tuple[Axis, list[float]]:
    """Return the axis with room for rows of crosses at its top, and the heights of the rows.

    There is one row per optimizer, since several optimizers may diverge at the same learning rate.
    """
    values = [value for drawn in lines for value in drawn.y if value is not None]
    least, most = (axis.least, axis.most) if axis.most is not None else (min(values), max(values))
    if axis.log:
        size = max(math.log(most / least), 0.5)
        heights = [most * math.exp(ROW * size * (row + 1)) for row in range(count)]
    else:
        size = (most - least) or 0.1 * abs(most) or 1.0
        heights = [most + ROW * size * (row + 1) for row in range(count)]
    return replace(axis, least=least, most=max([most, *heights])), heights[::-1]


def _crosses(group: Sequence[Contender], height: float, hue: str) -> Line:
    diverged = [contender for contender in group if contender.curve.diverged]
    return Line(
        name=group[0].optimizer,
        x=tuple(contender.curve.peak_lr for contender in diverged),
        y=(height,) * len(diverged),
        color=hue,
        connected=False,
        symbol="cross",
        in_legend=False,
        hover=tuple(_diverged_words(contender.curve) for contender in diverged),
    )


def _edge_line(name: str, edge: DivergenceEdge, hue: str, axis: Axis) -> Line:
    assert axis.most is not None
    said = f"{name} diverges above about {LEARNING_RATE.text(edge.estimate)}\n" + (
        f"{LEARNING_RATE.text(edge.stable_lr)} was stable, {LEARNING_RATE.text(edge.diverged)} diverged"
    )
    return Line(
        name=name,
        x=(edge.estimate, edge.estimate),
        y=(axis.least, axis.most),
        kind="reference",
        dotted=True,
        color=hue,
        symbol="none",
        in_legend=False,
        hover=(said, said),
    )
