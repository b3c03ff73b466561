"""Where the time goes: parts of a step, one step across ranks, launches and jobs; tables and figures."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Any

from rich.text import Text

from worldsize.analysis.speed.breakdown import WAITING, StepParts
from worldsize.answer.results import Results
from worldsize.launch.slurm.status import closed_jobs
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
from worldsize.report.figures.model import SPAN_COLORS, Axis, Bars, Figure, Panel
from worldsize.report.words.numbers import LEVEL_WORDS, counted, decimals, duration, full, integer, number, percent
from worldsize.report.words.settings import configuration, describe_entry, more_words, setting_key
from worldsize.report.write.console import plain_table

HEADERS = {
    "data": "waiting\nfor data",
    "copy": "copy",
    "forward": "for-\nward",
    "backward": "back-\nward",
    "communication": "commu-\nnication",
    WAITING: "slowest\nrank",
    "optimizer": "opti-\nmizer",
    "rest": "rest",
}
"""Short, so that all columns fit into 80 characters. "Slowest rank" is the time spent waiting for it."""
LEAST_SHARE = 0.01
"""Spans and stolen CPU time below this share everywhere are not shown."""


def steps_view(results: Results) -> list[Any]:
    """Table of the parts of a step; empty if only whole steps were timed."""
    shown = [step for step in results.steps if set(step.parts.spans) >= {"forward", "backward"}]
    if not shown:
        return []
    spans = [name for name in HEADERS if any(step.parts.share(name) >= LEAST_SHARE for step in shown)]
    table = plain_table("where a step goes, in ms; mean over ranks")
    settings = [step.setting for step in shown]
    mixed = bool(configuration(settings[0], settings))
    for header in ("workers", "batch/\nworker", *(["how"] if mixed else []), "step"):
        table.add_column(header, justify="right", overflow="fold")
    for name in spans:
        table.add_column(HEADERS[name], justify="right", no_wrap=True)
    for step in shown:
        setting = step.setting
        how = [configuration(setting, settings)] if mixed else []
        table.add_row(
            *(str(setting.workers), str(setting.batch_per_worker), *how, number(step.parts.step_s.value * 1e3)),
            *(_span(step, name) for name in spans),
        )
    return [Text(""), table]


def _span(step: StepParts, name: str) -> Text:
    milliseconds = step.parts.spans[name].value * 1e3
    share = step.parts.share(name)
    if milliseconds < 0.001:
        return Text("0", style="dim")
    return Text.assemble(number(milliseconds), "\n", (percent(share), "dim not bold"))


def queue_words(results: Results) -> Iterator[str]:
    """How long jobs waited and how long they ran; empty if there were no jobs."""
    jobs = closed_jobs(results.folder)
    waits = [job.queued_s for job in jobs if job.queued_s is not None]
    if waits:
        again = sum(max(job.attempts - 1, 0) for job in jobs)
        requeued = f"; put back into the queue {again} times" if again else ""
        waited = f"{duration(sum(waits))} in the queue ({duration(max(waits))} for one at most)"
        ran = f"{duration(sum(job.wall_s or 0.0 for job in jobs))} running{requeued}"
        yield f"{counted(len(jobs), 'job')}: {waited}, {ran}. The wait is in no other number here."


def jobs(document: Document) -> Sheet | None:
    """Table of jobs; None if the launches were not jobs."""
    launches = [launch for launch in document["launches"] if launch["job"] is not None]
    if not launches:
        return None
    columns = (
        Column(key="launch", title="launch", format=integer),
        Column(key="job", title="job", format=integer),
        Column(key="place", title="place", format=integer),
        Column(key="queued_s", title="in the queue", unit="s"),
        Column(key="wall_s", title="running", unit="s"),
        Column(key="attempts", title="attempts", format=integer),
        Column(key="reason", title="ended by", format=integer),
    )
    return Sheet(
        key="jobs",
        section="step",
        title="Jobs: time in the queue, apart from the time they ran",
        columns=columns,
        rows=tuple(tuple(_cell(launch[column.key]) for column in columns) for launch in launches),
        note="From submission to the first start, and from the last start to the end. More attempts than one: Slurm "
        "put the job back into its queue.",
    )


def _cell(value: Any) -> Cell:
    return Cell(value=None if value == "" else value)


def steps(document: Document) -> Sheet | None:
    shown = [step for step in document["steps"] if set(step["parts"]["spans"]) >= {"forward", "backward"}]
    if not shown:
        return None
    settings = [step["setting"] for step in shown]
    lead = (*COUNTS[:2], *how_columns(settings))
    spans = [name for name in SPAN_WORDS if any(name in step["parts"]["spans"] for step in shown)]
    format_ms = decimals(min(step["parts"]["step_s"]["value"] for step in shown) * 1e3)
    repeats = {setting_key(row): row["repeats"] for row in document["table"]}
    columns = (
        *lead,
        Column(key="step_s", title="step", unit="ms", factor=1e3, format=format_ms),
        *(Column(key=f"{name}_s", title=SPAN_WORDS[name], unit="ms", factor=1e3, format=format_ms) for name in spans),
        REPEATS,
    )
    rows = []
    for step in shown:
        parts = step["parts"]
        span_cells = [interval(parts["spans"].get(name)) for name in spans]
        rows.append(
            (
                *plain_cells(step["setting"], lead),
                interval(parts["step_s"]),
                *span_cells,
                Cell(value=repeats.get(setting_key(step["setting"]))),
            )
        )
    note = f"Mean over ranks and the middle 90 % of steps; {LEVEL_WORDS}s over n repeats."
    return Sheet(
        key="steps",
        section="step",
        title="Where a step goes",
        columns=columns,
        rows=tuple(rows),
        note=note,
    )


MOST_BARS = 16
LEAST_SHARE_DRAWN = 0.01
SPAN_WORDS = {
    "data": "waiting for data",
    "copy": "copy to device",
    "forward": "forward",
    "backward": "backward",
    "communication": "communication",
    "waiting": "waiting for the slowest rank",
    "optimizer": "optimizer",
    "rest": "rest",
    "step": "step",
}
NOT_TRAINING = (
    "process start",
    "interconnect",
    "preparation",
    "warm-up",
    "exchange",
    "evaluation",
    "saving",
    "gaps",
    "process end",
)
PHASE_COLORS = {
    "training": "blue",
    "evaluation": "sky",
    "process start": "orange",
    "preparation": "brown",
    "warm-up": "green",
    "interconnect": "vermilion",
    "exchange": "purple",
}


def step_parts(document: Document) -> Figure | None:
    """Stacked spans of a step, one bar per setting."""
    shown = [step for step in document["steps"] if set(step["parts"]["spans"]) >= {"forward", "backward"}][:MOST_BARS]
    if not shown:
        return None
    settings = [step["setting"] for step in shown]
    named = [describe_entry(setting, settings) or counted(setting["workers"], "worker") for setting in settings]
    labels = tuple(name.replace(" a worker", "") for name in named)  # short, to leave room on a phone
    bars = []
    for name, words in SPAN_WORDS.items():
        values = [step["parts"]["spans"].get(name) for step in shown]
        if not any(
            value and value["value"] >= LEAST_SHARE_DRAWN * step["parts"]["step_s"]["value"]
            for value, step in zip(values, shown, strict=True)
        ):
            continue
        bars.append(
            Bars(
                name=words,
                color=SPAN_COLORS[name],
                places=labels,
                values=tuple(value["value"] * 1e3 if value else 0.0 for value in values),
                hover=tuple(
                    _span_says(label, words, value, step)
                    for label, value, step in zip(labels, values, shown, strict=True)
                ),
            )
        )
    panel = Panel(
        x=Axis(title="time of a step, ms", from_zero=True),
        y=Axis(title="setting"),
        marks=tuple(bars),
        horizontal=True,
    )
    left = len(document["steps"]) - len(shown)
    batches = " Batch: of a worker." if labels != tuple(named) else ""
    note = f"Mean over ranks and over the middle 90 % of steps.{batches}" + more_words(
        left, "settings" if left > 1 else "setting"
    )
    return Figure(key="step", section="step", title=_step_title(shown), panels=(panel,), note=note)


def _span_says(label: str, words: str, value: Any, step: Fields) -> str:
    if not value:
        return f"{label}\n{words}: none"
    share = value["value"] / step["parts"]["step_s"]["value"]
    step_ms = number(step["parts"]["step_s"]["value"] * 1e3)
    return f"{label}\n{words} {full(estimate(value).scaled(1e3), ' ms')}\n{percent(share)} of {step_ms} ms"


def _step_title(shown: Sequence[Fields]) -> str:
    last = max(shown, key=lambda step: step["setting"]["workers"])
    step_s = last["parts"]["step_s"]["value"]
    share = {name: value["value"] / step_s for name, value in last["parts"]["spans"].items()}
    where = f"with {counted(last['setting']['workers'], 'worker')}"
    others = share.get("communication", 0) + share.get("waiting", 0)
    if share.get("data", 0) > max(others, 0.1):
        return f"{percent(share['data'])} of a step {where} is waiting for data"
    if others >= 0.01:
        return f"{percent(others)} of a step {where} is communication and waiting for the slowest rank"
    computing = share.get("forward", 0) + share.get("backward", 0)
    return f"{percent(computing)} of a step {where} is forward and backward"


def timeline(document: Document) -> Figure | None:
    """One step across ranks."""
    step = document["one_step"]
    if step is None:
        return None
    ranks = step["of_ranks"]
    labels = tuple(f"rank {rank}" for rank in range(len(ranks)))
    begin = list(step["begin_s"])
    marks = []
    for column, name in enumerate(step["spans"]):
        seconds = [spans[column] for spans in ranks]
        marks.append(
            Bars(
                name=SPAN_WORDS.get(name, name),
                color=SPAN_COLORS.get(name, "gray"),
                places=labels,
                begin=tuple(start * 1e3 for start in begin),
                values=tuple(value * 1e3 for value in seconds),
                hover=tuple(
                    f"{label}: {SPAN_WORDS.get(name, name)}\n{number(value * 1e3)} ms"
                    for label, value in zip(labels, seconds, strict=True)
                ),
            )
        )
        begin = [start + value for start, value in zip(begin, seconds, strict=True)]
    kept = [mark for mark in marks if max(mark.values) >= 0.002 * step["step_s"] * 1e3]
    left = f" {step['ranks'] - len(ranks)} more ranks are not drawn." if step["ranks"] > len(ranks) else ""
    most = max(begin) * 1e3
    waiting = dict(zip(step["spans"], map(max, zip(*ranks, strict=True)), strict=True)).get("waiting", 0.0)
    title = f"One step on {counted(step['ranks'], 'worker')}: {number(step['step_s'] * 1e3)} ms"
    if waiting > 0.02 * step["step_s"]:
        title += f", of which a rank waits up to {number(waiting * 1e3)} ms for the others"
    panel = Panel(
        x=Axis(title="time, ms", from_zero=True, most=most),
        y=Axis(title="rank"),
        marks=tuple(kept),
        horizontal=True,
    )
    drawn = "drawn so that the exchange ends on all ranks together"
    note = f"The median step of {step['trial']} (step {step['step']}); {drawn}.{left}"
    return Figure(key="timeline", section="step", title=title, panels=(panel,), note=note)


def wall_time(document: Document) -> Figure | None:
    """Wall time by phase, for launches grouped by place, kind and worker count."""
    groups: dict[tuple[str, str, int], list[Fields]] = defaultdict(list)
    timed = [launch for launch in document["launches"] if launch["phases_s"]]
    for launch in timed:
        groups[launch["place"], launch["kind"], launch["workers"]].append(launch)
    if not groups:
        return None
    kept = sorted(groups.items(), key=lambda item: item[0])[:MOST_BARS]
    labels = tuple(
        f"{kind}, {counted(workers, 'worker')}" + (f", on {place}" if place else "")
        for (place, kind, workers), _ in kept
    )
    sums = [
        {name: sum(launch["phases_s"].get(name, 0.0) for launch in launches) for name in ("training", *NOT_TRAINING)}
        for _, launches in kept
    ]
    others = [name for name in NOT_TRAINING if name not in PHASE_COLORS]
    bars = []
    total = sum(launch["wall_s"] for launch in timed)
    for name in (*PHASE_COLORS, "other"):
        values = [sum(phases[other] for other in others) if name == "other" else phases[name] for phases in sums]
        if sum(values) < 0.005 * total:
            continue
        bars.append(
            Bars(
                name="saving and process end" if name == "other" else "exchange probe" if name == "exchange" else name,
                color=PHASE_COLORS.get(name, "gray"),
                places=labels,
                values=tuple(values),
                hover=tuple(
                    f"{label}\n{name} {number(value)} s\n{counted(len(launches), 'launch', 'launches')}"
                    for label, value, (_, launches) in zip(labels, values, kept, strict=True)
                ),
            )
        )
    trained = sum(phases["training"] for phases in sums)
    panel = Panel(
        x=Axis(title="wall time, s", from_zero=True), y=Axis(title="launches"), marks=tuple(bars), horizontal=True
    )
    return Figure(
        key="wall-time",
        section="step",
        title=f"{percent(trained / total)} of {duration(total)} of wall time was spent in training steps",
        panels=(panel,),
        note="By the driver's clock, all launches of a kind together. Probes train too, without learning.",
    )
