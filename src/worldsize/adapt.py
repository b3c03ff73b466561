"""What an adaptive study runs next: probes while the answer can still change, then training of what it recommends.

Like a search, a pure function of the study and its records: a study that was stopped goes on with the same rounds.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping

from worldsize.analysis.adaptive import Probe, next_probes
from worldsize.analysis.points import Setting
from worldsize.analysis.stats import Interval
from worldsize.inputs import setting_of
from worldsize.plan import Plan, Point, extended, study_points, with_probes
from worldsize.results import Results
from worldsize.spec import StudySpec

Line = tuple[int, str, str]
"""Accumulation, strategy, precision: what counts and batches are compared within."""


def next_climb(spec: StudySpec, plan: Plan, results: Results) -> Plan | None:
    """The plan with the next round; None: nothing more to probe, and what is worth training is planned."""
    points = {_key(point, spec): point for point in study_points(spec)}
    tried = {(_line(setting), _probe(setting)) for setting in _probed(plan, results)}
    rates = _rates(results)
    wanted = [
        points[line, probe]
        for line in dict.fromkeys(line for line, _ in points)
        for probe in next_probes(
            [probe for other, probe in points if other == line],
            rates[line],
            [probe for other, probe in tried if other == line],
        )
    ]
    if wanted:
        return with_probes(plan, spec, wanted)
    row = results.answer.row
    if spec.train is None or row is None:
        return None
    chosen = [point for point in study_points(spec) if _key(point, spec) == (_line(row.setting), _probe(row.setting))]
    trained = any(trial.kind == "train" and setting_of(trial) == row.setting for trial in plan.trials.values())
    return None if trained or not chosen else extended(plan, spec, chosen)


def _probed(plan: Plan, results: Results) -> list[Setting]:
    """Whatever came of it: a probe that failed has no rate, and is not wanted again."""
    return [
        setting_of(trial) for trial in plan.trials.values() if trial.kind == "probe" and trial.id in results.records
    ]


def _rates(results: Results) -> Mapping[Line, dict[Probe, Interval]]:
    found: dict[Line, dict[Probe, Interval]] = defaultdict(dict)
    for row in results.rows:
        found[_line(row.setting)][_probe(row.setting)] = row.samples_per_s
    return found


def _line(setting: Setting) -> Line:
    return setting.accumulation, setting.strategy, setting.precision


def _probe(setting: Setting) -> Probe:
    """Its batch as the axis states it: of a worker, or global."""
    return setting.workers, setting.batch_per_worker if setting.scaling == "weak" else setting.global_batch


def _key(point: Point, spec: StudySpec) -> tuple[Line, Probe]:
    batch = point.global_batch if spec.axes.scaling == "strong" else point.batch_per_worker
    return (point.accumulation, point.strategy.label, point.precision), (point.workers, batch)
