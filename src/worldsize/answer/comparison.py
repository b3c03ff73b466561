"""Compare study folders: differences in results, configuration and environment."""

from __future__ import annotations

import itertools
import math
import string
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from worldsize.analysis.estimate import LEVEL, Sample
from worldsize.analysis.learning.variants import VariantRanking
from worldsize.analysis.speed.compare import (
    ALPHA,
    EFFICIENCY,
    METRIC,
    RATIOS,
    STEPS,
    THROUGHPUT,
    Compared,
    Side,
    compare,
    of_parts,
    of_values,
    share_of,
)
from worldsize.analysis.speed.hardware import foreign_cores
from worldsize.analysis.speed.recommend import Finding
from worldsize.analysis.speed.slower import Gate, gate_slower
from worldsize.answer.as_dict import flat_setting, plain, plain_finding
from worldsize.answer.from_records import usages
from worldsize.answer.results import Results, as_results
from worldsize.data.catalog import METRICS
from worldsize.errors import InputError
from worldsize.spec.file import differences
from worldsize.spec.setting import Setting

NAMES = string.ascii_uppercase
MIN_LOAD = 0.2
"""Number of busy cores. The background load of an idle system is lower."""
UNCOMPARED = ("name", "small")
"""Fields of a study file that do not affect measurements."""


@dataclass(frozen=True, kw_only=True)
class StudyComparison:
    """The complete comparison, for the terminal, a page or --json."""

    studies: tuple[Results, ...]
    compared: Compared
    configuration: Mapping[str, tuple[str, ...]]
    """Changes in the study file of each other study, relative to the first: `train.epochs: 2 -> 3`."""
    environment: Mapping[str, tuple[str, ...]]
    """Facts that differ between studies, such as the version of `torch`, with the value in each study."""
    gap_s: float | None
    """Longest time between the end of one study and the start of the next; None if they overlap."""
    foreign_cores: tuple[float | None, ...]
    """Average number of cores busy with other work while each study trained; None if unknown."""
    gate: Gate | None = None
    """Whether any study is slower than the first one, if that was asked."""
    command: tuple[str, ...] = ()
    """The command that ran the studies side by side, without its folder. Empty if they ran separately."""

    @property
    def other_load(self) -> bool:
        """Whether other work used clearly more of the machine during one study than during another."""
        loads = [cores for cores in self.foreign_cores if cores is not None]
        return len(loads) > 1 and max(loads) - min(loads) > MIN_LOAD

    @property
    def cautions(self) -> dict[str, list[Finding]]:
        """Findings of each study that cast doubt on its measurements."""
        named_studies = zip(self.compared.names, self.studies, strict=True)
        return {
            name: [finding for at_place in results.by_place.values() for finding in at_place.answer.cautions]
            for name, results in named_studies
        }

    @property
    def metric(self) -> str:
        return self.studies[0].facts.metric


def compare_studies(
    baseline: Results | Path | str, *others: Results | Path | str, allowed_slowdown: float | None = None
) -> StudyComparison:
    """Compare studies or study folders at the settings they share. Differences are relative to the first one.

    `allowed_slowdown`: also judge whether any study is slower than the first one by more than this share of its step
    time (0.05: 5 %; 0: by anything more than noise). The `gate` of the comparison has the verdict.
    """
    if allowed_slowdown is not None and not 0 <= allowed_slowdown < math.inf:
        raise InputError(f"allowed_slowdown={allowed_slowdown} is not a share; give 0 or more, such as 0.05 for 5 %")
    studies = [as_results(study) for study in (baseline, *others)]
    if len(studies) > len(NAMES):
        raise InputError(f"{len(studies)} studies are too many to compare at once; give at most {len(NAMES)}")
    homes = [results.folder.path for results in studies]
    for index, home in enumerate(homes):
        if home.resolve() in {other.resolve() for other in homes[:index]}:
            raise InputError(f"{home} is given twice; compare it with another study folder")
        if not studies[index].records:
            raise InputError(f"{home} has no finished trial to compare; run the study first")
    specs = [_numbered(results.spec.model_dump(mode="json", exclude=set(UNCOMPARED))) for results in studies]
    comparable = [_same_goal(studies[0], results) for results in studies]
    sides = [_side(name, results, goal) for name, results, goal in zip(NAMES, studies, comparable, strict=False)]
    compared = compare(sides)
    return StudyComparison(
        studies=tuple(studies),
        compared=compared,
        configuration={
            name: tuple(differences(specs[0], spec)) for name, spec in zip(NAMES[1:], specs[1:], strict=False)
        },
        environment=_environment(studies),
        gap_s=_gap_s(studies),
        foreign_cores=tuple(map(_foreign_cores, studies)),
        gate=None if allowed_slowdown is None else gate_slower(compared, allowed_slowdown),
    )


