"""Document -> the table of jobs: how long each waited, apart from how long it ran, and what ended it."""

from __future__ import annotations

from typing import Any

from worldsize.report.document import Document
from worldsize.report.sheet import Cell, Column, Sheet, integer


def jobs(document: Document) -> Sheet | None:
    """None where launches were no jobs."""
    found = [launch for launch in document["launches"] if launch["job"] is not None]
    if not found:
        return None
    columns = (
        Column(key="launch", title="launch", say=integer),
        Column(key="job", title="job", say=integer),
        Column(key="on", title="on", say=integer),
        Column(key="queued_s", title="in the queue", unit="s"),
        Column(key="wall_s", title="running", unit="s"),
        Column(key="attempts", title="attempts", say=integer),
        Column(key="reason", title="ended by", say=integer),
    )
    return Sheet(
        key="jobs",
        section="step",
        title="Jobs: time in the queue, apart from the time they ran",
        columns=columns,
        rows=tuple(tuple(_cell(launch[column.key]) for column in columns) for launch in found),
        note="From submission to the first start, and from the last start to the end. More attempts than one: Slurm "
        "put the job back into its queue.",
    )


def _cell(value: Any) -> Cell:
    return Cell(value=None if value == "" else value)
