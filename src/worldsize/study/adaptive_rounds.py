"""What an adaptive study runs next: probes while the answer can still change, repeats of those whose noise leaves it
open, then training of what it recommends.

Rounds are launches of their own. What the machine did between them must not pass for scaling: a count is repeated once
beside the next one. For that it leaves out one of its own repeats, where it has three or more and is not of the first
round, nor the largest and foretold to pay.

Like a search, a pure function of the study and its records: a study that was stopped goes on with the same rounds.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Mapping, Sequence

import numpy as np

from worldsize.analysis.projection.step_model import Ground, Timed, fit_throughput
from worldsize.analysis.speed.adaptive import Probe, ends_the_climb, next_probes, pooled
from worldsize.analysis.speed.recommend import Answer
from worldsize.answer.from_records import ground, setting_of, timed
from worldsize.answer.results import Results
from worldsize.plan.grid import Line, StudyPoint, study_points
from worldsize.plan.plan import Plan, extended, with_probes
from worldsize.spec.setting import Setting
from worldsize.spec.study import StudySpec


def first_points(spec: StudySpec) -> list[StudyPoint]:
    """All of them, or what an adaptive study asks for while nothing is known."""
    points = study_points(spec)
    if not spec.axes.adaptive:
        return points
    possible: dict[Line, list[Probe]] = defaultdict(list)
    for point in points:
        possible[point.line].append(point.probe)
    wanted = {line: next_probes(set(probes), {}) for line, probes in possible.items()}
    return [point for point in points if point.probe in wanted[point.line]]


Points = Mapping[tuple[Line, Probe], StudyPoint]
Rates = Mapping[Line, Mapping[Probe, Sequence[float]]]
"""Samples a second of every repeat."""
Told = Mapping[Probe, float]
"""What the model foretells; empty: nothing."""
MOST_ROUNDS = 4
"""Of the repeats of one setting, where their noise leaves the answer open."""
MOST_NOISE = 0.25
"""What those may cost, of what all the rest did."""


def next_climb(spec: StudySpec, plan: Plan, results: Results) -> Plan | None:
    """The plan with the next round; None: nothing more to probe, and what is worth training is planned."""
    points = {(point.line, point.probe): point for point in study_points(spec)}
    tried = {(_line(setting), _probe(setting)) for setting in _probed(plan, results)}
    rates = paces(results)
    told = {
        line: _foretold(results, line, [probe for other, probe in points if other == line])
        for line in dict.fromkeys(line for line, _ in points)
    }
    wanted = [
        points[line, probe]
        for line, expected in told.items()
        for probe in next_probes(
            [probe for other, probe in points if other == line],
            pooled(rates[line]),
            [probe for other, probe in tried if other == line],
            expected,
        )
    ]
    if wanted:
        return with_probes(plan, spec, _round(spec, wanted, points, rates, told))
    if owed := _owed(spec, plan, results.answer, points, rates):
        return with_probes(plan, spec, [[*owed, *_below(owed, points, rates)]])
    if again := _to_repeat(spec, plan, results.answer.noisy):
        setting, times = again
        return with_probes(plan, spec, [[points[_of(setting)]]] * times)
    row = results.answer.row
    if spec.train is None or row is None:
        return None
    trained = any(trial.kind == "train" and setting_of(trial) == row.setting for trial in plan.trials.values())
    if trained:
        return None
    return extended(plan, spec, [each for each in study_points(spec) if (each.line, each.probe) == _of(row.setting)])


def _round(
    spec: StudySpec, wanted: Sequence[StudyPoint], possible: Points, rates: Rates, told: Mapping[Line, Told]
) -> list[list[StudyPoint]]:
    """All but the last repeat of each point, the counts below them beside one; the last only of what is likely the
    answer with no round to follow, or where one try would be all that a count has."""
    if spec.probe_repeats == 1:
        return [list(wanted)]
    first, *others = [list(wanted) for _ in range(spec.probe_repeats)]
    if len(others) > 1:
        others[-1] = [
            point for point in wanted if ends_the_climb(point.probe, _counts(point, possible), told[point.line])
        ]
    return [[*first, *_below(wanted, possible, rates)], *filter(None, others)]


def _counts(point: StudyPoint, possible: Points) -> list[int]:
    """Those of its batch."""
    return [n for line, (n, batch) in possible if (line, batch) == (point.line, point.probe[1])]


def _below(points: Sequence[StudyPoint], possible: Points, rates: Rates) -> list[StudyPoint]:
    """The next smaller count of each that has a rate, unless it is among them itself."""
    found: dict[tuple[Line, Probe], StudyPoint] = {}
    for point in points:
        workers, batch = point.probe
        smaller = [n for n, other in rates.get(point.line, {}) if other == batch and n < workers]
        if smaller:
            found[point.line, (max(smaller), batch)] = possible[point.line, (max(smaller), batch)]
    return [point for point in found.values() if point not in points]


def _owed(spec: StudySpec, plan: Plan, answer: Answer, possible: Points, rates: Rates) -> list[StudyPoint]:
    """Of the batch that is recommended: the counts that no later round has completed, of those beyond the answer only
    what leaves it open. Training ends the probing."""
    if answer.row is None or _trains(plan):
        return []
    times = Counter(_of(setting_of(trial)) for trial in plan.trials.values() if trial.kind == "probe")
    line, (workers, batch) = _of(answer.row.setting)
    upto = {(line, probe) for probe in rates.get(line, {}) if probe[1] == batch and probe[0] <= workers}
    needed = sorted(upto.union(_of(setting) for setting in answer.noisy), key=lambda each: each[1])
    return [possible[each] for each in needed if times[each] < spec.probe_repeats]


def _to_repeat(spec: StudySpec, plan: Plan, noisy: Sequence[Setting]) -> tuple[Setting, int] | None:
    """The first that may be, as often again as it was run: a machine that is never quiet is not waited for, repeats
    cost a part of the climb, and training, once planned, ends the probing."""
    if not noisy or _trains(plan):
        return None
    probing = [launch.trials for launch in plan.launches if launch.kind == "probe"]
    rounds = [[setting_of(plan.trials[trial]) for trial in trials] for trials in probing]
    times = Counter(setting for each in rounds for setting in each)
    # A round of the climb has a count and the one below it; one setting alone is what was repeated here.
    costs = [(len(set(each)) == 1, sum(setting.workers for setting in each)) for each in rounds]
    noise = sum(cost for alone, cost in costs[1:] if alone)
    left = MOST_NOISE * (sum(cost for _, cost in costs) - noise) - noise
    for each in noisy:
        again = min(times[each], MOST_ROUNDS * spec.probe_repeats - times[each], int(left / each.workers))
        if again > 0:
            return each, again
    return None


def _trains(plan: Plan) -> bool:
    return any(trial.kind == "train" for trial in plan.trials.values())


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
