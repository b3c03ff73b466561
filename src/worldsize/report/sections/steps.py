"""Where the time goes: parts of a step, one step on all workers, launches and batch jobs; tables and figures."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from worldsize.analysis.speed.breakdown import WAITING, StepParts
from worldsize.answer.evidence import Evidence
from worldsize.answer.results import Results
from worldsize.answer.timeline import LaunchTime, OneStep
from worldsize.report.blocks import Cell, Column, Table, how_columns, table
from worldsize.report.figures.model import SPAN_COLORS, Axis, Bars, Figure, Panel
from worldsize.report.words.numbers import LEVEL_WORDS, counted, decimals, duration, integer, number, percent
from worldsize.report.words.quantities import BATCH_PER_WORKER, RUNS, SECONDS, STEP, WORKERS, Quantity
from worldsize.report.words.settings import distinguished, more_words


def _span(name: str, title: str, short: str, about: str) -> Quantity:
    return Quantity(key=f"{name}_s", title=title, short=short, unit="ms", factor=1e3, about=about)


SPANS = {
    "data": _span("data", "waiting for data", "waiting\nfor data", "Waiting until the samples of the step are loaded."),
    "copy": _span("copy", "copy to device", "copy", "Copying the samples to the device."),
    "forward": _span("forward", "forward", "for-\nward", "Forward pass, including augmentation."),
    "backward": _span("backward", "backward", "back-\nward", "Backward pass, until the last gradient is computed."),
    "communication": _span(
        "communication",
        "communication",
        "commu-\nnication",
        "From the last gradient to the end of the exchange, without waiting for slower workers.",
    ),
    WAITING: _span(
        WAITING, "waiting for the slowest worker", "slowest\nworker", "Waiting for slower workers to join the exchange."
    ),
    "optimizer": _span("optimizer", "optimizer", "opti-\nmizer", "Updating the weights."),
    "rest": _span("rest", "rest", "rest", "Everything else in the step."),
}
"""Parts of a step, in the order in which they are shown."""
MIN_SHARE = 0.01
"""Smallest share worth showing, for spans of a step and for stolen CPU time."""


def queue_words(evidence: Evidence) -> Iterator[str]:
    """Say how long batch jobs waited and ran; yield nothing without jobs."""
    jobs = [launch for launch in evidence.launches if launch.job is not None]
    waits = [job.queued_s for job in jobs if job.queued_s is not None]
    if waits:
        requeues = sum(max(job.attempts - 1, 0) for job in jobs)
        requeued = f"; requeued {counted(requeues, 'time')}" if requeues else ""
        longest = f" (the longest: {duration(max(waits))})" if len(waits) > 1 else ""
        ran = f"{duration(sum(job.wall_s for job in jobs))} running{requeued}"
        waited = f"{duration(sum(waits))} in the queue{longest}"
        yield f"{counted(len(jobs), 'batch job')}: {waited}, {ran}. No other number includes the queue time."


JOB_COLUMNS: tuple[tuple[Quantity, Callable[[LaunchTime], Cell], bool], ...] = (
    (Quantity(key="launch", title="launch"), lambda launch: launch.launch, True),
    (Quantity(key="job", title="job"), lambda launch: launch.job, True),
    (Quantity(key="place", title="place"), lambda launch: launch.place or None, True),
    (
        replace(SECONDS, key="queued_s", title="queue time", about="From submission to the first start."),
        lambda launch: launch.queued_s,
        True,
    ),
    (
        replace(SECONDS, key="wall_s", title="run time", about="From the last start to the end."),
        lambda launch: launch.wall_s,
        True,
    ),
    (Quantity(key="attempts", title="attempts", digits=integer), lambda launch: launch.attempts, False),
    (Quantity(key="reason", title="ended by"), lambda launch: launch.reason or None, True),
)


def jobs(evidence: Evidence) -> Table | None:
    """Return the queue time and run time of each batch job; None without batch jobs."""
    return table(
        "jobs",
        "Batch jobs: queue time and run time",
        [launch for launch in evidence.launches if launch.job is not None],
        [Column(quantity=quantity, of=of, terminal=terminal) for quantity, of, terminal in JOB_COLUMNS],
        note="A launch is one start of worker processes. Queue time: from submission to the first start. Run time: "
        "from the last start to the end. More than one attempt: Slurm requeued the job.",
    )


def _divided(results: Results) -> list[StepParts]:
    """Return the steps whose parts were timed."""
    return [step for step in results.steps if step.parts.spans.keys() >= {"forward", "backward"}]


def steps(evidence: Evidence) -> Table | None:
    """Return the time of each part of a step, one row per setting."""
    shown = _divided(evidence.results)
    if not shown:
        return None
    digits = decimals(min(step.parts.step_s.value for step in shown) * 1e3)
    repeats = {row.setting: row.repeats for row in evidence.results.rows}
    has_exposed = any(step.exposed for step in shown)

    def span(name: str) -> Column[StepParts]:
        # A terminal shows one number for communication. If exposed communication was measured, `exchange` shows it.
        return Column(
            quantity=replace(SPANS[name], digits=digits),
            of=lambda step: step.parts.spans.get(name),
            terminal=any(_share(step, name) >= MIN_SHARE for step in shown)
            and not (name == "communication" and has_exposed),
        )

    return table(
        "steps",
        "Parts of a step",
        shown,
        [
            Column(quantity=WORKERS, of=lambda step: step.setting.workers),
            Column(quantity=BATCH_PER_WORKER, of=lambda step: step.setting.batch_per_worker),
            *how_columns(shown),
            Column(quantity=replace(STEP, digits=digits), of=lambda step: step.parts.step_s),
            *(span(name) for name in SPANS),
            Column(quantity=RUNS, of=lambda step: repeats.get(step.setting), terminal=False),
        ],
        note=f"Mean over workers and over the middle 90 % of steps, with {LEVEL_WORDS}s over runs.",
    )


def _share(step: StepParts, name: str) -> float:
    """Return the share of the step; 0 for a span that was not timed."""
    return step.parts.share(name) if name in step.parts.spans else 0.0


MAX_BARS = 16
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
PHASE_WORDS = {
    "interconnect": "bandwidth test",
    "exchange": "communication test",
    "other": "saving and process end",
}


def step_parts(evidence: Evidence) -> Figure | None:
    """Draw the parts of a step as stacked bars, one bar per setting."""
    shown = _divided(evidence.results)[:MAX_BARS]
    if not shown:
        return None
    names = tuple(distinguished(step, shown) or counted(step.setting.workers, "worker") for step in shown)
    # Short labels leave room for the bars on a phone.
    labels = tuple(name.replace(" per worker", "") for name in names)
    bars = [
        Bars(
            name=quantity.title,
            color=SPAN_COLORS[name],
            places=labels,
            values=tuple(step.parts.spans[name].value * 1e3 if name in step.parts.spans else 0.0 for step in shown),
            hover=tuple(_hover(label, name, step) for label, step in zip(labels, shown, strict=True)),
        )
        for name, quantity in SPANS.items()
        if any(_share(step, name) >= MIN_SHARE for step in shown)
    ]
    panel = Panel(
        x=Axis(title="step time, ms", from_zero=True), y=Axis(title="setting"), marks=tuple(bars), horizontal=True
    )
    left = len(evidence.results.steps) - len(shown)
    note = "Parts of a step one after another: mean over workers and over the middle 90 % of steps. "
    note += "Everything but forward, backward and optimizer is overhead."
    note += " Batches are per worker." if labels != names else ""
    note += more_words(left, "settings" if left > 1 else "setting")
    return Figure(key="step", title=_step_title(shown), panels=(panel,), note=note)


def _hover(label: str, name: str, step: StepParts) -> str:
    quantity, spans = SPANS[name], step.parts.spans
    if name not in spans or not spans[name].value:
        return f"{label}\n{quantity.title}: none"
    whole = STEP.said(step.parts.step_s.value)
    return f"{label}\n{quantity.title} {quantity.full(spans[name])}\n{percent(_share(step, name))} of {whole}"


def _step_title(shown: Sequence[StepParts]) -> str:
    last = max(shown, key=lambda step: step.setting.workers)
    data, communication, waiting, forward, backward = (
        _share(last, name) for name in ("data", "communication", WAITING, "forward", "backward")
    )
    where = f"with {counted(last.setting.workers, 'worker')}"
    if data > max(communication + waiting, 0.1):
        return f"{percent(data)} of a step {where} goes to waiting for data"
    if communication + waiting >= 0.01:
        share = percent(communication + waiting)
        return f"{share} of a step {where} goes to communication and waiting for the slowest worker"
    return f"{percent(forward + backward)} of a step {where} goes to the forward and backward pass"


def timeline(evidence: Evidence) -> Figure | None:
    """Draw the median step, one row per worker."""
    step = evidence.one_step
    if step is None:
        return None
    labels = tuple(f"rank {rank}" for rank in range(len(step.of_ranks)))
    begin_s = step.begin_s
    bars = []
    for name, seconds in zip(step.spans, zip(*step.of_ranks, strict=True), strict=True):
        title = SPANS[name].title if name in SPANS else name
        bars.append(
            Bars(
                name=title,
                color=SPAN_COLORS.get(name, "gray"),
                places=labels,
                begin=tuple(start * 1e3 for start in begin_s),
                values=tuple(value * 1e3 for value in seconds),
                hover=tuple(
                    f"{label}: {title}\n{STEP.said(value)}" for label, value in zip(labels, seconds, strict=True)
                ),
            )
        )
        begin_s = tuple(start + value for start, value in zip(begin_s, seconds, strict=True))
    panel = Panel(
        x=Axis(title="time, ms", from_zero=True, most=max(begin_s) * 1e3),
        y=Axis(title="rank"),
        marks=tuple(bar for bar in bars if max(bar.values) >= 0.002 * step.step_s * 1e3),
        horizontal=True,
    )
    more = step.setting.workers - len(step.of_ranks)
    note = f"Step {step.step} of trial {step.trial}, the step of median length. A rank is the number of a worker. "
    note += "Rows are aligned at the end of the gradient exchange, which all workers reach together."
    note += f" {counted(more, 'more rank is', 'more ranks are')} not drawn." if more else ""
    return Figure(key="timeline", title=_timeline_title(step), panels=(panel,), note=note)


def _timeline_title(step: OneStep) -> str:
    title = f"One step on {counted(step.setting.workers, 'worker')}: {STEP.said(step.step_s)}"
    longest_s = dict(zip(step.spans, map(max, zip(*step.of_ranks, strict=True)), strict=True)).get(WAITING, 0.0)
    if longest_s > 0.02 * step.step_s:
        title += f", in which workers wait up to {STEP.said(longest_s)} for the slowest"
    return title


def wall_time(evidence: Evidence) -> Figure | None:
    """Draw wall time by phase, for launches grouped by place, kind and worker count."""
    groups: dict[tuple[str, str, int], list[LaunchTime]] = defaultdict(list)
    timed = [launch for launch in evidence.launches if launch.phases_s]
    for launch in timed:
        groups[launch.place, launch.kind, launch.workers].append(launch)
    if not groups:
        return None
    kept = sorted(groups.items(), key=lambda item: item[0])[:MAX_BARS]
    labels = tuple(
        f"{kind}, {counted(workers, 'worker')}" + (f", on {place}" if place else "")
        for (place, kind, workers), _ in kept
    )
    sums = [
        {name: sum(launch.phases_s.get(name, 0.0) for launch in launches) for name in ("training", *NOT_TRAINING)}
        for _, launches in kept
    ]
    others = [name for name in NOT_TRAINING if name not in PHASE_COLORS]
    bars = []
    total = sum(launch.wall_s for launch in timed)
    for name in (*PHASE_COLORS, "other"):
        values = [sum(phases[other] for other in others) if name == "other" else phases[name] for phases in sums]
        if sum(values) < 0.005 * total:
            continue
        title = PHASE_WORDS.get(name, name)
        bars.append(
            Bars(
                name=title,
                color=PHASE_COLORS.get(name, "gray"),
                places=labels,
                values=tuple(values),
                hover=tuple(
                    f"{label}\n{title} {number(value)} s\n{counted(len(launches), 'launch', 'launches')}"
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
        title=f"Training steps took {percent(trained / total)} of {duration(total)} of wall time",
        panels=(panel,),
        note="Wall time of all launches (starts of worker processes), by phase. Probe launches only measure the time "
        "per step; train launches train to the end. Time outside training steps is overhead of the study.",
    )
