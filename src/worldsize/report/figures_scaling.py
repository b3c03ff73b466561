"""Figures of scaling: speedup and efficiency against workers, and what they cost."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Literal

from worldsize.report.document import Document
from worldsize.report.marks import Axis, Figure, Line, Panel, around, framed
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
HOW_KNOWN = {
    "measured": "",
    "put together": " Put together: of measured steps and what lies outside them.",
    "projected": " Dashed, blue: projected.",
}
"""How a time of the document is known, and what to say of it."""


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
    """Time against worker-hours, where the document has it: {workers, time_s, worker_hours, how, best}."""
    entries: list[Entry] = document.get("pareto") or []
    if len(entries) < 2:
        return None
    front = sorted((entry for entry in entries if entry["best"]), key=lambda entry: entry["time_s"]["value"])
    marks = [_reference("nothing is both faster and cheaper", _values(front, "time_s"), _values(front, "worker_hours"))]
    for how in HOW_KNOWN:
        marks += _prices([entry for entry in entries if entry["how"] == how], how)
    ends = [
        counted(entry["workers"], "worker") + (" (projected)" if entry["how"] == "projected" else "") for entry in front
    ]
    return Figure(
        key="pareto",
        section="scaling",
        title=f"Fastest with {ends[0]}, cheapest with {ends[-1]}"
        + (f", on {front[0]['on']}" if front[0]["on"] else ""),
        panels=(
            Panel(
                x=_axis_of(f"time of {entries[0]['of']}, s", [entry["time_s"] for entry in entries]),
                y=_axis_of("worker-hours", [entry["worker_hours"] for entry in entries]),
                marks=tuple(marks),
            ),
        ),
        note="Numbers: workers. Every point on the line is best at its price. "
        "Slanted bars: 80 % intervals, time and worker-hours together."
        + "".join(said for how, said in HOW_KNOWN.items() if any(entry["how"] == how for entry in entries)),
    )


def _values(entries: Sequence[Entry], what: str) -> tuple[float, ...]:
    return tuple(entry[what]["value"] for entry in entries)


def _prices(entries: Sequence[Entry], how: str) -> Iterator[Line]:
    """Points with slanted bars: worker-hours are workers times the time, so both ends lie on one line."""
    kind: Literal["measured", "projected"] = "measured" if how == "measured" else "projected"
    hue = "green" if how == "put together" else "blue"
    for entry in entries:
        x, y = ((entry[what]["low"], entry[what]["high"]) for what in ("time_s", "worker_hours"))
        if all(x):
            yield Line(name=how, kind=kind, colour=hue, symbol="none", fade=0.45, listed=False, x=x, y=y)
    if entries:
        yield Line(
            name=how,
            kind=kind,
            colour=hue,
            joined=False,
            symbol="circle" if kind == "measured" else "open",
            labels=tuple(f"{entry['workers']:,}" for entry in entries),
            x=_values(entries, "time_s"),
            y=_values(entries, "worker_hours"),
            says=tuple(map(_time_and_cost, entries)),
        )


def _time_and_cost(entry: Entry) -> str:
    time, hours = entry["time_s"], entry["worker_hours"]
    return (
        f"{counted(entry['workers'], 'worker')}{'' if entry['how'] == 'measured' else ', ' + entry['how']}\n"
        + exact(time["value"], time["low"], time["high"], say=duration)
        + "\n"
        + exact(hours["value"], hours["low"], hours["high"], " worker-hours")
    )


def _axis_of(title: str, intervals: Sequence[Entry]) -> Axis:
    ends = [each[end] for each in intervals for end in ("low", "high") if each[end]]
    return around(title, [each["value"] for each in intervals], ends, log=True)
