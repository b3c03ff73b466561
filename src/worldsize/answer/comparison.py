"""Study folders side by side: what their records say, what differs in configuration and environment."""

from __future__ import annotations

import itertools
import math
import string
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from worldsize.analysis.estimate import LEVEL
from worldsize.analysis.learning.variants import VariantRanking
from worldsize.analysis.speed.compare import (
    ALPHA,
    EFFICIENCY,
    METRIC,
    RATIOS,
    STEPS,
    THROUGHPUT,
    Compared,
    Mean,
    Side,
    compare,
    of_parts,
    of_sampled,
    of_share,
    of_values,
)
from worldsize.analysis.speed.hardware import foreign_cores
from worldsize.analysis.speed.recommend import Finding
from worldsize.analysis.speed.scaling import paces
from worldsize.answer.as_dict import flat_setting, plain_finding
from worldsize.answer.from_records import usages
from worldsize.answer.results import Results, as_results
from worldsize.data.catalog import METRICS
from worldsize.errors import InputError
from worldsize.spec.file import differences
from worldsize.spec.setting import Setting

NAMES = string.ascii_uppercase
LEAST_LOAD = 0.2
"""Cores: what a system does anyway is less."""
UNCOMPARED = ("name", "small")
"""Of a study file: they change nothing that is measured."""


@dataclass(frozen=True, kw_only=True)
class StudyComparison:
    """All that was compared, for the terminal, a page or --json."""

    studies: tuple[Results, ...]
    compared: Compared
    configuration: Mapping[str, tuple[str, ...]]
    """Of each other study: what its study file has that the first one's has not, `train.epochs: 2 -> 3`."""
    environment: Mapping[str, tuple[str, ...]]
    """What is not the same in all of them, `torch`: its value in each study."""
    gap_s: float | None
    """The longest time between the end of one study and the beginning of the next; None: they overlap."""
    foreign_cores: tuple[float | None, ...]
    """Cores of the machine that were busy with other work, on average, while each study trained; None: not known."""

    @property
    def other_load(self) -> bool:
        """Whether other work took clearly more of the machine from one study than from another."""
        known = [cores for cores in self.foreign_cores if cores is not None]
        return len(known) > 1 and max(known) - min(known) > LEAST_LOAD

    @property
    def cautions(self) -> dict[str, list[Finding]]:
        """What each study says that puts in question what it measured."""
        named = zip(self.compared.names, self.studies, strict=True)
        return {
            name: [each for one in results.by_place.values() for each in one.answer.cautions] for name, results in named
        }

    @property
    def metric(self) -> str:
        return self.studies[0].facts.metric


def compare_studies(baseline: Results | Path | str, *others: Results | Path | str) -> StudyComparison:
    """Compare studies, or study folders, at the settings they share; differences are relative to the first one."""
    studies = [as_results(study) for study in (baseline, *others)]
    if len(studies) > len(NAMES):
        raise InputError(f"{len(studies)} studies are too many to compare at once; give at most {len(NAMES)}")
    homes = [results.folder.path for results in studies]
    for place, home in enumerate(homes):
        if home.resolve() in {other.resolve() for other in homes[:place]}:
            raise InputError(f"{home} is given twice; compare it with another study folder")
        if not studies[place].records:
            raise InputError(f"{home} has no finished trial to compare; run the study first")
    specs = [_numbered(results.spec.model_dump(mode="json", exclude=set(UNCOMPARED))) for results in studies]
    comparable = [_same_goal(studies[0], results) for results in studies]
    sides = [_side(name, results, goal) for name, results, goal in zip(NAMES, studies, comparable, strict=False)]
    return StudyComparison(
        studies=tuple(studies),
        compared=compare(sides),
        configuration={
            name: tuple(differences(specs[0], spec)) for name, spec in zip(NAMES[1:], specs[1:], strict=False)
        },
        environment=_environment(studies),
        gap_s=_gap_s(studies),
        foreign_cores=tuple(map(_foreign_cores, studies)),
    )


def to_dict(found: StudyComparison) -> dict[str, Any]:
    """For machines, and for whoever draws it. Strict JSON."""
    compared = found.compared
    return {
        "studies": [
            {
                "name": name,
                "study": results.spec.name,
                "folder": str(results.folder.path),
                "workload": results.spec.workload.name,
                "finished": len(results.records) - len(results.failed()),
                "trials": len(results.trials),
            }
            for name, results in zip(compared.names, found.studies, strict=True)
        ],
        "metric": found.metric,
        "level": LEVEL,
        "alpha": ALPHA,
        "correction": "holm",
        "compared": len(compared.differences),
        "judged": compared.judged,
        "significant": len(compared.significant),
        "differences": [
            {
                **flat_setting(each.setting),
                "side": each.side,
                "quantity": each.quantity,
                "kind": "ratio" if each.quantity in RATIOS else "difference",
                "first": each.first,
                "other": each.other,
                **asdict(each.estimate),
                "p": each.p,
                "p_holm": each.p_holm,
                "significant": each.significant,
            }
            for each in compared.differences
        ],
        "only": {name: [flat_setting(setting) for setting in settings] for name, settings in compared.only.items()},
        "configuration": {name: list(lines) for name, lines in found.configuration.items()},
        "environment": {key: list(values) for key, values in found.environment.items()},
        "gap_s": found.gap_s,
        "foreign_cores": list(found.foreign_cores),
        "cautions": {name: [plain_finding(each) for each in said] for name, said in found.cautions.items()},
    }


