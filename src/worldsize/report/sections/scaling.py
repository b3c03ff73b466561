"""Scaling: speedup, efficiency and cost by worker count, and classical scaling laws; tables and figures."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Literal

from worldsize.analysis.estimate import Estimate
from worldsize.analysis.speed.scaling import ScalingRow
from worldsize.answer.evidence import Evidence
from worldsize.answer.laws import LawRow
from worldsize.answer.predict.predict import Prediction
from worldsize.answer.predict.prices import Basis, PricePoint
from worldsize.answer.results import Results
from worldsize.report.blocks import Column, Table, if_it_varies, setting_columns, table
from worldsize.report.figures.model import (
    Axis,
    Figure,
    Line,
    Panel,
    axis_around,
    axis_for,
    colors_of_series,
    line,
    worker_axis,
)
from worldsize.report.words.glossary import meaning
from worldsize.report.words.numbers import LEVEL_WORDS, counted, integer, percents
from worldsize.report.words.quantities import (
    EFFICIENCY,
    EPOCH_TIME,
    RUNS,
    SECONDS,
    SPEEDUP,
    STEP_TIME,
    WORKERS,
    Quantity,
    explained,
    test_metric,
    throughput,
)
from worldsize.report.words.settings import more_words, name_of_series


def scaling_table(evidence: Evidence) -> Table | None:
    """Return step time, throughput, speedup and efficiency of each setting."""
    results = evidence.results
    rows, facts = list(results.rows), results.facts
    several = len({row.setting.workers for row in rows}) > 1
    if not several and len({row.setting.global_batch for row in rows}) == 1:  # strategies and precisions: fastest first
        rows.sort(key=lambda row: -row.samples_per_s.value)
    repeated = any(row.repeats > 1 for row in rows)
    ratios = [
        Column[ScalingRow](quantity=SPEEDUP, of=lambda row: row.speedup),
        Column[ScalingRow](quantity=EFFICIENCY, of=lambda row: row.efficiency),
    ]
    columns: list[Column[ScalingRow]] = [
        *(column if column.quantity is WORKERS else if_it_varies(column, rows) for column in setting_columns(rows)),
        Column(quantity=STEP_TIME, of=lambda row: row.step_s),
        Column(quantity=throughput(facts), of=lambda row: row.samples_per_s),
        Column(quantity=EPOCH_TIME, of=lambda row: row.samples_per_s.time_for(facts.train_samples), terminal=False),
        *(ratios if several else ()),
        Column(quantity=test_metric(facts), of=lambda row: row.metric),
        Column(quantity=RUNS, of=lambda row: row.repeats, terminal=False),
    ]
    mode = f"{results.spec.axes.scaling} scaling"
    baseline = counted(min((row.baseline_workers for row in rows), default=1), "worker")
    return table(
        "scaling",
        f"{mode.capitalize()} relative to {baseline}" if several else f"Throughput with {baseline}{_order(rows)}",
        rows,
        columns,
        note=f"{results.spec.name}: {facts.title}. "
        + (f"{mode.capitalize()}: {meaning(mode)} " if several else "")
        + "Step time is that of the slowest worker. "
        + (f"{LEVEL_WORDS.capitalize()}s over runs." if repeated else "One run each, so there are no intervals."),
        marked=_recommended(results, rows) if results.answer.verdict == "use" else None,
    )


def _order(rows: Sequence[ScalingRow]) -> str:
    return ", fastest first" if len(rows) > 1 and len({row.setting.global_batch for row in rows}) == 1 else ""


def _recommended(results: Results, rows: Sequence[ScalingRow]) -> ScalingRow | None:
    """Return the row of the recommended setting. With several places, the answer's own row is not one of `rows`."""
    best = results.answer.row
    return next((row for row in rows if best and row.setting == best.setting), None)


LAWS = {"amdahl": "Amdahl", "gustafson": "Gustafson", "usl": "USL", "karp-flatt": "Karp-Flatt"}
LAW_WORKERS = WORKERS.titled("at workers")
LAW_COLUMNS: tuple[Column[LawRow], ...] = (
    Column(quantity=Quantity(key="law", title="law"), of=lambda row: LAWS[row.law] + _only_curve(row)),
    Column(quantity=LAW_WORKERS, of=lambda row: row.workers),
    Column(
        quantity=Quantity(
            key="serial_fraction",
            title="serial share",
            unit="%",
            factor=100,
            digits=percents,
            about="Share of the work that does not get faster with more workers.",
        ),
        of=lambda row: row.serial_fraction,
    ),
    Column(
        quantity=Quantity(
            key="contention",
            title="contention",
            unit="%",
            factor=100,
            digits=percents,
            about="Cost per additional worker of waiting for shared resources.",
        ),
        of=lambda row: row.contention,
    ),
    Column(
        quantity=Quantity(
            key="coherence",
            title="coherence",
            unit="%",
            factor=100,
            about="Cost per pair of workers of keeping their data consistent.",
        ),
        of=lambda row: row.coherence,
    ),
    Column(
        quantity=Quantity(
            key="peak_workers",
            title="peak at",
            unit="workers",
            digits=integer,
            about="Worker count beyond which throughput falls, according to the law.",
        ),
        of=lambda row: row.peak_workers,
    ),
    Column(
        quantity=Quantity(
            key="residual",
            title="RMS error",
            unit="%",
            factor=100,
            digits=percents,
            about="Root mean square of the relative error of the fitted throughput.",
        ),
        of=lambda row: row.residual,
    ),
    Column(
        quantity=Quantity(
            key="counts", title="counts", digits=integer, about="Number of worker counts that the law is fitted to."
        ),
        of=lambda row: row.counts,
    ),
)


