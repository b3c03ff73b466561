"""Choose what an adaptive study runs next: probes as long as the answer can change, more repeats of probes if noise
leaves the answer open, then training of the recommended setting.

Each round is its own launch. Drift of the machine between rounds must not look like scaling, so a count is repeated
once in the launch of the next larger count. In return, its own round has one repeat less. The exceptions are the first
round, studies with fewer than three repeats, and counts that likely end the climb, because no larger count follows.

Rounds are a pure function of the study and its records, so that a study that was stopped continues with the same ones.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence

import numpy as np

from worldsize.analysis.projection.step_model import Node, StepTiming, fit_throughput
from worldsize.analysis.speed.adaptive import Probe, ends_the_climb, next_probes, pooled
from worldsize.analysis.speed.recommend import Answer
from worldsize.answer.from_records import node, step_timings
from worldsize.answer.results import Results
from worldsize.plan.grid import StudyPoint, study_points
from worldsize.plan.plan import Plan, with_probes, with_training
from worldsize.spec.setting import Method, Setting
from worldsize.spec.study import StudySpec


def first_points(spec: StudySpec) -> list[StudyPoint]:
    """Return all points or, in an adaptive study, those to probe first."""
    points = study_points(spec)
    if not spec.adaptive:
        return points
    first = {setting for settings in _by_method(points) for setting in _next(settings, {}, (), {})}
    return [point for point in points if point.setting in first]


Points = Mapping[Setting, StudyPoint]
Rates = Mapping[Setting, Sequence[float]]
"""Samples per second of each repeat."""
Expected = Mapping[Setting, float]
"""Samples per second that the model predicts. Empty: no prediction."""
MOST_ROUNDS = 4
"""Limit on the repeats of a setting whose noise leaves the answer open, as a multiple of `probe_repeats`."""
MOST_NOISE = 1 / 3
"""Limit on the cost of these repeats, as a fraction of the cost of all other probes."""


def next_adaptive_round(spec: StudySpec, plan: Plan, results: Results) -> Plan | None:
    """Return the plan with the next round, or None if there is nothing left to probe or to train."""
    points = {point.setting: point for point in study_points(spec)}
    tried = _probed(plan, results)
    rates = throughput_by_probe(results)
    expected: dict[Setting, float] = {}
    to_probe: list[StudyPoint] = []
    for settings in _by_method(points.values()):
        predictions = _predicted(results, settings)
        to_probe += [points[setting] for setting in _next(settings, rates, tried, predictions)]
        expected |= predictions
    if to_probe:
        return with_probes(plan, spec, _round(spec, to_probe, points, rates, expected))
    if missing := _missing_repeats(spec, plan, results.answer, points, rates):
        return with_probes(plan, spec, [[*missing, *_next_smaller(missing, points, rates)]])
    if passes := _repeats_against_noise(spec, plan, results.answer.noisy, points, rates):
        return with_probes(plan, spec, passes)
    row = results.answer.row
    if spec.train is None or row is None:
        return None
    trained = any(trial.kind == "train" and trial.setting == row.setting for trial in plan.trials.values())
    if trained:
        return None
    return with_training(plan, spec, [point for point in study_points(spec) if point.setting == row.setting])


def _by_method(points: Iterable[StudyPoint]) -> list[list[Setting]]:
    """Group settings by method. Counts and batches are compared within a group."""
    groups: dict[Method, list[Setting]] = defaultdict(list)
    for point in points:
        groups[point.setting.method].append(point.setting)
    return list(groups.values())


def _next(settings: Sequence[Setting], rates: Rates, tried: Collection[Setting], expected: Expected) -> list[Setting]:
    """Return which of these settings to probe next. `next_probes` identifies settings by count and batch."""
    by_probe = {_probe(setting): setting for setting in settings}
    probes = next_probes(
        by_probe,
        pooled({probe: rates[setting] for probe, setting in by_probe.items() if setting in rates}),
        [probe for probe, setting in by_probe.items() if setting in tried],
        {probe: expected[setting] for probe, setting in by_probe.items() if setting in expected},
    )
    return [by_probe[probe] for probe in probes]


def _probe(setting: Setting) -> Probe:
    return setting.workers, setting.series.batch


def _round(
    spec: StudySpec, to_probe: Sequence[StudyPoint], points: Points, rates: Rates, expected: Expected
) -> list[list[StudyPoint]]:
    """Return the passes of a round: all but the last repeat of each point, with the next smaller counts in the first
    pass. The last repeat is included if there are only two, and for points that likely end the climb."""
    if spec.probe_repeats == 1:
        return [list(to_probe)]
    first, *others = [list(to_probe) for _ in range(spec.probe_repeats)]
    if len(others) > 1:
        others[-1] = [point for point in to_probe if _is_last(point.setting, points, expected)]
    return [[*first, *_next_smaller(to_probe, points, rates)], *filter(None, others)]


def _is_last(setting: Setting, points: Points, expected: Expected) -> bool:
    """Whether the climb of its series likely ends with this setting."""
    series = [other for other in points if other.series == setting.series]
    predictions = {_probe(other): expected[other] for other in series if other in expected}
    return ends_the_climb(_probe(setting), [other.workers for other in series], predictions)


def _next_smaller(larger: Sequence[StudyPoint], points: Points, rates: Rates) -> list[StudyPoint]:
    """For each point, return the next smaller count of its series that was measured, unless it is among the points."""
    below: dict[Setting, StudyPoint] = {}
    for setting in (point.setting for point in larger):
        smaller = [other for other in rates if other.series == setting.series and other.workers < setting.workers]
        if smaller:
            nearest = max(smaller, key=lambda other: other.workers)
            below[nearest] = points[nearest]
    return [point for point in below.values() if point not in larger]


def _missing_repeats(spec: StudySpec, plan: Plan, answer: Answer, points: Points, rates: Rates) -> list[StudyPoint]:
    """Return counts of the recommended batch that lack repeats: those up to the answer, and larger ones that leave it
    open. Empty if training is planned."""
    if answer.row is None or _trains(plan):
        return []
    times = Counter(trial.setting for trial in plan.trials.values() if trial.kind == "probe")
    best = answer.row.setting
    up_to_answer = {setting for setting in rates if setting.series == best.series and setting.workers <= best.workers}
    needed = sorted(up_to_answer.union(answer.noisy), key=_probe)
    return [points[setting] for setting in needed if times[setting] < spec.probe_repeats]


def _repeats_against_noise(
    spec: StudySpec, plan: Plan, noisy: Sequence[Setting], points: Points, rates: Rates
) -> list[list[StudyPoint]]:
    """Return passes that repeat the first setting within the limits, as often as it has run so far. Empty if training
    is planned.

    The number of repeats and their cost are limited, so that a noisy machine does not keep a study running. Each pass
    also runs the next smaller count: without it, drift of the machine would look like an effect of the count.
    """
    if not noisy or _trains(plan):
        return []
    times: Counter[Setting] = Counter()
    cost, noise_cost = 0, 0
    for launch in plan.launches:
        if launch.kind == "probe":
            settings = [plan.trials[trial].setting for trial in launch.trials]
            workers = sum(setting.workers for setting in settings)
            # In a round of the climb, the largest count still lacks repeats.
            repeated = times[max(settings, key=_probe)] >= spec.probe_repeats
            cost, noise_cost = cost + workers, noise_cost + repeated * workers
            times.update(settings)
    budget = MOST_NOISE * (cost - noise_cost) - noise_cost
    for setting in noisy:
        together = [points[setting], *_next_smaller([points[setting]], points, rates)]
        affordable = int(budget / sum(point.workers for point in together))
        passes = min(times[setting], MOST_ROUNDS * spec.probe_repeats - times[setting], affordable)
        if passes > 0:
            return [together] * passes
    return []


def _trains(plan: Plan) -> bool:
    return any(trial.kind == "train" for trial in plan.trials.values())


def _probed(plan: Plan, results: Results) -> set[Setting]:
    """Return the settings that were probed, successfully or not. A probe that failed is not run again."""
    return {trial.setting for trial in plan.trials.values() if trial.kind == "probe" and trial.id in results.records}


def throughput_by_probe(results: Results) -> dict[Setting, list[float]]:
    """Return the samples per second of each probe. Training comes after the climb, and must not reopen it."""
    return {
        point.setting: [
            point.setting.global_batch / float(np.median(step_s))
            for repeat, step_s in point.repeats.items()
            if repeat not in point.trained
        ]
        for point in results.setting_times
    }


def _predicted(results: Results, settings: Sequence[Setting]) -> dict[Setting, float]:
    """Return the throughput that the step model predicts from all measurements of the method. Empty for one count."""
    like = settings[0]
    if not any(row.setting.method == like.method for row in results.rows):
        return {}
    place_results = results.by_place[like.place]
    measured = [timing for timing in step_timings(place_results, like) if timing.accumulation == like.accumulation]
    expected = predicted(
        measured,
        node(place_results, like, None),
        map(_probe, settings),
        like.accumulation,
        strong=like.scaling == "strong",
    )
    return {setting: expected[_probe(setting)] for setting in settings} if expected else {}


def predicted(
    measured: Sequence[StepTiming], where: Node, probes: Iterable[Probe], accumulation: int, *, strong: bool
) -> dict[Probe, float]:
    """Return the predicted samples per second of each probe. Empty unless several counts were measured."""
    if len({timing.workers for timing in measured}) < 2:
        return {}
    model = fit_throughput(measured, where)
    throughputs = {}
    for workers, batch in probes:
        batch_per_worker = batch // (workers * accumulation) if strong else batch
        samples = workers * batch_per_worker * accumulation
        throughputs[workers, batch] = samples / model.parts(workers, batch_per_worker, accumulation).step_s
    return throughputs
