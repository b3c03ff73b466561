"""The end of the page: failures, how to run each point again, environments, every trial, what was left out."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from typing import Any

from worldsize.report.document import Document
from worldsize.report.page_parts import escape
from worldsize.report.words import counted, duration, metric_value

MOST_OPEN = 5
"""Of failures; the others open with a click."""


def trials_section(document: Document) -> list[tuple[str, str, str]]:
    return [
        ("failures", "Failures", _failures(document)),
        ("left-out", "Left out", _left_out(document)),
        ("trials", "Trials", _trials(document)),
        ("environment", "Environment", _environments(document)),
    ]


def _failures(document: Document) -> str:
    """What failed lies open, for someone must look at it; what ran out of memory is a result, and folded."""
    ended = [run for run in document["runs"] if run.get("failure")]
    full = [run for run in ended if run["outcome"] == "out_of_memory"]
    failed = [run for run in ended if run not in full]
    parts = []
    if failed:
        shown = "".join(_failure(run, opened=place < MOST_OPEN) for place, run in enumerate(failed))
        parts.append(f"<h2>Failures</h2>{shown}")
    if full:
        parts.append(f"<h2>Out of memory</h2>{''.join(_failure(run, opened=False) for run in full)}")
    return "".join(parts)


def _failure(run: Mapping[str, Any], *, opened: bool) -> str:
    failure = run["failure"]
    where = "no rank to blame" if failure["rank"] is None else f"rank {failure['rank']}"
    step = "" if failure["step"] is None else f", after step {failure['step']}"
    log = "\n".join(failure["log"])
    shown = f'<pre class="wrap" tabindex="0">{escape(log)}</pre>' if log else ""
    first = (failure["error"].splitlines() or [""])[0]
    return (
        f"<details{' open' if opened else ''}><summary><b>{escape(run['trial'])}</b> "
        f'<span class="dim">{escape(where + step)}</span><br>'
        f"{escape(first)}</summary>{shown}{_command(run)}</details>"
    )


def _left_out(document: Document) -> str:
    if not document["left_out"]:
        return ""
    items = "".join(f"<li>{escape(words)}</li>" for words in document["left_out"])
    return f'<h2>Left out, and why</h2><ul class="findings">{items}</ul>'


def _trials(document: Document) -> str:
    """All of them, collapsed; many of them in groups of one kind and count."""
    runs = document["runs"]
    ends = Counter(run["outcome"].replace("_", " ") for run in runs)
    lead = ", ".join(f"{count} {outcome}" for outcome, count in ends.items())
    common = _pairs(document["configuration"])
    groups: dict[str, list[Mapping[str, Any]]] = {}
    for run in sorted(runs, key=lambda run: (run["kind"], run["workers"], run["batch_per_worker"] or 0)):
        groups.setdefault(
            f"{run['kind']}, {counted(run['workers'], 'worker')}, batch {run['batch_per_worker']:,}", []
        ).append(run)
    listed = "".join(
        f'<details><summary>{escape(name)} <span class="dim">{counted(len(here), "trial")}</span></summary>'
        f"{''.join(map(_trial, here))}</details>"
        for name, here in groups.items()
    )
    return (
        f"<h2>Every trial</h2><p>{counted(len(runs), 'trial')}: {escape(lead)}. Each opens to its configuration and "
        "the command that runs this point again.</p>"
        f"<details><summary>What all trials share</summary>{common}</details>"
        f'<div class="every-trial">{listed}</div>'
    )


def _trial(run: Mapping[str, Any]) -> str:
    told = dict(run["configuration"])
    told["seed"] = run["seed"]
    if run.get("wall_s") is not None:
        told["wall time"] = duration(run["wall_s"])
    told |= {f"test {name}": metric_value(value) for name, value in (run.get("metrics") or {}).items()}
    if run.get("diverged_at_step") is not None:
        told["diverged at step"] = run["diverged_at_step"]
    if run["environment"] is not None:
        told["environment"] = run["environment"] + 1
    outcome = run["outcome"]
    tag = (
        ""
        if outcome == "finished"
        else f' <span class="tag {escape(outcome)}">{escape(outcome.replace("_", " "))}</span>'
    )
    return f"<details><summary>{escape(run['trial'])}{tag}</summary>{_pairs(told)}{_command(run)}</details>"


def _command(run: Mapping[str, Any]) -> str:
    return f'<pre class="wrap" tabindex="0">{escape(run["command"])}</pre>'


def _environments(document: Document) -> str:
    if not document["environments"]:
        return ""
    parts = [
        f"<details><summary>Environment {place}</summary>{_pairs(found)}</details>"
        for place, found in enumerate(document["environments"], start=1)
    ]
    return f"<h2>Environment</h2>{''.join(parts)}"


def _pairs(values: Mapping[str, Any]) -> str:
    rows = "".join(
        f"<dt>{escape(key)}</dt><dd>{escape(value if isinstance(value, str) else json.dumps(value))}</dd>"
        for key, value in values.items()
    )
    return f"<dl>{rows}</dl>"
