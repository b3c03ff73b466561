"""Computing and exchanging gradients, as a table: what each takes of a step and an epoch, and how fast data moved."""

from __future__ import annotations

from typing import Any

from rich.text import Text

from worldsize.analysis.breakdown import StepParts
from worldsize.report.tables import how, plain_table
from worldsize.report.words import LEVEL_WORDS, byte_size, number
from worldsize.results import Results

NOTE = (
    "Computing: the median step without the exchange of gradients. Exposed: what the step with it takes longer "
    f"({LEVEL_WORDS}). Total: the exchange by torch's own clock, overlapped with computing or not; bus bandwidth is of "
    "that. By subtraction: the step less that of 1 worker, which is no measure of it: computing itself slows when "
    "cores, memory or power are shared."
)


def exchange_view(results: Results) -> list[Any]:
    """One row a setting; nothing where no probe ran with and without the exchange."""
    timed = [each for each in results.steps if each.exposed]
    if not timed:
        return []
    kinds = {(each.setting.kind, each.setting.accumulation) for each in timed}
    shown = [
        each
        for each in results.steps
        if each.exposed
        # One worker exchanges nothing: its step is all computing, and what the others are held against.
        or (each.setting.workers == 1 and (each.setting.kind, each.setting.accumulation) in kinds)
    ]
    settings = [each.setting for each in shown]
    mixed = bool(how(settings[0], settings))
    table = plain_table("computing and exchanging gradients: ms a step, seconds an epoch below")
    for header in ("workers", "batch/\nworker", *(["how"] if mixed else []), "com-\nputing", "exposed", "total"):
        table.add_column(header, justify="right", overflow="fold")
    for header in ("by sub-\ntraction", "gradi-\nents", "bus\nbandwidth"):
        table.add_column(header, justify="right", no_wrap=True)
    for each in shown:
        setting = each.setting
        steps = results.facts.train_samples / setting.global_batch
        told = [how(setting, settings)] if mixed else []
        table.add_row(*(str(setting.workers), str(setting.batch_per_worker), *told), *_cells(each, steps))
    return [Text(""), table, Text(NOTE, style="dim")]


def _cells(each: StepParts, steps: float) -> list[Text]:
    found, traffic = each.exposed, each.traffic
    if found is None:
        return [_both(each.parts.step_s.value, steps), *(Text("") for _ in range(5))]
    exposed = _both(found.seconds, steps)
    exposed.append(f"\n{number(found.low * 1e3)}–{number(found.high * 1e3)} ms", style="dim not bold")
    return [
        _both(found.without_s, steps),
        exposed,
        _both(each.total_s.value if each.total_s else None, steps),
        _both(each.by_subtraction_s, steps),
        Text("" if traffic is None else byte_size(traffic.bytes)),
        Text("" if traffic is None else f"{byte_size(traffic.busbw)}/s"),
    ]


def _both(seconds: float | None, steps: float) -> Text:
    """A step in ms, and as many of them as an epoch has."""
    if seconds is None:
        return Text("")
    return Text.assemble(number(seconds * 1e3), "\n", (f"{number(seconds * steps)} s", "dim not bold"))
