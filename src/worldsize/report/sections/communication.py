"""Gradient exchange: its share of a step, and the bandwidth of the links between workers; tables and figures."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from worldsize.analysis.estimate import Estimate
from worldsize.analysis.speed.breakdown import StepParts
from worldsize.analysis.speed.network import Link, SizeSpeed, Wire, ring_allreduce_s, ring_bytes
from worldsize.answer.evidence import Evidence
from worldsize.answer.results import Results
from worldsize.report.blocks import Cell, Column, Table, how_columns, table
from worldsize.report.figures.model import Axis, Figure, Line, Panel, color, line
from worldsize.report.words.glossary import meaning
from worldsize.report.words.numbers import LEVEL_WORDS, counted, decimals, integer, number
from worldsize.report.words.quantities import BATCH_PER_WORKER, RUNS, SHARE, WORKERS, Quantity, explained

MAX_SERIES = 6
KINDS = {"inside": "inside a node", "across": "across nodes", "all": "all workers"}
KIND = Quantity(key="kind", title="link")
PLACE = Quantity(key="place", title="place")
LATENCY = Quantity(
    key="latency_s",
    title="latency",
    unit="us",
    factor=1e6,
    about="Time of one round of a ring all-reduce, however small the message.",
)
ALLREDUCE_TIME = Quantity(key="seconds", title="time", unit="us", factor=1e6)
REPETITIONS = Quantity(key="repetitions", title="repetitions", digits=integer, about="All-reduces that were timed.")
BANDWIDTH = Quantity(
    key="bandwidth_bytes_per_s",
    title="bandwidth",
    unit="GB/s",
    factor=1e-9,
    about="Limit for very large messages; latency and bandwidth are fitted to the times of all sizes.",
)
BUS_BANDWIDTH = Quantity(
    key="busbw_bytes_per_s",
    title="bus bandwidth",
    short="bus\nbandwidth",
    unit="GB/s",
    factor=1e-9,
    about=meaning("bus bandwidth"),
)
ALGORITHM_BANDWIDTH = Quantity(
    key="algbw_bytes_per_s",
    title="algorithm bandwidth",
    unit="GB/s",
    factor=1e-9,
    about="Bytes / time, as nccl-tests defines it.",
)


@dataclass(frozen=True, kw_only=True)
class MeasuredLink:
    """A link, and whether it is inside a node, across nodes or between all workers."""

    kind: str
    link: Link

    @property
    def name(self) -> str:
        return KINDS.get(self.kind, self.kind)

    @property
    def best(self) -> SizeSpeed:
        return max(self.link.sizes, key=lambda size: size.busbw_bytes_per_s)


def _links(evidence: Evidence) -> list[MeasuredLink]:
    return [MeasuredLink(kind=kind, link=link) for kind, link in evidence.results.links]


def bandwidth_figure(evidence: Evidence) -> Figure | None:
    """Draw bus bandwidth by message size, with the curve of the fitted latency and bandwidth."""
    links = [measured for measured in _links(evidence) if len(measured.link.sizes) > 1][:MAX_SERIES]
    if not links:
        return None
    lines: list[Line] = []
    for index, measured in enumerate(links):
        name = f"{measured.name}, {counted(measured.link.workers, 'worker')}"
        name += f", {measured.link.place}" if measured.link.place else ""
        lines.append(_measured_line(name, measured.link.sizes, color(index)))
        if not measured.link.is_poor:
            lines.append(_fitted_line(measured.link, color(index)))
    lines += _gradients(evidence.results, lines)
    sizes = [size.size_bytes for measured in links for size in measured.link.sizes]
    ticks = tuple(
        (float(size), _size(size))
        for size in (10.0**power for power in range(3, 12))
        if min(sizes) * 0.9 <= size <= max(sizes) * 1.1
    )
    panel = Panel(
        x=Axis(title="message size", log=True, ticks=ticks),
        y=Axis(title=BUS_BANDWIDTH.heading, log=True),
        marks=tuple(lines),
    )
    best = max(measured.best.busbw_bytes_per_s for measured in links)
    return Figure(
        key="bandwidth",
        title=f"Workers exchange up to {BUS_BANDWIDTH.said(best)}" + _latency([measured.link for measured in links]),
        panels=(panel,),
        note="Speed at which workers sum a message of each size (all-reduce); latency makes small messages slow. "
        "Dashed: curve of the fitted latency and bandwidth.",
    )


def _measured_line(name: str, sizes: Sequence[SizeSpeed], hue: str) -> Line:
    return line(
        name,
        sizes,
        BUS_BANDWIDTH,
        x=lambda size: float(size.size_bytes),
        y=lambda size: size.busbw_bytes_per_s,
        lead=lambda size: f"{name}\n{_size(size.size_bytes)}",
        after=lambda size: f"{ALLREDUCE_TIME.title} {ALLREDUCE_TIME.full(size.seconds)}",
        color=hue,
    )


def _fitted_line(link: Link, hue: str) -> Line:
    wire = Wire(latency_s=link.latency_s.value, bandwidth_bytes_per_s=link.bandwidth_bytes_per_s.value)
    x = np.geomspace(link.sizes[0].size_bytes, link.sizes[-1].size_bytes, 40).tolist()
    y = [ring_bytes(size, link.workers) / ring_allreduce_s(size, link.workers, wire) / 1e9 for size in x]
    return Line(name="fit", color=hue, kind="projected", symbol="none", x=tuple(x), y=tuple(y), opacity=0.8)


def _latency(links: Sequence[Link]) -> str:
    good = [link for link in links if not link.is_poor]
    return f", with a latency of {LATENCY.said(good[0].latency_s.value)}" if len(good) == 1 else ""


def _gradients(results: Results, lines: Sequence[Line]) -> list[Line]:
    """Return a vertical line at the size of the model's gradients."""
    size = next((step.traffic.bytes for step in results.steps if step.traffic), None)
    heights = [value for drawn in lines for value in drawn.y if value]
    if size is None or not heights:
        return []
    return [
        Line(
            name=f"gradients of this model, {_size(size)}",
            color="gray",
            kind="reference",
            symbol="none",
            x=(size, size),
            y=(min(heights), max(heights)),
        )
    ]


