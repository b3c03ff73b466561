"""Measure what timing every span costs: our loop with its clock and telemetry, and with a clock that does nothing.

python -m tests.bench.spans [cuda]

On a GPU: ResNet-18, batch 512, bf16 (limit 1.01). On a CPU: the small CNN, batch 64 (limit 1.03).

The two alternate in one process. Prints the median ratio with a 90 % interval over turns. The exit code is 1 if the
interval reaches above the limit.
"""

from __future__ import annotations

import itertools
import sys
import time
from pathlib import Path

import numpy as np
import torch

from worldsize.spec.optimizer import OptimizerSpec
from worldsize.spec.study import ProbeSpec, TrialSpec
from worldsize.spec.training import StrategySpec
from worldsize.spec.workload import WorkloadSpec
from worldsize.worker import workloads
from worldsize.worker.ending import Ending
from worldsize.worker.journal import Journal
from worldsize.worker.loop import Trainer, run_steps
from worldsize.worker.measure.meters import ProcessMeter
from worldsize.worker.measure.step_clock import CpuStepClock, Phases, step_clock_for
from worldsize.worker.measure.telemetry import Telemetry
from worldsize.worker.parallel import make_strategy
from worldsize.worker.parallel.team import Team

TURNS = 60
CASES = {"cuda": ("resnet18", 512, "bf16", 10, 1.01), "cpu": (None, 64, "fp32", 10, 1.03)}


class NoStepClock(CpuStepClock):
    def start(self) -> None: ...
    def mark(self, span: int) -> None: ...
    def mark_backward(self) -> None: ...
    def end_step(self) -> None: ...


def main() -> None:
    device = torch.device(sys.argv[1] if len(sys.argv) > 1 else "cpu")
    model, batch, precision, steps, limit = CASES[device.type]
    torch.set_num_threads(1)
    spec = WorkloadSpec(name="digits", model=model)
    data = workloads.load(spec, workloads.DataFolders(data=Path(), cache=Path())).on(device)
    team = Team(rank=0, workers=1, device=device, group=None)
    trial = TrialSpec(
        id="bench",
        kind="probe",
        workload=spec,
        workers=1,
        batch_per_worker=batch,
        scaling="weak",
        optimizer=OptimizerSpec(name="momentum", lr=0.05),
        strategy=StrategySpec(),
        precision=precision,  # type: ignore[arg-type]
        peak_lr=0.0,
        repeat=0,
        seed=0,
        threads_per_worker=1,
        probe=ProbeSpec(),
    )
    module = data.build_model().to(device)
    trainer = Trainer(
        trial=trial,
        workload=data,
        team=team,
        strategy=make_strategy(trial.strategy, trial.optimizer, module, team),
        ending=Ending(train=None),
        lr=lambda _: 0.0,
        clock=step_clock_for(device),
        phases=Phases("bench"),
        augmentation_rng=torch.Generator(device),
        journal=Journal(None, Path("stop")),
    )
    timed, untimed = trainer.clock, NoStepClock()
    shares = itertools.cycle(list(trainer.shares(0))[:steps])
    telemetry = Telemetry(ProcessMeter().sources())

    def turn(instrumented: bool) -> float:
        trainer.clock = timed if instrumented else untimed
        if instrumented:
            telemetry.start()
        if device.type == "cuda":
            torch.cuda.synchronize()
        began = time.perf_counter()
        run_steps(trainer, itertools.islice(shares, steps))
        if device.type == "cuda":
            torch.cuda.synchronize()
        step_s = (time.perf_counter() - began) / steps
        if instrumented:
            telemetry.stop()
        return step_s

    for _ in range(4):
        turn(True), turn(False)
    with_spans, without = [], []
    for number in range(TURNS):
        for instrumented in (True, False) if number % 2 else (False, True):
            (with_spans if instrumented else without).append(turn(instrumented))
    ratios = np.log(np.array(with_spans) / np.array(without))
    rng = np.random.default_rng(0)
    resampled = np.median(ratios[rng.integers(0, TURNS, (2000, TURNS))], axis=1)
    low, high = np.exp(np.quantile(resampled, [0.05, 0.95]))
    print(
        f"spans: {np.median(with_spans) * 1e3:.2f} ms per step, {np.median(without) * 1e3:.2f} ms without; ratio "
        f"{np.exp(np.median(ratios)):.4f} ({low:.4f} to {high:.4f}), limit {limit}"
    )
    sys.exit(1 if high > limit else 0)


if __name__ == "__main__":
    main()
