"""One of two ranks: run the training loop with and without a planted cause, in turns in the same processes.

RANK=0 WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT=PORT python -m tests.system.span_ranks FOLDER CASE...

Writes spans-CASE-rankN.npz: the spans of the plain turns and of the planted turns (steps x columns), and the time that
was planted, all in seconds.
"""

from __future__ import annotations

import itertools
import os
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from tests.system.netns import limit_here
from worldsize.folder.record import SPAN_UNIT_S
from worldsize.spec.optimizer import OptimizerSpec
from worldsize.spec.study import ProbeSpec, TrialSpec
from worldsize.spec.training import StrategySpec
from worldsize.spec.workload import WorkloadSpec
from worldsize.worker import workloads
from worldsize.worker.ending import Ending
from worldsize.worker.journal import Journal
from worldsize.worker.loop import Trainer, run_steps
from worldsize.worker.measure.step_clock import CpuStepClock, Phases
from worldsize.worker.parallel import make_strategy
from worldsize.worker.parallel.team import Crew, Team
from worldsize.worker.probe import exchange_blocks
from worldsize.worker.workloads.base import Split

SLEEP_S = 0.02
TURNS, STEPS = 12, 8
"""Turns of each kind, and steps per turn. The first step of a turn is dropped."""
PRODUCTS = 512
SLOW_MBIT, FAST_MBIT = 20, 80
"""Rates of the link. At these rates, the few milliseconds that the machine itself adds to a transfer hardly count."""


class SleepyLoader(Split):
    def take(self, indices: Tensor) -> tuple[Tensor, ...]:
        time.sleep(SLEEP_S)
        return super().take(indices)


class Busy(nn.Module):
    """A model that first computes matrix products which are not part of it."""

    def __init__(self, model: nn.Module, products: int) -> None:
        super().__init__()
        self.model, self.products, self.seconds = model, products, list[float]()
        self._square = torch.randn(PRODUCTS, PRODUCTS)

    def forward(self, inputs: Tensor) -> Tensor:
        started = time.perf_counter()
        for _ in range(self.products):
            self._square @ self._square
        self.seconds.append(time.perf_counter() - started)
        output: Tensor = self.model(inputs)
        return output


def trainer(team: Team, folder: Path) -> Trainer:
    trial = TrialSpec(
        id="spans",
        kind="probe",
        workload=WorkloadSpec(name="digits"),
        workers=team.workers,
        batch_per_worker=64,
        scaling="weak",
        optimizer=OptimizerSpec(lr=0.05, momentum=0.9),
        strategy=StrategySpec(bucket_mb=100.0),  # one bucket: nothing overlaps with backward
        precision="fp32",
        peak_lr=0.0,
        repeat=0,
        seed=0,
        threads_per_worker=1,
        probe=ProbeSpec(),
    )
    data = workloads.load(trial.workload, workloads.DataFolders(data=folder, cache=folder))
    torch.manual_seed(0)
    return Trainer(
        trial=trial,
        workload=data,
        team=team,
        strategy=make_strategy(trial.strategy, trial.optimizer, data.build_model(), team),
        ending=Ending(train=None),
        lr=lambda _: 0.0,
        clock=CpuStepClock(),
        phases=Phases("spans"),
        augmentation_rng=torch.Generator(),
        journal=Journal(None, folder / "stop"),
    )


def plant(case: str, changed: Trainer) -> Callable[[], float]:
    """Plant a cause, and return a function that returns the seconds per step that it took."""
    strategy = changed.strategy
    match case:
        case "loader":
            data = changed.workload.train
            assert isinstance(data, Split)
            sleepy = SleepyLoader(inputs=data.inputs, targets=data.targets)
            changed.workload = replace(changed.workload, train=sleepy)
            return lambda: SLEEP_S
        case "optimizer":
            real = strategy.optimizer.step

            def step(*args: Any, **kwargs: Any) -> Any:
                time.sleep(SLEEP_S)
                return real(*args, **kwargs)

            strategy.optimizer.step = step  # type: ignore[method-assign]
            return lambda: SLEEP_S
        case "slow rank":
            # On the second rank only: about half of the time that a step computes.
            busy = Busy(strategy.model, products=12 if changed.team.rank == 1 else 0)
            strategy.model = busy
            return lambda: float(np.median(busy.seconds))
        case "link":
            size = strategy.exchange_facts()["bytes"]
            return lambda: size * 8e-6 * (1 / SLOW_MBIT - 1 / FAST_MBIT)  # each of the two workers sends it once
    raise ValueError(case)


def turns(plain: Trainer, planted: Trainer) -> Iterator[tuple[Trainer, bool]]:
    for number in range(TURNS):
        pair = [(plain, False), (planted, True)]
        yield from pair if number % 2 == 0 else reversed(pair)


def measure_exchange(planted: Trainer, folder: Path) -> None:
    """Write what the exchange adds to a step at the slow rate, and how long it takes according to torch."""
    limit_here(SLOW_MBIT)
    planted.team.barrier()
    rows = exchange_blocks(planted, planted.shares(1), step_s=0.0, max_seconds=4.0)
    assert rows is not None
    np.savez(folder / f"exchange-rank{planted.team.rank}.npz", rows=rows, **planted.strategy.exchange_facts())


def main() -> None:
    torch.set_num_threads(1)
    folder = Path(sys.argv[1])
    crew = Crew("cpu", "gloo", [int(os.environ["WORLD_SIZE"])])
    team = crew.team(crew.workers)
    assert team is not None
    for case in sys.argv[2:]:
        plain, planted = trainer(team, folder), trainer(team, folder)
        planted_s = plant(case, planted)
        spans: dict[bool, list[np.ndarray]] = {False: [], True: []}
        for current, is_planted in turns(plain, planted):
            if case == "link":
                limit_here(SLOW_MBIT if is_planted else FAST_MBIT)
            team.barrier()
            done = len(current.clock.spans())
            run_steps(current, itertools.islice(current.shares(0), STEPS))
            spans[is_planted].append(current.clock.spans()[done + 1 :] * SPAN_UNIT_S)
        np.savez(
            folder / f"spans-{case.replace(' ', '-')}-rank{team.rank}.npz",
            plain=np.concatenate(spans[False]),
            planted=np.concatenate(spans[True]),
            seconds=planted_s(),
        )
        if case == "link":
            measure_exchange(planted, folder)
    crew.leave()
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
