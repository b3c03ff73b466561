"""Simulate how often every printed interval contains the truth.

    python -m tests.bench.coverage [SHARE]

For each interval, many studies are simulated from a known truth, with three kinds of differences between runs:

    independent   every run is slower or faster independently
    drift         in addition, runs that ran side by side (one pass of repeats, or one launch of an adaptive study)
                  share a difference of 5 %
    two levels    in addition, every process switches between two speeds with a ratio of 1.4, which last 2 to 8 s each;
                  a step is as slow as its slowest process. For what a model learns, half of the seeds are off by three
                  standard deviations instead.

The code of worldsize turns these measurements into intervals. Prints Markdown: the share of intervals that contain the
truth, and their median width. The exit code is 1 if a share is more than 5 points below the claimed level.

Three runs on two levels are an exception. In one of four studies, all three are on the same level, and no measurement
shows that there is another. In an adaptive study, the count that connects two launches runs only once. These shares are
marked with a star and have their own limit; five runs must reach the claimed level. SHARE scales the number of studies.
"""

from __future__ import annotations

import math
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache, partial
from itertools import pairwise
from typing import Literal, get_args

import numpy as np

from tests.bench.machines import ASKED, MACHINES, setting_of, study
from worldsize.analysis.estimate import Estimate, Floats
from worldsize.analysis.learning.larger_batches import batch_studies
from worldsize.analysis.learning.stable import stable
from worldsize.analysis.learning.variants import Goal, TrainingRun, summaries, variant_rankings
from worldsize.analysis.projection.bare import project_series
from worldsize.analysis.projection.overhead import Overhead, fit_overhead
from worldsize.analysis.projection.series_law import design, table_series
from worldsize.analysis.speed.breakdown import exposed
from worldsize.analysis.speed.scaling import Pace, Series, TimedTrial, scaling, setting_times

MOST_MISSED, MOST_MISSED_BY_THREE = 0.05, 0.20
"""How far the coverage may be below the claimed level, and the same for three runs on two levels."""
REPEATS, COUNTS = 3, (1, 2, 4, 8)
NOISE, STEP_NOISE, DRIFT = 0.02, 0.04, 0.05
SLOWER, DWELL_S, PROBE_S, STEPS = 1.4, (2.0, 8.0), 2.0, 100
"""Ratio of the two levels of speed, how long each lasts, and the duration and steps of a probe."""
SEED_NOISE = 0.1
"""Standard deviation of log(steps to target) between seeds."""

Kind = Literal["independent", "drift", "two levels"]
KINDS: tuple[Kind, ...] = get_args(Kind)


@dataclass(frozen=True, kw_only=True)
class Case:
    """One interval and the truth that it should contain."""

    name: str
    estimate: Estimate
    truth: float

    @property
    def inside(self) -> bool:
        low, high = self.estimate.ends
        return low <= self.truth <= high

    @property
    def width(self) -> float:
        low, high = self.estimate.ends
        return (high - low) / abs(self.truth)


class Noise:
    """Differences between the runs of one simulated study, in logarithms."""

    def __init__(self, kind: Kind, seed: int) -> None:
        self.kind = kind
        self.rng = np.random.default_rng([KINDS.index(kind), seed])
        self._shared: dict[object, float] = {}

    def shared(self, group: object) -> float:
        """Return the difference that all runs of a group share."""
        if self.kind != "drift":
            return 0.0
        return self._shared.setdefault(group, DRIFT * self.rng.normal())

    def of_run(self, group: object) -> float:
        return NOISE * self.rng.normal() + self.shared(group)

    def of_seed(self, group: object) -> float:
        """Return the difference of a training run, in standard deviations between seeds."""
        if self.kind == "drift":
            return float(self.rng.normal() + self._shared.setdefault(group, 2 * self.rng.normal()))
        return float(self.rng.normal() + 3 * (self.kind == "two levels" and self.rng.random() < 0.5))

    def steps(self, workers: int, step_s: float, group: object) -> Floats:
        """Return the step times of one run, with shape (steps, 1)."""
        logs = self.of_run(group) + STEP_NOISE * self.rng.normal(size=STEPS)
        slow = np.zeros(STEPS, dtype=bool)
        if self.kind == "two levels":
            for _ in range(workers):
                slow |= self._is_slow()
        return np.asarray(step_s * np.exp(logs) * np.where(slow, SLOWER, 1.0))[:, None]

    def _is_slow(self) -> Floats:
        """Return at which steps one process is slow. It has alternated since long before the probe."""
        lengths = self.rng.uniform(*DWELL_S, 12)
        ends = np.cumsum(lengths) - self.rng.uniform(20, 30)
        at_s = np.linspace(0, PROBE_S, STEPS)
        return np.asarray((np.searchsorted(ends, at_s) + self.rng.integers(2)) % 2 == 1)


