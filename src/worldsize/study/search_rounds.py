"""What a search runs next, from what has run: the edge of divergence by halving, Optuna's TPE in rounds.

Rounds are a pure function of the study and its records: a study that was stopped goes on with the same ones.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Literal

from worldsize.analysis.learning.variants import rate_edge
from worldsize.data.catalog import WorkloadFacts
from worldsize.folder.record import TrialRecord
from worldsize.plan.grid import StudyPoint, study_points
from worldsize.plan.plan import Plan, extended
from worldsize.spec.optimizer import OptimizerAxis, OptimizerSpec, Search, readable
from worldsize.spec.study import StudySpec, TrialSpec
from worldsize.spec.training import UntilSpec

Runs = list[tuple[TrialSpec, TrialRecord]]


def next_round(spec: StudySpec, plan: Plan, records: Mapping[str, TrialRecord], facts: WorkloadFacts) -> Plan | None:
    """The plan with more trials, or None when no search wants any."""
    if spec.train is None:
        return None
    runs: dict[str, Runs] = defaultdict(list)
    for trial in plan.trials.values():
        if trial.search is not None and trial.id in records:
            runs[trial.search].append((trial, records[trial.id]))
    more: list[StudyPoint] = []
    for search, point in {point.search: point for point in study_points(spec)}.items():
        entry = spec.axes.optimizer[point.entry]
        more += [replace(point, optimizer=setting) for setting in _wanted(entry, runs[search], facts, spec)]
    return extended(plan, spec, more) if more else None


def _wanted(entry: OptimizerAxis, runs: Runs, facts: WorkloadFacts, spec: StudySpec) -> list[OptimizerSpec]:
    if not runs or any(record.outcome in ("failed", "out_of_memory") for _, record in runs):
        return []  # what failed may be tried again first; a search must not go round it
    if entry.tpe is not None:
        settings = len({trial.optimizer for trial, _ in runs})
        return propose(entry, runs, min(entry.tpe_round, entry.tpe - settings), facts, spec)
    if isinstance(entry.rate, Search) and entry.rate.edge is not None:
        return _nearer_the_edge(entry.rate.edge, runs)
    return []


def _nearer_the_edge(precision: float, runs: Runs) -> list[OptimizerSpec]:
    """Between the highest rate that held and the lowest that diverged: the geometric mean of the two."""
    others: dict[OptimizerSpec, dict[float, bool]] = defaultdict(dict)
    for trial, record in runs:
        rates = others[trial.optimizer.model_copy(update={"rate": 1.0})]
        rate = trial.optimizer.rate
        rates[rate] = rates.get(rate, False) or record.outcome == "diverged"
    wanted = []
    for setting, diverged in others.items():
        edge = rate_edge(diverged)
        if edge is None or edge.diverged <= edge.held * (1 + precision):
            continue
        middle = readable(math.sqrt(edge.held * edge.diverged))
        if middle not in diverged:
            wanted.append(setting.model_copy(update={"rate": middle}))
    return wanted


def propose(entry: OptimizerAxis, runs: Runs, count: int, facts: WorkloadFacts, spec: StudySpec) -> list[OptimizerSpec]:
    """Settings that Optuna's TPE would try next, after the trials so far have been shown to it."""
    if count < 1:
        return []
    import optuna

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    sampler = optuna.samplers.TPESampler(seed=len(runs), n_startup_trials=entry.tpe_round, constant_liar=True)
    rises = facts.higher_is_better and _until(spec) is None  # steps to a target are the better the fewer
    direction: Literal["minimize", "maximize"] = "maximize" if rises else "minimize"
    study = optuna.create_study(direction=direction, sampler=sampler)
    ranges: dict[str, optuna.distributions.BaseDistribution] = {
        name: optuna.distributions.FloatDistribution(*search.search, log=True)
        for name, search in entry.searched().items()
    }
    values = [value for trial, record in runs if (value := _value(trial, record, facts)) is not None]
    # What diverged is worse than the worst seen, by as much as that is worse than the best: TPE must not forget that
    # it was tried, nor take it for a trial that learned.
    low, high = min(values, default=0.0), max(values, default=0.0)
    worst = low - (high - low) - 1e-9 if direction == "maximize" else high + (high - low) + 1e-9
    sign = -1.0 if facts.higher_is_better and direction == "minimize" else 1.0
    for trial, record in runs:
        value = _value(trial, record, facts)
        pruned = record.outcome == "stopped"
        study.add_trial(
            optuna.trial.create_trial(
                params={name: _inside(getattr(trial.optimizer, name), entry.searched()[name]) for name in ranges},
                distributions=ranges,
                value=None if pruned else (worst if value is None else value),
                intermediate_values=_intermediate(record, facts, sign) if pruned else {},
                state=optuna.trial.TrialState.PRUNED if pruned else optuna.trial.TrialState.COMPLETE,
            )
        )
    fixed = runs[0][0].optimizer.model_dump(exclude={"name", "trust", *ranges})
    asked = [study.ask(ranges).params for _ in range(count)]
    proposed = [
        entry.with_values({**fixed, **{name: readable(value) for name, value in params.items()}}) for params in asked
    ]
    known = {trial.optimizer for trial, _ in runs}
    return [setting for setting in dict.fromkeys(proposed) if setting not in known]


def _inside(value: float, search: Search) -> float:
    """Rounding must not push a value over the end of its range."""
    return min(max(value, search.search[0]), search.search[1])


def _until(spec: StudySpec) -> UntilSpec | None:
    return spec.train.until if spec.train else None


def _value(trial: TrialSpec, record: TrialRecord, facts: WorkloadFacts) -> float | None:
    """What is made best: the metric at the end, or the steps to a target (in logarithms; twice the most if missed)."""
    assert trial.train is not None
    if record.outcome in ("diverged", "stopped"):
        return None
    if trial.train.until is None:
        return record.metrics.get(facts.metric)
    value = record.metrics.get(trial.train.until.metric)
    if value is not None and trial.train.until.reached(value):
        return math.log(sum(epoch.steps for epoch in record.epochs))
    return math.log(2 * trial.train.total_steps(facts.train_samples, trial.global_batch))


def _intermediate(record: TrialRecord, facts: WorkloadFacts, sign: float) -> dict[int, Any]:
    return {epoch.epoch: sign * epoch.test[facts.metric] for epoch in record.epochs if facts.metric in epoch.test}
