"""Compare `workers: auto` with the full grid on simulated machines: how often they agree, and what each costs.

    python -m tests.bench.adaptive [MACHINES]

Each machine has its own step model: a cost per step, a cost per sample, workers that slow each other down, an exchange
with latency and volume that overlaps with computing or not, and a limited number of cores. Uneven machines also have a
batch above which samples are more expensive (caches), or a count from which computing is slower (a second socket).

The adaptive study and two grids measure each machine, with 3 repeats and independent noise. How often the two grids
agree is the best that any study could reach. Drift changes the speed of computing and of the exchange from launch to
launch. A grid is a single launch, so drift cancels there.
Prints Markdown. The exit code is 1 if a target is missed.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from worldsize.analysis.projection.step_model import Node, StepTiming, overlapped_step_s
from worldsize.analysis.speed.adaptive import Probe, ends_the_climb, next_probes, pooled
from worldsize.analysis.speed.recommend import paying_counts
from worldsize.study.adaptive_rounds import predicted

COUNTS, REPEATS = (1, 2, 4, 8, 16), 3
CASES = ((0.01, 0.0), (0.03, 0.0), (0.06, 0.0), (0.03, 0.1))
"""Noise per repeat, drift per launch."""
MOST_SHARE, SHARE_QUANTILE = 0.40, 0.9
LEAST_AGREED = {"even": 0.95, "even, strong": 0.95, "uneven": 0.8, "uneven, strong": 0.9}
"""Least agreement with a grid, as a fraction of how often two grids agree."""
AGREED_DRIFTING = 0.9
"""With drift, this fraction of LEAST_AGREED is enough."""
NO_DRIFT = (1.0, 1.0)


@dataclass(frozen=True, kw_only=True)
class Machine:
    batches: tuple[int, ...]
    strong: bool
    cores: int
    local_s: Callable[[int, float], float]
    """Own time of a worker, as a function of workers and samples per worker."""
    exchange_s: Callable[[int], float]
    overlap: float

    def step(self, probe: Probe, launch: tuple[float, float] = NO_DRIFT) -> tuple[float, float]:
        """Return a worker's own time and the whole step. `launch` has the factors on computing and on the exchange."""
        workers, batch = probe
        local_s = launch[0] * self.local_s(workers, batch / workers if self.strong else batch)
        return local_s, overlapped_step_s(local_s, launch[1] * self.exchange_s(workers), 1, self.overlap)

    def samples(self, probe: Probe) -> int:
        workers, batch = probe
        return batch * (1 if self.strong else workers)

    def rate(self, probe: Probe) -> float:
        return self.samples(probe) / self.step(probe)[1]

    @property
    def grid(self) -> list[Probe]:
        return [(workers, batch) for workers in COUNTS for batch in self.batches]


def machine(rng: np.random.Generator, *, strong: bool, uneven: bool) -> Machine:
    smallest = int(2 ** rng.integers(2, 7)) * (max(COUNTS) if strong else 1)
    batches = tuple(smallest * 2**power for power in range(4))
    a_step, a_sample = 10 ** rng.uniform(-3.5, -2), 10 ** rng.uniform(-5, -3.3)
    crowding, latency_s, volume_s = rng.uniform(0, 0.06), 10 ** rng.uniform(-4.3, -3), 10 ** rng.uniform(-3.5, -2)
    cores, turns = int(rng.choice([16, 64])), rng.uniform(0.8, 1.6)
    full_at = float(rng.choice([math.inf, *batches[1:3]])) if uneven else math.inf
    drop, drop_at = (float(rng.choice([0, 0, 0.5])), int(rng.choice(COUNTS[2:]))) if uneven else (0.0, 1)

    def local_s(workers: int, batch: float) -> float:
        cache_factor = 1 + 0.5 * math.log2(max(1.0, batch / full_at))
        return (
            (a_step + a_sample * batch * cache_factor)
            * (1 + crowding * (workers - 1))
            * (1 + drop * (workers >= drop_at))
        )

    def exchange_s(workers: int) -> float:
        if workers == 1:
            return 0.0
        ring_s = latency_s * (workers - 1) + 2 * (workers - 1) / workers * volume_s
        return float(ring_s * max(1.0, 2 * workers / cores) ** turns)

    return Machine(
        batches=batches,
        strong=strong,
        cores=cores,
        local_s=local_s,
        exchange_s=exchange_s,
        overlap=float(rng.choice([1.0, 1.5, 3.0])),
    )


Measured = dict[Probe, list[tuple[float, float]]]
"""A worker's own time and the whole step, for every repeat of every probe."""


def grid(one: Machine, noise: float, rng: np.random.Generator) -> Measured:
    return {probe: _repeats(one, probe, REPEATS, NO_DRIFT, noise, rng) for probe in one.grid}


