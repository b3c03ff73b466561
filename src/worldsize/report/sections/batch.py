"""Batch size: throughput, utilization, memory and steps to the target against it; tables and figures."""

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
    estimate,
    how_columns,
    interval,
    plain_cells,
)
from worldsize.report.figures.model import Axis, Figure, Line, Panel, axis_for, batch_axis, color
from worldsize.report.words.numbers import (
    LEVEL_WORDS,
    below,
    byte_size,
    counted,
    full,
    integer,
    number,
    percents,
    whole,
)
from worldsize.report.words.settings import configuration, describe_entry, setting_key
from worldsize.report.write.console import plain_table


def batches_view(results: Results) -> list[Any]:
    """The table of a search for the largest batch; empty if the study lists its batches."""
    return [Text(""), _table(results)] if results.largest else []


def _table(results: Results) -> Table:
    facts = results.facts
    settings = [search.setting for search in results.largest]
    several = len({setting.workers for setting in settings}) > 1
    mixed = bool(configuration(settings[0], settings))
    table = plain_table(f"batches that were tried, with {LEVEL_WORDS}s")
    headers = [*(["workers"] if several else []), "batch/\nworker", *(["how"] if mixed else []), f"{facts.unit}/s"]
    for header in (*headers, "seconds\nan epoch", "memory\n(fullest rank)"):
        table.add_column(header, justify="right", overflow="fold")
    for search in results.largest:
        workers = [str(search.setting.workers)] if several else []
        how = [configuration(search.setting, settings)] if mixed else []
        for row in search.rows:
            table.add_row(
                *(*workers, str(row.batch_per_worker), *how),
                *_cells(row, facts.units_per_sample),
                style=_style(search, row),
            )
    return table


def _cells(row: BatchRow, units_per_sample: int) -> list[Text]:
    if not row.fits:
        return [Text("out of memory"), Text(""), Text("")]
    memory = Text("" if row.memory_bytes is None else byte_size(row.memory_bytes))
    return [_estimate(row.samples_per_s, units_per_sample), _estimate(row.epoch_s), memory]


def _estimate(estimate: Estimate | None, factor: float = 1.0) -> Text:
    if estimate is None:
        return Text("")
    value, *interval = below(estimate.scaled(factor)).split("\n")
    return Text.assemble(value, *(("\n" + line, "dim not bold") for line in interval))


def _style(search: LargestBatch, row: BatchRow) -> str:
    if not row.fits:
        return "dim"
    return "bold" if row.batch_per_worker == search.enough else ""


MOST_SERIES = 6


def batch_rows(document: Document) -> list[dict[str, Any]]:
    """Throughput, utilization and memory of every setting."""
    hardware = {setting_key(entry): entry for entry in document["hardware"]}
    mfu = {setting_key(entry): entry for entry in document["mfu"]}
    tried = {
        (attempt["workers"], attempt["batch_per_worker"]): attempt.get("memory_bytes")
        for attempt in document.get("tries") or ()
    }
    on_gpu = any(str(environment.get("device")).startswith("cuda") for environment in document["environments"])
    rows: list[dict[str, Any]] = []
    for row in document["table"]:
        usage = hardware.get(setting_key(row), {})
        merged = {**row, "outcome": "finished", "mfu": mfu.get(setting_key(row))}
        for name in ("gpu_busy_percent", "gpu_memory_bytes", "process_memory_bytes", "process_cores"):
            merged[name] = usage.get(name)
        if not usage:  # a search for the largest batch records the memory of each attempt
            held = tried.get((row["workers"], row["batch_per_worker"]))
            merged["gpu_memory_bytes" if on_gpu else "process_memory_bytes"] = held
        rows.append(merged)
    return rows


def out_of_memory(document: Document) -> list[tuple[int, int]]:
    """Workers and batch per worker that ran out of memory, in a search for the largest batch or in a trial."""
    tried = [
        (attempt["workers"], attempt["batch_per_worker"])
        for attempt in document.get("tries") or ()
        if attempt["outcome"] == "out_of_memory"
    ]
    ended = [(run["workers"], run["batch_per_worker"]) for run in document["runs"] if run["outcome"] == "out_of_memory"]
    return sorted({*tried, *ended} - {(row["workers"], row["batch_per_worker"]) for row in document["table"]})


