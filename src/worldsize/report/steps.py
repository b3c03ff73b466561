"""Where a step goes, as a table: one row a setting, its spans in milliseconds and as shares of the step."""

from __future__ import annotations

from typing import Any

from rich.table import Table
from rich.text import Text

from worldsize.analysis.breakdown import WAITING, StepParts
from worldsize.report.words import LEVEL_WORDS, number, percent
from worldsize.results import Results

ACCENT = "cyan"
HEADERS = {
    "data": "waiting\nfor data",
    "copy": "copy",
    "forward": "forward",
    "backward": "backward",
    "communication": "commu-\nnication",
    WAITING: "waiting for\nslowest rank",
    "optimizer": "optimizer",
    "rest": "rest",
}
LEAST_SHARE = 0.01
"""A span that is nowhere more than this is not shown: the table is about what matters."""


def steps_view(results: Results) -> list[Any]:
    """Nothing for folders that know the whole step alone."""
    shown = [each for each in results.steps if set(each.parts.spans) >= {"forward", "backward"}]
    if not shown:
        return []
    spans = [name for name in HEADERS if any(each.parts.share(name) >= LEAST_SHARE for each in shown)]
    table = Table(
        title="where a step goes, in ms; mean over ranks",
        title_justify="left",
        title_style="",
        box=None,
        padding=(0, 1, 0, 0),
        header_style=f"bold {ACCENT}",
    )
    mixed = len({(each.setting.strategy, each.setting.precision) for each in shown}) > 1
    exchanged = any(each.exposed for each in shown)
    for header in ("workers", "batch/\nworker", *(["how"] if mixed else []), "step"):
        table.add_column(header, justify="right", overflow="fold")
    for name in spans:
        table.add_column(HEADERS[name], justify="right")
    if exchanged:
        table.add_column("exchange adds\n(with - without)", justify="right")
        table.add_column("busbw\nGB/s", justify="right")
    for each in shown:
        setting = each.setting
        how = [f"{setting.strategy} {setting.precision}"] if mixed else []
        table.add_row(
            *(str(setting.workers), str(setting.batch_per_worker), *how, number(each.parts.step_s.value * 1e3)),
            *(_span(each, name) for name in spans),
            *([_exposed(each), _bandwidth(each)] if exchanged else []),
        )
    parts: list[Any] = [Text(""), table]
    if exchanged:
        words = f"exchange: median step with it less without it, {LEVEL_WORDS}; busbw as nccl-tests defines it"
        parts.append(Text(words, style="dim"))
    return parts


def _span(each: StepParts, name: str) -> Text:
    milliseconds = each.parts.spans[name].value * 1e3
    share = each.parts.share(name)
    if milliseconds < 0.001:
        return Text("0", style="dim")
    return Text.assemble(number(milliseconds), "\n", (percent(share), "dim not bold"))


def _exposed(each: StepParts) -> str:
    found = each.exposed
    if found is None:
        return ""
    return f"{number(found.seconds * 1e3)}\n{number(found.low * 1e3)}–{number(found.high * 1e3)}"


def _bandwidth(each: StepParts) -> str:
    return number(each.traffic.busbw / 1e9) if each.traffic else ""
