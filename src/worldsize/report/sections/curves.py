"""Training over time: learning curves and gradient noise; tables and figures."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from worldsize.analysis.estimate import Estimate
from worldsize.analysis.learning.noise_scale import NoiseScale
from worldsize.answer.curves import Curve, CurvePoint, NoiseOverTime
from worldsize.answer.evidence import Evidence
from worldsize.report.blocks import Column, Table, setting_columns, table
from worldsize.report.figures.model import Axis, Figure, Line, Panel, color, line, spans_decades, with_gaps
from worldsize.report.sections.optimizers import comparison, optimizer_curves
from worldsize.report.words.glossary import meaning
from worldsize.report.words.numbers import LEVEL_WORDS, counted, metric_value, whole
from worldsize.report.words.quantities import VARIANT, Quantity
from worldsize.report.words.settings import distinguished, more_words
from worldsize.spec.setting import Setting

NOISE_SCALE = Quantity(
    key="noise_scale",
    title="noise scale",
    unit="samples",
    about="Global batch beyond which more samples per step hardly improve a step.",
)
AT_LEAST = Quantity(key="noise_scale_at_least", title="at least", unit="samples")
NOISE_STEPS = Quantity(key="steps", title="steps examined", digits=whole)


@dataclass(frozen=True, kw_only=True)
class Noise:
    """Noise scale of one variant at one setting."""

    setting: Setting
    variant: str
    scale: NoiseScale


def noise_scale(evidence: Evidence) -> Table | None:
    """Return the gradient noise scale, one row per variant and setting for which it was recorded."""
    rows = [
        Noise(setting=setting, variant=variant, scale=scale)
        for setting, variant, scale in evidence.results.noise_scales
    ]
    columns: list[Column[Noise]] = [
        Column(quantity=VARIANT, of=lambda row: row.variant),
        *setting_columns(rows),
        Column(quantity=NOISE_SCALE, of=lambda row: _estimate_of(row.scale)),
        Column(quantity=AT_LEAST, of=lambda row: row.scale.low if row.scale.value is None else None),
        Column(quantity=NOISE_STEPS, of=lambda row: row.scale.steps, terminal=False),
    ]
    return table(
        "noise-scale",
        "Gradient noise scale in the second half of training",
        rows,
        columns,
        note=f"{meaning('gradient noise scale')} {LEVEL_WORDS}s. No number: the gradient cannot be distinguished from "
        "noise in these steps.",
    )


def _estimate_of(scale: NoiseScale) -> Estimate | None:
    return None if scale.value is None else Estimate(value=scale.value, low=scale.low, high=scale.high)


MAX_CURVES = 7

ValueOf = Callable[[CurvePoint], Estimate | None]


def curves(evidence: Evidence) -> Figure | None:
    """Draw one panel per optimizer if several variants were trained; otherwise the curve of each setting."""
    ranking = comparison(evidence.results)
    return _of_settings(evidence) if ranking is None else optimizer_curves(evidence, ranking)


def _of_settings(evidence: Evidence) -> Figure | None:
    """Draw the metric and the loss on test and training samples by epoch, for the best variant of each setting."""
    best = {(ranking.setting, ranking.variants[0].variant) for ranking in evidence.results.variant_rankings}
    matching = [curve for curve in evidence.curves if (curve.setting, curve.variant) in best and curve.epochs > 1]
    shown = matching[:MAX_CURVES]
    metric = evidence.results.facts.metric
    sides: dict[str, tuple[ValueOf, ValueOf]] = {
        metric: (lambda point: point.test_metric, lambda point: point.train_metric),
        "loss": (lambda point: point.test_loss, lambda point: point.train_loss),
    }
    panels = []
    for quantity, (test, train) in sides.items():
        lines = []
        for index, curve in enumerate(shown):
            name = distinguished(curve, shown) or curve.variant
            lines += [
                _test_line(curve, name, quantity, test, color(index)),
                _train_line(curve, name, quantity, train, color(index)),
            ]
        lines = [drawn for drawn in lines if drawn.x]
        log = quantity == "loss" and spans_decades(lines)
        which = " (test solid, training dotted)" if any(drawn.dotted for drawn in lines) else " (test)"
        if lines:
            axis = Axis(title=f"{quantity}{which}", log=log)
            panels.append(Panel(x=Axis(title="epoch", whole=True), y=axis, marks=tuple(lines)))
    if not panels:
        return None
    more = more_words(len(matching) - len(shown), "settings" if len(matching) - len(shown) > 1 else "setting")
    thinned = " Not all epochs are drawn." if any(len(curve.points) < curve.epochs for curve in shown) else ""
    bands = " Bands: lowest to highest repeat." if any(curve.repeats > 1 for curve in shown) else ""
    return Figure(
        key="curves",
        title=_curves_title(metric, shown),
        panels=tuple(panels),
        note="Curves that coincide learn equally well per epoch; training far better than test means overfitting."
        f"{bands}{thinned}{more}",
    )


def _curves_title(metric: str, shown: Sequence[Curve]) -> str:
    longest = max(curve.epochs for curve in shown)
    ends = [end.value for curve in shown if (end := curve.points[-1].test_metric) is not None]
    if not ends:
        return f"Learning over {counted(longest, 'epoch')}"
    low, high = metric_value(min(ends)), metric_value(max(ends))
    reached = low if low == high else f"{low} to {high}"
    return f"After {counted(longest, 'epoch')}, test {metric} is {reached}"


def _test_line(curve: Curve, name: str, quantity: str, of: ValueOf, hue: str) -> Line:
    drawn = _over_epochs(curve, name, Quantity(key=quantity, title=f"test {quantity}", digits=metric_value), of)
    symbol: Any = "circle" if len(curve.points) <= 12 else "none"
    drawn = replace(drawn, color=hue, symbol=symbol)
    return drawn if curve.repeats > 1 else replace(drawn, low=(), high=())


def _train_line(curve: Curve, name: str, quantity: str, of: ValueOf, hue: str) -> Line:
    drawn = _over_epochs(curve, name, Quantity(key=quantity, title=f"train {quantity}", digits=metric_value), of)
    symbol: Any = "open" if len(curve.points) <= 12 else "none"
    return replace(drawn, color=hue, symbol=symbol, low=(), high=(), in_legend=False, opacity=0.55, dotted=True)


def _over_epochs(curve: Curve, name: str, quantity: Quantity, of: ValueOf) -> Line:
    drawn = line(
        name,
        curve.points,
        quantity,
        x=lambda point: float(point.epoch),
        y=of,
        lead=lambda point: f"{name}, epoch {point.epoch}",
        after=lambda _: counted(curve.repeats, "run"),
    )
    return with_gaps(drawn, [float(point.epoch) for point in curve.points])


MAX_NOISE = 6


def noise(evidence: Evidence) -> Figure | None:
    """Draw the gradient noise scale over the steps of training."""
    entries = [entry for entry in evidence.noise_over_time if any(entry.samples)][:MAX_NOISE]
    if not entries:
        return None
    known = [scale.value for _, _, scale in evidence.results.noise_scales if scale.value is not None]
    title = (
        f"A global batch of more than about {NOISE_SCALE.said(max(known))} hardly improves a step"
        if known
        else "The gradient noise scale is unknown: too few steps"
    )
    lines = [_noise_line(entry, entries, color(index)) for index, entry in enumerate(entries)]
    y = Axis(title=NOISE_SCALE.heading, log=True)
    return Figure(
        key="noise",
        title=title,
        panels=(Panel(x=Axis(title="step", whole=True), y=y, marks=tuple(lines)),),
        note="The noise scale usually grows during training; batches much larger than it hardly improve a step. "
        "Moving average over about 50 steps of the first repeat; gaps: unknown. The title is for the second half.",
    )


def _noise_line(entry: NoiseOverTime, among: Sequence[NoiseOverTime], hue: str) -> Line:
    name = distinguished(entry, among) or entry.variant
    drawn = line(
        name,
        list(zip(entry.step, entry.samples, strict=True)),
        NOISE_SCALE,
        x=lambda point: float(point[0]),
        y=lambda point: point[1],
        lead=lambda point: f"{name}, step {point[0]:,}",
        color=hue,
        symbol="none",
    )
    return with_gaps(drawn, [float(step) for step in entry.step])
