"""`workers: auto` against the full grid on made-up machines: how often both say the same, and at what cost.

    python -m tests.bench.adaptive [MACHINES]

Each machine has a step of its own: a cost a step, a cost a sample, neighbours that slow each other down, an exchange
with latency and volume that hides behind computing or does not, cores that run out. Uneven ones also have a batch
beyond which samples become dearer (caches) or a count at which computing drops (a second socket). The adaptive study
and two grids measure it, 3 repeats each with noise of their own: what two grids disagree on, no study could know.
Prints Markdown; exit code 1 when a target is missed.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from worldsize.adapt import foretold
from worldsize.analysis.adaptive import Probe, next_probes, pooled
from worldsize.analysis.ground import Ground, Timed
from worldsize.analysis.knee import climb
from worldsize.analysis.throughput import joined

COUNTS, REPEATS = (1, 2, 4, 8, 16), 3
NOISES = (0.01, 0.03, 0.06)
MOST_SHARE, SHARE_QUANTILE = 0.40, 0.9
LEAST_AGREED = {"even": 0.95, "even, strong": 0.95, "uneven": 0.8, "uneven, strong": 0.9}
"""Of how often two grids agree."""


@dataclass(frozen=True, kw_only=True)
class Machine:
    batches: tuple[int, ...]
    strong: bool
    cores: int
    busy_s: Callable[[int, float], float]
    """Of workers and samples a worker."""
    exchange_s: Callable[[int], float]
    overlap: float

    def step(self, probe: Probe) -> tuple[float, float]:
        """What a worker does by itself, and the whole step."""
        workers, batch = probe
        busy_s = self.busy_s(workers, batch / workers if self.strong else batch)
        return busy_s, joined(busy_s, self.exchange_s(workers), 1, self.overlap)

    def rate(self, probe: Probe) -> float:
        workers, batch = probe
        return batch * (1 if self.strong else workers) / self.step(probe)[1]

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

    def busy_s(workers: int, batch: float) -> float:
        dearer = 1 + 0.5 * math.log2(max(1.0, batch / full_at))
        return (a_step + a_sample * batch * dearer) * (1 + crowding * (workers - 1)) * (1 + drop * (workers >= drop_at))

    def exchange_s(workers: int) -> float:
        if workers == 1:
            return 0.0
        ring_s = latency_s * (workers - 1) + 2 * (workers - 1) / workers * volume_s
        return float(ring_s * max(1.0, 2 * workers / cores) ** turns)

    return Machine(
        batches=batches,
        strong=strong,
        cores=cores,
        busy_s=busy_s,
        exchange_s=exchange_s,
        overlap=float(rng.choice([1.0, 1.5, 3.0])),
    )


def measured(one: Machine, probe: Probe, noise: float, rng: np.random.Generator) -> tuple[list[float], Timed]:
    shakes = np.exp(rng.normal(0, noise, REPEATS))
    (workers, batch), (busy_s, step_s), middle = probe, one.step(probe), float(np.median(shakes))
    share = batch // workers if one.strong else batch
    timed = Timed(workers=workers, batch_per_worker=share, step_s=step_s * middle, busy_s=busy_s * middle)
    return [one.rate(probe) / shake for shake in shakes.tolist()], timed


def knee(rates: Mapping[Probe, Sequence[float]]) -> Probe:
    """As the answer has it: the knee of each batch, the fastest of these."""
    best: dict[Probe, float] = {}
    for batch in {batch for _, batch in rates}:
        counts = [workers for workers in COUNTS if (workers, batch) in rates]
        speeds = [float(np.exp(np.mean(np.log(rates[workers, batch])))) for workers in counts]
        at = climb(counts, speeds)[-1]
        best[counts[at], batch] = speeds[at]
    return max(best, key=lambda probe: best[probe])


def adaptive(one: Machine, noise: float, rng: np.random.Generator) -> dict[Probe, list[float]]:
    ground = Ground(places=max(COUNTS), cores=one.cores)
    rates: dict[Probe, list[float]] = {}
    timed: list[Timed] = []
    while wanted := next_probes(
        one.grid, pooled(rates), list(rates), foretold(timed, ground, one.grid, 1, strong=one.strong)
    ):
        for probe in wanted:
            rates[probe], found = measured(one, probe, noise, rng)
            timed.append(found)
    return rates


def compare(kind: str, noise: float, machines: int) -> bool:
    same, alike, shares, kept = 0, 0, [], []
    for seed in range(machines):
        rng = np.random.default_rng(seed)
        one = machine(rng, strong="strong" in kind, uneven="uneven" in kind)
        grids = [knee({probe: measured(one, probe, noise, rng)[0] for probe in one.grid}) for _ in range(2)]
        probed = adaptive(one, noise, rng)
        same += knee(probed) == grids[0]
        alike += grids[0] == grids[1]
        shares.append(sum(workers for workers, _ in probed) / sum(workers for workers, _ in one.grid))
        kept.append(one.rate(knee(probed)) / one.rate(knee({probe: [one.rate(probe)] for probe in one.grid})))
    middle, high = np.quantile(shares, [0.5, SHARE_QUANTILE])
    print(
        f"| {kind} | {noise:.0%} | {same / machines:.0%} | {alike / machines:.0%} | {middle:.0%} | {high:.0%} | "
        f"{np.quantile(kept, 0.1):.0%} | {np.quantile(kept, 0.02):.0%} |",
        flush=True,
    )
    return same >= LEAST_AGREED[kind] * alike and high <= MOST_SHARE


def main(machines: int) -> bool:
    print("| machines | noise | auto = grid | grid = grid | share, median | 90 % | throughput kept, 10 % | 2 % |")
    print("| --- | --- | --- | --- | --- | --- | --- | --- |")
    held = [compare(kind, noise, machines) for kind in LEAST_AGREED for noise in NOISES]
    return all(held)


if __name__ == "__main__":
    sys.exit(0 if main(int(sys.argv[1]) if len(sys.argv) > 1 else 300) else 1)
