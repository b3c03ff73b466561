"""Projections of studies on simulated machines, most of which do not have the form of the step model.

    python -m tests.bench.machines [MACHINES]

A few counts are measured with 3 repeats each. Larger counts are projected with the step model, with the bare law, and
with their geometric mean. Prints Markdown: the relative error of the throughput; and, for the projection that worldsize
prints, how often its 80 % interval contains a new run, and its median width.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from worldsize.analysis.estimate import Estimate, Floats
from worldsize.analysis.projection.bare import project_series
from worldsize.analysis.projection.series_law import table_series
from worldsize.analysis.projection.step_model import Node, StepTiming, fit_throughput, overlapped_step_s
from worldsize.analysis.speed.scaling import SettingTimes, scaling
from worldsize.answer.predict.throughput_at import Throughputs
from worldsize.spec.setting import Setting
from worldsize.spec.training import StrategySpec

FITTED, ASKED, REPEATS, STEPS = ((1, 2, 4), (1, 2, 3, 4, 6)), (8, 16), 3, 40
PER_NODE = 16
NOISE = 0.02
"""Noise of the step time between runs, and between the steps of a run."""


@dataclass(frozen=True, kw_only=True)
class Machine:
    local_s: Callable[[int, int], float]
    """Own time of a worker, as a mean over workers: a function of workers and samples per worker."""
    step_s: Callable[[int, int], float]
    """Time of the whole step."""


def sum_of_terms(rng: np.random.Generator) -> Machine:
    """The form of the step model: each neighbor slows a worker down equally, and the exchange is a ring."""
    a_step, a_sample, crowding = 10 ** rng.uniform(-3.3, -2.3), 10 ** rng.uniform(-4.5, -3.5), rng.uniform(0, 0.04)
    latency_s, volume_s, hidden = 10 ** rng.uniform(-4.5, -3.5), _volume_s(rng), float(rng.choice([1.0, 2.0, 4.0]))

    def local_s(workers: int, batch: int) -> float:
        return (a_step + a_sample * batch) * (1 + crowding * (workers - 1))

    def step_s(workers: int, batch: int) -> float:
        ring_s = latency_s * (workers - 1) + volume_s * (workers - 1) / workers
        return overlapped_step_s(local_s(workers, batch), ring_s, 1, hidden)

    return Machine(local_s=local_s, step_s=step_s)


def memory_bandwidth(rng: np.random.Generator) -> Machine:
    """Workers share a memory bus. It has no effect until it is nearly full; then each worker slows down all others."""
    a_step, a_sample = 10 ** rng.uniform(-3.3, -2.3), 10 ** rng.uniform(-4.5, -3.5)
    demand, sharpness, volume_s = 2 ** rng.uniform(-5, -2), rng.uniform(2, 6), _volume_s(rng)

    def local_s(workers: int, batch: int) -> float:
        return a_step + a_sample * batch * (1 + (demand * workers) ** sharpness) ** (1 / sharpness)

    def step_s(workers: int, batch: int) -> float:
        return local_s(workers, batch) + 2 * volume_s * (1 - 1 / workers)

    return Machine(local_s=local_s, step_s=step_s)


def stragglers(rng: np.random.Generator) -> Machine:
    """Every step waits for the slowest of n uneven workers, and the exchange is a tree."""
    a_step, a_sample, uneven = 10 ** rng.uniform(-3.3, -2.3), 10 ** rng.uniform(-4.5, -3.5), rng.uniform(0.01, 0.12)
    latency_s, volume_s = 10 ** rng.uniform(-4.5, -3.3), _volume_s(rng)

    def local_s(_: int, batch: int) -> float:
        return a_step + a_sample * batch

    def step_s(workers: int, batch: int) -> float:
        levels = math.log2(workers)
        slowest = math.exp(uneven * math.sqrt(2 * math.log(workers)))
        return local_s(workers, batch) * slowest + 2 * levels * latency_s + 2 * volume_s * (workers > 1)

    return Machine(local_s=local_s, step_s=step_s)


def power_limit(rng: np.random.Generator) -> Machine:
    """Clock rates fall if a node draws too much power, and a switch slows down as more of its ports are used."""
    a_step, a_sample = 10 ** rng.uniform(-3.3, -2.3), 10 ** rng.uniform(-4.5, -3.5)
    free, throttled, congested = rng.uniform(1, 8), rng.uniform(0, 0.3), rng.uniform(0, 1.5)
    volume_s, hidden = _volume_s(rng), rng.uniform(0.2, 0.8)

    def local_s(workers: int, batch: int) -> float:
        return (a_step + a_sample * batch) * (1 + throttled * max(0.0, math.log(workers / free)))

    def step_s(workers: int, batch: int) -> float:
        own_s = local_s(workers, batch)
        ring_s = 2 * volume_s * (1 - 1 / workers) * (1 + congested * ((workers - 1) / PER_NODE) ** 2)
        return own_s + max(ring_s - hidden * own_s, 0.1 * ring_s)  # the last bucket is never hidden

    return Machine(local_s=local_s, step_s=step_s)


def serial_driver(rng: np.random.Generator) -> Machine:
    """One process feeds all workers, so the step grows with every worker once feeding takes longer than computing."""
    a_step, a_sample, fed_s = 10 ** rng.uniform(-3.3, -2.3), 10 ** rng.uniform(-4.5, -3.5), 10 ** rng.uniform(-6, -4.7)
    volume_s = _volume_s(rng)

    def local_s(workers: int, batch: int) -> float:
        return max(a_step + a_sample * batch, fed_s * workers * batch)

    def step_s(workers: int, batch: int) -> float:
        return local_s(workers, batch) + 2 * volume_s * (1 - 1 / workers)

    return Machine(local_s=local_s, step_s=step_s)


def _volume_s(rng: np.random.Generator) -> float:
    return float(10 ** rng.uniform(-4, -2.3))


MACHINES: dict[str, Callable[[np.random.Generator], Machine]] = {
    "sum of terms (the model's form)": sum_of_terms,
    "memory bandwidth": memory_bandwidth,
    "stragglers and a tree": stragglers,
    "power limit and congestion": power_limit,
    "one process feeds all": serial_driver,
}
Shake = Callable[[int, int], float]
"""Factor on the step of one run: a function of workers and repeat."""


def study(
    machine: Machine, counts: Sequence[int], batches: Iterable[int], shake: Shake, rng: np.random.Generator
) -> Throughputs:
    """Return what a study of these counts and batches knows about the last batch."""
    times, timings = [], []
    for batch in batches:
        for workers in counts:
            setting, step_s = setting_of(workers, batch), machine.step_s(workers, batch)
            shakes = {repeat: shake(workers, repeat) for repeat in range(REPEATS)}
            repeats = {
                repeat: step_s * factor * np.exp(NOISE * rng.normal(size=STEPS)) for repeat, factor in shakes.items()
            }
            times.append(SettingTimes(setting=setting, repeats=repeats, launches=dict.fromkeys(repeats, "0001")))
            middle_s = math.exp(float(np.mean([np.log(np.median(steps)) for steps in repeats.values()])))
            local_s = machine.local_s(workers, batch) * middle_s / step_s
            timings.append(StepTiming(workers=workers, batch_per_worker=batch, step_s=middle_s, local_s=local_s))
    rows = tuple(row for row in scaling(times)[-1].rows)
    points = [(row.setting.workers, row.samples_per_s.value) for row in rows]
    return Throughputs(
        rows=rows,
        model=fit_throughput(timings, Node(workers_per_node=PER_NODE)),
        series=table_series(points, workers_per_node=PER_NODE),
        workers_per_node=PER_NODE,
        network=None,
        noise_samples=tuple(row.pace.throughput for row in rows),
    )


def setting_of(workers: int, batch: int) -> Setting:
    return Setting(workers=workers, batch_per_worker=batch, scaling="weak", strategy=StrategySpec(), precision="fp32")


def candidates(known: Throughputs, setting: Setting) -> tuple[dict[str, float], Estimate]:
    """Return the throughput by each rule, and the estimate that worldsize prints."""
    assert known.model is not None
    workers, batch = setting.workers, setting.batch_per_worker
    model = setting.global_batch / known.model.parts(workers, batch).step_s
    bare = project_series(known.series, [workers])[0].samples_per_s.value
    own = known.at(setting).samples_per_s
    return {"model": model, "bare law": bare, "average": math.sqrt(model * bare)}, own


@dataclass(frozen=True, kw_only=True)
class Score:
    errors: Mapping[str, float]
    inside: bool
    width: float


def scores(make: Callable[[np.random.Generator], Machine], machines: int) -> Iterator[tuple[int, Score]]:
    for seed in range(machines):
        rng = np.random.default_rng(seed)
        machine, fitted = make(rng), FITTED[seed % len(FITTED)]
        batches = (32, 128)[seed // 2 % 2 :]

        def shake(*_: int, rng: np.random.Generator = rng) -> float:
            return math.exp(NOISE * rng.normal())

        known = study(machine, fitted, batches, shake, rng)
        for workers in ASKED:
            setting = setting_of(workers, batches[-1])
            truth = setting.global_batch / machine.step_s(workers, batches[-1])
            rates, own = candidates(known, setting)
            low, high = own.ends
            yield (
                workers,
                Score(
                    errors={rule: rate / truth - 1 for rule, rate in rates.items()},
                    inside=low <= truth / shake() <= high,
                    width=own.relative_width,
                ),
            )


def main(machines: int) -> None:
    print("| machines | workers | error, median / 90 %: model | bare law | average | covered | width |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    for name, make in MACHINES.items():
        by_count: dict[int, list[Score]] = {}
        for workers, score in scores(make, machines):
            by_count.setdefault(workers, []).append(score)
        for workers, of_count in by_count.items():
            cells = [_errors([abs(score.errors[rule]) for score in of_count]) for rule in of_count[0].errors]
            covered = np.mean([score.inside for score in of_count])
            width = np.median([score.width for score in of_count])
            print(f"| {name} | {workers} | {' | '.join(cells)} | {covered:.0%} | {width:.0%} |", flush=True)


def _errors(errors: Sequence[float] | Floats) -> str:
    middle, high = np.quantile(errors, [0.5, 0.9])
    return f"{100 * middle:.1f} / {100 * high:.1f} %"


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 200)