def _only_curve(row: LawRow) -> str:
    return "" if row.as_meant else " (curve only)"


def laws(evidence: Evidence) -> Table | None:
    """Return the laws fitted to the recommended series, or else to the first; report.json has the others."""
    all_laws, best = evidence.laws, evidence.results.answer.row
    rows = [row for row in all_laws if best and row.setting.series == best.setting.series]
    rows = rows or [row for row in all_laws if row.setting.series == all_laws[0].setting.series]
    made = table(
        "laws",
        f"Classical scaling laws, fitted to the measured worker counts{_which(evidence.results, rows)}",
        rows,
        LAW_COLUMNS,
    )
    if made is None:
        return None
    parameters = (quantity for quantity in made.quantities if quantity is not LAW_WORKERS)
    note = f"The laws describe the measurements; projections do not use them. {explained(parameters)}"
    if any(not row.as_meant for row in rows):
        other = "strong" if rows[0].setting.scaling == "weak" else "weak"
        note += f" Curve only: the law was made for {other} scaling, so its serial share has another meaning here."
    return replace(made, note=note)


def _which(results: Results, rows: Sequence[LawRow]) -> str:
    """Name the series if there are several, and say where to find the others."""
    if not rows or len(results.series) < 2:
        return ""
    series = next(series.rows for series in results.series if series.rows[0].setting.series == rows[0].setting.series)
    return f" of {name_of_series(series, results.rows)} (other series: report.json)"


MAX_SERIES = 7
WORKER_HOURS = Quantity(key="worker_hours", title="cost", unit="worker-hours")
PARETO_FRONT = "Pareto front"
BASES: dict[Basis, str] = {
    "measured": "",
    "estimated": " Estimated: measured steps plus the overhead outside them.",
    "projected": " Dashed, blue: projected.",
}
"""Explanation in the caption, by how the time is known."""


def speedup(evidence: Evidence) -> Figure | None:
    """Draw speedup and efficiency by worker count, with the ideal and the projection beyond the measured counts."""
    results = evidence.results
    groups = [series.rows for series in results.series if len(series.rows) > 1]
    if not groups:
        return None
    main = next((rows for rows in groups if _recommended(results, rows)), groups[0])
    ordered = [main, *(rows for rows in groups if rows is not main)][:MAX_SERIES]
    everything = [row for rows in ordered for row in rows]
    hues = colors_of_series(results)
    pace = throughput(results.facts)
    speedups, efficiencies = (
        [
            line(
                name_of_series(rows, everything) or "measured",
                rows,
                quantity,
                x=lambda row: row.setting.workers,
                y=of,
                lead=lambda row: (
                    f"{counted(row.setting.workers, 'worker')}, batch {row.setting.batch_per_worker:,} per worker"
                ),
                after=lambda row: f"{pace.said(row.samples_per_s.value)}, {counted(row.repeats, 'run')}",
                color=hues[rows[0].setting.series],
            )
            for rows in ordered
        ]
        for quantity, of in RATIOS
    )
    projected = _projected(evidence.prediction, main, hues[main[0].setting.series])
    speedups += projected[:1]
    efficiencies += projected[1:]
    base = main[0].baseline_workers
    counts = sorted({x for mark in speedups for x in mark.x})
    speedups.insert(0, _reference("ideal", counts, [count / base for count in counts]))
    efficiencies.insert(0, _reference("ideal", counts, [100.0] * len(counts)))
    axis = worker_axis(counts)
    best = _recommended(results, main)
    last = best if best and best.setting.workers > base else main[-1]
    place = main[0].setting.place
    title = (
        f"{counted(last.setting.workers, 'worker')}: {SPEEDUP.said(last.speedup.value)} the throughput of {base}, "
        f"{EFFICIENCY.said(last.efficiency.value)} efficient{f', on {place}' if place else ''}"
    )
    same = {rows[0].baseline_workers for rows in ordered} == {base}
    against = f"relative to {counted(base, 'worker')}" if same else "relative to the smallest count of each line"
    return Figure(
        key="speedup",
        title=title,
        note="Speedup is relative throughput; efficiency is speedup divided by the growth in workers. "
        f"Gray: perfect scaling{'' if same else f' from {base} on'}. Bands: {LEVEL_WORDS}s."
        + (" Dashed and hatched: projected, not measured, with 80 % intervals." if projected else "")
        + more_words(len(groups) - MAX_SERIES, "series"),
        panels=(
            Panel(
                x=axis,
                y=axis_for(f"speedup {against}", speedups, log=axis.log, from_zero=not axis.log),
                marks=tuple(speedups),
            ),
            Panel(x=axis, y=axis_for("efficiency, %", efficiencies, from_zero=True), marks=tuple(efficiencies)),
        ),
    )