def _size(count: float) -> str:
    for power, name in ((9, "GB"), (6, "MB"), (3, "KB")):
        if count >= 10**power * 0.999:
            return f"{(number if count % 10**power else integer)(count / 10**power)} {name}"
    return f"{integer(count)} B"


def _ms(key: str, title: str, short: str, about: str) -> Quantity:
    return Quantity(key=key, title=title, short=short, unit="ms", factor=1e3, about=about)


COMPUTING = _ms("computing_s", "computing", "com-\nputing", "Median step without exchanging gradients.")
EXPOSED = _ms(
    "exposed_s",
    "exposed",
    "exposed",
    f"Time that exchanging gradients adds to a step: steps with it minus steps without it, in turns ({LEVEL_WORDS}).",
)
SPAN = _ms(
    "communication_s",
    "span",
    "span",
    "Time from the last gradient of a step to the end of its exchange, without waiting for slower workers. It misses "
    "how much the exchange slows down the computing that it overlaps with.",
)
TOTAL = _ms(
    "exchange_s",
    "total",
    "total",
    "Duration of the exchange as PyTorch measures it, whether or not it overlaps with computing; bus bandwidth uses "
    "this time.",
)
BY_SUBTRACTION = _ms(
    "by_subtraction_s",
    "minus 1 worker",
    "minus 1\nworker",
    "Step minus the step of 1 worker. Not a measure of communication: computing also slows down when workers share "
    "cores, memory or power.",
)
EXPOSED_SHARE = replace(SHARE, key="exposed_share", about="Exposed communication as a share of the step.")
EXPOSED_PER_EPOCH = Quantity(
    key="exposed_epoch_s",
    title="exposed per epoch",
    unit="s",
    about="Exposed communication over the steps of an epoch.",
)
GRADIENTS = Quantity(key="gradient_bytes", title="gradients", unit="MB", factor=1e-6)
METHOD = Quantity(
    key="measured_by",
    title="timed by",
    about="Probe: short runs with and without the exchange. Strategies that cannot run without it have only the span.",
)


