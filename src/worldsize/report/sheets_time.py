"""Tables of time: where a step goes, computing and communication, what the links carry."""

from __future__ import annotations

from worldsize.report.document import Document
from worldsize.report.figures_hardware import KINDS
from worldsize.report.figures_time import SPAN_WORDS
from worldsize.report.picks import Entry, setting_key
from worldsize.report.sheet import (
    COUNTS,
    REPEATS,
    Cell,
    Column,
    Sheet,
    decimals,
    how_columns,
    integer,
    interval,
    plain_cells,
)
from worldsize.report.words import LEVEL_WORDS


def steps(document: Document) -> Sheet | None:
    shown = [each for each in document["steps"] if set(each["parts"]["spans"]) >= {"forward", "backward"}]
    if not shown:
        return None
    settings = [each["setting"] for each in shown]
    lead = (*COUNTS[:2], *how_columns(settings))
    spans = [name for name in SPAN_WORDS if any(name in each["parts"]["spans"] for each in shown)]
    say = decimals(min(each["parts"]["step_s"]["value"] for each in shown) * 1e3)
    repeats = {setting_key(row): row["repeats"] for row in document["table"]}
    columns = (
        *lead,
        Column(key="step_s", title="step", unit="ms", factor=1e3, say=say),
        *(Column(key=f"{name}_s", title=SPAN_WORDS[name], unit="ms", factor=1e3, say=say) for name in spans),
        REPEATS,
    )
    found = []
    for each in shown:
        parts = each["parts"]
        told = [interval(parts["spans"].get(name)) for name in spans]
        found.append(
            (
                *plain_cells(each["setting"], lead),
                interval(parts["step_s"]),
                *told,
                Cell(value=repeats.get(setting_key(each["setting"]))),
            )
        )
    note = f"Mean over ranks and the middle 90 % of steps; {LEVEL_WORDS}s over n repeats."
    return Sheet(
        key="steps",
        section="step",
        title="Where a step goes",
        columns=columns,
        rows=tuple(found),
        note=note,
    )


def exchange(document: Document) -> Sheet | None:
    """What one worker exchanges is nothing: its step stands there to hold the others against."""
    timed = [each for each in document["steps"] if each.get("exposed")]
    kinds = {_kind(each["setting"]) for each in timed}
    shown = [
        each
        for each in document["steps"]
        if each.get("exposed") or (each["setting"]["workers"] == 1 and _kind(each["setting"]) in kinds)
    ]
    if not timed:
        return None
    lead = (*COUNTS[:2], *how_columns([each["setting"] for each in shown]))
    say = decimals(min(each["parts"]["step_s"]["value"] for each in shown) * 1e3)
    repeats = {setting_key(row): row["repeats"] for row in document["table"]}
    columns = (
        *lead,
        Column(key="computing_s", title="computing", unit="ms", factor=1e3, say=say),
        Column(key="exposed_s", title="exchange adds", unit="ms", factor=1e3, say=say),
        Column(key="exchange_s", title="exchange in all", unit="ms", factor=1e3, say=say),
        Column(key="by_subtraction_s", title="by subtraction", unit="ms", factor=1e3, say=say),
        Column(key="gradient_bytes", title="gradients", unit="MB", factor=1e-6),
        Column(key="busbw_bytes_per_s", title="bus bandwidth", unit="GB/s", factor=1e-9),
        REPEATS,
    )
    found = []
    for each in shown:
        adds, traffic = each.get("exposed"), each.get("traffic") or {}
        cells = (
            Cell(value=adds["without_s"]) if adds else interval(each["parts"]["step_s"]),
            Cell(value=adds["seconds"], low=adds["low"], high=adds["high"]) if adds else Cell(value=None),
            interval(each.get("total_s")),
            Cell(value=each.get("by_subtraction_s")),
            Cell(value=traffic.get("bytes")),
            Cell(value=traffic.get("busbw")),
            Cell(value=repeats.get(setting_key(each["setting"]))),
        )
        found.append((*plain_cells(each["setting"], lead), *cells))
    note = (
        "Computing: the median step without the exchange of gradients. Exchange adds: what the step with it takes "
        f"longer ({LEVEL_WORDS}). In all: by torch's own clock, overlapped with computing or not; bus bandwidth is of "
        "that. By subtraction: the step less that of 1 worker, which is no measure of communication."
    )
    return Sheet(
        key="exchange",
        section="step",
        title="Computing and communication",
        columns=columns,
        rows=tuple(found),
        note=note,
    )


def _kind(setting: Entry) -> tuple[object, ...]:
    return setting["strategy"], setting["precision"], setting["accumulation"], setting["on"]


def bandwidth(document: Document) -> Sheet | None:
    columns = (
        Column(key="kind", title="link"),
        Column(key="on", title="on", say=integer),
        COUNTS[0],
        Column(key="size_bytes", title="size", unit="KB", factor=1e-3),
        Column(key="seconds", title="time", unit="us", factor=1e6),
        Column(key="algbw_bytes_per_s", title="algorithm bandwidth", unit="GB/s", factor=1e-9),
        Column(key="busbw_bytes_per_s", title="bus bandwidth", unit="GB/s", factor=1e-9),
        Column(key="repetitions", title="n", say=integer),
    )
    found = []
    for link in document["links"]:
        for one in link["sizes"]:
            lead = (KINDS.get(link["kind"], link["kind"]), link["on"] or None, link["workers"])
            head = tuple(Cell(value=value) for value in lead)
            time = Cell(value=one["seconds"], low=one["low_s"], high=one["high_s"])
            others = (Cell(value=one[column.key]) for column in columns[5:])
            found.append((*head, Cell(value=one["size_bytes"]), time, *others))
    note = (
        f"All-reduces at the start of each launch, medians over n repetitions with {LEVEL_WORDS}s; bus bandwidth = "
        "bytes / time * 2(w - 1)/w for w workers, as nccl-tests defines it."
    )
    return Sheet(
        key="bandwidth",
        section="hardware",
        title="Bandwidth of the links",
        columns=columns,
        rows=tuple(found),
        note=note,
    )
