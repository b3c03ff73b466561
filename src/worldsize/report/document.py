"""The content of report.json and the output of `--json`: everything in a report, as plain numbers and sentences."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from worldsize import __version__
from worldsize.analysis.estimate import Estimate
from worldsize.answer.as_dict import flat_setting, plain
from worldsize.answer.curves import Curve, CurvePoint, NoiseOverTime, Trained
from worldsize.answer.evidence import Evidence
from worldsize.answer.laws import LawRow, VariantBatchModel
from worldsize.answer.predict.predict import to_dict
from worldsize.answer.predict.prices import PricePoint
from worldsize.answer.reruns import TrialRun, recommended_study
from worldsize.answer.results import Results
from worldsize.answer.timeline import OneStep, Telemetry
from worldsize.report.sections.opening import beyond_target, cautions, other_findings
from worldsize.report.sections.steps import queue_words
from worldsize.report.sections.trials import MAX_LOG_LINES, exclusions
from worldsize.report.words.headline import headline

Document = dict[str, Any]
FORMAT = 1
ENDS = ("value", "low", "high")


def document(source: Results | Evidence) -> Document:
    """Return `Results.to_dict()` plus the sentences of the report and the data of its figures.

    The document is strict JSON: numbers that are not finite become None.
    """
    evidence = source if isinstance(source, Evidence) else Evidence(source)
    results = evidence.results
    started = [record.started_at for record in results.records.values()]
    ended = [record.started_at + record.wall_s for record in results.records.values()]
    facts, answer = results.facts, headline(results, evidence.outlook)
    numbers = results.to_dict()
    for entry, row in zip(numbers["table"], results.rows, strict=True):
        entry["epoch_s"] = plain(row.samples_per_s.time_for(facts.train_samples))
    content = {
        "format": FORMAT,
        "worldsize": __version__,
        **numbers,
        "title": facts.title,
        "train_samples": facts.train_samples,
        "test_samples": facts.test_samples,
        "higher_is_better": facts.higher_is_better,
        "measured_from": min(started, default=None),
        "measured_until": max(ended, default=None),
        "words": {
            "verdict": results.answer.verdict,
            "answer": [prose.text for prose in answer if prose.role in ("answer", "doubt")],
            **{role: [prose.text for prose in answer if prose.role == role] for role in ("evidence", "why", "next")},
            "commands": [prose.command for prose in answer if prose.command],
            "cautions": [
                *cautions(results),
                *({"code": "trials-failed", "text": prose.text} for prose in answer if prose.role == "caution"),
            ],
            "beyond": beyond_target(evidence),
            "findings": [
                *other_findings(results),
                *({"code": "queue", "text": line} for line in queue_words(evidence)),
            ],
        },
        "recommended_study": recommended_study(results),
        "projection": to_dict(evidence.prediction)["options"] if evidence.prediction else [],
        "pareto": [_price(point) for point in evidence.prices],
        "training": [_flat(row) for row in evidence.training],
        "curves": [_curve(curve) for curve in evidence.curves],
        "launches": [plain(launch) for launch in evidence.launches],
        "one_step": _at_setting(evidence.one_step),
        "telemetry": _at_setting(evidence.telemetry),
        "noise_over_time": [_flat(row) for row in evidence.noise_over_time],
        "laws": [_law(row) for row in evidence.laws],
        "batch_models": [_batch_model(entry) for entry in evidence.batch_models],
        "configuration": evidence.trial_runs.common,
        "environments": evidence.trial_runs.environments,
        "runs": [_run(run) for run in evidence.trial_runs.runs],
        "left_out": exclusions(results),
        "tries": [
            {"trial": record.trial, "workers": results.trials[record.trial].workers, **attempt.model_dump(mode="json")}
            for record in results.records.values()
            for attempt in record.tries
        ],
    }
    cleaned: Document = _strict(content)
    return cleaned


def _flat(row: Trained | NoiseOverTime) -> dict[str, Any]:
    return {**flat_setting(row.setting), **{name: value for name, value in plain(row).items() if name != "setting"}}


def _curve(curve: Curve) -> dict[str, Any]:
    """Return a curve as a list of numbers for each quantity, or None where a quantity was never measured."""

    def column(of: Callable[[CurvePoint], Estimate | None]) -> dict[str, list[float | None]] | None:
        values = [of(point) for point in curve.points]
        if not any(values):
            return None
        return {end: [None if value is None else getattr(value, end) for value in values] for end in ENDS}

    return {
        **flat_setting(curve.setting),
        "variant": curve.variant,
        "family": curve.family,
        "rate": curve.peak_lr,
        "repeats": curve.repeats,
        "diverged": curve.diverged,
        "diverged_at_steps": curve.diverged_at_steps,
        "epochs": curve.epochs,
        "epoch": [point.epoch for point in curve.points],
        "step": [point.step for point in curve.points],
        "train_loss": column(lambda point: point.train_loss),
        "test_loss": column(lambda point: point.test_loss),
        "train_metric": column(lambda point: point.train_metric),
        "test_metric": column(lambda point: point.test_metric),
    }


def _batch_model(entry: VariantBatchModel) -> dict[str, Any]:
    model, setting = entry.model, entry.setting
    return {
        "variant": entry.variant,
        "strategy": setting.strategy.label,
        "precision": setting.precision,
        "place": setting.place,
        "rate_power": entry.lr_power,
        "smallest_batch": setting.global_batch,
        "largest_batch": entry.largest_batch,
        "batches": [plain(batch) for batch in model.batches],
        "runs": entry.runs,
        "law": model.law,
        "least_steps": plain(model.least_steps),
        "critical_batch": plain(model.critical_batch),
        "fails_from": model.fails_from,
    }


def _run(run: TrialRun) -> dict[str, Any]:
    trial, record = run.trial, run.record
    entry: dict[str, Any] = {
        "trial": trial.id,
        "kind": trial.kind,
        "workers": trial.workers,
        "batch_per_worker": trial.batch_per_worker,
        "repeat": trial.repeat,
        "seed": trial.seed,
        "outcome": run.outcome,
        "configuration": run.configuration,
        "command": run.command,
        "environment": run.environment,
    }
    if record is not None:
        entry |= {
            "launch": record.launch,
            "wall_s": record.wall_s,
            "phases_s": record.phases_s,
            "metrics": record.metrics,
            "diverged_at_step": record.diverged_at_step,
        }
        if record.transfer:
            entry["pretrained_left_out"] = list(record.transfer)
        if record.failure is not None:
            entry["failure"] = record.failure.model_dump(mode="json")
            entry["failure"]["log"] = entry["failure"]["log"][-MAX_LOG_LINES:]
    return entry


def _price(point: PricePoint) -> dict[str, Any]:
    return {
        "workers": point.setting.workers,
        "place": point.setting.place,
        "time_s": plain(point.time),
        "of": "the whole training" if point.is_whole_training else "an epoch",
        "worker_hours": plain(point.worker_hours),
        "how": point.basis,
        "best": point.is_best,
    }


def _law(row: LawRow) -> dict[str, Any]:
    """Return a law with the setting of its series. Only the batch that all its worker counts share is given."""
    other_batch = "global_batch" if row.setting.scaling == "weak" else "batch_per_worker"
    law = {key: value for key, value in plain(row).items() if key != "setting"}
    return {**flat_setting(row.setting), other_batch: None, **law}


def _at_setting(entry: OneStep | Telemetry | None) -> dict[str, Any] | None:
    if entry is None:
        return None
    fields = plain(entry)
    del fields["setting"]
    return {**flat_setting(entry.setting), **fields, "ranks": entry.setting.workers}


def _strict(value: Any) -> Any:
    """Replace infinity and NaN by None and convert keys to text, so that the document survives a JSON round trip."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {str(key): _strict(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_strict(item) for item in value]
    return value
