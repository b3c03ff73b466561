"""The report as one plain document: the source of the page, figures and tables, and the output of --json."""

from __future__ import annotations

import math
from typing import Any

from worldsize import __version__
from worldsize.analysis.projection.choice import eligible
from worldsize.answer import curves
from worldsize.answer.as_dict import plain
from worldsize.answer.laws import batch_models, scaling_laws
from worldsize.answer.predict.predict import Outlook, outlook, to_dict
from worldsize.answer.reruns import common_configuration, recommended_study, trial_details
from worldsize.answer.results import Results
from worldsize.report.blocks import Document, estimate
from worldsize.report.sections.opening import answer_sentences, beyond, cautions, other_findings
from worldsize.report.sections.steps import queue_words
from worldsize.report.sections.trials import exclusions

FORMAT = 1


def document(results: Results) -> Document:
    """`Results.to_dict()` plus sentences and data for figures. Strict JSON: numbers that are not finite become None."""
    pairs = curves.ended(results)
    groups = curves.by_variant(pairs)
    details, environments = trial_details(results)
    started = [record.started_at for record in results.records.values()]
    ended = [record.started_at + record.wall_s for record in results.records.values()]
    facts, row = results.facts, results.answer.row
    best_outlook = outlook(results.by_place[row.setting.place]) if row else None
    numbers = results.to_dict()
    for row in numbers["table"]:
        row["epoch_s"] = plain(estimate(row["samples_per_s"]).into(facts.train_samples))
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
            "answer": answer_sentences(results),
            "cautions": cautions(results),
            "beyond": _of_target(results, beyond(best_outlook)),
            "findings": [*other_findings(results), *({"code": "queue", "text": line} for line in queue_words(results))],
        },
        "recommended_study": recommended_study(results),
        **_projected(best_outlook),
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
    cleaned: Document = _strict(content)
    return cleaned


def _of_target(results: Results, findings: list[dict[str, str]]) -> list[dict[str, str]]:
    """Prefixes the findings with the recommended place if there are several places."""
    row = results.answer.row
    if row is None or len(results.by_place) == 1:
        return findings
    return [{**finding, "text": f"On {row.setting.place}: {finding['text']}"} for finding in findings]


def _projected(best_outlook: Outlook | None) -> dict[str, Any]:
    """Projected worker counts, and time against cost, measured and projected."""
    if best_outlook is None:
        return {"projection": [], "pareto": []}
    prediction = best_outlook[0]
    has_training_time = any(option.wall_s for option in prediction.options)
    front = [
        {
            "workers": option.workers,
            "place": prediction.setting.place,
            "time_s": plain(option.time),
            "of": "the whole training" if has_training_time else "an epoch",
            "worker_hours": plain(option.time.scaled(option.workers / 3600)),
            # The steps and the overhead of a training were measured, not its total time.
            "how": "projected" if not option.measured else "put together" if has_training_time else "measured",
            "best": option.workers in prediction.choice.pareto,
        }
        for option in eligible(prediction.options)
    ]
    return {"projection": to_dict(prediction)["options"], "pareto": front}


def _strict(value: Any) -> Any:
    """Replaces infinity and NaN by None and converts keys to text, so that the document survives a JSON round trip."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {str(key): _strict(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_strict(item) for item in value]
    return value
