"""Gradient exchange: its share of a step, and the bandwidth of the links; tables and figures."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from rich.text import Text

from worldsize.analysis.speed.breakdown import StepParts
from worldsize.analysis.speed.network import Link, Wire, ring_allreduce_s, ring_bytes
from worldsize.answer.results import Results
from worldsize.report.blocks import (
    COUNTS,
    REPEATS,
    Cell,
    Column,
    Document,
    Fields,
    Sheet,
    how_columns,
    interval,
    plain_cells,
)
from worldsize.report.figures.model import Axis, Figure, Line, Panel, color
from worldsize.report.words.numbers import LEVEL_WORDS, byte_size, counted, decimals, integer, number, with_range
from worldsize.report.words.settings import configuration, method_key, setting_key
from worldsize.report.write.console import plain_table

NOTE = (
    "Computing: the median step without the exchange of gradients. Exposed: what the step with it takes longer "
    f"({LEVEL_WORDS}). Total: the exchange by torch's own clock, overlapped with computing or not; bus bandwidth is of "
    "that. By subtraction: the step less that of 1 worker, which does not measure it: computing itself slows when "
    "cores, memory or power are shared."
)


def exchange_view(results: Results) -> list[Any]:
    """One row per setting; empty if no probe ran with and without the exchange."""
    timed = [step for step in results.steps if step.exposed]
    if not timed:
        return []
    methods = {step.setting.method for step in timed}
    shown = [
        step
        for step in results.steps
        if step.exposed
        # One worker exchanges nothing: its step is only computing, the baseline for the others.
        or (step.setting.workers == 1 and step.setting.method in methods)
    ]
    settings = [step.setting for step in shown]
    mixed = bool(configuration(settings[0], settings))
    table = plain_table("computing and exchanging gradients: ms per step, seconds per epoch below")
    for header in ("workers", "batch/\nworker", *(["how"] if mixed else []), "com-\nputing", "exposed", "total"):
        table.add_column(header, justify="right", overflow="fold")
    for header in ("by sub-\ntraction", "gradi-\nents", "bus\nbandwidth"):
        table.add_column(header, justify="right", no_wrap=True)
    for step in shown:
        setting = step.setting
        steps = results.facts.train_samples / setting.global_batch
        how = [configuration(setting, settings)] if mixed else []
        table.add_row(*(str(setting.workers), str(setting.batch_per_worker), *how), *_cells(step, steps))
    return [Text(""), table, Text(NOTE, style="dim")]


def _cells(step: StepParts, steps: float) -> list[Text]:
    exposed, traffic = step.exposed, step.traffic
    if exposed is None:
        return [_both(step.parts.step_s.value, steps), *(Text("") for _ in range(5))]
    exposed_text = _both(exposed.seconds.value, steps)
    if exposed.seconds.has_interval:
        low, high = (number(end * 1e3) for end in exposed.seconds.ends)
        exposed_text.append(f"\n{low}–{high} ms", style="dim not bold")
    return [
        _both(exposed.without_s, steps),
        exposed_text,
        _both(step.total_s.value if step.total_s else None, steps),
        _both(step.by_subtraction_s, steps),
        Text("" if traffic is None else byte_size(traffic.bytes)),
        Text("" if traffic is None else f"{byte_size(traffic.busbw)}/s"),
    ]


def _both(seconds: float | None, steps: float) -> Text:
    """Time per step in ms, and per epoch in s."""
    if seconds is None:
        return Text("")
    return Text.assemble(number(seconds * 1e3), "\n", (f"{number(seconds * steps)} s", "dim not bold"))


def links_view(results: Results) -> list[Any]:
    """One line per link: bandwidth and latency from all-reduces between the ranks."""
    return [Text(_link_words(kind, link), style="dim") for kind, link in results.links]


def per_s(count: float) -> str:
    return f"{byte_size(count)}/s"


def _link_words(kind: str, link: Link) -> str:
    where = {"inside": "Inside a node", "across": "Across nodes", "all": "All ranks together"}[kind]
    where += f" of {link.place}" if link.place else ""
    if link.is_poor:
        best = max(link.sizes, key=lambda size: size.busbw_bytes_per_s)
        return (
            f"{where} ({link.workers} workers) two numbers do not describe the link; the best bus bandwidth was "
            f"{byte_size(best.busbw_bytes_per_s)}/s, for {byte_size(best.size_bytes)}."
        )
    bandwidth, latency = link.bandwidth_bytes_per_s, link.latency_s
    return (
        f"{where} ({link.workers} workers): {per_s(bandwidth.value)}{with_range(bandwidth, per_s)}, latency "
        f"{number(latency.value * 1e6)} us{with_range(latency.scaled(1e6))}, from all-reduces of 1 KB to "
        f"{byte_size(link.sizes[-1].size_bytes)}."
    )


MOST_SERIES = 6


KINDS = {"inside": "inside a node", "across": "across nodes", "all": "all ranks"}


def bandwidth_figure(document: Document) -> Figure | None:
    """Bus bandwidth against message size, with the fitted law of latency and bandwidth."""
    links = [link for link in document["links"] if len(link["sizes"]) > 1][:MOST_SERIES]
    if not links:
        return None
    marks: list[Line] = []
    for index, link in enumerate(links):
        name = f"{KINDS.get(link['kind'], link['kind'])}, {counted(link['workers'], 'worker')}"
        name += f", {link['place']}" if link["place"] else ""
        sizes = link["sizes"]
        marks.append(
            Line(
                name=name,
                color=color(index),
                x=tuple(float(entry["size_bytes"]) for entry in sizes),
                y=tuple(entry["busbw_bytes_per_s"] / 1e9 for entry in sizes),
                hover=tuple(
                    f"{name}\n{_size(entry['size_bytes'])}: {number(entry['busbw_bytes_per_s'] / 1e9)} GB/s\n"
                    f"{number(entry['seconds']['value'] * 1e6)} us"
                    for entry in sizes
                ),
            )
        )
        if not link["poor"]:
            n, fitted = link["workers"], {name: link[name]["value"] for name in ("latency_s", "bandwidth_bytes_per_s")}
            x = np.geomspace(sizes[0]["size_bytes"], sizes[-1]["size_bytes"], 40).tolist()
            y = [ring_bytes(size, n) / ring_allreduce_s(size, n, Wire(**fitted)) / 1e9 for size in x]
            marks.append(
                Line(
                    name="fitted law",
                    color=color(index),
                    kind="projected",
                    symbol="none",
                    x=tuple(x),
                    y=tuple(y),
                    opacity=0.8,
                )
            )
    marks += _gradients(document, marks)
    best = max(entry["busbw_bytes_per_s"] for link in links for entry in link["sizes"])
    low, high = (end(entry["size_bytes"] for link in links for entry in link["sizes"]) for end in (min, max))
    ticks = tuple(
        (float(size), _size(size))
        for size in (10.0**power for power in range(3, 12))
        if low * 0.9 <= size <= high * 1.1
    )
    panel = Panel(
        x=Axis(title="size of an all-reduce", log=True, ticks=ticks),
        y=Axis(title="bus bandwidth, GB/s", log=True),
        marks=tuple(marks),
    )
    return Figure(
        key="bandwidth",
        section="hardware",
        title=f"The link carries up to {number(best / 1e9)} GB/s" + _latency(links),
        panels=(panel,),
        note="Median over repetitions of the slowest rank; bus bandwidth as nccl-tests defines it. "
        "Dashed: latency and bandwidth fitted.",
    )


def _latency(links: Sequence[Fields]) -> str:
    good = [link for link in links if not link["poor"]]
    return f", after a latency of {number(good[0]['latency_s']['value'] * 1e6)} us" if len(good) == 1 else ""


def _gradients(document: Document, marks: Sequence[Line]) -> list[Line]:
    """A vertical line at the size of this model's gradients."""
    size = next((step["traffic"]["bytes"] for step in document["steps"] if step.get("traffic")), None)
    heights = [value for mark in marks for value in mark.y if value]
    if size is None or not heights:
        return []
    ends = (min(heights), max(heights))
    return [
        Line(
            name=f"gradients of this model, {_size(size)}",
            color="gray",
            kind="reference",
            symbol="none",
            x=(size, size),
            y=ends,
        )
    ]


