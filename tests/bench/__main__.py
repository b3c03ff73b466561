"""What is claimed about speed, measured: `make bench`. Ratios within one run, interleaved, with their intervals.

Each line gives the figure, the limit and whether it holds; the exit code is 1 when one does not.
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
from worldsize.analysis.estimate import median_step
from worldsize.plan.plan import make_plan
from worldsize.spec.study import AxesSpec, StudySpec
from worldsize.spec.training import TrainSpec
from worldsize.spec.workload import WorkloadSpec

Result = tuple[str, str, bool]
HERE = Path(__file__).parent


def help_command() -> Result:
    """`worldsize --help`, best of five: a machine's noise only adds."""
    times = []
    for _ in range(5):
        started = time.perf_counter()
        subprocess.run([sys.executable, "-m", "worldsize.cli.main", "--help"], capture_output=True, check=True)
        times.append(time.perf_counter() - started)
    return f"{min(times):.2f} s", "0.5 s", min(times) < 0.5


def planning() -> Result:
    """10,000 trials: 5 counts x 50 batches x 20 probe repeats + as many training trials."""
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
    """To the end of the first step, over a bare torchrun script; ABBA, and ten probes in one launch."""
    ours, bare = [], []
    with tempfile.TemporaryDirectory() as folder:
        for number in range(4):
            order: list[tuple[list[float], Callable[[Path], float]]] = [(ours, startup.ours), (bare, startup.bare)]
            for times, measure in order if number % 2 == 0 else reversed(order):
                times.append(measure(Path(folder) / str(number)))
    ratio = np.median(np.array(ours) / np.array(bare))
    figure = f"{np.median(ours):.1f} s over {np.median(bare):.1f} s = {ratio:.2f} (ten probes: paid once)"
    return figure, "1.30", bool(ratio <= 1.3)


def step_time() -> Result:
    """Our loop over a minimal one in the same two processes, in blocks, ABBA."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder) / "steps.npz"
        subprocess.run([*command, str(HERE / "minimal_loop.py"), str(output)], check=True, capture_output=True)
        with np.load(output) as steps:
            ours, minimal = steps["ours"], steps["minimal"]
    ratio = median_step(dict(enumerate(ours))).minus(median_step(dict(enumerate(minimal)))).exp()
    low, high = ratio.ends
    figure = f"{ratio.value:.3f} ({low:.3f} to {high:.3f}), steps of {np.median(minimal) * 1e3:.0f} ms"
    return figure, "upper end 1.05", high < 1.05


BENCHES: dict[str, Callable[[], Result]] = {
    "worldsize --help": help_command,
    "plan 10,000 trials": planning,
    "start-up over bare torchrun": start_up,
    "step over a minimal DDP loop": step_time,
}


def main() -> int:
    chosen = sys.argv[1:] or list(BENCHES)
    held = True
    for name in chosen:
        figure, limit, good = BENCHES[name]()
        held = held and good
        print(f"{'ok  ' if good else 'MISS'} {name}: {figure} (limit {limit})", flush=True)
    return 0 if held else 1


if __name__ == "__main__":
    sys.exit(main())
