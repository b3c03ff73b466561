"""Run our loop and a minimal DDP loop in turns, in the same processes. Writes the step times of rank 0."""

import sys
import time
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

from worldsize.spec.optimizer import OptimizerSpec
from worldsize.spec.study import ProbeSpec, TrialSpec
from worldsize.spec.workload import WorkloadSpec
from worldsize.worker import workloads
from worldsize.worker.ending import Ending
from worldsize.worker.journal import Journal
from worldsize.worker.loop import Trainer, run_steps
from worldsize.worker.measure.step_clock import CpuStepClock, Phases
from worldsize.worker.optimizers import lr_of_step
from worldsize.worker.parallel import make_strategy
from worldsize.worker.parallel.team import Team

BATCH, STEPS, ROUNDS = 96, 10, 40

torch.set_num_threads(1)
dist.init_process_group("gloo")
rank, workers = dist.get_rank(), dist.get_world_size()
data = workloads.load(WorkloadSpec(name="digits"), workloads.DataFolders(data=Path(), cache=Path()))

trial = TrialSpec(
    id="bench",
    kind="probe",
    workload=WorkloadSpec(name="digits"),
    workers=workers,
    batch_per_worker=BATCH,
    scaling="weak",
    optimizer=OptimizerSpec(lr=0.05, momentum=0.9),
    strategy="ddp",
    precision="fp32",
    peak_lr=0.0,
    repeat=0,
    seed=0,
    threads_per_worker=1,
    probe=ProbeSpec(),
)
team = Team(rank=rank, workers=workers, device=torch.device("cpu"), group=None)
torch.manual_seed(0)
module = data.build_model()
output = Path(sys.argv[1])
trainer = Trainer(
    trial=trial,
    workload=data,
    team=team,
    strategy=make_strategy(trial.strategy, trial.optimizer, module, team),
    ending=Ending(train=None),
    lr=lr_of_step(trial, len(data.train)),
    clock=CpuStepClock(),
    phases=Phases("bench"),
    augmentation_rng=torch.Generator(),
    journal=Journal(output.with_name("events.jsonl") if rank == 0 else None, output.with_name("stop")),
)
torch.manual_seed(0)
bare = DistributedDataParallel(data.build_model())
bare_optimizer = torch.optim.SGD(bare.parameters(), lr=0.0, momentum=0.9)
shares = list(trainer.shares(0))[:STEPS]
batches = [torch.from_numpy(share.indices) for share in shares]


def our_steps() -> list[float]:
    done = len(trainer.clock.seconds())
    run_steps(trainer, shares)
    return list(trainer.clock.seconds()[done:])


def minimal_steps() -> list[float]:
    times = []
    for indices in batches:
        started = time.perf_counter()
        inputs, labels = data.train.inputs[indices], data.train.targets[indices]  # type: ignore[attr-defined]
        loss = cross_entropy(bare(data.prepare(inputs)), labels)
        loss.backward()
        bare_optimizer.step()
        bare_optimizer.zero_grad()
        times.append(time.perf_counter() - started)
    return times


ours, minimal = [], []
our_steps(), minimal_steps()  # warm-up
for number in range(ROUNDS):
    turns = [(ours, our_steps), (minimal, minimal_steps)]
    for times, steps in turns if number % 2 == 0 else reversed(turns):
        dist.barrier()
        times.append(steps())
if rank == 0:
    np.savez(output, ours=np.array(ours), minimal=np.array(minimal))
dist.destroy_process_group()
