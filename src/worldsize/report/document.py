"""The report as one plain document: all that page, figures and tables are made from, and what --json prints."""

from __future__ import annotations

import math
from dataclasses import asdict
from typing import Any

from worldsize import __version__
from worldsize.analysis.estimate import times
from worldsize.analysis.projection.choice import eligible
from worldsize.answer import curves
from worldsize.answer.laws import batch_models, scaling_laws
from worldsize.answer.predict.predict import Outlook, outlook, to_dict
from worldsize.answer.reruns import common_configuration, recommended_study, trial_details
from worldsize.answer.results import Results
from worldsize.report.blocks import Document
from worldsize.report.sections.opening import answer_sentences, beyond, cautions, other_findings
from worldsize.report.sections.steps import queue_words
from worldsize.report.sections.trials import exclusions

FORMAT = 1


def document(results: Results) -> Document:
    """`Results.to_dict()`, its words, and what figures need. Strict JSON: what is not finite is None."""
    pairs = curves.ended(results)
    groups = curves.by_variant(pairs)
    details, environments = trial_details(results)
    started = [record.started_at for record in results.records.values()]
    ended = [record.started_at + record.wall_s for record in results.records.values()]
    facts, row = results.facts, results.answer.row
    seen = outlook(results.by_place[row.setting.place]) if row else None
    numbers = results.to_dict()
    for row in numbers["table"]:
        pace = row["samples_per_s"]
        ends = {"value": "value", "low": "high", "high": "low"}  # the faster, the shorter
        row["epoch_s"] = {end: facts.train_samples / pace[other] for end, other in ends.items() if pace[other]}
    found = {
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
            "answer": answer_sentences(results),
            "cautions": cautions(results),
            "beyond": _of_target(results, beyond(seen)),
            "findings": [*other_findings(results), *({"code": "queue", "text": said} for said in queue_words(results))],
        },
        "recommended_study": recommended_study(results),
        **_projected(seen),
        "training": curves.training(results, groups),
        "curves": curves.curves(results, groups),
        "launches": curves.launches(results),
        "one_step": curves.one_step(results, pairs),
        "telemetry": curves.telemetry(results, pairs),
        "noise_over_time": curves.noise_over_time(results, groups),
        "laws": scaling_laws(results),
        "batch_models": batch_models(results),
        "configuration": common_configuration(results),
        "environments": environments,
        "runs": details,
        "left_out": exclusions(results),
        "tries": [
            {"trial": record.trial, "workers": results.trials[record.trial].workers, **tried.model_dump(mode="json")}
            for record in results.records.values()
            for tried in record.tries
        ],
    }
    cleaned: Document = _strict(found)
    return cleaned


def _of_target(results: Results, said: list[dict[str, str]]) -> list[dict[str, str]]:
    """Of several places, the one that the answer names."""
    row = results.answer.row
    if row is None or len(results.by_place) == 1:
        return said
    return [{**each, "text": f"On {row.setting.place}: {each['text']}"} for each in said]


def _projected(seen: Outlook | None) -> dict[str, Any]:
    """Counts that were never run, and time against what it costs, measured and projected."""
    if seen is None:
        return {"projection": [], "pareto": []}
    found = seen[0]
    whole = any(option.wall_s for option in found.options)
    front = [
        {
            "workers": option.workers,
            "place": found.setting.place,
            "time_s": asdict(option.time),
            "of": "the whole training" if whole else "an epoch",
            "worker_hours": asdict(times(option.time, option.workers / 3600)),
            # Of a whole training the steps were measured, and what lies outside them, not the time of it.
            "how": "projected" if not option.measured else "put together" if whole else "measured",
            "best": option.workers in found.choice.pareto,
        }
        for option in eligible(found.options)
    ]
    return {"projection": to_dict(found)["options"], "pareto": front}


def _strict(value: Any) -> Any:
    """JSON has neither infinity nor NaN nor keys that are no text; the document equals what is read back."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {str(key): _strict(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_strict(each) for each in value]
    return value