def batch(document: Document) -> Figure | None:
    """Throughput, utilization and memory against batch, up to out-of-memory."""
    rows = batch_rows(document)
    groups: dict[str, list[Fields]] = {}
    for row in sorted(rows, key=lambda row: (row["workers"], row["batch_per_worker"])):
        groups.setdefault(
            describe_entry(row, rows, but=("batch_per_worker", "variant")) or counted(row["workers"], "worker"), []
        ).append(row)
    too_large = out_of_memory(document)
    shown = {name: group for name, group in list(groups.items())[:MOST_SERIES] if len(group) > 1 or too_large}
    if not shown:
        return None
    axis = batch_axis(
        [row["batch_per_worker"] for group in shown.values() for row in group] + [size for _, size in too_large],
        "batch a worker",
    )
    unit, per = document["unit"], document["units_per_sample"]
    paces = _throughput(shown, per, unit)
    panels = [
        Panel(x=axis, y=axis_for(f"{unit}/s", paces, from_zero=True), marks=(*paces, *_full(too_large))),
        *_hardware_panel(shown, axis, "gpu_busy_percent", "GPU busy, %", 1.0, " %"),
        *(
            _hardware_panel(shown, axis, "gpu_memory_bytes", "fullest GPU, GB", 1e-9, " GB")
            or _hardware_panel(shown, axis, "process_memory_bytes", "largest process, GB", 1e-9, " GB")
        ),
    ]
    best = max((row for group in shown.values() for row in group), key=lambda row: row["samples_per_s"]["value"])
    pace = f"{number(best['samples_per_s']['value'] * per)} {unit}/s"
    title = f"Highest throughput at batch {best['batch_per_worker']:,} a worker: {pace}"
    if too_large:
        title += f"; {too_large[0][1]:,} runs out of memory"
    return Figure(
        key="batch",
        section="hardware",
        title=title,
        panels=tuple(panels),
        note=f"Bands: {LEVEL_WORDS}s." + (" Crosses: out of memory." if too_large else ""),
    )


def _throughput(shown: dict[str, list[Fields]], per: float, unit: str) -> list[Line]:
    return [
        Line(
            name=name,
            color=color(index),
            x=tuple(row["batch_per_worker"] for row in group),
            y=tuple(row["samples_per_s"]["value"] * per for row in group),
            low=tuple(estimate(row["samples_per_s"]).ends[0] * per for row in group),
            high=tuple(estimate(row["samples_per_s"]).ends[1] * per for row in group),
            hover=tuple(
                f"{name}, batch {row['batch_per_worker']:,}\n"
                + full(estimate(row["samples_per_s"]).scaled(per), f" {unit}/s")
                + f"\nn = {row['repeats']}"
                for row in group
            ),
        )
        for index, (name, group) in enumerate(shown.items())
    ]


def _full(too_large: Sequence[tuple[int, int]]) -> list[Line]:
    """Crosses on the x axis at the batches that did not fit."""
    if not too_large:
        return []
    says = tuple(f"batch {size:,} a worker, {counted(workers, 'worker')}\nout of memory" for workers, size in too_large)
    return [
        Line(
            name="out of memory",
            color="vermilion",
            connected=False,
            symbol="cross",
            x=tuple(size for _, size in too_large),
            y=(0.0,) * len(too_large),
            hover=says,
        )
    ]


def _hardware_panel(
    shown: dict[str, list[Fields]], axis: Axis, key: str, words: str, factor: float, unit: str
) -> list[Panel]:
    lines = [
        Line(
            name=name,
            color=color(index),
            x=tuple(row["batch_per_worker"] for row in known),
            y=tuple(row[key] * factor for row in known),
            hover=tuple(
                f"{name}, batch {row['batch_per_worker']:,}\n{number(row[key] * factor)}{unit}" for row in known
            ),
        )
        for index, (name, group) in enumerate(shown.items())
        if (known := [row for row in group if row[key] is not None])
    ]
    most = 100.0 if key == "gpu_busy_percent" else None
    return [Panel(x=axis, y=Axis(title=words, from_zero=True, most=most), marks=tuple(lines))] if lines else []


def batch_sheet(document: Document) -> Sheet | None:
    rows = batch_rows(document)
    too_large = out_of_memory(document)
    if len({row["batch_per_worker"] for row in rows}) < 2 and not too_large:
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
    table_rows = []
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
        table_rows.append((*head, *others, Cell(value="fits"), Cell(value=row["repeats"])))
    for workers, size in too_large:
        blank = [Cell(value=None)] * (len(columns) - 4)
        table_rows.append(
            (Cell(value=workers), Cell(value=size), *blank, Cell(value="out of memory"), Cell(value=None))
        )
    table_rows.sort(key=lambda cells: (cells[0].value, cells[1].value))
    note = "Epoch: all training samples at this throughput, without loading the first batch and without evaluation."
    return Sheet(
        key="batch",
        section="hardware",
        title="Throughput and memory against batch",
        columns=columns,
        rows=tuple(table_rows),
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