def adaptive(one: Machine, noise: float, drift: float, rng: np.random.Generator) -> Measured:
    """Simulate the rounds of `worldsize.study.adaptive_rounds`.

    Each count saves one of its repeats to run once beside the next count. The largest count also saves one if it is
    not predicted to pay. Rounds that repeat undecided counts are not simulated.
    """
    node, measured = Node(workers_per_node=max(COUNTS), cores=one.cores), Measured()

    def launch(repeats: Mapping[Probe, int]) -> None:
        factors = tuple(np.exp(rng.normal(0, drift, 2)).tolist())
        for probe, times in repeats.items():
            measured.setdefault(probe, []).extend(_repeats(one, probe, times, factors, noise, rng))

    while True:
        predictions = predicted(_timed(one, measured), node, one.grid, 1, strong=one.strong)
        probes = next_probes(one.grid, pooled(rates(one, measured)), list(measured), predictions)
        if not probes:
            break
        beside = {below: 1 for probe in probes if (below := _below(probe, measured))}
        launch(
            {probe: REPEATS - bool(measured and not ends_the_climb(probe, COUNTS, predictions)) for probe in probes}
            | beside
        )
    while owed := _owed(knee(rates(one, measured)), measured):
        launch({run: 1 for probe in owed for run in (probe, _below(probe, measured)) if run})
    return measured


def _owed(answer: Probe, measured: Measured) -> list[Probe]:
    """Return the probes up to the answer that have saved a repeat."""
    workers, batch = answer
    return [
        probe
        for probe, repeats in measured.items()
        if probe[1] == batch and probe[0] <= workers and len(repeats) < REPEATS
    ]


def _below(probe: Probe, measured: Measured) -> Probe | None:
    smaller = [workers for workers, batch in measured if batch == probe[1] and workers < probe[0]]
    return (max(smaller), probe[1]) if smaller else None


def _repeats(
    one: Machine, probe: Probe, times: int, launch: tuple[float, ...], noise: float, rng: np.random.Generator
) -> list[tuple[float, float]]:
    local_s, step_s = one.step(probe, (launch[0], launch[1]))
    return [(local_s * factor, step_s * factor) for factor in np.exp(rng.normal(0, noise, times)).tolist()]


def rates(one: Machine, measured: Measured) -> dict[Probe, list[float]]:
    return {probe: [one.samples(probe) / step_s for _, step_s in repeats] for probe, repeats in measured.items()}


def _timed(one: Machine, measured: Measured) -> list[StepTiming]:
    steps = []
    for (workers, batch), repeats in measured.items():
        local_s, step_s = np.exp(np.mean(np.log(repeats), axis=0)).tolist()
        share = batch // workers if one.strong else batch
        steps.append(StepTiming(workers=workers, batch_per_worker=share, step_s=step_s, local_s=local_s))
    return steps


def knee(rates: Mapping[Probe, Sequence[float]]) -> Probe:
    """Return the recommended probe, as the answer chooses it: the fastest of the knees of all batches."""
    best: dict[Probe, float] = {}
    for batch in {batch for _, batch in rates}:
        counts = [workers for workers in COUNTS if (workers, batch) in rates]
        speeds = [float(np.exp(np.mean(np.log(rates[workers, batch])))) for workers in counts]
        at = paying_counts(counts, speeds)[-1]
        best[counts[at], batch] = speeds[at]
    return max(best, key=lambda probe: best[probe])


def compare(kind: str, noise: float, drift: float, machines: int) -> bool:
    agreed, grids_agreed, shares, kept = 0, 0, [], []
    for seed in range(machines):
        rng = np.random.default_rng(seed)
        one = machine(rng, strong="strong" in kind, uneven="uneven" in kind)
        grids = [knee(rates(one, grid(one, noise, rng))) for _ in range(2)]
        probed = adaptive(one, noise, drift, rng)
        answer = knee(rates(one, probed))
        agreed += answer == grids[0]
        grids_agreed += grids[0] == grids[1]
        spent = sum(workers * len(repeats) for (workers, _), repeats in probed.items())
        shares.append(spent / (REPEATS * sum(workers for workers, _ in one.grid)))
        kept.append(one.rate(answer) / one.rate(knee({probe: [one.rate(probe)] for probe in one.grid})))
    middle, high = np.quantile(shares, [0.5, SHARE_QUANTILE])
    print(
        f"| {kind} | {noise:.0%} | {drift:.0%} | {agreed / machines:.0%} | {grids_agreed / machines:.0%} | "
        f"{middle:.0%} | {high:.0%} | {np.quantile(kept, 0.1):.0%} | {np.quantile(kept, 0.02):.0%} |",
        flush=True,
    )
    least = LEAST_AGREED[kind] * (AGREED_DRIFTING if drift else 1.0)
    return agreed >= least * grids_agreed and high <= MOST_SHARE


def main(machines: int) -> bool:
    print(
        "| machines | noise | drift | auto = grid | grid = grid | share, median | 90 % | throughput kept, 10 % | 2 % |"
    )
    print("| --- | --- | --- | --- | --- | --- | --- | --- | --- |")
    met = [compare(kind, *case, machines) for kind in LEAST_AGREED for case in CASES]
    return all(met)


if __name__ == "__main__":
    sys.exit(0 if main(int(sys.argv[1]) if len(sys.argv) > 1 else 300) else 1)
