"""Exchanging gradients: what it takes of a step, and what the links carry; tables and figures."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from rich.text import Text

from worldsize.analysis.speed.breakdown import StepParts
from worldsize.analysis.speed.network import Link, ring_allreduce_s
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
from worldsize.report.figures.model import Axis, Figure, Line, Panel, colour
from worldsize.report.words.numbers import LEVEL_WORDS, byte_size, counted, decimals, integer, number
from worldsize.report.words.settings import configuration, method_key, setting_key
from worldsize.report.write.console import plain_table

NOTE = (
    "Computing: the median step without the exchange of gradients. Exposed: what the step with it takes longer "
    f"({LEVEL_WORDS}). Total: the exchange by torch's own clock, overlapped with computing or not; bus bandwidth is of "
    "that. By subtraction: the step less that of 1 worker, which is no measure of it: computing itself slows when "
    "cores, memory or power are shared."
)


def exchange_view(results: Results) -> list[Any]:
    """One row a setting; nothing where no probe ran with and without the exchange."""
    timed = [each for each in results.steps if each.exposed]
    if not timed:
        return []
    methods = {each.setting.method for each in timed}
    shown = [
        each
        for each in results.steps
        if each.exposed
        # One worker exchanges nothing: its step is all computing, and what the others are held against.
        or (each.setting.workers == 1 and each.setting.method in methods)
    ]
    settings = [each.setting for each in shown]
    mixed = bool(configuration(settings[0], settings))
    table = plain_table("computing and exchanging gradients: ms a step, seconds an epoch below")
    for header in ("workers", "batch/\nworker", *(["how"] if mixed else []), "com-\nputing", "exposed", "total"):
        table.add_column(header, justify="right", overflow="fold")
    for header in ("by sub-\ntraction", "gradi-\nents", "bus\nbandwidth"):
        table.add_column(header, justify="right", no_wrap=True)
    for each in shown:
        setting = each.setting
        steps = results.facts.train_samples / setting.global_batch
        told = [configuration(setting, settings)] if mixed else []
        table.add_row(*(str(setting.workers), str(setting.batch_per_worker), *told), *_cells(each, steps))
    return [Text(""), table, Text(NOTE, style="dim")]


def _cells(each: StepParts, steps: float) -> list[Text]:
    found, traffic = each.exposed, each.traffic
    if found is None:
        return [_both(each.parts.step_s.value, steps), *(Text("") for _ in range(5))]
    exposed = _both(found.seconds, steps)
    exposed.append(f"\n{number(found.low * 1e3)}–{number(found.high * 1e3)} ms", style="dim not bold")
    return [
        _both(found.without_s, steps),
        exposed,
        _both(each.total_s.value if each.total_s else None, steps),
        _both(each.by_subtraction_s, steps),
        Text("" if traffic is None else byte_size(traffic.bytes)),
        Text("" if traffic is None else f"{byte_size(traffic.busbw)}/s"),
    ]


def _both(seconds: float | None, steps: float) -> Text:
    """A step in ms, and as many of them as an epoch has."""
    if seconds is None:
        return Text("")
    return Text.assemble(number(seconds * 1e3), "\n", (f"{number(seconds * steps)} s", "dim not bold"))


def links_view(results: Results) -> list[Any]:
    """One line a link: what all-reduces between the ranks showed."""
    return [Text(_link_words(kind, link), style="dim") for kind, link in results.links]


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
        f"{where} ({link.workers} workers): {byte_size(bandwidth.value)}/s ({byte_size(bandwidth.low)}/s to "
        f"{byte_size(bandwidth.high)}/s), latency {number(latency.value * 1e6)} us ({number(latency.low * 1e6)} to "
        f"{number(latency.high * 1e6)}), from all-reduces of 1 KB to {byte_size(link.sizes[-1].size_bytes)}."
    )


MOST_SERIES = 6


KINDS = {"inside": "inside a node", "across": "across nodes", "all": "all ranks"}


def bandwidth_figure(document: Document) -> Figure | None:
    """Bus bandwidth against message size, and the law of latency and bandwidth that was fitted to it."""
    links = [link for link in document["links"] if len(link["sizes"]) > 1][:MOST_SERIES]
    if not links:
        return None
    marks: list[Line] = []
    for place, link in enumerate(links):
        name = f"{KINDS.get(link['kind'], link['kind'])}, {counted(link['workers'], 'worker')}"
        name += f", {link['place']}" if link["place"] else ""
        sizes = link["sizes"]
        marks.append(
            Line(
                name=name,
                colour=colour(place),
                x=tuple(float(one["size_bytes"]) for one in sizes),
                y=tuple(one["busbw_bytes_per_s"] / 1e9 for one in sizes),
                hover=tuple(
                    f"{name}\n{_size(one['size_bytes'])}: {number(one['busbw_bytes_per_s'] / 1e9)} GB/s\n"
                    f"{number(one['seconds'] * 1e6)} us"
                    for one in sizes
                ),
            )
        )
        if not link["poor"]:
            n, latency, speed = link["workers"], link["latency_s"]["value"], link["bandwidth_bytes_per_s"]["value"]
            x = np.geomspace(sizes[0]["size_bytes"], sizes[-1]["size_bytes"], 40).tolist()
            y = [2 * (n - 1) / n * size / ring_allreduce_s(size, n, latency, speed) / 1e9 for size in x]
            marks.append(
                Line(
                    name="fitted law",
                    colour=colour(place),
                    kind="projected",
                    symbol="none",
                    x=tuple(x),
                    y=tuple(y),
                    opacity=0.8,
                )
            )
    marks += _gradients(document, marks)
    best = max(one["busbw_bytes_per_s"] for link in links for one in link["sizes"])
    low, high = (end(one["size_bytes"] for link in links for one in link["sizes"]) for end in (min, max))
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
    """Where the gradients of this model lie on the axis."""
    size = next((each["traffic"]["bytes"] for each in document["steps"] if each.get("traffic")), None)
    heights = [value for mark in marks for value in mark.y if value]
    if size is None or not heights:
        return []
    ends = (min(heights), max(heights))
    return [
        Line(
            name=f"gradients of this model, {_size(size)}",
            colour="grey",
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
    """What one worker exchanges is nothing: its step stands there to hold the others against."""
    timed = [each for each in document["steps"] if each.get("exposed")]
    methods = {method_key(each["setting"]) for each in timed}
    shown = [
        each
        for each in document["steps"]
        if each.get("exposed") or (each["setting"]["workers"] == 1 and method_key(each["setting"]) in methods)
    ]
    if not timed:
        return None
    lead = (*COUNTS[:2], *how_columns([each["setting"] for each in shown]))
    say = decimals(min(each["parts"]["step_s"]["value"] for each in shown) * 1e3)
    repeats = {setting_key(row): row["repeats"] for row in document["table"]}
    columns = (
        *lead,
        Column(key="computing_s", title="computing", unit="ms", factor=1e3, format=say),
        Column(key="exposed_s", title="exchange adds", unit="ms", factor=1e3, format=say),
        Column(key="exchange_s", title="exchange in all", unit="ms", factor=1e3, format=say),
        Column(key="by_subtraction_s", title="by subtraction", unit="ms", factor=1e3, format=say),
        Column(key="gradient_bytes", title="gradients", unit="MB", factor=1e-6),
        Column(key="busbw_bytes_per_s", title="bus bandwidth", unit="GB/s", factor=1e-9),
        REPEATS,
    )
    found = []
    for each in shown:
        adds, traffic = each.get("exposed"), each.get("traffic") or {}
        cells = (
            Cell(value=adds["without_s"]) if adds else interval(each["parts"]["step_s"]),
            Cell(value=adds["seconds"], low=adds["low"], high=adds["high"]) if adds else Cell(value=None),
            interval(each.get("total_s")),
            Cell(value=each.get("by_subtraction_s")),
            Cell(value=traffic.get("bytes")),
            Cell(value=traffic.get("busbw")),
            Cell(value=repeats.get(setting_key(each["setting"]))),
        )
        found.append((*plain_cells(each["setting"], lead), *cells))
    note = (
        "Computing: the median step without the exchange of gradients. Exchange adds: what the step with it takes "
        f"longer ({LEVEL_WORDS}). In all: by torch's own clock, overlapped with computing or not; bus bandwidth is of "
        "that. By subtraction: the step less that of 1 worker, which is no measure of communication."
    )
    return Sheet(
        key="exchange",
        section="step",
        title="Computing and communication",
        columns=columns,
        rows=tuple(found),
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
    found = []
    for link in document["links"]:
        for one in link["sizes"]:
            lead = (KINDS.get(link["kind"], link["kind"]), link["place"] or None, link["workers"])
            head = tuple(Cell(value=value) for value in lead)
            time = Cell(value=one["seconds"], low=one["low_s"], high=one["high_s"])
            others = (Cell(value=one[column.key]) for column in columns[5:])
            found.append((*head, Cell(value=one["size_bytes"]), time, *others))
    note = (
        f"All-reduces at the start of each launch, medians over n repetitions with {LEVEL_WORDS}s; bus bandwidth = "
        "bytes / time * 2(w - 1)/w for w workers, as nccl-tests defines it."
    )
    return Sheet(
        key="bandwidth",
        section="hardware",
        title="Bandwidth of the links",
        columns=columns,
        rows=tuple(found),
        note=note,
    )
