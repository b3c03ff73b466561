"""Figures of time: where a step goes, one step across ranks, where the wall time went."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from worldsize.report.document import Document
from worldsize.report.marks import SPAN_COLOURS, Axis, Bars, Figure, Panel
from worldsize.report.picks import Entry, exact, more_words, told_apart
from worldsize.report.words import counted, duration, number, percent

MOST_BARS = 16
LEAST_SHARE = 0.01
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
PHASE_COLOURS = {
    "training": "blue",
    "evaluation": "sky",
    "process start": "orange",
    "preparation": "brown",
    "warm-up": "green",
    "interconnect": "vermilion",
    "exchange": "purple",
}


def step_parts(document: Document) -> Figure | None:
    """Stacked spans of a step, one bar a setting."""
    shown = [each for each in document["steps"] if set(each["parts"]["spans"]) >= {"forward", "backward"}][:MOST_BARS]
    if not shown:
        return None
    settings = [each["setting"] for each in shown]
    named = [told_apart(setting, settings) or counted(setting["workers"], "worker") for setting in settings]
    places = tuple(name.replace(" a worker", "") for name in named)  # narrow: a phone has little beside them
    bars = []
    for name, words in SPAN_WORDS.items():
        values = [each["parts"]["spans"].get(name) for each in shown]
        if not any(
            value and value["value"] >= LEAST_SHARE * each["parts"]["step_s"]["value"]
            for value, each in zip(values, shown, strict=True)
        ):
            continue
        bars.append(
            Bars(
                name=words,
                colour=SPAN_COLOURS[name],
                places=places,
                values=tuple(value["value"] * 1e3 if value else 0.0 for value in values),
                says=tuple(
                    _span_says(place, words, value, each)
                    for place, value, each in zip(places, values, shown, strict=True)
                ),
            )
        )
    panel = Panel(
        x=Axis(title="time of a step, ms", from_zero=True),
        y=Axis(title="setting"),
        marks=tuple(bars),
        across=True,
    )
    left = len(document["steps"]) - len(shown)
    batches = " Batch: of a worker." if places != tuple(named) else ""
    note = f"Mean over ranks and over the middle 90 % of steps.{batches}" + more_words(
        left, "settings" if left > 1 else "setting"
    )
    return Figure(key="step", section="step", title=_step_title(shown), panels=(panel,), note=note)


def _span_says(place: str, words: str, value: Any, each: Entry) -> str:
    if not value:
        return f"{place}\n{words}: none"
    share = value["value"] / each["parts"]["step_s"]["value"]
    low, high = (None if value[end] is None else value[end] * 1e3 for end in ("low", "high"))
    whole = number(each["parts"]["step_s"]["value"] * 1e3)
    return f"{place}\n{words} {exact(value['value'] * 1e3, low, high, ' ms')}\n{percent(share)} of {whole} ms"


def _step_title(shown: Sequence[Entry]) -> str:
    last = max(shown, key=lambda each: each["setting"]["workers"])
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
    places = tuple(f"rank {rank}" for rank in range(len(ranks)))
    begin = list(step["begin_s"])
    marks = []
    for column, name in enumerate(step["spans"]):
        seconds = [spans[column] for spans in ranks]
        marks.append(
            Bars(
                name=SPAN_WORDS.get(name, name),
                colour=SPAN_COLOURS.get(name, "grey"),
                places=places,
                begin=tuple(at * 1e3 for at in begin),
                values=tuple(value * 1e3 for value in seconds),
                says=tuple(
                    f"{place}: {SPAN_WORDS.get(name, name)}\n{number(value * 1e3)} ms"
                    for place, value in zip(places, seconds, strict=True)
                ),
            )
        )
        begin = [at + value for at, value in zip(begin, seconds, strict=True)]
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
        across=True,
    )
    drawn = "drawn so that the exchange ends on all ranks together"
    note = f"The median step of {step['trial']} (step {step['step']}); {drawn}.{left}"
    return Figure(key="timeline", section="step", title=title, panels=(panel,), note=note)


def wall_time(document: Document) -> Figure | None:
    """Where the wall time above the step went: launches of one kind and count together."""
    groups: dict[tuple[str, str, int], list[Entry]] = defaultdict(list)
    timed = [launch for launch in document["launches"] if launch["phases_s"]]
    for launch in timed:
        groups[launch["on"], launch["kind"], launch["workers"]].append(launch)
    if not groups:
        return None
    kept = sorted(groups.items(), key=lambda item: item[0])[:MOST_BARS]
    places = tuple(
        f"{kind}, {counted(workers, 'worker')}" + (f", on {on}" if on else "") for (on, kind, workers), _ in kept
    )
    sums = [
        {name: sum(launch["phases_s"].get(name, 0.0) for launch in here) for name in ("training", *NOT_TRAINING)}
        for _, here in kept
    ]
    others = [name for name in NOT_TRAINING if name not in PHASE_COLOURS]
    bars = []
    total = sum(launch["wall_s"] for launch in timed)
    for name in (*PHASE_COLOURS, "other"):
        values = [sum(of[other] for other in others) if name == "other" else of[name] for of in sums]
        if sum(values) < 0.005 * total:
            continue
        bars.append(
            Bars(
                name="saving and process end" if name == "other" else "exchange probe" if name == "exchange" else name,
                colour=PHASE_COLOURS.get(name, "grey"),
                places=places,
                values=tuple(values),
                says=tuple(
                    f"{place}\n{name} {number(value)} s\n{counted(len(here), 'launch', 'launches')}"
                    for place, value, (_, here) in zip(places, values, kept, strict=True)
                ),
            )
        )
    trained = sum(of["training"] for of in sums)
    panel = Panel(
        x=Axis(title="wall time, s", from_zero=True), y=Axis(title="launches"), marks=tuple(bars), across=True
    )
    return Figure(
        key="wall-time",
        section="step",
        title=f"{percent(trained / total)} of {duration(total)} of wall time was spent in training steps",
        panels=(panel,),
        note="By the driver's clock, all launches of a kind together. Probes train too, without learning.",
    )
