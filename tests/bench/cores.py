"""Real scaling on the cores of this machine: a few counts measured, larger ones projected, then measured.

    python -m tests.bench.cores projection [FOLDER]     1, 2, 3, 4, 6 workers -> 8, 12, 16
    python -m tests.bench.cores adaptive [FOLDER]       workers: auto against the grid of 5 counts x 4 batches

Wants 16 cores; gloo, one thread a worker. Prints Markdown; exit code 1 when a target is missed.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import numpy as np

from worldsize.prediction import Question, predict
from worldsize.results import Results
from worldsize.study import Study

FITTED, ASKED = (1, 2, 3, 4, 6), (8, 12, 16)
WORKLOADS = {
    "digits cnn": ("digits", 64, (16, 32, 64, 128)),
    "digits mlp": ("{name: digits, model: mlp}", 128, (32, 64, 128, 256)),
    "gpt": (
        "{name: gpt, options: {context: 64, length: 200000}, model_options: {layers: 4, width: 128, heads: 4}}",
        16,
        (4, 8, 16, 32),
    ),
}
"""Name: the workload, the batch of the projection, the batches of the grid."""
MOST_ERROR, LEAST_INSIDE, MOST_WIDTH, MOST_SHARE = 0.10, 6, 0.40, 0.40


def run(folder: Path, workload: str, workers: object, batches: object, *, repeats: int, seconds: float) -> Results:
    name = folder.name
    text = f"""\
name: {name}
workload: {workload}
device: cpu
axes: {{workers: {workers}, batch_per_worker: {batches}}}
threads: 1
probe: {{max_seconds: {seconds}, repeats: {repeats}}}
interconnect_s: 2
"""
    return Study.from_text(text).run(folder)


def projection(home: Path) -> bool:
    errors, widths, inside = [], [], 0
    print("| workload | workers | projected samples/s (80 %) | measured | error | inside |")
    print("| --- | --- | --- | --- | --- | --- |")
    for name, (workload, batch, _) in WORKLOADS.items():
        label = name.replace(" ", "-")
        fitted = run(home / f"{label}-fitted", workload, list(FITTED), [batch], repeats=3, seconds=3)
        found = predict(fitted, Question(workers=ASKED))
        told = {option.workers: option.samples_per_s for option in found.options if not option.measured}
        truth = run(home / f"{label}-truth", workload, list(ASKED), [batch], repeats=3, seconds=3)
        for row in truth.rows:
            projected, measured = told[row.setting.workers], row.samples_per_s.value
            errors.append(projected.value / measured - 1)
            widths.append(projected.relative_width)
            holds = projected.low <= measured <= projected.high
            inside += holds
            print(
                f"| {name} | {row.setting.workers} | {projected.value:,.0f} ({projected.low:,.0f} to "
                f"{projected.high:,.0f}) | {measured:,.0f} | {errors[-1]:+.1%} | {'yes' if holds else 'no'} |",
                flush=True,
            )
    error, width = float(np.median(np.abs(errors))), float(np.median(widths))
    print(f"\nmedian error {error:.1%}, {inside} of {len(errors)} inside, median width {width:.0%}")
    return error <= MOST_ERROR and inside >= LEAST_INSIDE and width <= MOST_WIDTH


def worker_s(results: Results) -> float:
    """Of the probes themselves."""
    return sum(results.trials[trial].workers * record.wall_s for trial, record in results.records.items())


def adaptive(home: Path) -> bool:
    fine = True
    print("| workload | grid recommends | auto recommends | worker-seconds, grid | auto | share |")
    print("| --- | --- | --- | --- | --- | --- |")
    for name, (workload, _, batches) in WORKLOADS.items():
        label = name.replace(" ", "-")
        grid = run(home / f"{label}-grid", workload, [1, 2, 4, 8, 16], list(batches), repeats=2, seconds=2)
        auto = run(home / f"{label}-auto", workload, "auto", list(batches), repeats=2, seconds=2)
        assert grid.answer.row is not None
        assert auto.answer.row is not None
        both = [(row.setting.workers, row.setting.batch_per_worker) for row in (grid.answer.row, auto.answer.row)]
        share = worker_s(auto) / worker_s(grid)
        fine = fine and both[0] == both[1] and share <= MOST_SHARE
        words = [f"{workers} x {batch}" for workers, batch in both]
        print(
            f"| {name} | {words[0]} | {words[1]} | {worker_s(grid):,.0f} | {worker_s(auto):,.0f} | {share:.0%} |",
            flush=True,
        )
    return fine


if __name__ == "__main__":
    place = Path(sys.argv[2]) if len(sys.argv) > 2 else Path(tempfile.mkdtemp(prefix="worldsize-cores-"))
    part = {"projection": projection, "adaptive": adaptive}.get(sys.argv[1] if len(sys.argv) > 1 else "")
    if part is None:
        sys.exit(__doc__)
    sys.exit(0 if part(place) else 1)