def to_dict(comparison: StudyComparison) -> dict[str, Any]:
    """Return the comparison as strict JSON, for `--json` and for figures."""
    compared = comparison.compared
    return {
        **({} if comparison.gate is None else {"gate": _plain_gate(comparison.gate)}),
        "studies": [
            {
                "name": name,
                "study": results.spec.name,
                "folder": str(results.folder.path),
                "workload": results.spec.workload.name,
                "finished": len(results.records) - len(results.failed()),
                "trials": len(results.trials),
            }
            for name, results in zip(compared.names, comparison.studies, strict=True)
        ],
        "metric": comparison.metric,
        "level": LEVEL,
        "alpha": ALPHA,
        "correction": "holm",
        "compared": len(compared.differences),
        "judged": compared.judged,
        "significant": len(compared.significant),
        "differences": [
            {
                **flat_setting(difference.setting),
                "side": difference.side,
                "quantity": difference.quantity,
                "kind": "ratio" if difference.quantity in RATIOS else "difference",
                "first": difference.first,
                "other": difference.other,
                **plain(difference.estimate),
                "p": difference.p,
                "p_holm": difference.p_holm,
                "significant": difference.significant,
            }
            for difference in compared.differences
        ],
        "only": {name: [flat_setting(setting) for setting in settings] for name, settings in compared.only.items()},
        "configuration": {name: list(lines) for name, lines in comparison.configuration.items()},
        "environment": {key: list(values) for key, values in comparison.environment.items()},
        "gap_s": comparison.gap_s,
        "foreign_cores": list(comparison.foreign_cores),
        "cautions": {
            name: [plain_finding(finding) for finding in findings] for name, findings in comparison.cautions.items()
        },
    }


def _plain_gate(gate: Gate) -> dict[str, Any]:
    return {
        "fail_on": "slower",
        "margin": gate.margin,
        "verdict": gate.verdict,
        "settings": [
            {
                **flat_setting(judged.difference.setting),
                "side": judged.difference.side,
                "verdict": judged.verdict,
                "step_time_change": plain(judged.change),
            }
            for judged in gate.settings
        ],
    }


def _side(name: str, results: Results, goal: tuple[bool, bool]) -> Side:
    means: dict[Setting, dict[str, Sample]] = {}
    step_s, baselines = {}, {}
    for pace in (row.pace for row in results.rows):
        quantities = means.setdefault(pace.setting, {})
        quantities[THROUGHPUT] = pace.throughput
        if pace.setting.workers != pace.baseline.workers:  # the baseline is 1 by definition
            quantities[EFFICIENCY] = share_of(pace.efficiency)
        step_s[pace.setting], baselines[pace.setting] = math.exp(pace.step.value), pace.baseline.workers
    for ranking in results.variant_rankings:
        means.setdefault(ranking.setting, {}).update(_learned(ranking, results, *goal))
    for step in results.steps:
        means[step.setting].update(of_parts(step.parts.of_repeats))
    return Side(name=name, means=means, step_s=step_s, baselines=baselines)


def _same_goal(first: Results, other: Results) -> tuple[bool, bool]:
    """Return whether the metrics of two studies are comparable, and whether their targets are."""
    metric = first.facts.metric == other.facts.metric and first.spec.workload.name == other.spec.workload.name
    return metric, first.goal is not None and metric and first.goal == other.goal


def _learned(ranking: VariantRanking, results: Results, metric: bool, target: bool) -> Iterable[tuple[str, Sample]]:
    """Yield metric and steps of the best variant; nothing if any run diverged or stopped, which biases the sample."""
    best = ranking.variants[0]
    if best.diverged or best.stopped:
        return
    if metric and best.metrics:
        metric_facts = METRICS.get(results.facts.metric)
        resolution = 1 / results.facts.test_samples if metric_facts and metric_facts.is_counted else 0.0
        yield METRIC, of_values(list(best.metrics.values()), resolution)
    if target and best.target is not None and best.target.always:
        yield STEPS, best.target.log_steps


def _numbered(value: Any) -> Any:
    """Turn lists into numbered entries, as in `axes.optimizer.0.lr`, so that only changed fields are listed."""
    if isinstance(value, dict):
        return {key: _numbered(item) for key, item in value.items()}
    if isinstance(value, list) and any(isinstance(item, dict) for item in value):
        return {str(index): _numbered(item) for index, item in enumerate(value)}
    return value


def _environment(studies: Sequence[Results]) -> dict[str, tuple[str, ...]]:
    """Return the facts about the environment, as recorded by the workers, that differ between studies."""
    environments = [_facts(results) for results in studies]
    keys = dict.fromkeys(key for facts in environments for key in facts)
    values = {key: tuple(", ".join(facts.get(key, ())) or "unknown" for facts in environments) for key in keys}
    return {key: by_study for key, by_study in values.items() if len(set(by_study)) > 1}


def _facts(results: Results) -> dict[str, list[str]]:
    facts: dict[str, set[str]] = {}
    for record in results.records.values():
        for key, value in record.environment.items():
            items = value if isinstance(value, list) else [value]
            facts.setdefault(key, set()).update(str(item) for item in items if item is not None)
    if "hosts" in facts:  # `hosts` covers all ranks, `host` only rank 0
        facts.pop("host", None)
    return {key: sorted(values) for key, values in facts.items()}


def _foreign_cores(results: Results) -> float | None:
    """Return the average over the trials that ran on a single host. Only there is the load of all cores known."""
    pairs = [
        (results.trials[trial_id], record)
        for trial_id, record in results.records.items()
        if len(set(_listed(record.environment.get("hosts")))) == 1
    ]
    loads = [cores for ranks in usages(results.folder, pairs) if (cores := foreign_cores(ranks)) is not None]
    return sum(loads) / len(loads) if loads else None


def _listed(value: Any) -> list[str]:
    return [str(item) for item in value] if isinstance(value, list) else []


def _gap_s(studies: Sequence[Results]) -> float | None:
    """Return the longest gap between studies. A machine changes over hours, which no interval of one study shows."""
    times = []
    for results in studies:
        records = results.records.values()
        began = min(record.started_at for record in records)
        times.append((began, max(record.started_at + record.wall_s for record in records)))
    times.sort()
    gaps = [after[0] - before[1] for before, after in itertools.pairwise(times)]
    longest = max(gaps, default=0.0)
    return longest if longest > 0 else None
