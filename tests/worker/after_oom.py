"""Steps of one batch in a process of its own, as JSON: before them another batch may have run out of memory.

python -m tests.worker.after_oom BATCH [TOO_LARGE]
"""

from __future__ import annotations

import itertools
import json
import resource
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from torch import nn

from tests.worker.test_loop import squares, trainer
from worldsize.spec.study import LEAST, ProbeSpec
from worldsize.worker import largest_batch
from worldsize.worker.loop import Trainer, run_steps
from worldsize.worker.measure.memory import allocated_bytes, limit_memory
from worldsize.worker.probe import whole_batches
from worldsize.worker.workloads.base import Split

WIDTH = 65_536
"""Of a layer: three times so many floats a sample are what a step holds."""
ROOM = 150e6


def wide() -> Trainer:
    inputs = torch.randn(4096, 4, generator=torch.Generator().manual_seed(0))
    data = Split(inputs=inputs, targets=inputs.sum(1, keepdim=True))
    model = nn.Sequential(nn.Linear(4, WIDTH), nn.ReLU(), nn.Linear(WIDTH, 1))
    workload = replace(squares(), train=data, test=data, build_model=lambda: model)
    made = trainer(
        Path(tempfile.mkdtemp()), workload=workload, kind="probe", train=None, probe=ProbeSpec(), peak_lr=0.0
    )
    made.lr = lambda _: 0.0
    return made


def main() -> None:
    torch.set_num_threads(1)
    size, *larger = map(int, sys.argv[1:])
    made, spec = wide(), ProbeSpec(max_seconds=0.5, tolerance=0.001)
    bare = made.trial
    made.trial = bare.model_copy(update={"batch_per_worker": LEAST})
    run_steps(made, itertools.islice(whole_batches(made), 2))
    limit_memory((allocated_bytes() + ROOM) / 1e9, torch.device("cpu"))
    outcomes = []
    for batch in (*larger, size):
        made.trial = bare.model_copy(update={"batch_per_worker": batch})
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        done = largest_batch._try_batch(made, spec)
        outcomes.append(done.outcome)
    step_s = made.clock.seconds()
    faults = resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
    found = {"faults": faults / len(step_s), "step_s": float(np.median(step_s)), "peak_bytes": done.memory_bytes}
    print(json.dumps({**found, "outcomes": outcomes, "bytes": allocated_bytes()}))


if __name__ == "__main__":
    main()
