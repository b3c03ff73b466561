"""Results as plain dicts, for `--json` and report.json."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, fields
from typing import TYPE_CHECKING, Any

from worldsize.analysis.estimate import Estimate
from worldsize.analysis.learning.variants import VariantSummary
from worldsize.analysis.speed.breakdown import StepParts
from worldsize.analysis.speed.network import Link
from worldsize.analysis.speed.recommend import Finding
from worldsize.analysis.speed.scaling import ScalingRow
from worldsize.spec.setting import Setting

if TYPE_CHECKING:
    from worldsize.answer.results import Results


def as_dict(results: Results) -> dict[str, Any]:
    """Return the answer, the tables and the outcome of every trial."""
    row = results.answer.row
    return {
        "study": results.spec.name,
        "workload": results.spec.workload.name,
        "scaling": results.spec.axes.scaling,
        "metric": results.facts.metric,
        "unit": results.facts.unit,
        "units_per_sample": results.facts.units_per_sample,
        "answer": {
            "verdict": results.answer.verdict,
            "setting": flat(row) if row else None,
            "findings": [plain_finding(finding) for finding in results.answer.findings],
        },
        "table": results.table(),
        "largest_batch": [{**plain(batch), "setting": plain_setting(batch.setting)} for batch in results.largest],
        "steps": [_step(step, results.facts.train_samples) for step in results.steps],
        "hardware": [{**flat_setting(setting), **plain(hardware)} for setting, hardware in results.hardware],
        "links": [_link(kind, link) for kind, link in results.links],
        "mfu": [{**flat_setting(setting), **plain(mfu)} for setting, mfu in results.mfus.items()],
        "noise_scale": [
            {**flat_setting(setting), "variant": variant, **plain(scale)}
            for setting, variant, scale in results.noise_scales
        ],
        "learning": results.learning(),
        "comparisons": [
            {**flat_setting(ranking.setting), **plain(comparison)}
            for ranking in results.variant_rankings
            for comparison in ranking.differences
        ],
        "trials": {
            trial_id: results.records[trial_id].outcome if trial_id in results.records else "left"
            for trial_id in results.trials
        },
    }


def plain(value: Any) -> dict[str, Any]:
    """Return a dataclass as a dict, with each estimate as value, low and high."""
    return asdict(value, dict_factory=_ends)


ESTIMATE = {field.name for field in fields(Estimate)}


def _ends(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    entry = dict(pairs)
    return {name: entry[name] for name in ("value", "low", "high")} if entry.keys() == ESTIMATE else entry


def flat(row: ScalingRow | VariantSummary) -> dict[str, Any]:
    """Return a row as a dict that also contains the fields of its setting."""
    entry = plain(row)
    for name in ("setting", "pace", "metric_sample"):  # settings are flattened, and intervals replace samples
        entry.pop(name, None)
    if isinstance(row, ScalingRow):
        entry["metric_repeats"] = row.metric.n if row.metric else 0
    return {**flat_setting(row.setting), **entry}


def columns(row: Mapping[str, Any]) -> dict[str, Any]:
    """Flatten a row: an interval becomes three columns, `step_s`, `step_s_low` and `step_s_high`."""
    cells: dict[str, Any] = {}
    for name, value in row.items():
        if name == "metric" and value is None:  # not trained
            value = dict.fromkeys(("value", "low", "high"))
        if isinstance(value, dict):
            cells |= {name if end == "value" else f"{name}_{end}": number for end, number in value.items()}
        else:
            cells[name] = value
    return cells


def _step(step: StepParts, train_samples: int) -> dict[str, Any]:
    traffic, added = step.traffic, step.communication_s
    entry = {
        **plain(step),
        "setting": plain_setting(step.setting),
        "communication_s": added and plain(added),
        "communication_share": (share := step.communication_share) and plain(share),
        "communication_epoch_s": added and plain(added.scaled(train_samples / step.setting.global_batch)),
    }
    if traffic is not None:
        entry["traffic"] |= {"algbw": traffic.algbw, "busbw": traffic.busbw}
    return entry


def _link(kind: str, link: Link) -> dict[str, Any]:
    """Return a link as a dict. Strict JSON has no infinity: a bandwidth that no message size reveals is None."""
    entry = plain(link)
    entry["bandwidth_bytes_per_s"] = {
        key: value if math.isfinite(value) else None for key, value in entry["bandwidth_bytes_per_s"].items()
    }
    repetitions = sum(size.repetitions for size in link.sizes)
    return {"kind": kind, **entry, "repetitions": repetitions, "poor": link.is_poor}


def plain_setting(setting: Setting) -> dict[str, Any]:
    """Return the fields of a setting, with the strategy as its label."""
    return {**asdict(setting), "strategy": setting.strategy.label}


def flat_setting(setting: Setting) -> dict[str, Any]:
    """Return the fields of a setting and its global batch, as in every row."""
    return {**plain_setting(setting), "global_batch": setting.global_batch}


def plain_finding(finding: Finding) -> dict[str, Any]:
    """Return a finding as a dict; `where` only if it applies to some of the settings."""
    return {key: value for key, value in plain(finding).items() if value or key != "where"}
