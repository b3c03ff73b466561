"""The trials of a study: failures, data that tables and figures exclude, all trials, and their environments."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from worldsize.answer.evidence import Evidence
from worldsize.answer.reruns import TrialRun
from worldsize.answer.results import Results
from worldsize.folder.record import Failure
from worldsize.report.blocks import Block, Listing, Section, Trial, TrialGroup, Trials
from worldsize.report.words.numbers import counted, duration, metric_value

MAX_OPEN = 1
"""Maximum number of failures that are expanded when the page opens."""
MAX_LOG_LINES = 20
MAX_UNUSED = 8
"""Maximum number of unused pretrained weights listed per trial; report.json has all."""


def trial_sections(evidence: Evidence) -> list[Section]:
    """Return the sections on trials that have something to show."""
    runs, results = evidence.trial_runs, evidence.results
    failures = [(run, run.record.failure) for run in runs.runs if run.record is not None and run.record.failure]
    failed = [pair for pair in failures if pair[0].outcome != "out_of_memory"]
    out_of_memory = [pair for pair in failures if pair[0].outcome == "out_of_memory"]
    excluded = [("", line) for line in exclusions(results)]
    shared = Listing(title="Configuration shared by all trials", pairs=_pairs(runs.common))
    environments = [
        Listing(title=f"Environment {index}", pairs=_pairs(environment))
        for index, environment in enumerate(runs.environments, start=1)
    ]
    sections: list[tuple[str, str, Sequence[Block]]] = [
        # Failures need attention; running out of memory is a result.
        ("failures", "Failures", _failures(failed, most_open=MAX_OPEN)),
        ("out-of-memory", "Out of memory", _failures(out_of_memory, most_open=0)),
        ("left-out", "Excluded data", [Listing(title="Excluded data", pairs=tuple(excluded))] if excluded else []),
        ("trials", "All trials", [_all_trials(runs.runs), shared]),
        ("environment", "Environment", environments),
    ]
    return [Section(key=key, title=title, blocks=tuple(blocks)) for key, title, blocks in sections if blocks]


def _failures(pairs: Sequence[tuple[TrialRun, Failure]], *, most_open: int) -> list[Block]:
    shown = tuple(_failure(*pair, is_open=index < most_open) for index, pair in enumerate(pairs))
    return [Trials(lead="", groups=(TrialGroup(title="", trials=shown),))] if shown else []


def _failure(run: TrialRun, failure: Failure, *, is_open: bool) -> Trial:
    rank = "unknown rank" if failure.rank is None else f"rank {failure.rank}"
    step = "" if failure.step is None else f", after step {failure.step}"
    error = (failure.error.splitlines() or [""])[0]
    return Trial(
        title=run.trial.id,
        outcome="",
        summary=f"{rank}{step}: {error}",
        command=run.command,
        log="\n".join(failure.log[-MAX_LOG_LINES:]),
        is_open=is_open,
    )


def _all_trials(runs: Sequence[TrialRun]) -> Trials:
    """Return all trials, grouped by kind, worker count and batch."""
    outcomes = Counter(_outcome(run) for run in runs)
    counts = ", ".join(f"{count} {outcome}" for outcome, count in outcomes.items())
    groups: dict[str, list[Trial]] = {}
    for run in sorted(runs, key=lambda run: (run.trial.kind, run.trial.workers, run.trial.batch_per_worker)):
        trial = run.trial
        title = f"{trial.kind}, {counted(trial.workers, 'worker')}, batch {trial.batch_per_worker:,}"
        groups.setdefault(title, []).append(_trial(run))
    return Trials(
        lead=f"{counted(len(runs), 'trial')}: {counts}. Open one for its configuration and the command to rerun it.",
        groups=tuple(TrialGroup(title=title, trials=tuple(trials)) for title, trials in groups.items()),
    )


def _outcome(run: TrialRun) -> str:
    return run.outcome.replace("_", " ")


def _trial(run: TrialRun) -> Trial:
    details = {**run.configuration, "seed": run.trial.seed}
    if (record := run.record) is not None:
        details["wall time"] = duration(record.wall_s)
        details |= {f"test {name}": metric_value(value) for name, value in record.metrics.items()}
        if record.diverged_at_step is not None:
            details["diverged at step"] = record.diverged_at_step
        if unused := record.transfer:
            more = [f"and {len(unused) - MAX_UNUSED} more"] if len(unused) > MAX_UNUSED else []
            details["pretrained weights not used"] = "; ".join([*unused[:MAX_UNUSED], *more])
    if run.environment is not None:
        details["environment"] = run.environment + 1
    outcome = "" if run.outcome == "finished" else _outcome(run)
    return Trial(title=run.trial.id, outcome=outcome, details=_pairs(details), command=run.command)


def _pairs(values: Mapping[str, Any]) -> tuple[tuple[str, str], ...]:
    return tuple((key, value if isinstance(value, str) else json.dumps(value)) for key, value in values.items())


def exclusions(results: Results) -> list[str]:
    """Return one line per kind of data that tables and figures exclude, with the reason."""
    outcomes = Counter(record.outcome for record in results.records.values())
    warmup = sorted({record.warmup_steps for record in results.records.values() if record.spans})
    lines = []
    if any(warmup):
        steps = str(warmup[0]) if len(warmup) == 1 else f"{warmup[0]} to {warmup[-1]}"
        lines.append(f"Warm-up: the first {steps} steps of every trial, and any clearly slower steps right after them.")
    if results.spec.probe is not None and any(trial.kind == "train" for trial in results.trials.values()):
        lines.append(
            "Step times of short training trials, and of training whose steps do more than those of a probe. Longer "
            "training counts as one more repeat beside the probes. The parts of a step come from the probes."
        )
    if outcomes["failed"]:
        lines.append(f"{counted(outcomes['failed'], 'failed trial')}: see Failures for the reasons.")
    if outcomes["out_of_memory"]:
        trials = counted(outcomes["out_of_memory"], "trial")
        lines.append(f"{trials} that ran out of memory: figures and tables mark these batches.")
    if outcomes["diverged"]:
        diverged = counted(outcomes["diverged"], "trial")
        lines.append(f"Times and final metrics of {diverged} that diverged; figures show their learning curves.")
    if outcomes["stopped"]:
        lines.append(
            f"Final metrics of {counted(outcomes['stopped'], 'trial')} stopped early because others were much better."
        )
    if results.damaged:
        lines.append(
            f"{counted(len(results.damaged), 'damaged record')}: {', '.join(results.damaged)}. "
            "The next `worldsize run` repeats these trials."
        )
    if results.left():
        lines.append(f"{counted(len(results.left()), 'trial')} that did not run yet.")
    for skip in results.spec.skip:
        named = ", ".join(f"{key} {value}" for key, value in skip.model_dump(exclude_none=True).items())
        lines.append(f"Settings with {named}, which the study skips.")
    return lines
