"""Figures of scaling: speedup and efficiency against workers, and what they cost."""

from __future__ import annotations

from collections.abc import Sequence

from worldsize.report.document import Document
from worldsize.report.marks import Axis, Figure, Line, Panel, framed
from worldsize.report.picks import (
    Entry,
    chosen,
    exact,
    more_words,
    series,
    series_colours,
    series_key,
    series_name,
    setting_key,
    worker_axis,
)
from worldsize.report.words import LEVEL_WORDS, counted, duration, number, percent

MOST_SERIES = 7


def speedup(document: Document) -> Figure | None:
    """Speedup and efficiency against workers, each with the ideal, and what is projected beyond the counts measured."""
    found = [rows for rows in series(document).values() if len(rows) > 1]
    if not found:
        return None
    main = _main(document, found)
    ordered = [main, *(rows for rows in found if rows is not main)][:MOST_SERIES]
    everything = [row for rows in ordered for row in rows]
    lines: dict[str, list[Line]] = {"speedup": [], "efficiency": []}
    hues = series_colours(document)
    for rows in ordered:
        name = series_name(rows, everything) or "measured"
        for what, unit, factor in (("speedup", " x", 1.0), ("efficiency", " %", 100.0)):
            lines[what].append(_ratio_line(rows, what, unit, factor, name=name, hue=hues[series_key(rows[0])]))
    projected = _projected(document, main)
    for what in lines:
        lines[what] += projected[what]
    base = main[0]["baseline_workers"]
    counts = sorted({x for each in lines["speedup"] for x in each.x})
    lines["speedup"].insert(0, _reference("ideal", counts, [count / base for count in counts]))
    lines["efficiency"].insert(0, _reference("ideal", counts, [100.0] * len(counts)))
    axis = worker_axis(counts)
    best = chosen(document)
    last = next((row for row in main if best and row["workers"] == best["workers"] > base), main[-1])
    title = (
        f"{counted(last['workers'], 'worker')}: {number(last['speedup']['value'])} x the throughput of {base}, "
        f"{percent(last['efficiency']['value'])} efficient"
    )
    more = more_words(len(found) - MOST_SERIES, "series")
    title += f", on {main[0]['on']}" if main[0]["on"] else ""
    same = {rows[0]["baseline_workers"] for rows in ordered} == {base}
    against = f"against {counted(base, 'worker')}" if same else "of each against its smallest count"
    note = f"Bands: {LEVEL_WORDS}s. Grey: ideal{'' if same else f' from {base} on'}." + (
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
                y=framed(f"speedup {against}", lines["speedup"], log=axis.log, from_zero=not axis.log),
                marks=tuple(lines["speedup"]),
            ),
            Panel(
                x=axis,
                y=framed("efficiency, %", lines["efficiency"], from_zero=True),
                marks=tuple(lines["efficiency"]),
            ),
        ),
    )


def _main(document: Document, found: Sequence[list[Entry]]) -> list[Entry]:
    """The series that the answer speaks of, or the first."""
    best = chosen(document)
    same = [rows for rows in found if best is not None and any(setting_key(row) == setting_key(best) for row in rows)]
    return (same or list(found))[0]


def _ratio_line(rows: Sequence[Entry], what: str, unit: str, factor: float, *, name: str, hue: str) -> Line:
    values = [row[what] for row in rows]
    return Line(
        name=name,
        colour=hue,
        x=tuple(row["workers"] for row in rows),
        y=tuple(value["value"] * factor for value in values),
        low=tuple(value["low"] * factor for value in values),
        high=tuple(value["high"] * factor for value in values),
        says=tuple(
            f"{counted(row['workers'], 'worker')}, batch {row['batch_per_worker']:,} a worker\n{what} "
            + exact(value["value"] * factor, value["low"] * factor, value["high"] * factor, unit)
            + f"\n{number(row['samples_per_s']['value'])} samples/s, n = {row['repeats']}"
            for row, value in zip(rows, values, strict=True)
        ),
    )


