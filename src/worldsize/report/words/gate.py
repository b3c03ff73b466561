"""The verdict of `compare --fail-on slower` in words, and what would decide it if it is open."""

from __future__ import annotations

import shlex
from collections.abc import Iterable
from typing import Any

from worldsize.analysis.estimate import Estimate
from worldsize.analysis.speed.slower import RESOLUTION, Gate, Verdict
from worldsize.answer.comparison import StudyComparison
from worldsize.answer.results import Results
from worldsize.report.words.numbers import as_written, counted, percents
from worldsize.report.words.settings import configuration
from worldsize.spec.setting import Setting

LEADS: dict[Verdict, str] = {"slower": "Slower", "not_slower": "Not slower", "cannot_tell": "Cannot tell"}
ENOUGH_REPEATS = 5
"""Smallest number of repeats that is suggested."""


def gate_sentence(comparison: StudyComparison, gate: Gate) -> str:
    """Return the verdict and the setting that decided it."""
    lead = LEADS[gate.verdict]
    if not gate.deciding:
        return f"{lead}: the studies have no measured setting in common."
    judged = gate.deciding[0]
    difference = judged.difference
    where = place_words(difference.setting, comparison.compared.common)
    limit = f"; the limit is {as_written(gate.margin * 100)} %" if gate.margin else ""
    first = comparison.compared.names[0]
    steps = f"with {where}, steps of {difference.side} take {_change(judged.change)} than those of {first}"
    if difference.significant is None:
        return f"{lead}: {steps}, but the noise is unknown: only one run, or equal values in all runs."
    if limit or difference.significant:
        return f"{lead}: {steps}{limit}."
    if gate.verdict == "not_slower":
        return f"{lead}: {steps}, which is within the noise."
    if judged.change.ends[1] > RESOLUTION:
        return f"{lead}: {steps}; the noise could hide a slowdown of more than {as_written(RESOLUTION * 100)} %."
    return f"{lead}: {steps}, but among {comparison.compared.judged} tested differences, that can be chance."


def gate_count(gate: Gate) -> str:
    """Return in how many settings the verdict holds: `Slower in 2 of 3 settings.` Empty with a single setting."""
    total = len(gate.settings)
    if total < 2:
        return ""
    if gate.verdict == "not_slower":
        return f"None of {total} settings is slower."
    word = "Undecided" if gate.verdict == "cannot_tell" else LEADS[gate.verdict]
    return f"{word} in {len(gate.deciding)} of {counted(total, 'setting')}."


def more_repeats(comparison: StudyComparison, gate: Gate) -> list[tuple[str, str]]:
    """Return commands that measure with more repeats, each with what it does. None unless the verdict is open."""
    if gate.verdict != "cannot_tell" or not gate.settings:
        return []
    undecided = {judged.difference.setting for judged in gate.deciding}
    most = max(row.repeats for results in comparison.studies for row in results.rows if row.setting in undecided)
    repeats = max(ENOUGH_REPEATS, 2 * most)
    keys = [_repeats_key(results) for results in comparison.studies]
    if None in keys or (comparison.command and len(set(keys)) > 1):
        return []
    folders = [results.folder.path for results in comparison.studies]
    if comparison.command:
        folder = folders[0].parent / f"{repeats}-repeats"
        command = [*comparison.command, "--set", f"{keys[0]}={repeats}", "--dir", str(folder)]
        return [(shlex.join(command), "more repeats, which narrow the interval")]
    return [
        (
            shlex.join(
                [
                    *("worldsize", "run", str(folder / "study.yaml"), "--set", f"{key}={repeats}"),
                    *("--dir", f"{folder}-{repeats}-repeats"),
                ]
            ),
            f"{name} with more repeats, which narrow the interval",
        )
        for name, folder, key in zip(comparison.compared.names, folders, keys, strict=True)
    ]


def gate_document(comparison: StudyComparison, gate: Gate) -> dict[str, Any]:
    """Return the sentences of the gate, for `--json`."""
    return {
        "sentence": gate_sentence(comparison, gate),
        "next": [command for command, _ in more_repeats(comparison, gate)],
    }


def _change(change: Estimate) -> str:
    """Return `9.9 % more time (7.5 % to 12 %)` or `1.2 % less time (3.1 % less to 0.7 % more)`."""

    def share(value: float) -> str:
        return f"{percents(abs(value) * 100)} %"

    def signed(value: float) -> str:
        return f"{share(value)} {'less' if value < 0 else 'more'}"

    words, (low, high) = f"{signed(change.value)} time", change.ends
    if not change.has_interval:
        return words
    if low < 0 < high:
        return f"{words} ({signed(low)} to {signed(high)})"
    return f"{words} ({' to '.join(map(share, sorted((low, high), key=abs)))})"


def _repeats_key(results: Results) -> str | None:
    """Return the field that sets how often the speed of each setting is measured. None if seeds are listed instead."""
    if results.spec.probe is not None:
        return "probe.repeats"
    return "repeats" if results.spec.axes.seed is None else None


def place_words(setting: Setting, among: Iterable[Setting]) -> str:
    """Describe a setting by its workers and what distinguishes it: `4 workers, batch 64 per worker, fsdp`."""
    others = list(among)
    words = [counted(setting.workers, "worker")]
    weak = setting.scaling == "weak"
    batches = {other.batch_per_worker if weak else other.global_batch for other in others}
    if len(batches) > 1:
        words.append(f"batch {setting.batch_per_worker} per worker" if weak else f"global batch {setting.global_batch}")
    if len({other.scaling for other in others}) > 1:
        words.append(f"{setting.scaling} scaling")
    how = configuration(setting, others)
    return ", ".join([*words, how] if how else words)
