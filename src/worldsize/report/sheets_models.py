"""Tables of models that describe: classical laws of scaling, steps to the target against batch."""

from __future__ import annotations

from worldsize.report.document import Document
from worldsize.report.picks import Entry, chosen, series, series_key, series_name
from worldsize.report.sheet import Cell, Column, Sheet, how_columns, integer, interval, percents, plain_cells
from worldsize.report.words import number, whole

LAWS = {"amdahl": "Amdahl", "gustafson": "Gustafson", "usl": "USL", "karp-flatt": "Karp-Flatt"}
FOLLOWED = {
    "holds": "as the law says",
    "steps-rise": "no: more steps at the largest",
    "examples-fall": "no: fewer examples at the largest",
}


def laws(document: Document) -> Sheet | None:
    """Of the series that the answer speaks of, or the first; the others are in the document."""
    best = chosen(document)
    of_best = [entry for entry in document["laws"] if best and series_key(entry) == series_key(best)]
    entries = of_best or [entry for entry in document["laws"] if series_key(entry) == series_key(document["laws"][0])]
    if not entries:
        return None
    columns = (
        Column(key="law", title="law"),
        Column(key="workers", title="at workers", say=integer),
        Column(key="serial_fraction", title="serial share", unit="%", factor=100, say=percents),
        Column(key="contention", title="contention", unit="%", factor=100, say=percents),
        Column(key="coherence", title="coherence", unit="%", factor=100, say=number),
        Column(key="peak_workers", title="turns down at", unit="workers", say=integer),
        Column(key="residual", title="misses by", unit="%", factor=100, say=percents),
        Column(key="counts", title="n", say=integer),
    )
    rows = []
    for entry in entries:
        name = LAWS[entry["law"]] + ("" if entry["as_meant"] else " (curve only)")
        rows.append((Cell(value=name), *(Cell(value=entry[column.key]) for column in columns[1:])))
    note = (
        "They describe what was measured, over n counts; the projection is not made from them. Curve only: the law "
        "was made for the other way of scaling, and its share means something else here. Misses by: root mean square "
        "of fitted over measured throughput."
    )
    return Sheet(
        key="laws",
        section="scaling",
        title=f"Classical laws, as descriptions of the scaling{_which(document, entries[0])}",
        columns=columns,
        rows=tuple(rows),
        note=note,
    )


def _which(document: Document, entry: Entry) -> str:
    """Where there are several series: of which one this is, and that the others are told elsewhere."""
    rows = list(series(document).values())
    if len(rows) < 2:
        return ""
    name = next(series_name(here, document["table"]) for here in rows if series_key(here[0]) == series_key(entry))
    return f" with {name} (the other series: report.json)"


def batch_model(document: Document) -> Sheet | None:
    entries = document["batch_models"]
    if not entries:
        return None
    how = how_columns(entries)
    columns = (
        Column(key="variant", title="trained with"),
        *how,
        Column(key="smallest_batch", title="batches from", say=integer),
        Column(key="largest_batch", title="to", say=integer),
        Column(key="least_steps", title="S_min", unit="steps", say=whole),
        Column(key="critical_batch", title="B_crit", unit="samples", say=whole),
        Column(key="law", title="steps follow"),
        Column(key="runs", title="n", say=integer),
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