def _size(count: float) -> str:
    for power, name in ((9, "GB"), (6, "MB"), (3, "KB")):
        if count >= 10**power * 0.999:
            return f"{number(count / 10**power) if count % 10**power else f'{count / 10**power:.0f}'} {name}"
    return f"{count:.0f} B"


def exchange(document: Document) -> Sheet | None:
    """Computing and communication per setting. One worker exchanges nothing and is listed for comparison."""
    timed = [step for step in document["steps"] if step.get("exposed")]
    methods = {method_key(step["setting"]) for step in timed}
    shown = [
        step
        for step in document["steps"]
        if step.get("exposed") or (step["setting"]["workers"] == 1 and method_key(step["setting"]) in methods)
    ]
    if not timed:
        return None
    lead = (*COUNTS[:2], *how_columns([step["setting"] for step in shown]))
    format_ms = decimals(min(step["parts"]["step_s"]["value"] for step in shown) * 1e3)
    repeats = {setting_key(row): row["repeats"] for row in document["table"]}
    columns = (
        *lead,
        Column(key="computing_s", title="computing", unit="ms", factor=1e3, format=format_ms),
        Column(key="exposed_s", title="exchange adds", unit="ms", factor=1e3, format=format_ms),
        Column(key="exchange_s", title="exchange in all", unit="ms", factor=1e3, format=format_ms),
        Column(key="by_subtraction_s", title="by subtraction", unit="ms", factor=1e3, format=format_ms),
        Column(key="gradient_bytes", title="gradients", unit="MB", factor=1e-6),
        Column(key="busbw_bytes_per_s", title="bus bandwidth", unit="GB/s", factor=1e-9),
        REPEATS,
    )
    rows = []
    for step in shown:
        adds, traffic = step.get("exposed"), step.get("traffic") or {}
        cells = (
            Cell(value=adds["without_s"]) if adds else interval(step["parts"]["step_s"]),
            interval(adds and adds["seconds"]),
            interval(step.get("total_s")),
            Cell(value=step.get("by_subtraction_s")),
            Cell(value=traffic.get("bytes")),
            Cell(value=traffic.get("busbw")),
            Cell(value=repeats.get(setting_key(step["setting"]))),
        )
        rows.append((*plain_cells(step["setting"], lead), *cells))
    note = (
        "Computing: the median step without the exchange of gradients. Exchange adds: what the step with it takes "
        f"longer ({LEVEL_WORDS}). In all: by torch's own clock, overlapped with computing or not; bus bandwidth is of "
        "that. By subtraction: the step less that of 1 worker, which does not measure communication."
    )
    return Sheet(
        key="exchange",
        section="step",
        title="Computing and communication",
        columns=columns,
        rows=tuple(rows),
        note=note,
    )