@cache
def level(kind: Kind, workers: int) -> float:
    """Return how much slower the two levels make a typical run, as a logarithm."""
    if kind != "two levels":
        return 0.0
    noise = Noise(kind, seed=999)
    trials = [_trial(workers, repeat, "0001", noise.steps(workers, 1.0, repeat)) for repeat in range(4_000)]
    (point,) = setting_times(trials)
    return float(np.mean([math.log(float(np.median(steps))) for steps in point.repeats.values()]))


def _trial(workers: int, repeat: int, launch: str, steps: Floats) -> TimedTrial:
    return TimedTrial(setting=setting_of(workers, 64), kind="probe", repeat=repeat, launch=launch, step_s=steps)


def true_step(workers: int) -> float:
    return 0.01 * (1 + 0.12 * math.log2(workers))


def log_step(kind: Kind, workers: int) -> float:
    return math.log(true_step(workers)) + level(kind, workers)


def grid(noise: Noise, repeats: int) -> Series:
    """Measure a grid: each pass runs every count once, side by side."""
    trials = [
        _trial(workers, repeat, "0001", noise.steps(workers, true_step(workers), repeat))
        for repeat in range(repeats)
        for workers in COUNTS
    ]
    (series,) = scaling(setting_times(trials))
    return series


def adaptive(noise: Noise, repeats: int) -> Series:
    """Measure adaptively: each launch compares a count with the one below, which runs once more.

    The machine differs from launch to launch.
    """
    trials: list[TimedTrial] = []
    for launch, (below, workers) in enumerate(zip((None, *COUNTS), COUNTS[1:], strict=False)):
        counts = [workers] * repeats + ([COUNTS[0]] * repeats if below is None else [below])
        for count in counts:
            steps = noise.steps(count, true_step(count), launch)
            trials.append(_trial(count, len(trials), str(launch), steps))
    (series,) = scaling(setting_times(trials), adaptive=True)
    return series


def scaling_study(noise: Noise, measure: Callable[[Noise, int], Series], repeats: int) -> Iterator[Case]:
    rows = measure(noise, repeats).rows
    base = rows[0].pace
    for row in rows[1:]:
        truth = _gain(noise.kind, row.pace, base)
        yield Case(name="speedup", estimate=row.speedup, truth=truth)
        yield Case(name="efficiency", estimate=row.efficiency, truth=truth / row.setting.workers)
    for smaller, larger in pairwise(row.pace for row in rows):
        gain = larger.gain_over(smaller).exp()
        yield Case(name="gain of the next count", estimate=gain, truth=_gain(noise.kind, larger, smaller))


def _gain(kind: Kind, larger: Pace, smaller: Pace) -> float:
    growth = larger.setting.workers / smaller.setting.workers
    return growth * math.exp(log_step(kind, smaller.setting.workers) - log_step(kind, larger.setting.workers))


