"""What an adaptive study runs next: probes while the answer can still change, repeats of probes whose noise leaves it
open, then training of the recommended setting.

Each round is its own launch. Drift of the machine between rounds must not look like scaling, so a count is repeated
once beside the next one. In return it has one repeat less in its own round, if it has three or more, is not in the
first round, and is not the largest count and predicted to pay.

Like a search, a pure function of the study and its records: a study that was stopped continues with the same rounds.
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
    """All points, or those that an adaptive study probes first."""
    points = study_points(spec)
    if not spec.adaptive:
        return points
    wanted = {setting for possible in _by_method(points) for setting in _next(possible, {}, (), {})}
    return [point for point in points if point.setting in wanted]


Points = Mapping[Setting, StudyPoint]
Rates = Mapping[Setting, Sequence[float]]
"""Samples per second of every repeat."""
Expected = Mapping[Setting, float]
"""Samples per second that the model predicts; empty: no prediction."""
MOST_ROUNDS = 4
"""A setting whose noise leaves the answer open is probed at most this many times `probe_repeats`."""
MOST_NOISE = 1 / 3
"""Largest cost of these repeats, as a share of the cost of all other probes."""


def next_adaptive_round(spec: StudySpec, plan: Plan, results: Results) -> Plan | None:
    """The plan with the next round; None: nothing is left to probe, and training is already planned."""
    points = {point.setting: point for point in study_points(spec)}
    tried = _probed(plan, results)
    rates = throughput_by_probe(results)
    expected: dict[Setting, float] = {}
    wanted: list[StudyPoint] = []
    for possible in _by_method(points.values()):
        predictions = _predicted(results, possible)
        wanted += [points[setting] for setting in _next(possible, rates, tried, predictions)]
        expected |= predictions
    if wanted:
        return with_probes(plan, spec, _round(spec, wanted, points, rates, expected))
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
    """Settings among which counts and batches are compared."""
    groups: dict[Method, list[Setting]] = defaultdict(list)
    for point in points:
        groups[point.setting.method].append(point.setting)
    return list(groups.values())


def _next(possible: Sequence[Setting], rates: Rates, tried: Collection[Setting], expected: Expected) -> list[Setting]:
    """Which of these settings to probe next; the rule identifies each by its count and its batch."""
    by_probe = {_probe(setting): setting for setting in possible}
    wanted = next_probes(
        by_probe,
        pooled({probe: rates[setting] for probe, setting in by_probe.items() if setting in rates}),
        [probe for probe, setting in by_probe.items() if setting in tried],
        {probe: expected[setting] for probe, setting in by_probe.items() if setting in expected},
    )
    return [by_probe[probe] for probe in wanted]


def _probe(setting: Setting) -> Probe:
    return setting.workers, setting.series.batch


def _round(
    spec: StudySpec, wanted: Sequence[StudyPoint], possible: Points, rates: Rates, expected: Expected
) -> list[list[StudyPoint]]:
    """The passes of a round: all but the last repeat of each point, with the next smaller counts in the first pass. The
    last repeat is included only for points that likely end the climb, or if a count would otherwise run only once."""
    if spec.probe_repeats == 1:
        return [list(wanted)]
    first, *others = [list(wanted) for _ in range(spec.probe_repeats)]
    if len(others) > 1:
        others[-1] = [point for point in wanted if _is_last(point.setting, possible, expected)]
    return [[*first, *_next_smaller(wanted, possible, rates)], *filter(None, others)]


def _is_last(setting: Setting, possible: Points, expected: Expected) -> bool:
    """Whether the climb of its series likely ends with it."""
    series = [other for other in possible if other.series == setting.series]
    predictions = {_probe(other): expected[other] for other in series if other in expected}
    return ends_the_climb(_probe(setting), [other.workers for other in series], predictions)


def _next_smaller(points: Sequence[StudyPoint], possible: Points, rates: Rates) -> list[StudyPoint]:
    """The next smaller count with a rate of each point, unless it is one of the points."""
    below: dict[Setting, StudyPoint] = {}
    for setting in (point.setting for point in points):
        smaller = [other for other in rates if other.series == setting.series and other.workers < setting.workers]
        if smaller:
            nearest = max(smaller, key=lambda other: other.workers)
            below[nearest] = possible[nearest]
    return [point for point in below.values() if point not in points]


def _missing_repeats(spec: StudySpec, plan: Plan, answer: Answer, possible: Points, rates: Rates) -> list[StudyPoint]:
    """Counts of the recommended batch that lack repeats: those up to the answer, and larger ones that leave it open.
    None once training is planned."""
    if answer.row is None or _trains(plan):
        return []
    times = Counter(trial.setting for trial in plan.trials.values() if trial.kind == "probe")
    best = answer.row.setting
    upto = {setting for setting in rates if setting.series == best.series and setting.workers <= best.workers}
    needed = sorted(upto.union(answer.noisy), key=_probe)
    return [possible[setting] for setting in needed if times[setting] < spec.probe_repeats]


def _repeats_against_noise(
    spec: StudySpec, plan: Plan, noisy: Sequence[Setting], possible: Points, rates: Rates
) -> list[list[StudyPoint]]:
    """Passes over the first setting that may be repeated, as many as it has run so far. The number of repeats and their
    cost are limited, so that a noisy machine does not keep a study running. None once training is planned.

    A count beside it runs in every pass: alone, a repeat could not be told from the drift of its launch.
    """
    if not noisy or _trains(plan):
        return []
    times: Counter[Setting] = Counter()
    cost, noise = 0, 0
    for launch in plan.launches:
        if launch.kind == "probe":
            settings = [plan.trials[trial].setting for trial in launch.trials]
            workers = sum(setting.workers for setting in settings)
            # The largest count of a round of the climb lacks repeats.
            repeated = times[max(settings, key=_probe)] >= spec.probe_repeats
            cost, noise = cost + workers, noise + repeated * workers
            times.update(settings)
    left = MOST_NOISE * (cost - noise) - noise
    for setting in noisy:
        together = [possible[setting], *_next_smaller([possible[setting]], possible, rates)]
        affordable = int(left / sum(point.workers for point in together))
        again = min(times[setting], MOST_ROUNDS * spec.probe_repeats - times[setting], affordable)
        if again > 0:
            return [together] * again
    return []


def _trains(plan: Plan) -> bool:
    return any(trial.kind == "train" for trial in plan.trials.values())


def _probed(plan: Plan, results: Results) -> set[Setting]:
    """Settings that were probed, with or without success: a probe that failed has no rate, and is not run again."""
    return {trial.setting for trial in plan.trials.values() if trial.kind == "probe" and trial.id in results.records}


def throughput_by_probe(results: Results) -> dict[Setting, list[float]]:
    """Samples per second of every repeat."""
    return {
        point.setting: [point.setting.global_batch / float(np.median(step_s)) for step_s in point.repeats.values()]
        for point in results.setting_times
    }


def _predicted(results: Results, settings: Sequence[Setting]) -> dict[Setting, float]:
    """Throughput predicted by the model of the step, from all measurements of the method; empty for a single count."""
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
    if len({timing.workers for timing in measured}) < 2:
        return {}
    model = fit_throughput(measured, where)
    throughputs = {}
    for workers, batch in probes:
        share = batch // (workers * accumulation) if strong else batch
        samples = workers * share * accumulation
        throughputs[workers, batch] = samples / model.parts(workers, share, accumulation).step_s
    return throughputs
