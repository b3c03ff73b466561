"""Figure of the batch: throughput, utilisation and memory against it, up to out-of-memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from worldsize.report.document import Document
from worldsize.report.marks import Axis, Figure, Line, Panel, colour, framed
from worldsize.report.picks import Entry, batch_axis, exact, setting_key, told_apart
from worldsize.report.words import LEVEL_WORDS, counted, number

MOST_SERIES = 6


def batch_rows(document: Document) -> list[dict[str, Any]]:
    """Throughput, utilisation and memory of every setting side by side, and the batches that did not fit."""
    hardware = {setting_key(entry): entry for entry in document["hardware"]}
    mfu = {setting_key(entry): entry for entry in document["mfu"]}
    tried = {(one["workers"], one["batch_per_worker"]): one.get("memory_bytes") for one in document.get("tries") or ()}
    on_gpu = any(str(each.get("device")).startswith("cuda") for each in document["environments"])
    rows: list[dict[str, Any]] = []
    for row in document["table"]:
        seen = hardware.get(setting_key(row), {})
        found = {**row, "outcome": "finished", "mfu": mfu.get(setting_key(row))}
        for name in ("gpu_busy_percent", "gpu_memory_bytes", "process_memory_bytes", "process_cores"):
            found[name] = seen.get(name)
        if not seen:  # a search for the largest batch weighs each try itself
            held = tried.get((row["workers"], row["batch_per_worker"]))
            found["gpu_memory_bytes" if on_gpu else "process_memory_bytes"] = held
        rows.append(found)
    return rows


def out_of_memory(document: Document) -> list[tuple[int, int]]:
    """Workers and batch of what did not fit: as a search for the largest batch tried it, or as trials ended."""
    tried = [
        (one["workers"], one["batch_per_worker"])
        for one in document.get("tries") or ()
        if one["outcome"] == "out_of_memory"
    ]
    ended = [(one["workers"], one["batch_per_worker"]) for one in document["runs"] if one["outcome"] == "out_of_memory"]
    return sorted({*tried, *ended} - {(one["workers"], one["batch_per_worker"]) for one in document["table"]})


def batch(document: Document) -> Figure | None:
    """Throughput, utilisation and memory against batch, up to out-of-memory."""
    rows = batch_rows(document)
    groups: dict[str, list[Entry]] = {}
    for row in sorted(rows, key=lambda row: (row["workers"], row["batch_per_worker"])):
        groups.setdefault(
            told_apart(row, rows, but=("batch_per_worker", "variant")) or counted(row["workers"], "worker"), []
        ).append(row)
    full = out_of_memory(document)
    shown = {name: here for name, here in list(groups.items())[:MOST_SERIES] if len(here) > 1 or full}
    if not shown:
        return None
    axis = batch_axis(
        [row["batch_per_worker"] for here in shown.values() for row in here] + [size for _, size in full],
        "batch a worker",
    )
    unit, per = document["unit"], document["units_per_sample"]
    paces = _throughput(shown, per, unit)
    panels = [
        Panel(x=axis, y=framed(f"{unit}/s", paces, from_zero=True), marks=(*paces, *_full(full))),
        *_hardware_panel(shown, axis, "gpu_busy_percent", "GPU busy, %", 1.0, " %"),
        *(
            _hardware_panel(shown, axis, "gpu_memory_bytes", "fullest GPU, GB", 1e-9, " GB")
            or _hardware_panel(shown, axis, "process_memory_bytes", "largest process, GB", 1e-9, " GB")
        ),
    ]
    best = max((row for here in shown.values() for row in here), key=lambda row: row["samples_per_s"]["value"])
    pace = f"{number(best['samples_per_s']['value'] * per)} {unit}/s"
    title = f"Highest throughput at batch {best['batch_per_worker']:,} a worker: {pace}"
    if full:
        title += f"; {full[0][1]:,} runs out of memory"
    return Figure(
        key="batch",
        section="hardware",
        title=title,
        panels=tuple(panels),
        note=f"Bands: {LEVEL_WORDS}s." + (" Crosses: out of memory." if full else ""),
    )


def _throughput(shown: dict[str, list[Entry]], per: float, unit: str) -> list[Line]:
    return [
        Line(
            name=name,
            colour=colour(place),
            x=tuple(row["batch_per_worker"] for row in here),
            y=tuple(row["samples_per_s"]["value"] * per for row in here),
            low=tuple(row["samples_per_s"]["low"] * per for row in here),
            high=tuple(row["samples_per_s"]["high"] * per for row in here),
            says=tuple(
                f"{name}, batch {row['batch_per_worker']:,}\n"
                + exact(
                    row["samples_per_s"]["value"] * per,
                    row["samples_per_s"]["low"] * per,
                    row["samples_per_s"]["high"] * per,
                    f" {unit}/s",
                )
                + f"\nn = {row['repeats']}"
                for row in here
            ),
        )
        for place, (name, here) in enumerate(shown.items())
    ]


def _full(full: Sequence[tuple[int, int]]) -> list[Line]:
    """Crosses on the floor, at the batches that did not fit."""
    if not full:
        return []
    says = tuple(f"batch {size:,} a worker, {counted(workers, 'worker')}\nout of memory" for workers, size in full)
    return [
        Line(
            name="out of memory",
            colour="vermilion",
            joined=False,
            symbol="cross",
            x=tuple(size for _, size in full),
            y=(0.0,) * len(full),
            says=says,
        )
    ]


def _hardware_panel(
    shown: dict[str, list[Entry]], axis: Axis, key: str, words: str, factor: float, unit: str
) -> list[Panel]:
    lines = [
        Line(
            name=name,
            colour=colour(place),
            x=tuple(row["batch_per_worker"] for row in known),
            y=tuple(row[key] * factor for row in known),
            says=tuple(
                f"{name}, batch {row['batch_per_worker']:,}\n{number(row[key] * factor)}{unit}" for row in known
            ),
        )
        for place, (name, here) in enumerate(shown.items())
        if (known := [row for row in here if row[key] is not None])
    ]
    most = 100.0 if key == "gpu_busy_percent" else None
    return [Panel(x=axis, y=Axis(title=words, from_zero=True, most=most), marks=tuple(lines))] if lines else []