def _reference(name: str, x: Sequence[float], y: Sequence[float]) -> Line:
    return Line(name=name, colour="grey", kind="reference", symbol="none", x=tuple(x), y=tuple(y))


def _projected(document: Document, main: Sequence[Entry]) -> dict[str, list[Line]]:
    """From the last count measured on, in the ratio of throughputs to the baseline's."""
    entries = [entry for entry in document.get("projection") or () if not entry["measured"]]
    if not entries:
        return {"speedup": [], "efficiency": []}
    base, last = main[0], main[-1]
    pace = base["samples_per_s"]["value"]
    beyond = sorted(
        (entry for entry in entries if entry["workers"] > last["workers"]), key=lambda entry: entry["workers"]
    )
    points: list[Entry] = [last, *beyond]
    found = {}
    for what, unit in (("speedup", " x"), ("efficiency", " %")):
        per = [1.0 if what == "speedup" else 100.0 * base["workers"] / point["workers"] for point in points]
        values = [
            {end: point["samples_per_s"][end] / pace * k for end in ("value", "low", "high")}
            for point, k in zip(points, per, strict=True)
        ]
        values[0] = {end: last[what][end] * (1.0 if what == "speedup" else 100.0) for end in ("value", "low", "high")}
        found[what] = [
            Line(
                name="projected",
                colour=series_colours(document)[series_key(last)],
                kind="projected",
                symbol="open",
                x=tuple(point["workers"] for point in points),
                y=tuple(value["value"] for value in values),
                low=tuple(value["low"] for value in values),
                high=tuple(value["high"] for value in values),
                says=tuple(
                    f"{point['workers']:,} workers, projected\n{what} "
                    + exact(value["value"], value["low"], value["high"], unit)
                    for point, value in zip(points, values, strict=True)
                ),
            )
        ]
    return found


def pareto(document: Document) -> Figure | None:
    """Time against worker-hours, where the document has it: {workers, time_s, worker_hours, measured, best}."""
    entries = [entry for entry in document.get("pareto") or () if entry.get("time_s") and entry.get("worker_hours")]
    if len(entries) < 2:
        return None
    front = sorted((entry for entry in entries if entry.get("best", True)), key=lambda entry: entry["time_s"])
    marks = [
        Line(
            name="projected" if kind == "projected" else "measured",
            kind="projected" if kind == "projected" else "measured",
            joined=False,
            symbol="open" if kind == "projected" else "circle",
            labels=tuple(f"{entry['workers']:,}" for entry in here),
            x=tuple(entry["time_s"] for entry in here),
            y=tuple(entry["worker_hours"] for entry in here),
            says=tuple(
                f"{counted(entry['workers'], 'worker')}\n{duration(entry['time_s'])}, "
                f"{number(entry['worker_hours'])} worker-hours"
                for entry in here
            ),
        )
        for kind in ("measured", "projected")
        if (here := [entry for entry in entries if entry.get("measured", True) == (kind == "measured")])
    ]
    marks.insert(
        0,
        _reference(
            "nothing is both faster and cheaper", [e["time_s"] for e in front], [e["worker_hours"] for e in front]
        ),
    )
    panel = Panel(
        x=Axis(title=f"time of {entries[0].get('of', 'an epoch')}, s", log=True),
        y=Axis(title="worker-hours", log=True),
        marks=tuple(marks),
    )
    ends = [
        counted(entry["workers"], "worker") + ("" if entry.get("measured", True) else " (projected)") for entry in front
    ]
    return Figure(
        key="pareto",
        section="scaling",
        title=f"Fastest with {ends[0]}, cheapest with {ends[-1]}"
        + (f", on {front[0]['on']}" if front[0].get("on") else ""),
        panels=(panel,),
        note="Numbers: workers. Every point on the line is best at its price."
        + ("" if all(entry.get("measured", True) for entry in entries) else " Open circles: projected."),
    )