def exposed_communication(noise: Noise, count: int) -> Iterator[Case]:
    """Measure 10 ms of computing and 2 ms of exchange. Runs differ only in the exchange."""
    kinds = np.repeat([1, 0, 0, 1, 1, 0, 0, 1], 5)
    repeats, truth = [], 0.002
    for repeat in range(count):
        factor = math.exp(noise.of_run(repeat) + 3 * NOISE * noise.rng.normal())
        if noise.kind == "two levels":
            factor *= SLOWER if noise.rng.random() < 0.5 else 1.0
        step_noise = np.exp(0.02 * noise.rng.normal(size=len(kinds)))
        repeats.append(((0.010 + truth * factor * kinds) * step_noise)[:, None])
    measured = exposed(repeats, [kinds] * count)
    assert measured is not None
    truth *= (1 + SLOWER) / 2 if noise.kind == "two levels" else 1.0
    yield Case(name="exposed communication", estimate=measured.seconds, truth=truth)


def outside_steps(noise: Noise) -> Iterator[Case]:
    """Predict the time outside steps of a new run, at each trained count and at twice the largest."""

    def run(workers: int, group: object) -> Overhead:
        start, preparation, evaluation, saving = np.exp(
            0.1 * noise.rng.normal(size=4) + noise.of_run(group) + _level(noise, workers)
        )
        return Overhead(
            workers=workers,
            workers_on_node=workers,
            start_s=(4 + 0.3 * workers) * start,
            preparation_s=(2 + 0.1 * workers) * preparation,
            evaluation_s=(0.2 + 1.5 / workers) * evaluation,
            saving_s=0.3 * saving,
        )

    model = fit_overhead([run(workers, repeat) for repeat in range(REPEATS) for workers in (1, 2, 4)])
    assert model is not None
    for workers in (1, 2, 4, 8):
        new = run(workers, "new")
        seconds = math.fsum((new.start_s, new.preparation_s, new.evaluation_s, new.saving_s))
        yield Case(name="time outside steps", estimate=model.at(workers, workers, 1), truth=seconds)


def _level(noise: Noise, workers: int) -> float:
    """Return the level of a short run, which is slow if any of its processes is slow."""
    slow = noise.kind == "two levels" and bool((noise.rng.random(workers) < 0.5).any())
    return math.log(SLOWER) if slow else 0.0


EPOCHS, PER_EPOCH = 24, 50