def exchange(evidence: Evidence) -> Table | None:
    """Return computing and communication of each setting. One worker exchanges nothing; it is the comparison."""
    results = evidence.results
    timed = [step for step in results.steps if step.exposed]
    if not timed:
        return None
    methods = {step.setting.method for step in timed}
    shown = [step for step in results.steps if step.setting.workers > 1 or step.setting.method in methods]
    digits = decimals(min(step.parts.step_s.value for step in shown) * 1e3)
    repeats = {row.setting: row.repeats for row in results.rows}
    others = any(step.communication_s and not step.exposed for step in shown)

    def per_epoch(step: StepParts) -> Estimate | None:
        added = step.communication_s
        return added and added.scaled(results.facts.train_samples / step.setting.global_batch)

    def method(step: StepParts) -> Cell:
        if not others or step.communication_s is None:
            return None
        return "probe" if step.exposed else "span"

    made = table(
        "exchange",
        "Computing and communication in a step",
        shown,
        [
            Column(quantity=WORKERS, of=lambda step: step.setting.workers),
            Column(quantity=BATCH_PER_WORKER, of=lambda step: step.setting.batch_per_worker),
            *how_columns(shown),
            Column(quantity=replace(COMPUTING, digits=digits), of=_computing, terminal=False),
            Column(quantity=replace(EXPOSED, digits=digits), of=lambda step: step.communication_s),
            Column(quantity=EXPOSED_SHARE, of=lambda step: step.communication_share),
            Column(quantity=METHOD, of=method),
            Column(quantity=EXPOSED_PER_EPOCH, of=per_epoch, terminal=False),
            Column(quantity=replace(SPAN, digits=digits), of=_span, terminal=False),
            Column(quantity=replace(TOTAL, digits=digits), of=lambda step: step.total_s, terminal=False),
            Column(
                quantity=replace(BY_SUBTRACTION, digits=digits), of=lambda step: step.by_subtraction_s, terminal=False
            ),
            Column(quantity=GRADIENTS, of=lambda step: step.traffic.bytes if step.traffic else None, terminal=False),
            Column(
                quantity=BUS_BANDWIDTH, of=lambda step: step.traffic.busbw if step.traffic else None, terminal=False
            ),
            Column(quantity=RUNS, of=lambda step: repeats.get(step.setting), terminal=False),
        ],
    )
    if made is None:
        return None
    in_note = (EXPOSED.key, METHOD.key)
    return replace(made, note=explained(quantity for quantity in made.quantities if quantity.key in in_note))


def _computing(step: StepParts) -> Cell:
    """Return the time without the exchange: for one worker, which exchanges nothing, its whole step."""
    if step.exposed:
        return step.exposed.without_s
    return step.parts.step_s if step.setting.workers == 1 else None


def _span(step: StepParts) -> Cell:
    return step.parts.spans.get("communication") if step.setting.workers > 1 else None


def links(evidence: Evidence) -> Table | None:
    """Return latency and bandwidth of each link."""
    return table(
        "links",
        "Links between workers",
        _links(evidence),
        [
            Column(quantity=KIND, of=lambda measured: measured.name),
            Column(quantity=PLACE, of=lambda measured: measured.link.place or None),
            Column(quantity=WORKERS, of=lambda measured: measured.link.workers),
            Column(quantity=LATENCY, of=lambda measured: _fitted(measured.link, measured.link.latency_s)),
            Column(quantity=BANDWIDTH, of=lambda measured: _fitted(measured.link, measured.link.bandwidth_bytes_per_s)),
            Column(
                quantity=BUS_BANDWIDTH.titled("best bus bandwidth", short="best bus\nbandwidth"),
                of=lambda measured: measured.best.busbw_bytes_per_s,
            ),
            Column(
                quantity=Quantity(key="size_bytes", title="at size", unit="MB", factor=1e-6),
                of=lambda measured: measured.best.size_bytes,
            ),
            Column(
                quantity=REPETITIONS,
                of=lambda measured: sum(size.repetitions for size in measured.link.sizes),
                terminal=False,
            ),
        ],
        note=f"Latency and bandwidth are fitted to all-reduces (sums over all workers) of several sizes "
        f"({LEVEL_WORDS}s). They are missing where these two numbers do not describe the times well. "
        "Best bus bandwidth: the highest that was measured.",
    )


def _fitted(link: Link, estimate: Estimate) -> Estimate | None:
    return None if link.is_poor else estimate


def bandwidth_sheet(evidence: Evidence) -> Table | None:
    """Return times and bandwidths by message size. Too long for a terminal, which shows only `links`."""
    rows = [(measured, size) for measured in _links(evidence) for size in measured.link.sizes]
    made = table(
        "bandwidth",
        "Bandwidth by message size",
        rows,
        [
            Column(quantity=KIND, of=lambda row: row[0].name),
            Column(quantity=PLACE, of=lambda row: row[0].link.place or None),
            Column(quantity=WORKERS, of=lambda row: row[0].link.workers),
            Column(
                quantity=Quantity(key="size_bytes", title="size", unit="KB", factor=1e-3),
                of=lambda row: row[1].size_bytes,
            ),
            Column(quantity=ALLREDUCE_TIME, of=lambda row: row[1].seconds),
            Column(quantity=ALGORITHM_BANDWIDTH, of=lambda row: row[1].algbw_bytes_per_s),
            Column(quantity=BUS_BANDWIDTH, of=lambda row: row[1].busbw_bytes_per_s),
            Column(quantity=REPETITIONS, of=lambda row: row[1].repetitions),
        ],
        note="All-reduces (sums over all workers) at the start of each launch: medians over repetitions, with "
        f"{LEVEL_WORDS}s. {explained([ALGORITHM_BANDWIDTH, BUS_BANDWIDTH])}",
    )
    return made and replace(made, terminal=(False,) * len(made.quantities))
