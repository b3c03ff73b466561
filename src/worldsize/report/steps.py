"""Where a step goes and what the hardware did meanwhile, as tables: one row a setting."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from rich.text import Text

from worldsize.analysis.breakdown import WAITING, StepParts
from worldsize.analysis.link import Link
from worldsize.analysis.noise_scale import NoiseScale
from worldsize.analysis.telemetry import Hardware
from worldsize.report.tables import how, plain_table
from worldsize.report.words import byte_size, number, percent
from worldsize.results import Results

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
"""Short, so that all of them fit into 80 columns: waiting for data, waiting for the slowest rank."""
LEAST_SHARE = 0.01
"""A span that is nowhere more than this is not shown, nor stolen CPU time: tables are about what matters."""


def steps_view(results: Results) -> list[Any]:
    """Nothing for folders that know the whole step alone."""
    shown = [each for each in results.steps if set(each.parts.spans) >= {"forward", "backward"}]
    if not shown:
        return []
    spans = [name for name in HEADERS if any(each.parts.share(name) >= LEAST_SHARE for each in shown)]
    table = plain_table("where a step goes, in ms; mean over ranks")
    settings = [each.setting for each in shown]
    mixed = bool(how(settings[0], settings))
    for header in ("workers", "batch/\nworker", *(["how"] if mixed else []), "step"):
        table.add_column(header, justify="right", overflow="fold")
    for name in spans:
        table.add_column(HEADERS[name], justify="right", no_wrap=True)
    for each in shown:
        setting = each.setting
        told = [how(setting, settings)] if mixed else []
        table.add_row(
            *(str(setting.workers), str(setting.batch_per_worker), *told, number(each.parts.step_s.value * 1e3)),
            *(_span(each, name) for name in spans),
        )
    return [Text(""), table]


def hardware_view(results: Results) -> list[Any]:
    """One row a setting, and only the columns that somebody saw."""
    columns: dict[str, Callable[[Hardware], str]] = {
        "GPU busy": lambda one: _known(one.gpu_busy_percent, lambda value: f"{value:.0f} %"),
        "GPU memory\n(fullest)": lambda one: _known(one.gpu_memory_bytes, byte_size),
        "GPU power\n(all)": lambda one: _known(one.gpu_power_w, lambda value: f"{number(value)} W"),
        "joules a\nsample": lambda one: _known(one.joules_per_sample, number),
        "throttled": lambda one: percent(sum(one.throttled.values())) if any(one.throttled.values()) else "",
        "cores\n(all ranks)": lambda one: _known(one.process_cores, number),
        "memory\n(largest rank)": lambda one: _known(one.process_memory_bytes, byte_size),
        "CPU\nstolen": lambda one: _known(one.stolen_share, _if_noticed),
        "sent": lambda one: _known(one.network_bytes_per_s, _pace),
    }
    rows = results.hardware
    mfus = results.mfus
    columns = {name: say for name, say in columns.items() if any(say(found) for _, found in rows)}
    if not columns:
        return []
    table = plain_table("hardware, while it trained")
    settings = [setting for setting, _ in rows]
    mixed = bool(how(settings[0], settings))
    for header in ("workers", "batch/\nworker", *(["how"] if mixed else []), *(["MFU"] if mfus else []), *columns):
        table.add_column(header, justify="right", overflow="fold")
    for setting, found in rows:
        told = [how(setting, settings)] if mixed else []
        share = [f"{mfus[setting].value * 100:.1f} %" if setting in mfus else ""] if mfus else []
        cells = [*share, *(say(found) for say in columns.values())]
        table.add_row(str(setting.workers), str(setting.batch_per_worker), *told, *cells)
    return [Text(""), table]


def noise_view(results: Results) -> list[Any]:
    """One line a variant whose gradients were compared."""
    several = len({setting for setting, _, _ in results.noise_scales}) > 1
    return [
        Text(
            _noise_words(f"global batch {setting.global_batch}, {variant}" if several else variant, found), style="dim"
        )
        for setting, variant, found in results.noise_scales
    ]


def _noise_words(where: str, found: NoiseScale) -> str:
    lead = f"Gradient noise scale in the second half of training ({where}): "
    if found.value is None:
        least = f"at least {number(found.low)}" if found.low else "not known"
        return f"{lead}{least}; the gradient cannot be told from noise in {found.steps} steps."
    reach = f" ({number(found.low)} to {number(found.high)})" if found.low and found.high else ""
    return f"{lead}{number(found.value)} samples{reach}: beyond such a batch more samples a step help little."


def links_view(results: Results) -> list[Any]:
    """One line a link: what all-reduces between the ranks showed."""
    return [Text(_link_words(kind, link), style="dim") for kind, link in results.links]


def _link_words(kind: str, link: Link) -> str:
    where = {"inside": "Inside a node", "across": "Across nodes", "all": "All ranks together"}[kind]
    where += f" of {link.on}" if link.on else ""
    if link.is_poor:
        best = max(link.sizes, key=lambda size: size.busbw_bytes_per_s)
        return (
            f"{where} ({link.workers} workers) two numbers do not describe the link; the best bus bandwidth was "
            f"{byte_size(best.busbw_bytes_per_s)}/s, for {byte_size(best.size_bytes)}."
        )
    bandwidth, latency = link.bandwidth_bytes_per_s, link.latency_s
    return (
        f"{where} ({link.workers} workers): {byte_size(bandwidth.value)}/s ({byte_size(bandwidth.low)}/s to "
        f"{byte_size(bandwidth.high)}/s), latency {number(latency.value * 1e6)} us ({number(latency.low * 1e6)} to "
        f"{number(latency.high * 1e6)}), from all-reduces of 1 KB to {byte_size(link.sizes[-1].size_bytes)}."
    )


def _known(value: float | None, words: Callable[[float], str]) -> str:
    return words(value) if value else ""


def _if_noticed(share: float) -> str:
    return percent(share) if share >= LEAST_SHARE else ""


def _pace(bytes_per_s: float) -> str:
    return f"{byte_size(bytes_per_s)}/s" if bytes_per_s > 1e6 else ""


def _span(each: StepParts, name: str) -> Text:
    milliseconds = each.parts.spans[name].value * 1e3
    share = each.parts.share(name)
    if milliseconds < 0.001:
        return Text("0", style="dim")
    return Text.assemble(number(milliseconds), "\n", (percent(share), "dim not bold"))
