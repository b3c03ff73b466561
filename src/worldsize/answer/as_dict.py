"""Results as plain dicts, for machines: what `--json` prints and report.json holds."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from worldsize.analysis.learning.variants import VariantSummary
from worldsize.analysis.speed.breakdown import StepParts
from worldsize.analysis.speed.network import Link
from worldsize.analysis.speed.recommend import Finding
from worldsize.analysis.speed.scaling import ScalingRow
from worldsize.spec.setting import Setting

if TYPE_CHECKING:
    from worldsize.answer.results import Results


def as_dict(results: Results) -> dict[str, Any]:
    """The answer, the tables, and how every trial ended."""
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
        "largest_batch": [{**asdict(each), "setting": plain_setting(each.setting)} for each in results.largest],
        "steps": [_step(each) for each in results.steps],
        "hardware": [{**flat_setting(setting), **asdict(found)} for setting, found in results.hardware],
        "links": [_link(kind, link) for kind, link in results.links],
        "mfu": [{**flat_setting(setting), **asdict(found)} for setting, found in results.mfus.items()],
        "noise_scale": [
            {**flat_setting(setting), "variant": variant, **asdict(found)}
            for setting, variant, found in results.noise_scales
        ],
        "learning": results.learning(),
        "comparisons": [
            {**flat_setting(contest.setting), **asdict(comparison)}
            for contest in results.variant_rankings
            for comparison in contest.differences
        ],
        "trials": {
            trial_id: results.records[trial_id].outcome if trial_id in results.records else "left"
            for trial_id in results.trials
        },
    }


def flat(found: ScalingRow | VariantSummary) -> dict[str, Any]:
    """With what its setting says beside its own."""
    own = asdict(found)
    del own["setting"]
    return {**flat_setting(found.setting), **own}


def columns(row: Mapping[str, Any]) -> dict[str, Any]:
    """Flatten a row: an interval becomes three columns, `step_s`, `step_s_low` and `step_s_high`."""
    found: dict[str, Any] = {}
    for name, value in row.items():
        if isinstance(value, dict):
            found |= {name if end == "value" else f"{name}_{end}": number for end, number in value.items()}
        else:
            found[name] = value
    return found


def _step(each: StepParts) -> dict[str, Any]:
    traffic = each.traffic
    own = {**asdict(each), "setting": plain_setting(each.setting)}
    if traffic is not None:
        own["traffic"] |= {"algbw": traffic.algbw, "busbw": traffic.busbw}
    return own


def _link(kind: str, link: Link) -> dict[str, Any]:
    """Strict JSON has no infinity: a bandwidth that no size showed is None."""
    own = asdict(link)
    own["bandwidth_bytes_per_s"] = {
        key: value if math.isfinite(value) else None for key, value in own["bandwidth_bytes_per_s"].items()
    }
    return {"kind": kind, **own, "poor": link.is_poor}


def plain_setting(setting: Setting) -> dict[str, Any]:
    """Its own fields, the strategy by its label."""
    return {**asdict(setting), "strategy": setting.strategy.label}


def flat_setting(setting: Setting) -> dict[str, Any]:
    """A setting as every row has it: its fields and its global batch."""
    return {**plain_setting(setting), "global_batch": setting.global_batch}


def plain_finding(finding: Finding) -> dict[str, Any]:
    """`where` only of a finding that is about some of the settings."""
    return {key: value for key, value in asdict(finding).items() if value or key != "where"}
