"""What an adaptive study runs next: probes while the answer can still change, repeats of those whose noise leaves it
open, then training of what it recommends.

Like a search, a pure function of the study and its records: a study that was stopped goes on with the same rounds.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence

import numpy as np

from worldsize.analysis.adaptive import Probe, next_probes, pooled
from worldsize.analysis.points import Setting
from worldsize.analysis.throughput import Ground, Timed, fit_throughput
from worldsize.grid import StudyPoint, study_points
from worldsize.inputs import setting_of
from worldsize.plan import Plan, extended, with_probes
from worldsize.prediction_inputs import ground, timed
from worldsize.results import Results
from worldsize.spec import StudySpec

Line = tuple[int, str, str, str]
"""Accumulation, strategy, precision, target: what counts and batches are compared within."""
MOST_ROUNDS = 4
"""Of the repeats of one setting, where their noise leaves the answer open."""


def next_climb(spec: StudySpec, plan: Plan, results: Results) -> Plan | None:
    """The plan with the next round; None: nothing more to probe, and what is worth training is planned."""
    points = {_key(point, spec): point for point in study_points(spec)}
    tried = {(_line(setting), _probe(setting)) for setting in _probed(plan, results)}
    rates = paces(results)
    wanted = [
        points[line, probe]
        for line in dict.fromkeys(line for line, _ in points)
        for probe in next_probes(
            [probe for other, probe in points if other == line],
            pooled(rates[line]),
            [probe for other, probe in tried if other == line],
            _foretold(results, line, [probe for other, probe in points if other == line]),
        )
    ]
    if wanted:
        return with_probes(plan, spec, wanted)
    noisiest, row = results.answer.noisiest, results.answer.row
    if noisiest is not None and _may_repeat(spec, plan, noisiest):
        return with_probes(plan, spec, [points[_of(noisiest)]])
    if spec.train is None or row is None:
        return None
    trained = any(trial.kind == "train" and setting_of(trial) == row.setting for trial in plan.trials.values())
    if trained:
        return None
    return extended(plan, spec, [each for each in study_points(spec) if _key(each, spec) == _of(row.setting)])


def _may_repeat(spec: StudySpec, plan: Plan, setting: Setting) -> bool:
    """A machine that is never quiet is not waited for; training, once planned, ends the probing."""
    assert spec.probe is not None
    mine = [trial for trial in plan.trials.values() if trial.kind == "probe" and setting_of(trial) == setting]
    begun = any(trial.kind == "train" for trial in plan.trials.values())
    return not begun and len(mine) < MOST_ROUNDS * (spec.probe.repeats or spec.repeats)


def _probed(plan: Plan, results: Results) -> list[Setting]:
    """Whatever came of it: a probe that failed has no rate, and is not wanted again."""
    return [
        setting_of(trial) for trial in plan.trials.values() if trial.kind == "probe" and trial.id in results.records
    ]


def paces(results: Results) -> Mapping[Line, dict[Probe, list[float]]]:
    """Samples a second of every repeat."""
    found: dict[Line, dict[Probe, list[float]]] = defaultdict(dict)
    for point in results.points:
        setting = point.setting
        found[_line(setting)][_probe(setting)] = [
            setting.global_batch / float(np.median(step_s)) for step_s in point.repeats.values()
        ]
    return found


def _foretold(results: Results, line: Line, probes: Collection[Probe]) -> dict[Probe, float]:
    """By the model of the step, from all that this line has measured. Nothing where that has one count only."""
    like = next((row.setting for row in results.rows if _line(row.setting) == line), None)
    if like is None:
        return {}
    accumulation, strong = line[0], like.scaling == "strong"
    here = results.apart[like.on]
    measured = [each for each in timed(here, like) if each.accumulation == accumulation]
    return foretold(measured, ground(here, like, None), probes, accumulation, strong=strong)


def foretold(
    measured: Sequence[Timed], where: Ground, probes: Collection[Probe], accumulation: int, *, strong: bool
) -> dict[Probe, float]:
    if len({each.workers for each in measured}) < 2:
        return {}
    model = fit_throughput(measured, where)
    found = {}
    for workers, batch in probes:
        share = batch // (workers * accumulation) if strong else batch
        samples = workers * share * accumulation
        found[workers, batch] = samples / model.parts(workers, share, accumulation).step_s
    return found


def _of(setting: Setting) -> tuple[Line, Probe]:
    return _line(setting), _probe(setting)


def _line(setting: Setting) -> Line:
    return setting.accumulation, *setting.kind


def _probe(setting: Setting) -> Probe:
    """Its batch as the axis states it: of a worker, or global."""
    return setting.workers, setting.batch_per_worker if setting.scaling == "weak" else setting.global_batch


def _key(point: StudyPoint, spec: StudySpec) -> tuple[Line, Probe]:
    batch = point.global_batch if spec.axes.scaling == "strong" else point.batch_per_worker
    line = point.accumulation, point.strategy.label, point.precision, point.on
    return line, (point.workers, batch)
