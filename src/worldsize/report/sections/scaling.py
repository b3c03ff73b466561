"""Scaling: speedup and efficiency against workers, their cost, and classical laws; tables and figures."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Literal

from rich.table import Table
from rich.text import Text

from worldsize.analysis.estimate import Estimate
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
from worldsize.report.figures.model import Axis, Figure, Line, Panel, axis_around, axis_for, series_colors, worker_axis
from worldsize.report.words.numbers import (
    LEVEL_WORDS,
    counted,
    duration,
    full,
    integer,
    metric_value,
    number,
    percent,
    percents,
)
from worldsize.report.words.settings import (
    configuration,
    more_words,
    recommended_row,
    series,
    series_key,
    series_name,
    setting_key,
)
from worldsize.report.write.console import plain_table


def scaling_table(results: Results, metric: str) -> Table:
    rows = results.rows
    baseline = min(row.baseline_workers for row in rows)
    table = plain_table(
        f"{results.spec.axes.scaling} scaling against {counted(baseline, 'worker')}, with {LEVEL_WORDS}s"
    )
    settings = [row.setting for row in rows]
    mixed = bool(configuration(settings[0], settings))
    facts = results.facts
    headers = ["workers", "batch/\nworker", "global\nbatch", *(["how"] if mixed else []), "step time"]
    for header in [*headers, f"{facts.unit}/s", "speedup", "efficiency", f"test\n{metric}"]:
        table.add_column(header, justify="right", overflow="fold")
    chosen = results.answer.row if results.answer.verdict == "use" else None
    for row in rows:
        setting = row.setting
        how = [configuration(setting, settings)] if mixed else []
        table.add_row(
            *(str(setting.workers), str(setting.batch_per_worker), str(setting.global_batch), *how),
            _both(row.step_s, lambda seconds: number(seconds * 1e3), " ms"),
            _both(row.samples_per_s.scaled(facts.units_per_sample), number),
            _both(row.speedup, number),
            _both(row.efficiency, lambda share: f"{share * 100:.0f}", " %"),
            "" if row.metric is None else metric_value(row.metric.value),
            style="bold" if row == chosen else "",
        )
    return table


def _both(estimate: Estimate, words: Callable[[float], str], unit: str = "") -> Text:
    """The value, and below it its interval: a single run has none, and neither has the baseline, 1 by definition."""
    low, high = map(words, estimate.ends)
    interval = ("\n", (f"{low}–{high}", "dim not bold")) if estimate.has_interval else ()
    return Text.assemble(words(estimate.value) + unit, *interval)


def scaling_sheet(document: Document) -> Sheet:
    rows = document["table"]
    metric, unit = document["metric"], document["unit"]
    lead = (*COUNTS, *how_columns(rows))
    several = len({row["workers"] for row in rows}) > 1
    ratios = (
        Column(key="speedup", title="speedup", unit="x"),
        Column(key="efficiency", title="efficiency", unit="%", factor=100, format=percents),
    )[: 2 if several else 0]
    columns = (
        *lead,
        Column(key="step_s", title="step time", unit="ms", factor=1e3),
        Column(key="samples_per_s", title="throughput", unit=f"{unit}/s", factor=document["units_per_sample"]),
        Column(key="epoch_s", title="epoch, steps alone", unit="s"),
        *ratios,
        Column(key=f"test_{metric}", title=f"test {metric}", format=metric_value),
        REPEATS,
    )
    table_rows = [
        (
            *plain_cells(row, lead),
            *(interval(row[key]) for key in ("step_s", "samples_per_s", "epoch_s", *(column.key for column in ratios))),
            interval(row["metric"]),
            Cell(value=row["repeats"]),
        )
        for row in rows
    ]
    best = recommended_row(document) if document["answer"]["verdict"] == "use" else None
    baseline = min((row["baseline_workers"] for row in rows), default=1)
    against = f"{document['scaling'].capitalize()} scaling against {counted(baseline, 'worker')}"
    return Sheet(
        key="scaling",
        section="scaling",
        title=against if several else f"Throughput with {counted(baseline, 'worker')}",
        columns=columns,
        rows=tuple(table_rows),
        marked=next((index for index, row in enumerate(rows) if best and setting_key(row) == setting_key(best)), None),
        note=f"{document['study']}: {document['title']}. "
        f"Median step of the slowest rank; {LEVEL_WORDS}s over n repeats.",
    )


LAWS = {"amdahl": "Amdahl", "gustafson": "Gustafson", "usl": "USL", "karp-flatt": "Karp-Flatt"}


def laws(document: Document) -> Sheet | None:
    """Laws fitted to the recommended series, or else the first; the document has the others."""
    best = recommended_row(document)
    of_best = [entry for entry in document["laws"] if best and series_key(entry) == series_key(best)]
    entries = of_best or [entry for entry in document["laws"] if series_key(entry) == series_key(document["laws"][0])]
    if not entries:
        return None
    columns = (
        Column(key="law", title="law"),
        Column(key="workers", title="at workers", format=integer),
        Column(key="serial_fraction", title="serial share", unit="%", factor=100, format=percents),
        Column(key="contention", title="contention", unit="%", factor=100, format=percents),
        Column(key="coherence", title="coherence", unit="%", factor=100, format=number),
        Column(key="peak_workers", title="turns down at", unit="workers", format=integer),
        Column(key="residual", title="misses by", unit="%", factor=100, format=percents),
        Column(key="counts", title="n", format=integer),
    )
    rows = []
    for entry in entries:
        name = LAWS[entry["law"]] + ("" if entry["as_meant"] else " (curve only)")
        rows.append((Cell(value=name), *(Cell(value=entry[column.key]) for column in columns[1:])))
    note = (
        "They describe what was measured, over n counts; the projection is not made from them. Curve only: the law "
        "was made for the other way of scaling, and its share means something else here. Misses by: root mean square "
        "of fitted over measured throughput."
    )
    return Sheet(
        key="laws",
        section="scaling",
        title=f"Classical laws, as descriptions of the scaling{_which(document, entries[0])}",
        columns=columns,
        rows=tuple(rows),
        note=note,
    )


def _which(document: Document, entry: Fields) -> str:
    """Names the series, if there are several, and says where to find the others."""
    groups = list(series(document).values())
    if len(groups) < 2:
        return ""
    name = next(series_name(group, document["table"]) for group in groups if series_key(group[0]) == series_key(entry))
    return f" with {name} (the other series: report.json)"


MOST_SERIES = 7
HOW_KNOWN = {
    "measured": "",
    "put together": " Put together: of measured steps and what lies outside them.",
    "projected": " Dashed, blue: projected.",
}
"""How a time in the document is known, and its explanation in the note."""


def speedup(document: Document) -> Figure | None:
    """Speedup and efficiency against workers, with the ideal and the projection beyond the measured counts."""
    groups = [rows for rows in series(document).values() if len(rows) > 1]
    if not groups:
        return None
    main = _main(document, groups)
    ordered = [main, *(rows for rows in groups if rows is not main)][:MOST_SERIES]
    everything = [row for rows in ordered for row in rows]
    lines: dict[str, list[Line]] = {"speedup": [], "efficiency": []}
    hues = series_colors(document)
    for rows in ordered:
        name = series_name(rows, everything) or "measured"
        for what, unit, factor in (("speedup", " x", 1.0), ("efficiency", " %", 100.0)):
            lines[what].append(_ratio_line(rows, what, unit, factor, name=name, hue=hues[series_key(rows[0])]))
    projected = _projected(document, main)
    for what in lines:
        lines[what] += projected[what]
    base = main[0]["baseline_workers"]
    counts = sorted({x for line in lines["speedup"] for x in line.x})
    lines["speedup"].insert(0, _reference("ideal", counts, [count / base for count in counts]))
    lines["efficiency"].insert(0, _reference("ideal", counts, [100.0] * len(counts)))
    axis = worker_axis(counts)
    best = recommended_row(document)
    last = next((row for row in main if best and row["workers"] == best["workers"] > base), main[-1])
    title = (
        f"{counted(last['workers'], 'worker')}: {number(last['speedup']['value'])} x the throughput of {base}, "
        f"{percent(last['efficiency']['value'])} efficient"
    )
    more = more_words(len(groups) - MOST_SERIES, "series")
    title += f", on {main[0]['place']}" if main[0]["place"] else ""
    same = {rows[0]["baseline_workers"] for rows in ordered} == {base}
    against = f"against {counted(base, 'worker')}" if same else "of each against its smallest count"
    note = f"Bands: {LEVEL_WORDS}s. Gray: ideal{'' if same else f' from {base} on'}." + (
        " Dashed and hatched: projected, not measured, 80 % intervals." if projected["speedup"] else ""
    )
    return Figure(
        key="speedup",
        section="scaling",
        title=title,
        note=note + more,
        panels=(
            Panel(
                x=axis,
                y=axis_for(f"speedup {against}", lines["speedup"], log=axis.log, from_zero=not axis.log),
                marks=tuple(lines["speedup"]),
            ),
            Panel(
                x=axis,
                y=axis_for("efficiency, %", lines["efficiency"], from_zero=True),
                marks=tuple(lines["efficiency"]),
            ),
        ),
    )


def _main(document: Document, groups: Sequence[list[Fields]]) -> list[Fields]:
    """The recommended series, or else the first."""
    best = recommended_row(document)
    same = [rows for rows in groups if best is not None and any(setting_key(row) == setting_key(best) for row in rows)]
    return (same or list(groups))[0]


def _ratio_line(rows: Sequence[Fields], what: str, unit: str, factor: float, *, name: str, hue: str) -> Line:
    values = [estimate(row[what]).scaled(factor) for row in rows]
    return Line(
        name=name,
        color=hue,
        x=tuple(row["workers"] for row in rows),
        y=tuple(value.value for value in values),
        low=tuple(value.ends[0] for value in values),
        high=tuple(value.ends[1] for value in values),
        hover=tuple(
            f"{counted(row['workers'], 'worker')}, batch {row['batch_per_worker']:,} a worker\n{what} "
            + full(value, unit)
            + f"\n{number(row['samples_per_s']['value'])} samples/s, n = {row['repeats']}"
            for row, value in zip(rows, values, strict=True)
        ),
    )


def _reference(name: str, x: Sequence[float], y: Sequence[float]) -> Line:
    return Line(name=name, color="gray", kind="reference", symbol="none", x=tuple(x), y=tuple(y))


def _projected(document: Document, main: Sequence[Fields]) -> dict[str, list[Line]]:
    """Projected lines that start at the largest measured count: throughput relative to the baseline."""
    entries = [entry for entry in document.get("projection") or () if not entry["measured"]]
    if not entries:
        return {"speedup": [], "efficiency": []}
    base, last = main[0], main[-1]
    pace = base["samples_per_s"]["value"]
    beyond = sorted(
        (entry for entry in entries if entry["workers"] > last["workers"]), key=lambda entry: entry["workers"]
    )
    points: list[Fields] = [last, *beyond]
    lines = {}
    for what, unit in (("speedup", " x"), ("efficiency", " %")):
        per = [1.0 if what == "speedup" else 100.0 * base["workers"] / point["workers"] for point in points]
        values = [
            estimate(point["samples_per_s"]).scaled(factor / pace) for point, factor in zip(points, per, strict=True)
        ]
        values[0] = estimate(last[what]).scaled(1.0 if what == "speedup" else 100.0)
        lines[what] = [
            Line(
                name="projected",
                color=series_colors(document)[series_key(last)],
                kind="projected",
                symbol="open",
                x=tuple(point["workers"] for point in points),
                y=tuple(value.value for value in values),
                low=tuple(value.ends[0] for value in values),
                high=tuple(value.ends[1] for value in values),
                hover=tuple(
                    f"{point['workers']:,} workers, projected\n{what} " + full(value, unit)
                    for point, value in zip(points, values, strict=True)
                ),
            )
        ]
    return lines


def pareto(document: Document) -> Figure | None:
    """Time against worker-hours, if the document has it: {workers, time_s, worker_hours, how, best}."""
    entries: list[Fields] = document.get("pareto") or []
    if len(entries) < 2:
        return None
    front = sorted((entry for entry in entries if entry["best"]), key=lambda entry: entry["time_s"]["value"])
    marks = [_reference("nothing is both faster and cheaper", _values(front, "time_s"), _values(front, "worker_hours"))]
    for known in HOW_KNOWN:
        marks += _prices([entry for entry in entries if entry["how"] == known], known)
    ends = [
        counted(entry["workers"], "worker") + (" (projected)" if entry["how"] == "projected" else "") for entry in front
    ]
    return Figure(
        key="pareto",
        section="scaling",
        title=f"Fastest with {ends[0]}, cheapest with {ends[-1]}"
        + (f", on {front[0]['place']}" if front[0]["place"] else ""),
        panels=(
            Panel(
                x=_axis_of(f"time of {entries[0]['of']}, s", [entry["time_s"] for entry in entries]),
                y=_axis_of("worker-hours", [entry["worker_hours"] for entry in entries]),
                marks=tuple(marks),
            ),
        ),
        note="Numbers: workers. Every point on the line is best at its price. "
        "Slanted bars: 80 % intervals, time and worker-hours together."
        + "".join(words for how, words in HOW_KNOWN.items() if any(entry["how"] == how for entry in entries)),
    )


def _values(entries: Sequence[Fields], what: str) -> tuple[float, ...]:
    return tuple(entry[what]["value"] for entry in entries)


def _prices(entries: Sequence[Fields], how: str) -> Iterator[Line]:
    """Points with slanted bars: worker-hours are workers times time, so both ends of an interval lie on one line."""
    kind: Literal["measured", "projected"] = "measured" if how == "measured" else "projected"
    hue = "green" if how == "put together" else "blue"
    for entry in entries:
        x, y = (estimate(entry[what]).ends for what in ("time_s", "worker_hours"))
        if x[0] < x[1]:
            yield Line(name=how, kind=kind, color=hue, symbol="none", opacity=0.45, in_legend=False, x=x, y=y)
    if entries:
        yield Line(
            name=how,
            kind=kind,
            color=hue,
            connected=False,
            symbol="circle" if kind == "measured" else "open",
            labels=tuple(f"{entry['workers']:,}" for entry in entries),
            x=_values(entries, "time_s"),
            y=_values(entries, "worker_hours"),
            hover=tuple(map(_time_and_cost, entries)),
        )


def _time_and_cost(entry: Fields) -> str:
    time, hours = entry["time_s"], entry["worker_hours"]
    return (
        f"{counted(entry['workers'], 'worker')}{'' if entry['how'] == 'measured' else ', ' + entry['how']}\n"
        + full(estimate(time), say=duration)
        + "\n"
        + full(estimate(hours), " worker-hours")
    )


def _axis_of(title: str, entries: Sequence[Fields]) -> Axis:
    ends = [end for entry in entries for end in estimate(entry).ends if end]
    return axis_around(title, [entry["value"] for entry in entries], ends, log=True)
