"""Document -> tables: a scaling table for a proposal, batch, compute and communication, bandwidth, what was learned."""

from __future__ import annotations

from collections.abc import Callable

from worldsize.report.document import Document
from worldsize.report.figures_batch import batch_rows, out_of_memory
from worldsize.report.picks import chosen, setting_key
from worldsize.report.sheet import (
    COUNTS,
    REPEATS,
    Cell,
    Column,
    Sheet,
    how_columns,
    interval,
    percents,
    plain_cells,
)
from worldsize.report.sheets_jobs import jobs
from worldsize.report.sheets_learning import large_batch, optimizers, trained
from worldsize.report.sheets_models import batch_model, laws
from worldsize.report.sheets_time import bandwidth, exchange, steps
from worldsize.report.words import LEVEL_WORDS, counted, metric_value


def sheets(document: Document) -> list[Sheet]:
    """Only those that the study has data for, without columns that are empty throughout."""
    return [_without_empty(sheet) for make in SHEETS if (sheet := make(document)) is not None and sheet.rows]


def _without_empty(sheet: Sheet) -> Sheet:
    kept = [place for place in range(len(sheet.columns)) if any(row[place].value is not None for row in sheet.rows)]
    return Sheet(
        key=sheet.key,
        section=sheet.section,
        title=sheet.title,
        note=sheet.note,
        marked=sheet.marked,
        columns=tuple(sheet.columns[place] for place in kept),
        rows=tuple(tuple(row[place] for place in kept) for row in sheet.rows),
    )


def _scaling(document: Document) -> Sheet:
    rows = document["table"]
    metric, unit = document["metric"], document["unit"]
    lead = (*COUNTS, *how_columns(rows))
    several = len({row["workers"] for row in rows}) > 1
    ratios = (
        Column(key="speedup", title="speedup", unit="x"),
        Column(key="efficiency", title="efficiency", unit="%", factor=100, say=percents),
    )[: 2 if several else 0]
    columns = (
        *lead,
        Column(key="step_s", title="step time", unit="ms", factor=1e3),
        Column(key="samples_per_s", title="throughput", unit=f"{unit}/s", factor=document["units_per_sample"]),
        Column(key="epoch_s", title="epoch, steps alone", unit="s"),
        *ratios,
        Column(key=f"test_{metric}", title=f"test {metric}", say=metric_value),
        REPEATS,
    )
    found = [
        (
            *plain_cells(row, lead),
            *(interval(row[key]) for key in ("step_s", "samples_per_s", "epoch_s", *(column.key for column in ratios))),
            Cell(value=row["metric"], low=row["metric_low"], high=row["metric_high"]),
            Cell(value=row["repeats"]),
        )
        for row in rows
    ]
    best = chosen(document) if document["answer"]["verdict"] == "use" else None
    baseline = min((row["baseline_workers"] for row in rows), default=1)
    against = f"{document['scaling'].capitalize()} scaling against {counted(baseline, 'worker')}"
    return Sheet(
        key="scaling",
        section="scaling",
        title=against if several else f"Throughput with {counted(baseline, 'worker')}",
        columns=columns,
        rows=tuple(found),
        marked=next((place for place, row in enumerate(rows) if best and setting_key(row) == setting_key(best)), None),
        note=f"{document['study']}: {document['title']}. "
        f"Median step of the slowest rank; {LEVEL_WORDS}s over n repeats.",
    )


def _batch(document: Document) -> Sheet | None:
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
        Column(key="gpu_busy_percent", title="GPU busy", unit="%", say=percents),
        Column(key="mfu", title="MFU", unit="%", factor=100, say=percents),
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


SHEETS: tuple[Callable[[Document], Sheet | None], ...] = (
    *(_scaling, laws),
    *(_batch, steps, exchange, bandwidth, jobs),
    *(optimizers, large_batch, batch_model, trained),
)
"""In the order of the page."""