RATIOS: tuple[tuple[Quantity, Callable[[ScalingRow], Estimate]], ...] = (
    (SPEEDUP, lambda row: row.speedup),
    (EFFICIENCY, lambda row: row.efficiency),
)


def _reference(name: str, x: Sequence[float], y: Sequence[float]) -> Line:
    return Line(name=name, color="gray", kind="reference", symbol="none", x=tuple(x), y=tuple(y))


def _projected(prediction: Prediction | None, main: Sequence[ScalingRow], hue: str) -> list[Line]:
    """Return the lines of projected speedup and efficiency, which start at the largest measured count."""
    base, last = main[0], main[-1]
    if prediction is None or prediction.setting.series != base.setting.series:
        return []
    beyond = {
        option.workers: option.samples_per_s.scaled(1 / base.samples_per_s.value)
        for option in prediction.options
        if not option.measured and option.workers > last.setting.workers
    }
    if not beyond:
        return []
    speedups = [(last.setting.workers, last.speedup), *beyond.items()]
    shares = ((count, value.scaled(base.setting.workers / count)) for count, value in beyond.items())
    efficiencies = [(last.setting.workers, last.efficiency), *shares]
    return [
        line(
            "projected",
            points,
            quantity,
            x=lambda point: point[0],
            y=lambda point: point[1],
            lead=lambda point: f"{point[0]:,} workers{', projected' if point[0] in beyond else ''}",
            color=hue,
            kind="projected",
            symbol="open",
        )
        for quantity, points in ((SPEEDUP, speedups), (EFFICIENCY, efficiencies))
    ]


def pareto(evidence: Evidence) -> Figure | None:
    """Draw the cost in worker-hours against time, one point per worker count."""
    points = evidence.prices
    if len(points) < 2:
        return None
    front = sorted((point for point in points if point.is_best), key=lambda point: point.time.value)
    marks = [_reference(PARETO_FRONT, _times(front), _costs(front))] if len(front) > 1 else []
    for basis in BASES:
        marks += _prices([point for point in points if point.basis == basis], basis)
    ends = [
        counted(point.setting.workers, "worker") + (" (projected)" if point.basis == "projected" else "")
        for point in front
    ]
    place = front[0].setting.place
    what = "the whole training" if points[0].is_whole_training else "an epoch"
    title = f"Fastest with {ends[0]}, cheapest with {ends[-1]}" if len(ends) > 1 else f"{ends[0]}: fastest and cheapest"
    return Figure(
        key="pareto",
        title=f"{title}{f', on {place}' if place else ''}",
        panels=(
            Panel(
                x=_axis_of(f"time of {what}, s", [point.time for point in points]),
                y=_axis_of("cost, worker-hours", [point.worker_hours for point in points]),
                marks=tuple(marks),
            ),
        ),
        note="Each point is a worker count; lower is cheaper, further left is faster. "
        + ("No count is both faster and cheaper than one on the Pareto front. " if len(front) > 1 else "")
        + "Slanted bars: 80 % intervals of time and cost together."
        + "".join(explanation for basis, explanation in BASES.items() if any(point.basis == basis for point in points)),
    )


def _times(points: Sequence[PricePoint]) -> tuple[float, ...]:
    return tuple(point.time.value for point in points)


def _costs(points: Sequence[PricePoint]) -> tuple[float, ...]:
    return tuple(point.worker_hours.value for point in points)


def _prices(points: Sequence[PricePoint], basis: Basis) -> Iterator[Line]:
    """Yield points with slanted bars: time and worker-hours are proportional, and so are their intervals."""
    kind: Literal["measured", "projected"] = "measured" if basis == "measured" else "projected"
    hue = "green" if basis == "estimated" else "blue"
    for point in points:
        x, y = point.time.ends, point.worker_hours.ends
        if x[0] < x[1]:
            yield Line(name=basis, kind=kind, color=hue, symbol="none", opacity=0.45, in_legend=False, x=x, y=y)
    if points:
        yield Line(
            name=basis,
            kind=kind,
            color=hue,
            connected=False,
            symbol="circle" if kind == "measured" else "open",
            labels=tuple(f"{point.setting.workers:,}" for point in points),
            x=_times(points),
            y=_costs(points),
            hover=tuple(map(_time_and_cost, points)),
        )


def _time_and_cost(point: PricePoint) -> str:
    basis = "" if point.basis == "measured" else f", {point.basis}"
    lines = (
        counted(point.setting.workers, "worker") + basis,
        SECONDS.full(point.time),
        WORKER_HOURS.full(point.worker_hours),
    )
    return "\n".join(lines)


def _axis_of(title: str, estimates: Sequence[Estimate]) -> Axis:
    ends = [end for estimate in estimates for end in estimate.ends if end]
    return axis_around(title, [estimate.value for estimate in estimates], ends, log=True)
