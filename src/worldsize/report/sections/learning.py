"""Training results: best variants, optimizers, large batches, epochs until stable; tables and figures."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from rich.table import Table
from rich.text import Text

from worldsize.analysis.estimate import Estimate
from worldsize.analysis.learning.stable import Stable
from worldsize.analysis.learning.variants import VariantRanking, VariantSummary
from worldsize.answer.results import Results
from worldsize.report.blocks import (
    COUNTS,
    REPEATS,
    Cell,
    Column,
    Document,
    Fields,
    Sheet,
    estimate,
    how_columns,
    interval,
    plain_cells,
)
from worldsize.report.figures.model import Axis, Figure, Line, Panel, axis_for, series_colors, worker_axis
from worldsize.report.sections.curves import MOST_CURVES
from worldsize.report.words.numbers import (
    LEVEL_WORDS,
    below,
    counted,
    duration,
    full,
    integer,
    metric_value,
    number,
    rate,
    whole,
)
from worldsize.report.words.settings import (
    along_workers,
    best_of_settings,
    describe,
    more_words,
    series_key,
    setting_key,
)
from worldsize.report.write.console import plain_table

MOST_ROWS = 40
"""A search may have hundreds of rows; --json has the rest."""


def learning_view(results: Results) -> list[Any]:
    """Empty if nothing was trained, or if the scaling table already has all of it."""
    shown = [(contest, variant) for contest in results.variant_rankings for variant in contest.variants]
    plain = all(len(contest.variants) == 1 for contest in results.variant_rankings) and results.goal is None
    if not shown or (plain and not any(variant.stable and variant.stable.plateau is not None for _, variant in shown)):
        return []
    parts: list[Any] = [Text(""), _table(results, shown[:MOST_ROWS])]
    if len(shown) > MOST_ROWS:
        parts.append(Text(f"and {len(shown) - MOST_ROWS} more, all of them with --json", style="dim"))
    return parts


def _table(results: Results, shown: Sequence[tuple[VariantRanking, VariantSummary]]) -> Table:
    metric = results.facts.metric
    variants = [variant for _, variant in shown]
    table = plain_table(f"what was trained, with {LEVEL_WORDS}s over repeats")
    columns: dict[str, Callable[[VariantSummary], str]] = {f"test\n{metric}": lambda summary: _metric(summary.metric)}
    if any(variant.target for variant in variants):
        columns["steps to\ntarget"] = lambda summary: _estimate(summary.target.steps if summary.target else None, whole)
        columns["epochs to\ntarget"] = lambda summary: _estimate(
            summary.target.epochs if summary.target else None, whole
        )
        columns["training\ntime"] = lambda summary: _time(summary.target.seconds if summary.target else None)
        columns["examples"] = lambda summary: _examples(summary.target.samples if summary.target else None)
    if any(variant.stable and variant.stable.plateau is not None for variant in variants):
        columns["epochs until\nstable"] = lambda summary: _stable(summary.stable)
    if any(variant.gap and variant.metric and _matters(variant.gap, variant.metric) for variant in variants):
        columns["train\n- test"] = lambda summary: _metric(summary.gap)
    columns["runs"] = _runs
    several = len(results.variant_rankings) > 1
    settings = [contest.setting for contest in results.variant_rankings]
    if several:
        table.add_column("where", overflow="fold")
    table.add_column("trained with", overflow="fold")
    for header in columns:
        table.add_column(header, justify="right", overflow="fold")
    for contest, variant in shown:
        where = [describe(contest.setting, settings)] if several else []
        cells = [value(variant) for value in columns.values()]
        table.add_row(*where, variant.variant, *cells, style="bold" if variant in contest.best_variants else "")
    return table


def _estimate(estimate: Estimate | None, words: Callable[[float], str]) -> str:
    if estimate is None:
        return "not reached"
    low, high = estimate.ends
    return below(estimate, words) if low < high else words(estimate.value)


def _matters(gap: Estimate, metric: Estimate) -> bool:
    """A gap of a thousandth of the metric is visible in four digits."""
    return abs(gap.value) >= 1e-3 * abs(metric.value)


def _metric(estimate: Estimate | None) -> str:
    return "" if estimate is None else _estimate(estimate, metric_value)


def _time(estimate: Estimate | None) -> str:
    return "" if estimate is None else _estimate(estimate, duration)


def _examples(estimate: Estimate | None) -> str:
    return "" if estimate is None else f"{estimate.value:,.0f}"


def _stable(stable: Stable | None) -> str:
    if stable is None:
        return ""
    return "not reached" if stable.epoch is None else below(stable.epoch, whole)


def _runs(variant: VariantSummary) -> str:
    """Number of runs, and how the unfinished ones ended."""
    ends = {"diverged": variant.diverged, "stopped": variant.stopped, "plateaued": variant.plateaued}
    words = [f"{count} {name}" for name, count in ends.items() if count]
    if variant.target is not None and 0 < variant.target.reached < variant.repeats:
        words.append(f"{variant.target.reached} reached it")
    return "\n".join([str(variant.repeats), *words])


def _learning_columns(document: Document) -> tuple[Column, ...]:
    metric = document["metric"]
    return (
        Column(key="peak_lr", title="rate", format=rate),
        Column(key=f"test_{metric}", title=f"test {metric}", format=metric_value),
        *((Column(key="test_loss", title="test loss", format=metric_value),) if metric != "loss" else ()),
        Column(key="train_s", title="training time", unit="s"),
        Column(key="steps_to_target", title="steps to target", format=whole),
        Column(key="epochs_until_stable", title="epochs until stable", format=whole),
        Column(key="diverged", title="diverged", format=integer),
        REPEATS,
    )


def _learning_cells(document: Document, entry: Fields, trained: Fields) -> Iterator[Cell]:
    yield Cell(value=trained["peak_lr"])
    yield interval(entry["metric"])
    if document["metric"] != "loss":
        yield interval(trained["test_loss"])
    yield interval(trained["train_s"])
    target, stable = entry["target"], entry["stable"]
    yield interval(target["steps"]) if target else Cell(value=None)
    yield interval(stable and stable["epoch"])
    yield Cell(value=entry["diverged"])
    yield Cell(value=entry["repeats"])


def _learned(document: Document) -> list[tuple[Fields, Fields]]:
    trained = {(setting_key(entry), entry["variant"]): entry for entry in document["training"]}
    return [
        (entry, trained[setting_key(entry), entry["variant"]])
        for entry in document["learning"]
        if (setting_key(entry), entry["variant"]) in trained
    ]


def optimizers(document: Document) -> Sheet | None:
    pairs = _learned(document)
    if len({entry["variant"] for entry, _ in pairs}) < 2:
        return None
    lead = (*COUNTS, *how_columns([entry for entry, _ in pairs]))
    columns = (Column(key="variant", title="trained with"), *lead, *_learning_columns(document))
    rows = [
        (Cell(value=entry["variant"]), *plain_cells(entry, lead), *_learning_cells(document, entry, trained))
        for entry, trained in pairs
    ]
    return _sheet("optimizers", "Optimizers and rates, the best of each setting first", columns, rows)


def large_batch(document: Document) -> Sheet | None:
    pairs = _learned(document)
    if len({entry["global_batch"] for entry, _ in pairs}) < 2:
        return None
    if optimizers(document) is not None:  # that table lists all variants; this one has the best of each setting
        pairs = list({setting_key(pair[0]): pair for pair in reversed(pairs)}.values())
    ordered = sorted(pairs, key=lambda pair: (pair[0]["global_batch"], pair[0]["workers"]))
    lead = (COUNTS[2], *COUNTS[:2], *how_columns([entry for entry, _ in pairs]))
    columns = (*lead, Column(key="variant", title="trained with"), *_learning_columns(document))
    rows = [
        (*plain_cells(entry, lead), Cell(value=entry["variant"]), *_learning_cells(document, entry, trained))
        for entry, trained in ordered
    ]
    return _sheet("large-batch", "What a larger batch does to learning", columns, rows)


def trained(document: Document) -> Sheet | None:
    """Results of training for a study that varies neither optimizers nor batches."""
    pairs = _learned(document)
    if optimizers(document) or large_batch(document) or not pairs:
        return None
    lead = (*COUNTS, *how_columns([entry for entry, _ in pairs]))
    rows = [(*plain_cells(entry, lead), *_learning_cells(document, entry, trained)) for entry, trained in pairs]
    return _sheet("trained", "What was trained", (*lead, *_learning_columns(document)), rows)


def _sheet(key: str, title: str, columns: tuple[Column, ...], rows: list[tuple[Cell, ...]]) -> Sheet:
    note = f"{LEVEL_WORDS}s over n repeats; rate after the rate rule.".capitalize()
    return Sheet(key=key, section="learning", title=title, columns=columns, rows=tuple(rows), note=note)


Hues = dict[tuple[Any, ...], str]


def outcome(document: Document) -> Figure | None:
    """Training time, final loss and final metric against workers."""
    entries = [entry for entry in best_of_settings(document) if entry["train_s"]]
    every = along_workers(document, entries)
    groups = dict(list(every.items())[:MOST_CURVES])
    if not groups:
        return None
    metric, hues = document["metric"], series_colors(document)
    axis = worker_axis([entry["workers"] for group in groups.values() for entry in group])
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
    groups: dict[str, list[Fields]], hues: Hues, axis: Axis, key: str, words: str, format_value: Callable[[float], str]
) -> Panel:
    lines = []
    for name, group in groups.items():
        known = [entry for entry in group if entry[key] is not None]
        spread = any(entry[key]["low"] is not None for entry in known)
        lines.append(
            Line(
                name=name,
                color=hues.get(series_key(group[0]), "blue"),
                x=tuple(entry["workers"] for entry in known),
                y=tuple(entry[key]["value"] for entry in known),
                low=tuple(entry[key]["low"] for entry in known) if spread else (),
                high=tuple(entry[key]["high"] for entry in known) if spread else (),
                hover=tuple(
                    f"{counted(entry['workers'], 'worker')}, global batch {entry['global_batch']:,}\n"
                    + f"{words.split(',')[0]} "
                    + full(estimate(entry[key]), say=format_value)
                    + f"\n{entry['variant']}, n = {entry['learned']}"
                    for entry in known
                ),
            )
        )
    kept = tuple(line for line in lines if line.x)
    return Panel(x=axis, y=axis_for(words, kept, from_zero=key == "train_s"), marks=kept)


def stable(document: Document) -> Figure | None:
    """Epochs until stable against workers."""
    known = [entry for entry in document["learning"] if entry["stable"] and entry["stable"]["epoch"] is not None]
    best = {(setting_key(entry), entry["variant"]) for entry in best_of_settings(document)}
    known = [entry for entry in known if (setting_key(entry), entry["variant"]) in best]
    groups, hues = dict(list(along_workers(document, known).items())[:MOST_CURVES]), series_colors(document)
    if not groups:
        return None
    lines = [
        Line(
            name=name,
            color=hues.get(series_key(group[0]), "blue"),
            x=tuple(entry["workers"] for entry in group),
            y=tuple(entry["stable"]["epoch"]["value"] for entry in group),
            low=tuple(entry["stable"]["epoch"]["low"] for entry in group),
            high=tuple(entry["stable"]["epoch"]["high"] for entry in group),
            hover=tuple(
                f"{counted(entry['workers'], 'worker')}\nstable from epoch "
                + full(estimate(entry["stable"]["epoch"]), say=whole)
                + f"\n{entry['stable']['reached']} of {entry['stable']['repeats']} runs"
                for entry in group
            ),
        )
        for name, group in groups.items()
    ]
    first = next(iter(groups.values()))
    axis = worker_axis([entry["workers"] for group in groups.values() for entry in group])
    ends = [
        f"{whole(entry['stable']['epoch']['value'])} epochs with {counted(entry['workers'], 'worker')}"
        for entry in first
    ]
    title = f"Stable after {ends[0]}, after {ends[-1]}"
    panel = Panel(x=axis, y=axis_for("epochs until stable", lines, from_zero=True), marks=tuple(lines))
    return Figure(
        key="stable",
        section="learning",
        title=title,
        panels=(panel,),
        note=f"The first epoch from which test {document['metric']} stays within its noise. Bands: {LEVEL_WORDS}s.",
    )
