"""Measure what the documentation claims about speed: `make bench`.

Each line shows a measured value, its limit, and whether the limit is met. The exit code is 1 if one is missed. Values
that compare two programs are ratios of interleaved measurements.
"""

from __future__ import annotations

import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from tests.bench import startup
from worldsize.analysis.estimate import mean_of_blocks
from worldsize.plan.plan import make_plan
from worldsize.spec.study import AxesSpec, StudySpec
from worldsize.spec.training import TrainSpec
from worldsize.spec.workload import WorkloadSpec

Result = tuple[str, str, bool]
HERE = Path(__file__).parent


def help_command() -> Result:
    """Time `worldsize --help`. The result is the fastest of five, because noise only adds time."""
    times = []
    for _ in range(5):
        started = time.perf_counter()
        subprocess.run([sys.executable, "-m", "worldsize.cli.main", "--help"], capture_output=True, check=True)
        times.append(time.perf_counter() - started)
    return f"{min(times):.2f} s", "0.5 s", min(times) < 0.5


def planning() -> Result:
    """Plan 10,000 trials: 5 counts x 50 batches x 20 repeats, each as a probe and as a training trial."""
    axes = AxesSpec(workers=(1, 2, 4, 8, 16), batch_per_worker=tuple(range(1, 51)))
    train = TrainSpec(epochs=1, base_batch=1)
    spec = StudySpec(name="large", workload=WorkloadSpec(name="digits"), axes=axes, train=train, repeats=20)
    started = time.perf_counter()
    plan = make_plan(spec)
    seconds = time.perf_counter() - started
    megabytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    assert len(plan.trials) == 10_000
    return f"{seconds:.2f} s, {megabytes:.0f} MB", "3 s, 300 MB", seconds < 3 and megabytes < 300


def start_up() -> Result:
    """Compare the time to the end of the first step with that of a bare torchrun script, in ABBA order."""
    ours, bare = [], []
    with tempfile.TemporaryDirectory() as folder:
        for number in range(4):
            order: list[tuple[list[float], Callable[[Path], float]]] = [(ours, startup.ours), (bare, startup.bare)]
            for times, measure in order if number % 2 == 0 else reversed(order):
                times.append(measure(Path(folder) / str(number)))
    ratio = np.median(np.array(ours) / np.array(bare))
    figure = f"{np.median(ours):.1f} s / {np.median(bare):.1f} s = {ratio:.2f} (once for a launch of ten probes)"
    return figure, "1.30", bool(ratio <= 1.3)


def step_time() -> Result:
    """Compare our training loop with a minimal one in the same two processes, in blocks in ABBA order."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder) / "steps.npz"
        subprocess.run([*command, str(HERE / "minimal_loop.py"), str(output)], check=True, capture_output=True)
        with np.load(output) as steps:
            ours, minimal = steps["ours"], steps["minimal"]
    ratio = mean_of_blocks(dict(enumerate(ours))).minus(mean_of_blocks(dict(enumerate(minimal)))).exp()
    low, high = ratio.ends
    figure = f"{ratio.value:.3f} ({low:.3f} to {high:.3f}), steps of {np.median(minimal) * 1e3:.0f} ms"
    return figure, "upper end 1.05", high < 1.05


BENCHES: dict[str, Callable[[], Result]] = {
    "worldsize --help": help_command,
    "plan 10,000 trials": planning,
    "start-up / bare torchrun": start_up,
    "step / minimal DDP loop": step_time,
}


def main() -> int:
    chosen = sys.argv[1:] or list(BENCHES)
    all_met = True
    for name in chosen:
        figure, limit, is_met = BENCHES[name]()
        all_met = all_met and is_met
        print(f"{'ok  ' if is_met else 'MISS'} {name}: {figure} (limit {limit})", flush=True)
    return 0 if all_met else 1


if __name__ == "__main__":
    sys.exit(main())
