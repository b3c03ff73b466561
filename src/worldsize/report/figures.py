"""Document -> figures, in a fixed order: only those that the study has data for."""

from __future__ import annotations

from collections.abc import Callable

from worldsize.report.document import Document
from worldsize.report.figures_batch import batch
from worldsize.report.figures_hardware import bandwidth, devices
from worldsize.report.figures_learning import curves, outcome, stable
from worldsize.report.figures_optimizers import convergence, noise
from worldsize.report.figures_scaling import pareto, speedup
from worldsize.report.figures_time import step_parts, timeline, wall_time
from worldsize.report.marks import Figure

FIGURES: tuple[Callable[[Document], Figure | None], ...] = (
    *(speedup, pareto, outcome),
    *(step_parts, timeline, wall_time),
    *(batch, devices, bandwidth),
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
