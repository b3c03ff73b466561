"""Training over time: curves, convergence of the optimizers, and gradient noise."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.text import Text

from worldsize.analysis.estimate import Estimate
from worldsize.analysis.learning.noise_scale import NoiseScale
from worldsize.answer.results import Results
from worldsize.report.blocks import Document, Fields
from worldsize.report.figures.model import Axis, Figure, Line, Panel, color
from worldsize.report.words.numbers import counted, full, metric_value, number
from worldsize.report.words.settings import best_of_settings, describe_entry, more_words, setting_key


def noise_view(results: Results) -> list[Any]:
    """One line per variant whose gradients were compared."""
    several = len({setting for setting, _, _ in results.noise_scales}) > 1
    return [
        Text(
            _noise_words(f"global batch {setting.global_batch}, {variant}" if several else variant, noise_scale),
            style="dim",
        )
        for setting, variant, noise_scale in results.noise_scales
    ]


def _noise_words(where: str, noise_scale: NoiseScale) -> str:
    lead = f"Gradient noise scale in the second half of training ({where}): "
    if noise_scale.value is None:
        least = f"at least {number(noise_scale.low)}" if noise_scale.low else "not known"
        return f"{lead}{least}; the gradient cannot be told from noise in {noise_scale.steps} steps."
    reach = (
        f" ({number(noise_scale.low)} to {number(noise_scale.high)})" if noise_scale.low and noise_scale.high else ""
    )
    return f"{lead}{number(noise_scale.value)} samples{reach}: beyond such a batch more samples a step help little."


MOST_CURVES = 7


def curves(document: Document) -> Figure | None:
    """Training and test metric and loss over epochs, for the best variant of each setting."""
    best = {(setting_key(entry), entry["variant"]) for entry in best_of_settings(document)}
    matching = [
        curve for curve in document["curves"] if (setting_key(curve), curve["variant"]) in best and curve["epochs"] > 1
    ]
    shown = matching[:MOST_CURVES]
    if not shown:
        return None
    metric = document["metric"]
    panels = []
    for what, words in (("metric", metric), ("loss", "loss")):
        if what == "metric" and metric == "loss":
            continue
        lines = []
        for index, curve in enumerate(shown):
            name = describe_entry(curve, shown) or curve["variant"]
            for side, kind in (("test", "measured"), ("train", "reference")):
                values = curve[f"{side}_{what}"]
                if values is not None:
                    lines.append(
                        _curve(curve, values, f"{side} {words}", name=name, hue=color(index), train=kind == "reference")
                    )
        log = what == "loss" and _spreads(lines)
        sides = " (test solid, training dotted)" if any(line.dotted for line in lines) else " (test)"
        panels.append(
            Panel(x=Axis(title="epoch", whole=True), y=Axis(title=f"{words}{sides}", log=log), marks=tuple(lines))
        )
    panels = [panel for panel in panels if panel.marks]
    if not panels:
        return None
    more = more_words(len(matching) - len(shown), "settings" if len(matching) - len(shown) > 1 else "setting")
    longest = max(curve["epochs"] for curve in shown)
    thin = " Thinned." if any(len(curve["epoch"]) < curve["epochs"] for curve in shown) else ""
    return Figure(
        key="curves",
        section="learning",
        title=_curves_title(document, shown, longest),
        panels=tuple(panels),
        note=f"On test and on training samples. Bands: range over repeats.{thin}{more}",
    )


def _curves_title(document: Document, shown: Sequence[Fields], longest: int) -> str:
    metric = document["metric"]
    ends = [
        curve["test_metric"]["value"][-1]
        for curve in shown
        if curve["test_metric"] and curve["test_metric"]["value"][-1] is not None
    ]
    if not ends:
        return f"Learning over {counted(longest, 'epoch')}"
    low, high = metric_value(min(ends)), metric_value(max(ends))
    reached = low if low == high else f"{low} to {high}"
    return f"After {counted(longest, 'epoch')}, test {metric} {'is' if len(ends) == 1 else 'lies at'} {reached}"


def _spreads(lines: Sequence[Line]) -> bool:
    """Whether a log axis is better."""
    values = [value for line in lines for value in line.y if value is not None]
    return bool(values) and min(values) > 0 and max(values) / min(values) > 30


def _curve(curve: Fields, values: Fields, words: str, *, name: str, hue: str, train: bool) -> Line:
    dots = len(curve["epoch"]) <= 12
    spread = curve["repeats"] > 1 and not train
    return Line(
        name=f"{name}",
        in_legend=not train,
        color=hue,
        kind="measured",
        symbol=("open" if dots else "none") if train else ("circle" if dots else "none"),
        opacity=0.55 if train else 1.0,
        dotted=train,
        x=tuple(float(epoch) for epoch in curve["epoch"]),
        y=tuple(values["value"]),
        low=tuple(values["low"]) if spread else (),
        high=tuple(values["high"]) if spread else (),
        hover=tuple(
            ""
            if value is None
            else f"{name}, epoch {epoch}\n{words} {full(Estimate(value=value, low=low, high=high), say=metric_value)}\n"
            + counted(curve["repeats"], "run")
            for epoch, value, low, high in zip(
                curve["epoch"], values["value"], values["low"], values["high"], strict=True
            )
        ),
    )


MOST_CONVERGENCE = 40
MOST_NOISE = 6
CUT = 30.0
"""Losses beyond this multiple of the median first loss are cut, since diverging runs would flatten the others."""


def convergence(document: Document) -> Figure | None:
    """Loss of every variant over epochs on a log axis, one color per optimizer; a cross marks divergence."""
    every = [curve for curve in document["curves"] if curve["train_loss"] or curve["test_loss"] or curve["diverged"]]
    if len({curve["variant"] for curve in every}) < 2:
        return None
    settings: dict[tuple[Any, ...], list[Fields]] = {}
    for curve in every:
        settings.setdefault(setting_key(curve), []).append(curve)
    setting_curves = max(settings.values(), key=lambda group: len({curve["variant"] for curve in group}))
    order = {(setting_key(entry), entry["variant"]): rank for rank, entry in enumerate(document["learning"])}
    setting_curves = sorted(
        setting_curves, key=lambda curve: order.get((setting_key(curve), curve["variant"]), len(order))
    )
    shown = setting_curves[:MOST_CONVERGENCE]
    families = sorted({curve["family"] for curve in shown})
    starts = [value for curve in shown if (value := _first_loss(curve)) is not None]
    most = CUT * (sorted(starts)[len(starts) // 2] if starts else 1.0)
    drawn = [(curve, line) for curve in shown if (line := _convergence_line(curve, shown, families, most))]
    lines = [line for _, line in drawn]
    if len(lines) < 2:
        return None
    crosses = [_cross(curve, line) for curve, line in drawn if curve["diverged"]]
    best, diverged = shown[0], sum(1 for curve in shown if curve["diverged"])
    title = f"{best['variant']} converges best" + (
        f"; {diverged} of {len(shown)} settings diverged" if diverged else f" of {len(shown)} settings"
    )
    where = f" At {describe_entry(best, every, but=('variant',))}." if len(settings) > 1 else ""
    crossed = " Crosses: diverged; losses beyond are cut." if diverged else ""
    more = (
        f" The best {len(shown)} of {len(setting_curves)}; all are in the table."
        if len(setting_curves) > len(shown)
        else ""
    )
    axis = Axis(title="epoch", whole=True, log=max(curve["epochs"] for curve in shown) > 100)
    panel = Panel(
        x=axis,
        y=Axis(title=f"{'training' if shown[0]['train_loss'] else 'test'} loss", log=True),
        marks=(*lines, *crosses),
    )
    return Figure(
        key="convergence",
        section="learning",
        title=title,
        panels=(panel,),
        note=f"One hue an optimizer, the paler the worse.{crossed} Mean over repeats.{where}{more}",
    )


def _first_loss(curve: Fields) -> float | None:
    values = curve["train_loss"] or curve["test_loss"]
    return next((value for value in values["value"] if value is not None and value > 0), None) if values else None


def _convergence_line(curve: Fields, shown: Sequence[Fields], families: Sequence[str], most: float) -> Line | None:
    values = curve["train_loss"] or curve["test_loss"]
    points = [
        (epoch, value)
        for epoch, value in zip(curve["epoch"], values["value"] if values else (), strict=False)
        if value is not None and value > 0
    ]
    beyond = next((index for index, (_, value) in enumerate(points) if value > most), len(points))
    if curve["diverged"] == curve["repeats"]:  # the line ends with a cross where it leaves the picture
        kept: list[tuple[int, float | None]] = [(epoch, min(value, most)) for epoch, value in points[: beyond + 1]]
    else:  # a line that returns to the picture is drawn again
        kept = [(epoch, value if value <= most else None) for epoch, value in points]
    if not kept:
        return None
    siblings = [other["variant"] for other in shown if other["family"] == curve["family"]]
    return Line(
        name=curve["variant"],
        color=color(families.index(curve["family"])),
        symbol="none" if len(kept) > 12 else "circle",
        opacity=1.0 - 0.7 * siblings.index(curve["variant"]) / max(len(siblings), 1),
        x=tuple(float(epoch) for epoch, _ in kept),
        y=tuple(value for _, value in kept),
        hover=tuple(
            f"{curve['variant']}, epoch {epoch}\nloss {metric_value(value)}" if value is not None else ""
            for epoch, value in kept
        ),
    )


def _cross(curve: Fields, line: Line) -> Line:
    words = f"{curve['variant']}\n{curve['diverged']} of {curve['repeats']} diverged" + (
        f", at step {curve['diverged_at_steps'][0]}" if curve["diverged_at_steps"] else ""
    )
    return Line(
        name=curve["variant"],
        color=line.color,
        connected=False,
        symbol="cross",
        in_legend=False,
        x=line.x[-1:],
        y=line.y[-1:],
        hover=(words,),
    )


def noise(document: Document) -> Figure | None:
    """Gradient noise scale over the steps of training."""
    entries = [entry for entry in document["noise_over_time"] if any(entry["samples"])][:MOST_NOISE]
    if not entries:
        return None
    lines = []
    for index, entry in enumerate(entries):
        name = describe_entry(entry, entries) or entry["variant"]
        lines.append(
            Line(
                name=name,
                color=color(index),
                symbol="none",
                x=tuple(float(step) for step in entry["step"]),
                y=tuple(entry["samples"]),
                hover=tuple(
                    "" if value is None else f"{name}, step {step:,}\nnoise scale {number(value)} samples"
                    for step, value in zip(entry["step"], entry["samples"], strict=True)
                ),
            )
        )
    known = [entry["value"] for entry in document["noise_scale"] if entry["value"] is not None]
    title = (
        f"Beyond a batch of about {number(max(known))} samples, more samples a step help little"
        if known
        else "The gradient noise scale is not known: too few steps"
    )
    panel = Panel(x=Axis(title="step", whole=True), y=Axis(title="noise scale, samples", log=True), marks=tuple(lines))
    return Figure(
        key="noise",
        section="learning",
        title=title,
        panels=(panel,),
        note="A moving average over about 50 steps of the first repeat; gaps: not known there. "
        "The title's number is that of the second half of training.",
    )
