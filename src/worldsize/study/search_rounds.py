"""Choose what a search runs next: bisection narrows down the learning rate above which training diverges.

Rounds are a pure function of the study and its records, so that a study that was stopped continues with the same ones.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import replace

from worldsize.analysis.learning.variants import divergence_edge
from worldsize.folder.record import TrialRecord
from worldsize.plan.grid import StudyPoint, study_points
from worldsize.plan.plan import Plan, with_training
from worldsize.spec.optimizer import OptimizerAxis, OptimizerSpec, Search, readable
from worldsize.spec.study import StudySpec, TrialSpec

Runs = list[tuple[TrialSpec, TrialRecord]]


def next_search_round(spec: StudySpec, plan: Plan, records: Mapping[str, TrialRecord]) -> Plan | None:
    """Return the plan with more trials, or None if all searches are done."""
    if spec.train is None:
        return None
    runs: dict[str, Runs] = defaultdict(list)
    for trial in plan.trials.values():
        if trial.search is not None and trial.id in records:
            runs[trial.search].append((trial, records[trial.id]))
    more: list[StudyPoint] = []
    for search, point in {point.search: point for point in study_points(spec)}.items():
        entry = spec.axes.optimizer[point.entry]
        more += [replace(point, optimizer=setting) for setting in _next_settings(entry, runs[search])]
    return with_training(plan, spec, more) if more else None


def _next_settings(entry: OptimizerAxis, runs: Runs) -> list[OptimizerSpec]:
    if not runs or any(record.outcome in ("failed", "out_of_memory") for _, record in runs):
        return []  # failed trials can be repeated; the search must not continue without them
    if isinstance(entry.lr, Search) and entry.lr.divergence_within is not None:
        return _between_stable_and_diverged(entry.lr.divergence_within, runs)
    return []


def _between_stable_and_diverged(precision: float, runs: Runs) -> list[OptimizerSpec]:
    """Return, for each optimizer, the geometric mean of the highest stable and the lowest diverged learning rate."""
    diverged_by_setting: dict[OptimizerSpec, dict[float, bool]] = defaultdict(dict)
    for trial, record in runs:
        diverged = diverged_by_setting[trial.optimizer.model_copy(update={"lr": 1.0})]
        lr = trial.optimizer.lr
        diverged[lr] = diverged.get(lr, False) or record.outcome == "diverged"
    settings = []
    for setting, diverged in diverged_by_setting.items():
        edge = divergence_edge(diverged)
        if edge is None or edge.diverged <= edge.stable_lr * (1 + precision):
            continue
        middle = readable(math.sqrt(edge.stable_lr * edge.diverged))
        if middle not in diverged:
            settings.append(setting.model_copy(update={"lr": middle}))
    return settings
