"""Figures of hardware: devices over time, links."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from worldsize.analysis.link import ring_allreduce_s
from worldsize.report.document import Document
from worldsize.report.evidence import MOST_SAMPLES
from worldsize.report.marks import Axis, Figure, Line, Panel, colour
from worldsize.report.picks import Entry
from worldsize.report.words import counted, number

MOST_SERIES = 6
MOST_DEVICES = 8
KINDS = {"inside": "inside a node", "across": "across nodes", "all": "all ranks"}


def devices(document: Document) -> Figure | None:
    """Utilisation and memory of each device over time."""
    found = document["telemetry"]
    if found is None or all(len(device["at_s"]) < 3 for device in found["devices"]):
        return None
    on_gpu = found["of"] == "gpu"
    noun = "GPU of rank" if on_gpu else "rank"
    shown = found["devices"][:MOST_DEVICES]
    lines: dict[str, list[Line]] = {"busy": [], "memory_bytes": []}
    for place, device in enumerate(shown):
        for what, factor, unit in (("busy", 1.0, " %"), ("memory_bytes", 1e-9, " GB")):
            values = [None if value is None else value * factor for value in device[what]]
            lines[what].append(
                Line(
                    name=f"{noun} {device['rank']}",
                    colour=colour(place),
                    symbol="none",
                    x=tuple(device["at_s"]),
                    y=tuple(values),
                    says=tuple(
                        "" if value is None else f"{noun} {device['rank']}, {number(at)} s\n{number(value)}{unit}"
                        for at, value in zip(device["at_s"], values, strict=True)
                    ),
                )
            )
    axis = Axis(title="time since the trial began, s", from_zero=True)
    busy = [value for device in shown for value in device["busy"] if value is not None]
    peak = max((value for device in shown for value in device["memory_bytes"] if value is not None), default=0.0)
    title = (
        f"{'GPUs were' if on_gpu else 'Each process kept its core'} {np.mean(busy):.0f} % busy; "
        f"the fullest held {number(peak / 1e9)} GB"
        if busy
        else "Memory over time"
    )
    top = 100.0 if on_gpu else None
    return Figure(
        key="devices",
        section="hardware",
        title=title,
        panels=(
            Panel(
                x=axis,
                y=Axis(title="GPU busy, %" if on_gpu else "CPU of a rank, % of a core", from_zero=True, most=top),
                marks=tuple(lines["busy"]),
            ),
            Panel(
                x=axis,
                y=Axis(title="GPU memory, GB" if on_gpu else "memory of a rank, GB", from_zero=True),
                marks=tuple(lines["memory_bytes"]),
            ),
        ),
        note=f"Of {found['trial']}, the longest trial on the most workers"
        + ("; thinned." if any(len(device["at_s"]) >= MOST_SAMPLES for device in shown) else ".")
        + (f" {found['ranks'] - len(shown)} more ranks are not drawn." if found["ranks"] > len(shown) else ""),
    )


def bandwidth(document: Document) -> Figure | None:
    """Bus bandwidth against message size, and the law of latency and bandwidth that was fitted to it."""
    links = [link for link in document["links"] if len(link["sizes"]) > 1][:MOST_SERIES]
    if not links:
        return None
    marks: list[Line] = []
    for place, link in enumerate(links):
        name = f"{KINDS.get(link['kind'], link['kind'])}, {counted(link['workers'], 'worker')}"
        name += f", {link['on']}" if link["on"] else ""
        sizes = link["sizes"]
        marks.append(
            Line(
                name=name,
                colour=colour(place),
                x=tuple(float(one["size_bytes"]) for one in sizes),
                y=tuple(one["busbw_bytes_per_s"] / 1e9 for one in sizes),
                says=tuple(
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
                    fade=0.8,
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


def _latency(links: Sequence[Entry]) -> str:
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
