"""Contents of a report: figures and tables in a fixed order, only those that the study has data for."""

from __future__ import annotations

from collections.abc import Callable

from worldsize.report.blocks import Document, Sheet
from worldsize.report.figures.model import Figure
from worldsize.report.sections.batch import batch, batch_model, batch_sheet
from worldsize.report.sections.communication import bandwidth_figure, bandwidth_sheet, exchange
from worldsize.report.sections.curves import convergence, curves, noise
from worldsize.report.sections.hardware import devices
from worldsize.report.sections.learning import large_batch, optimizers, outcome, stable, trained
from worldsize.report.sections.scaling import laws, pareto, scaling_sheet, speedup
from worldsize.report.sections.steps import jobs, step_parts, steps, timeline, wall_time

FIGURES: tuple[Callable[[Document], Figure | None], ...] = (
    *(speedup, pareto, outcome),
    *(step_parts, timeline, wall_time),
    *(batch, devices, bandwidth_figure),
    *(curves, stable, convergence, noise),
)
SECTIONS = {
    "scaling": "Scaling",
    "step": "Where the time goes",
    "hardware": "Batch, hardware and links",
    "learning": "What was learned",
}


def figures(document: Document) -> list[Figure]:
    return [figure for make in FIGURES if (figure := make(document)) is not None]


def sheets(document: Document) -> list[Sheet]:
    """Tables that the study has data for, without empty columns."""
    return [_without_empty(sheet) for make in SHEETS if (sheet := make(document)) is not None and sheet.rows]


def _without_empty(sheet: Sheet) -> Sheet:
    kept = [index for index in range(len(sheet.columns)) if any(row[index].value is not None for row in sheet.rows)]
    return Sheet(
        key=sheet.key,
        section=sheet.section,
        title=sheet.title,
        note=sheet.note,
        marked=sheet.marked,
        columns=tuple(sheet.columns[index] for index in kept),
        rows=tuple(tuple(row[index] for index in kept) for row in sheet.rows),
    )


SHEETS: tuple[Callable[[Document], Sheet | None], ...] = (
    *(scaling_sheet, laws),
    *(batch_sheet, steps, exchange, bandwidth_sheet, jobs),
    *(optimizers, large_batch, batch_model, trained),
)
"""In the order of the page."""
