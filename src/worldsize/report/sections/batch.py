"""The batch: throughput, utilization and memory against it, and steps to the target; tables and figures."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.table import Table
from rich.text import Text

from worldsize.analysis.estimate import Estimate
from worldsize.analysis.speed.largest_batch import BatchRow, LargestBatch
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
from worldsize.report.figures.model import Axis, Figure, Line, Panel, axis_for, batch_axis, colour
from worldsize.report.words.numbers import LEVEL_WORDS, byte_size, counted, full, integer, number, percents, whole
from worldsize.report.words.settings import configuration, describe_entry, setting_key
from worldsize.report.write.console import plain_table


def batches_view(results: Results) -> list[Any]:
    """Nothing for a study that lists its batches."""
    return [Text(""), _table(results)] if results.largest else []


def _table(results: Results) -> Table:
    facts = results.facts
    settings = [found.setting for found in results.largest]
    several = len({setting.workers for setting in settings}) > 1
    mixed = bool(configuration(settings[0], settings))
    table = plain_table(f"batches that were tried, with {LEVEL_WORDS}s")
    headers = [*(["workers"] if several else []), "batch/\nworker", *(["how"] if mixed else []), f"{facts.unit}/s"]
    for header in (*headers, "seconds\nan epoch", "memory\n(fullest rank)"):
        table.add_column(header, justify="right", overflow="fold")
    for found in results.largest:
        place = [str(found.setting.workers)] if several else []
        told = [configuration(found.setting, settings)] if mixed else []
        for row in found.rows:
            table.add_row(
                *(*place, str(row.batch_per_worker), *told),
                *_cells(row, facts.units_per_sample),
                style=_style(found, row),
            )
    return table


def _cells(row: BatchRow, units_per_sample: int) -> list[Text]:
    if not row.fits:
        return [Text("out of memory"), Text(""), Text("")]
    memory = Text("" if row.memory_bytes is None else byte_size(row.memory_bytes))
    return [_estimate(row.samples_per_s, units_per_sample), _estimate(row.epoch_s), memory]


def _estimate(found: Estimate | None, factor: float = 1.0) -> Text:
    if found is None:
        return Text("")
    if found.low is None or found.high is None:
        return Text(number(found.value * factor))
    reach = f"{number(found.low * factor)}–{number(found.high * factor)}"
    return Text.assemble(number(found.value * factor), "\n", (reach, "dim not bold"))


def _style(found: LargestBatch, row: BatchRow) -> str:
    if not row.fits:
        return "dim"
    return "bold" if row.batch_per_worker == found.enough else ""


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
    groups: dict[str, list[Fields]] = {}
    for row in sorted(rows, key=lambda row: (row["workers"], row["batch_per_worker"])):
        groups.setdefault(
            describe_entry(row, rows, but=("batch_per_worker", "variant")) or counted(row["workers"], "worker"), []
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
        Panel(x=axis, y=axis_for(f"{unit}/s", paces, from_zero=True), marks=(*paces, *_full(full))),
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


def _throughput(shown: dict[str, list[Fields]], per: float, unit: str) -> list[Line]:
    return [
        Line(
            name=name,
            colour=colour(place),
            x=tuple(row["batch_per_worker"] for row in here),
            y=tuple(row["samples_per_s"]["value"] * per for row in here),
            low=tuple(row["samples_per_s"]["low"] * per for row in here),
            high=tuple(row["samples_per_s"]["high"] * per for row in here),
            hover=tuple(
                f"{name}, batch {row['batch_per_worker']:,}\n"
                + full(
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
            connected=False,
            symbol="cross",
            x=tuple(size for _, size in full),
            y=(0.0,) * len(full),
            hover=says,
        )
    ]


def _hardware_panel(
    shown: dict[str, list[Fields]], axis: Axis, key: str, words: str, factor: float, unit: str
) -> list[Panel]:
    lines = [
        Line(
            name=name,
            colour=colour(place),
            x=tuple(row["batch_per_worker"] for row in known),
            y=tuple(row[key] * factor for row in known),
            hover=tuple(
                f"{name}, batch {row['batch_per_worker']:,}\n{number(row[key] * factor)}{unit}" for row in known
            ),
        )
        for place, (name, here) in enumerate(shown.items())
        if (known := [row for row in here if row[key] is not None])
    ]
    most = 100.0 if key == "gpu_busy_percent" else None
    return [Panel(x=axis, y=Axis(title=words, from_zero=True, most=most), marks=tuple(lines))] if lines else []


def batch_sheet(document: Document) -> Sheet | None:
    rows = batch_rows(document)
    full = out_of_memory(document)
    if len({row["batch_per_worker"] for row in rows}) < 2 and not full:
        return None
    lead = (*COUNTS[:2], *how_columns(rows))
    columns = (
        *lead,
        Column(
            key="samples_per_s", title="throughput", unit=f"{document['unit']}/s", factor=document["units_per_sample"]
        ),
        Column(key="epoch_s", title="epoch, steps alone", unit="s"),
        Column(key="gpu_busy_percent", title="GPU busy", unit="%", format=percents),
        Column(key="mfu", title="MFU", unit="%", factor=100, format=percents),
        Column(key="gpu_memory_bytes", title="GPU memory", unit="GB", factor=1e-9),
        Column(key="process_memory_bytes", title="process memory", unit="GB", factor=1e-9),
        Column(key="outcome", title="outcome"),
        REPEATS,
    )
    found = []
    for row in rows:
        pace = row["samples_per_s"]
        epoch = interval(row["epoch_s"])
        others = [Cell(value=row[key]) for key in ("gpu_memory_bytes", "process_memory_bytes")]
        head = [
            *plain_cells(row, lead),
            interval(pace),
            epoch,
            Cell(value=row["gpu_busy_percent"]),
            interval(row["mfu"]),
        ]
        found.append((*head, *others, Cell(value="fits"), Cell(value=row["repeats"])))
    for workers, size in full:
        blank = [Cell(value=None)] * (len(columns) - 4)
        found.append((Cell(value=workers), Cell(value=size), *blank, Cell(value="out of memory"), Cell(value=None)))
    found.sort(key=lambda cells: (cells[0].value, cells[1].value))
    note = "Epoch: all training samples at this throughput, without loading the first batch and without evaluation."
    return Sheet(
        key="batch",
        section="hardware",
        title="Throughput and memory against batch",
        columns=columns,
        rows=tuple(found),
        note=note,
    )


FOLLOWED = {
    "holds": "as the law says",
    "steps-rise": "no: more steps at the largest",
    "examples-fall": "no: fewer examples at the largest",
}


def batch_model(document: Document) -> Sheet | None:
    entries = document["batch_models"]
    if not entries:
        return None
    how = how_columns(entries)
    columns = (
        Column(key="variant", title="trained with"),
        *how,
        Column(key="smallest_batch", title="batches from", format=integer),
        Column(key="largest_batch", title="to", format=integer),
        Column(key="least_steps", title="S_min", unit="steps", format=whole),
        Column(key="critical_batch", title="B_crit", unit="samples", format=whole),
        Column(key="law", title="steps follow"),
        Column(key="runs", title="n", format=integer),
    )
    rows = [
        (
            Cell(value=entry["variant"]),
            *plain_cells(entry, how),
            Cell(value=entry["smallest_batch"]),
            Cell(value=entry["largest_batch"]),
            interval(entry["least_steps"]),
            interval(entry["critical_batch"]),
            Cell(value=FOLLOWED[entry["law"]]),
            Cell(value=entry["runs"]),
        )
        for entry in entries
    ]
    note = (
        "Steps to the target = S_min (1 + B_crit / batch): far below B_crit twice the batch halves the steps, far "
        "above it saves none. 80 % intervals over n runs; B_crit is looked for from an 8th of the smallest batch to "
        "128 times the largest, so an end there means: at most, or at least."
    )
    return Sheet(
        key="batch-model",
        section="learning",
        title="How steps to the target fall with the batch",
        columns=columns,
        rows=tuple(rows),
        note=note,
    )