def _side(name: str, results: Results, goal: tuple[bool, bool]) -> Side:
    means: dict[Setting, dict[str, Mean]] = {}
    step_s, baselines = {}, {}
    for pace in (pace for group in paces(results.setting_times, adaptive=results.spec.adaptive) for pace in group):
        here = means.setdefault(pace.setting, {})
        here[THROUGHPUT] = of_sampled(pace.throughput)
        if pace.setting.workers != pace.baseline.workers:  # the baseline is 1 by definition
            here[EFFICIENCY] = of_share(pace.efficiency)
        step_s[pace.setting], baselines[pace.setting] = pace.step.value, pace.baseline.workers
    for contest in results.variant_rankings:
        means.setdefault(contest.setting, {}).update(_learned(contest, results, *goal))
    for each in results.steps:
        means[each.setting].update(of_parts(each.parts.of_repeats))
    return Side(name=name, means=means, step_s=step_s, baselines=baselines)


def _same_goal(first: Results, other: Results) -> tuple[bool, bool]:
    """Whether their metric, and their target, mean the same."""
    metric = first.facts.metric == other.facts.metric and first.spec.workload.name == other.spec.workload.name
    return metric, first.goal is not None and metric and first.goal == other.goal


def _learned(contest: VariantRanking, results: Results, metric: bool, target: bool) -> Iterable[tuple[str, Mean]]:
    """Of the best variant; nothing of one that diverged or missed the target: what is left is no fair sample."""
    best = contest.variants[0]
    if best.diverged or best.stopped:
        return
    if metric and best.metrics:
        known = METRICS.get(results.facts.metric)
        grain = 1 / results.facts.test_samples if known and known.is_counted else 0.0
        yield METRIC, of_values(list(best.metrics.values()), grain)
    if target and best.target is not None and best.target.always and best.target.epochs is not None:
        # Evaluations are an epoch apart: nobody knows within that when the target was met.
        grain = 1 / best.target.epochs.value
        yield STEPS, of_values([math.log(at.steps) for at in best.target.of_repeats.values()], grain)


def _numbered(value: Any) -> Any:
    """Lists of several values each as `axes.optimizer.0.lr`, so that only what differs of an entry is told."""
    if isinstance(value, dict):
        return {key: _numbered(each) for key, each in value.items()}
    if isinstance(value, list) and any(isinstance(each, dict) for each in value):
        return {str(place): _numbered(each) for place, each in enumerate(value)}
    return value


def _environment(studies: Sequence[Results]) -> dict[str, tuple[str, ...]]:
    """What the workers wrote down of where they ran, as far as it is not the same everywhere."""
    seen = [_facts(results) for results in studies]
    keys = dict.fromkeys(key for facts in seen for key in facts)
    values = {key: tuple(", ".join(facts.get(key, ())) or "not known" for facts in seen) for key in keys}
    return {key: told for key, told in values.items() if len(set(told)) > 1}


def _facts(results: Results) -> dict[str, list[str]]:
    found: dict[str, set[str]] = {}
    for record in results.records.values():
        for key, value in record.environment.items():
            each = value if isinstance(value, list) else [value]
            found.setdefault(key, set()).update(str(one) for one in each if one is not None)
    if "hosts" in found:  # of all ranks; `host` is rank 0's
        found.pop("host", None)
    return {key: sorted(values) for key, values in found.items()}


def _foreign_cores(results: Results) -> float | None:
    """Over trials that ran on one host, so that the rest of its cores is known."""
    ended = [
        (results.trials[trial_id], record)
        for trial_id, record in results.records.items()
        if len(set(_listed(record.environment.get("hosts")))) == 1
    ]
    known = [cores for ranks in usages(results.folder, ended) if (cores := foreign_cores(ranks)) is not None]
    return sum(known) / len(known) if known else None


def _listed(value: Any) -> list[str]:
    return [str(each) for each in value] if isinstance(value, list) else []


def _gap_s(studies: Sequence[Results]) -> float | None:
    """A machine is not the same an hour later, and no interval of one study knows of that."""
    times = []
    for results in studies:
        records = results.records.values()
        began = min(record.started_at for record in records)
        times.append((began, max(record.started_at + record.wall_s for record in records)))
    times.sort()
    gaps = [after[0] - before[1] for before, after in itertools.pairwise(times)]
    longest = max(gaps, default=0.0)
    return longest if longest > 0 else None