def training(
    noise: Noise, batch: int, *, variant: str = "sgd", seeds: int = REPEATS, steps: float = 300.0, best: float = 0.9
) -> list[TrainingRun]:
    """Return runs that approach `best` and reach 0.8 after about `steps` steps. Drift is the same for a seed."""
    runs = []
    for seed in range(seeds):
        off = noise.of_seed(seed)
        reached = steps * math.exp(SEED_NOISE * off)
        at = np.arange(1, EPOCHS + 1) * float(PER_EPOCH)
        final = best + 0.004 * off
        metric = final - 0.1 * (reached / at) ** 1.5 - 0.004 * off
        metric = np.where(at < EPOCHS * PER_EPOCH, metric, final)
        runs.append(
            TrainingRun(
                setting=setting_of(4, batch // 4),
                variant=variant,
                family=variant,
                variant_without_lr=variant,
                lr=0.1,
                scaled=batch / 64,
                repeat=seed,
                outcome="finished",
                steps=at,
                samples=at * batch,
                seconds=0.01 * at,
                metric=metric,
                train_metric=np.array([]),
                final=final,
            )
        )
    return runs


def table_of_steps(noise: Noise) -> Iterator[Case]:
    """Estimate the geometric mean of the steps to the target over all possible seeds."""
    goal = Goal(value=0.8, at_least=True)
    (summary,) = summaries(training(noise, 64), higher_is_better=True, target=goal)
    assert summary.target is not None
    assert summary.target.steps is not None
    typical = 1.5 if noise.kind == "two levels" else 0.0
    yield Case(name="steps to target", estimate=summary.target.steps, truth=300 * math.exp(SEED_NOISE * typical))


LEAST_STEPS, CRITICAL = 100.0, 200.0


def _steps_at(batch: int) -> float:
    return LEAST_STEPS * (1 + CRITICAL / batch)


def predicted_steps(noise: Noise) -> Iterator[Case]:
    """Predict the steps of a new run at two and four times the largest of four batches."""
    goal = Goal(value=0.8, at_least=True)
    runs = [run for batch in (32, 64, 128, 256) for run in training(noise, batch, steps=_steps_at(batch))]
    (batches,) = batch_studies(runs, target=goal)
    assert batches.steps is not None
    for batch in (512, 1024):
        prediction = batches.steps.predict(batch)
        if prediction.steps is not None:
            new = _steps_at(batch) * math.exp(SEED_NOISE * noise.of_seed("new"))
            yield Case(name="steps to target, projected", estimate=prediction.steps, truth=new)


def stable_epoch(noise: Noise) -> Iterator[Case]:
    """Find the epoch at which a curve reaches its plateau. Seeds differ in the height of the plateau."""
    epochs = np.arange(1, 61)
    curve, wobble = -0.5 * np.exp(-epochs / (0.08 * len(epochs))), 0.01
    curves = [
        0.9 + 0.01 * noise.of_seed(repeat) + curve + wobble * noise.rng.normal(size=len(epochs))
        for repeat in range(REPEATS)
    ]
    outside = np.flatnonzero(np.abs(curve - curve[-1]) > 2 * wobble)
    epoch = stable(curves).epoch
    if epoch is not None:
        yield Case(name="stable epoch", estimate=epoch, truth=float(outside[-1] + 2))


def trend(noise: Noise) -> Iterator[Case]:
    """Predict the metric at the next batch, as a mean over new seeds, and its change per doubling."""

    def best(batch: int) -> float:
        return 0.8 - 0.01 * math.log2(batch / 64)

    runs = [run for batch in (64, 128, 256, 512) for run in training(noise, batch, best=best(batch))]
    (batches,) = batch_studies(runs, target=None)
    assert batches.metric is not None
    predicted = batches.metric.predict(1024).value
    assert predicted is not None
    new = np.mean([run.final for run in training(noise, 1024, best=best(1024))])
    yield Case(name="metric at the next batch", estimate=predicted, truth=float(new))
    yield Case(name="trend over batches", estimate=batches.metric.per_doubling, truth=-0.01)


def contest(noise: Noise) -> Iterator[Case]:
    """Compare two optimizers that differ by 0.01, on the same seeds."""
    runs = [*training(noise, 64, variant="sgd"), *training(noise, 64, variant="adam", best=0.89)]
    (ranking,) = variant_rankings(summaries(runs, higher_is_better=True), higher_is_better=True, by_target=False)
    (difference,) = ranking.differences
    assert difference.estimate is not None
    yield Case(
        name="comparison of optimizers",
        estimate=difference.estimate,
        truth=-0.01 if difference.variant == "adam" else 0.01,
    )


def projected_studies(noise: Noise) -> Iterator[Case]:
    """Project a new run of a count that was never run, on a machine of any form."""
    make = list(MACHINES.values())[int(noise.rng.integers(len(MACHINES)))]
    machine, batches = make(noise.rng), (32, 128)[int(noise.rng.integers(2)) :]
    fitted = ((1, 2, 4), (1, 2, 3, 4, 6))[int(noise.rng.integers(2))]

    def shake(workers: int, repeat: object) -> float:
        return math.exp(noise.of_run(repeat) + _level(noise, workers))

    known = study(machine, fitted, batches, shake, noise.rng)
    for workers in ASKED:
        setting = setting_of(workers, batches[-1])
        rate = setting.global_batch / machine.step_s(workers, batches[-1])
        yield Case(name="projected study", estimate=known.at(setting).samples_per_s, truth=rate / shake(workers, "new"))


def bare_tables(noise: Noise) -> Iterator[Case]:
    """Project a new run of a larger count from a table with one row per count.

    The truth is a two-level law with random coefficients.
    """
    counts = (1, 2, 4, 8, 16, 32)[: int(noise.rng.integers(4, 7))]
    coefficients = np.concatenate([[1.0], noise.rng.exponential([0.05, 0.02, 0.1, 0.02, 0.01])])

    def rate(workers: int, group: object) -> float:
        terms = design(np.array([float(workers)]), 8, counts[-1])
        return float(workers / (terms @ coefficients)[0]) * math.exp(-noise.of_run(group) - _level(noise, workers))

    series = table_series([(workers, rate(workers, workers)) for workers in counts], workers_per_node=8)
    (projected,) = project_series(series, [2 * counts[-1]])
    yield Case(name="bare table", estimate=projected.samples_per_s, truth=rate(2 * counts[-1], "new"))


@dataclass(frozen=True, kw_only=True)
class Studies:
    """Studies of one kind, and how many of them."""

    cases: Callable[[Noise], Iterator[Case]]
    number: int
    runs: int | None = None
    """Repeats of each setting, if the table shows several."""
    label: str = ""


def _scaling(measure: Callable[[Noise, int], Series], repeats: int, label: str) -> Studies:
    cases = partial(scaling_study, measure=measure, repeats=repeats)
    return Studies(cases=cases, number=400, runs=repeats, label=label)


STUDIES = (
    _scaling(grid, 3, ""),
    _scaling(grid, 5, ""),
    _scaling(adaptive, 3, "adaptive study"),
    Studies(cases=partial(exposed_communication, count=3), number=1_000, runs=3),
    Studies(cases=partial(exposed_communication, count=5), number=1_000, runs=5),
    Studies(cases=outside_steps, number=600),
    Studies(cases=table_of_steps, number=2_000),
    Studies(cases=predicted_steps, number=400),
    Studies(cases=stable_epoch, number=600),
    Studies(cases=trend, number=1_000),
    Studies(cases=contest, number=2_000),
    Studies(cases=projected_studies, number=600),
    Studies(cases=bare_tables, number=1_000),
)


def simulate(studies: Studies, kind: Kind, share: float = 1.0) -> dict[str, list[Case]]:
    """Simulate studies and return their cases by the name of the interval."""
    by_name: dict[str, list[Case]] = defaultdict(list)
    for seed in range(max(round(share * studies.number), 1)):
        for case in studies.cases(Noise(kind, seed)):
            by_name[case.name].append(case)
    return by_name


def rows(studies: Studies, share: float) -> Iterator[tuple[str, list[str]]]:
    """Yield a table row for each interval, with the kinds of noise for which the coverage is too low."""
    cases = {kind: simulate(studies, kind, share) for kind in KINDS}
    for name, (first, *_) in cases["independent"].items():
        claimed, cells, missed = first.estimate.level, [], []
        for kind, by_name in cases.items():
            by_three = kind == "two levels" and studies.runs == 3
            covered = float(np.mean([case.inside for case in by_name[name]]))
            width = float(np.median([case.width for case in by_name[name]]))
            cells.append(f"{100 * covered:.0f} %{'*' if by_three else ''} | {100 * width:.0f} %")
            if covered < claimed - (MOST_MISSED_BY_THREE if by_three else MOST_MISSED):
                missed.append(kind)
        words = [name, studies.label, f"{studies.runs} runs" if studies.runs else ""]
        row = f"| {', '.join(filter(None, words))} | {100 * claimed:.0f} % | {' | '.join(cells)} |"
        yield row, missed


def main(share: float) -> list[str]:
    print(f"| interval | claimed | {' | '.join(f'{kind}: covered | width' for kind in KINDS)} |")
    print(f"| --- | --- | {' | '.join(['--- | ---'] * len(KINDS))} |")
    missed = []
    for studies in STUDIES:
        for row, kinds in rows(studies, share):
            print(row, flush=True)
            missed += [f"{row.split(' | ')[0].strip('| ')} ({kind})" for kind in kinds]
    return missed


if __name__ == "__main__":
    failures = main(float(sys.argv[1]) if len(sys.argv) > 1 else 1.0)
    print("\n" + (f"missed: {'; '.join(failures)}" if failures else "every interval has the coverage that it claims"))
    sys.exit(1 if failures else 0)