def bandwidth_sheet(document: Document) -> Sheet | None:
    columns = (
        Column(key="kind", title="link"),
        Column(key="place", title="place", format=integer),
        COUNTS[0],
        Column(key="size_bytes", title="size", unit="KB", factor=1e-3),
        Column(key="seconds", title="time", unit="us", factor=1e6),
        Column(key="algbw_bytes_per_s", title="algorithm bandwidth", unit="GB/s", factor=1e-9),
        Column(key="busbw_bytes_per_s", title="bus bandwidth", unit="GB/s", factor=1e-9),
        Column(key="repetitions", title="n", format=integer),
    )
    rows = []
    for link in document["links"]:
        for entry in link["sizes"]:
            lead = (KINDS.get(link["kind"], link["kind"]), link["place"] or None, link["workers"])
            head = tuple(Cell(value=value) for value in lead)
            time = interval(entry["seconds"])
            others = (Cell(value=entry[column.key]) for column in columns[5:])
            rows.append((*head, Cell(value=entry["size_bytes"]), time, *others))
    note = (
        f"All-reduces at the start of each launch, medians over n repetitions with {LEVEL_WORDS}s; bus bandwidth = "
        "bytes / time * 2(w - 1)/w for w workers, as nccl-tests defines it."
    )
    return Sheet(
        key="bandwidth",
        section="hardware",
        title="Bandwidth of the links",
        columns=columns,
        rows=tuple(rows),
        note=note,
    )
