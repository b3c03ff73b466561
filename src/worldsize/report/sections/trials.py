"""Trials that the tables and figures leave out, and why."""

from __future__ import annotations

from collections import Counter

from worldsize.answer.results import Results
from worldsize.report.words.numbers import counted


def exclusions(results: Results) -> list[str]:
    """One line per kind of data that the tables and figures leave out, with the reason."""
    outcomes = Counter(record.outcome for record in results.records.values())
    warmup = sorted({record.warmup_steps for record in results.records.values() if record.spans})
    lines = []
    if any(warmup):
        steps = str(warmup[0]) if len(warmup) == 1 else f"{warmup[0]} to {warmup[-1]}"
        lines.append(
            f"The first {steps} steps of every trial, and what else of its beginning is clearly slower: warm-up."
        )
    if results.spec.probe is not None and any(trial.kind == "train" for trial in results.trials.values()):
        lines.append("Steps of training trials, for throughput: where a setting has probes, these speak for it.")
    if outcomes["failed"]:
        lines.append(f"{counted(outcomes['failed'], 'failed trial')}, without a result; why is said below.")
    if outcomes["out_of_memory"]:
        full = counted(outcomes["out_of_memory"], "trial")
        lines.append(f"{full} out of memory: nothing was measured; their batches are marked in figure and table.")
    if outcomes["diverged"]:
        lines.append(
            f"Times and final metrics of {counted(outcomes['diverged'], 'trial')} that diverged; curves are drawn."
        )
    if outcomes["stopped"]:
        lines.append(f"Final metrics of {counted(outcomes['stopped'], 'trial')} stopped as hopeless beside the others.")
    if results.damaged:
        lines.append(
            f"{counted(len(results.damaged), 'damaged record')}: {', '.join(results.damaged)}. "
            "The next run repeats what is damaged."
        )
    if results.left():
        lines.append(f"{counted(len(results.left()), 'trial')} not run yet.")
    for skip in results.spec.skip:
        named = ", ".join(f"{key} {value}" for key, value in skip.model_dump(exclude_none=True).items())
        lines.append(f"Points with {named}: the study skips them.")
    return lines
