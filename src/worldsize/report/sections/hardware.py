"""Hardware use during training: a table of settings, and devices over time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from rich.text import Text

from worldsize.analysis.speed.hardware import Hardware
from worldsize.answer.curves import MOST_SAMPLES
from worldsize.answer.results import Results
from worldsize.report.blocks import Document
from worldsize.report.figures.model import Axis, Figure, Line, Panel, color
from worldsize.report.sections.steps import LEAST_SHARE
from worldsize.report.words.numbers import byte_size, number, percent
from worldsize.report.words.settings import configuration
from worldsize.report.write.console import plain_table


def hardware_view(results: Results) -> list[Any]:
    """One row per setting, with only the columns that were measured."""
    columns: dict[str, Callable[[Hardware], str]] = {
        "GPU busy": lambda hardware: _known(hardware.gpu_busy_percent, lambda value: f"{value:.0f} %"),
        "GPU memory\n(fullest)": lambda hardware: _known(hardware.gpu_memory_bytes, byte_size),
        "GPU power\n(all)": lambda hardware: _known(hardware.gpu_power_w, lambda value: f"{number(value)} W"),
        "joules a\nsample": lambda hardware: _known(hardware.joules_per_sample, number),
        "throttled": lambda hardware: (
            percent(sum(hardware.throttled.values())) if any(hardware.throttled.values()) else ""
        ),
        "cores\n(all ranks)": lambda hardware: _known(hardware.process_cores, number),
        "memory\n(largest rank)": lambda hardware: _known(hardware.process_memory_bytes, byte_size),
        "CPU\nstolen": lambda hardware: _known(hardware.stolen_share, _if_noticed),
        "sent": lambda hardware: _known(hardware.network_bytes_per_s, _pace),
    }
    rows = results.hardware
    mfus = results.mfus
    columns = {
        name: format_value
        for name, format_value in columns.items()
        if any(format_value(hardware) for _, hardware in rows)
    }
    if not columns:
        return []
    table = plain_table("hardware, while it trained")
    settings = [setting for setting, _ in rows]
    mixed = bool(configuration(settings[0], settings))
    for header in ("workers", "batch/\nworker", *(["how"] if mixed else []), *(["MFU"] if mfus else []), *columns):
        table.add_column(header, justify="right", overflow="fold")
    for setting, hardware in rows:
        how = [configuration(setting, settings)] if mixed else []
        share = [f"{mfus[setting].value * 100:.1f} %" if setting in mfus else ""] if mfus else []
        cells = [*share, *(format_value(hardware) for format_value in columns.values())]
        table.add_row(str(setting.workers), str(setting.batch_per_worker), *how, *cells)
    return [Text(""), table]


def _known(value: float | None, words: Callable[[float], str]) -> str:
    return words(value) if value else ""


def _if_noticed(share: float) -> str:
    return percent(share) if share >= LEAST_SHARE else ""


def _pace(bytes_per_s: float) -> str:
    return f"{byte_size(bytes_per_s)}/s" if bytes_per_s > 1e6 else ""


MOST_DEVICES = 8


def devices(document: Document) -> Figure | None:
    """Utilization and memory of each device over time."""
    telemetry = document["telemetry"]
    if telemetry is None or all(len(device["at_s"]) < 3 for device in telemetry["devices"]):
        return None
    on_gpu = telemetry["of"] == "gpu"
    noun = "GPU of rank" if on_gpu else "rank"
    shown = telemetry["devices"][:MOST_DEVICES]
    lines: dict[str, list[Line]] = {"busy": [], "memory_bytes": []}
    for index, device in enumerate(shown):
        for what, factor, unit in (("busy", 1.0, " %"), ("memory_bytes", 1e-9, " GB")):
            values = [None if value is None else value * factor for value in device[what]]
            lines[what].append(
                Line(
                    name=f"{noun} {device['rank']}",
                    color=color(index),
                    symbol="none",
                    x=tuple(device["at_s"]),
                    y=tuple(values),
                    hover=tuple(
                        "" if value is None else f"{noun} {device['rank']}, {number(seconds)} s\n{number(value)}{unit}"
                        for seconds, value in zip(device["at_s"], values, strict=True)
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
        note=f"Of {telemetry['trial']}, the longest trial on the most workers"
        + ("; thinned." if any(len(device["at_s"]) >= MOST_SAMPLES for device in shown) else ".")
        + (f" {telemetry['ranks'] - len(shown)} more ranks are not drawn." if telemetry["ranks"] > len(shown) else ""),
    )
