"""Figures of learning: where training ended, its curves, when they are stable."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from worldsize.report.document import Document
from worldsize.report.marks import Axis, Figure, Line, Panel, colour, framed
from worldsize.report.picks import (
    Entry,
    along_workers,
    best_of_settings,
    exact,
    more_words,
    series_colours,
    series_key,
    setting_key,
    told_apart,
    worker_axis,
)
from worldsize.report.words import LEVEL_WORDS, counted, duration, metric_value, number

MOST_CURVES = 7

Hues = dict[tuple[Any, ...], str]


def outcome(document: Document) -> Figure | None:
    """Time, final loss and final metric against workers."""
    found = [entry for entry in best_of_settings(document) if entry["train_s"]]
    every = along_workers(document, found)
    groups = dict(list(every.items())[:MOST_CURVES])
    if not groups:
        return None
    metric, hues = document["metric"], series_colours(document)
    axis = worker_axis([entry["workers"] for here in groups.values() for entry in here])
    panels = [
        _against_workers(groups, hues, axis, "train_s", "training time, s", lambda value: f"{number(value)} s"),
        _against_workers(groups, hues, axis, "test_loss", "test loss", metric_value),
    ]
    if metric != "loss":
        panels.append(_against_workers(groups, hues, axis, "metric", f"test {metric}", metric_value))
    lead, first = next(iter(groups.items()))
    least, most = first[0], first[-1]
    times = [duration(entry["train_s"]["value"]) for entry in (least, most)]
    which = f" at {lead}" if len(groups) > 1 else ""
    words = f"From {least['workers']} to {most['workers']} workers{which}, training goes from {times[0]} to {times[1]}"
    if least["metric"] and most["metric"]:
        words += (
            f", test {metric} from {metric_value(least['metric']['value'])} to {metric_value(most['metric']['value'])}"
        )
    return Figure(
        key="outcome",
        section="scaling",
        title=words,
        panels=tuple(panel for panel in panels if panel.marks),
        note=f"Bands: {LEVEL_WORDS}s over repeats, where there are several. The best variant of each setting."
        + more_words(len(every) - len(groups), "series"),
    )


def _against_workers(
    groups: dict[str, list[Entry]], hues: Hues, axis: Axis, key: str, words: str, say: Callable[[float], str]
) -> Panel:
    lines = []
    for name, here in groups.items():
        known = [entry for entry in here if entry[key] is not None]
        spread = any(entry[key]["low"] is not None for entry in known)
        lines.append(
            Line(
                name=name,
                colour=hues.get(series_key(here[0]), "blue"),
                x=tuple(entry["workers"] for entry in known),
                y=tuple(entry[key]["value"] for entry in known),
                low=tuple(entry[key]["low"] for entry in known) if spread else (),
                high=tuple(entry[key]["high"] for entry in known) if spread else (),
                says=tuple(
                    f"{counted(entry['workers'], 'worker')}, global batch {entry['global_batch']:,}\n"
                    + f"{words.split(',')[0]} "
                    + exact(entry[key]["value"], entry[key]["low"], entry[key]["high"], "", say)
                    + f"\n{entry['variant']}, n = {entry['learned']}"
                    for entry in known
                ),
            )
        )
    kept = tuple(line for line in lines if line.x)
    return Panel(x=axis, y=framed(words, kept, from_zero=key == "train_s"), marks=kept)


def curves(document: Document) -> Figure | None:
    """Metric and loss over epochs, training and validation, of the best variant of each setting."""
    best = {(setting_key(entry), entry["variant"]) for entry in best_of_settings(document)}
    found = [
        curve for curve in document["curves"] if (setting_key(curve), curve["variant"]) in best and curve["epochs"] > 1
    ]
    shown = found[:MOST_CURVES]
    if not shown:
        return None
    metric = document["metric"]
    panels = []
    for what, words in (("metric", metric), ("loss", "loss")):
        if what == "metric" and metric == "loss":
            continue
        lines = []
        for place, curve in enumerate(shown):
            name = told_apart(curve, shown) or curve["variant"]
            for side, kind in (("test", "measured"), ("train", "reference")):
                values = curve[f"{side}_{what}"]
                if values is not None:
                    lines.append(
                        _curve(
                            curve, values, f"{side} {words}", name=name, hue=colour(place), train=kind == "reference"
                        )
                    )
        log = what == "loss" and _spreads(lines)
        sides = " (test solid, training dotted)" if any(line.dotted for line in lines) else " (test)"
        panels.append(
            Panel(x=Axis(title="epoch", whole=True), y=Axis(title=f"{words}{sides}", log=log), marks=tuple(lines))
        )
    panels = [panel for panel in panels if panel.marks]
    if not panels:
        return None
    more = more_words(len(found) - len(shown), "settings" if len(found) - len(shown) > 1 else "setting")
    longest = max(curve["epochs"] for curve in shown)
    thin = " Thinned." if any(len(curve["epoch"]) < curve["epochs"] for curve in shown) else ""
    return Figure(
        key="curves",
        section="learning",
        title=_curves_title(document, shown, longest),
        panels=tuple(panels),
        note=f"On test and on training samples. Bands: range over repeats.{thin}{more}",
    )


def _curves_title(document: Document, shown: Sequence[Entry], longest: int) -> str:
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
    """Whether a log axis shows more."""
    values = [value for line in lines for value in line.y if value is not None]
    return bool(values) and min(values) > 0 and max(values) / min(values) > 30


def _curve(curve: Entry, values: Entry, words: str, *, name: str, hue: str, train: bool) -> Line:
    dots = len(curve["epoch"]) <= 12
    spread = curve["repeats"] > 1 and not train
    return Line(
        name=f"{name}",
        listed=not train,
        colour=hue,
        kind="measured",
        symbol=("open" if dots else "none") if train else ("circle" if dots else "none"),
        fade=0.55 if train else 1.0,
        dotted=train,
        x=tuple(float(epoch) for epoch in curve["epoch"]),
        y=tuple(values["value"]),
        low=tuple(values["low"]) if spread else (),
        high=tuple(values["high"]) if spread else (),
        says=tuple(
            ""
            if value is None
            else f"{name}, epoch {epoch}\n{words} {exact(value, low, high, '', metric_value)}\n"
            + counted(curve["repeats"], "run")
            for epoch, value, low, high in zip(
                curve["epoch"], values["value"], values["low"], values["high"], strict=True
            )
        ),
    )


def stable(document: Document) -> Figure | None:
    """Epochs until stable against workers."""
    known = [entry for entry in document["learning"] if entry["stable"] and entry["stable"]["epoch"] is not None]
    best = {(setting_key(entry), entry["variant"]) for entry in best_of_settings(document)}
    known = [entry for entry in known if (setting_key(entry), entry["variant"]) in best]
    groups, hues = dict(list(along_workers(document, known).items())[:MOST_CURVES]), series_colours(document)
    if not groups:
        return None
    lines = [
        Line(
            name=name,
            colour=hues.get(series_key(here[0]), "blue"),
            x=tuple(entry["workers"] for entry in here),
            y=tuple(entry["stable"]["epoch"] for entry in here),
            low=tuple(entry["stable"]["low"] for entry in here),
            high=tuple(entry["stable"]["high"] for entry in here),
            says=tuple(
                f"{counted(entry['workers'], 'worker')}\nstable from epoch "
                + exact(
                    entry["stable"]["epoch"],
                    entry["stable"]["low"],
                    entry["stable"]["high"],
                    "",
                    lambda value: f"{value:.0f}",
                )
                + f"\n{entry['stable']['reached']} of {entry['stable']['repeats']} runs"
                for entry in here
            ),
        )
        for name, here in groups.items()
    ]
    first = next(iter(groups.values()))
    axis = worker_axis([entry["workers"] for here in groups.values() for entry in here])
    ends = [f"{entry['stable']['epoch']} epochs with {counted(entry['workers'], 'worker')}" for entry in first]
    title = f"Stable after {ends[0]}, after {ends[-1]}"
    panel = Panel(x=axis, y=framed("epochs until stable", lines, from_zero=True), marks=tuple(lines))
    return Figure(
        key="stable",
        section="learning",
        title=title,
        panels=(panel,),
        note=f"The first epoch from which test {document['metric']} stays within its noise. Bands: {LEVEL_WORDS}s.",
    )
