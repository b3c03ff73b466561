"""Real scaling on the cores of this machine: measure a few counts, project larger ones, then measure those too.

    python -m tests.bench.cores projection [FOLDER]     1, 2, 3, 4, 6 workers -> 8, 12, 16
    python -m tests.bench.cores adaptive [FOLDER]       `workers: auto`, and the grid of 5 counts x 4 batches
    python -m tests.bench.cores crowds FOLDER           16 workers from fewer, for each batch of those grids
    python -m tests.bench.cores exchange                all-reduces with bare gloo on 2 to 16 processes
    python -m tests.bench.cores ladder [FOLDER]         1, 2, 3, 4, 6, 8 workers x 2 batches, as CSV

Needs 16 quiet cores, and shows how much CPU time a hypervisor took. Uses gloo with one thread per worker. If FOLDER
already has the measurements, it is only read. Prints Markdown. The exit code is 1 if a target is missed.
"""

from __future__ import annotations

import math
import sys
import tempfile
import unittest.mock
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from tests.bench.exchange import sweep
from worldsize.analysis.projection import step_model
from worldsize.analysis.projection.step_model import Node, StepTiming, fit_throughput
from worldsize.analysis.speed.adaptive import Probe
from worldsize.analysis.speed.recommend import recommend
from worldsize.analysis.speed.scaling import scaling
from worldsize.answer.from_records import node, step_timings
from worldsize.answer.predict.predict import predict
from worldsize.answer.predict.question import Question
from worldsize.answer.results import Results, load
from worldsize.study.adaptive_rounds import next_adaptive_round
from worldsize.study.study import Study

FITTED, ASKED, COUNTS = (1, 2, 3, 4, 6), (8, 12, 16), (1, 2, 4, 8, 16)
WORKLOADS = {
    "digits cnn": ("digits", 64, (4, 8, 16, 32)),
    "digits mlp": ("{name: digits, model: mlp}", 128, (32, 64, 128, 256)),
    "gpt": (
        "{name: gpt, data_options: {context: 64, length: 200000}, model_options: {layers: 4, width: 128, heads: 4}}",
        16,
        (2, 4, 8, 16),
    ),
}
"""The workload, the batch of the projection, and the batches of the grid, by name. The batches are chosen so that no
doubling of the best one gains about 1.33 times: there, two grids would not agree either."""
GRID = {"repeats": 3, "seconds": 1.5}
MOST_ERROR, LEAST_INSIDE, MOST_WIDTH, MOST_SHARE = 0.10, 6, 0.40, 0.40


def run(folder: Path, workload: str, workers: object, batches: object, *, repeats: float, seconds: float) -> Results:
    if (folder / "plan.json").exists() and _is_done(stored := load(folder)):
        return stored
    text = f"""\
name: {folder.name}
workload: {workload}
device: cpu
axes: {{workers: {workers}, batch_per_worker: {batches}}}
threads_per_worker: 1
probe: {{max_seconds: {seconds}, repeats: {repeats}}}
interconnect_probe_s: 2
"""
    return Study.from_text(text, folder=folder).run()


def _is_done(results: Results) -> bool:
    """Return whether the study is complete. An adaptive study may have stopped between two rounds."""
    return not results.left() and not (
        results.spec.adaptive and next_adaptive_round(results.spec, results.plan, results) is not None
    )


def projection(home: Path) -> bool:
    errors, widths, inside = [], [], 0
    stolen = {}
    print("| workload | workers | projected samples/s (80 %) | measured | error | inside |")
    print("| --- | --- | --- | --- | --- | --- |")
    for name, (workload, batch, _) in WORKLOADS.items():
        label = name.replace(" ", "-")
        fitted = run(home / f"{label}-fitted", workload, list(FITTED), [batch], repeats=3, seconds=3)
        prediction = predict(fitted, Question(workers=ASKED))
        rates = {option.workers: option.samples_per_s for option in prediction.options if not option.measured}
        truth = run(home / f"{label}-truth", workload, list(ASKED), [batch], repeats=3, seconds=3)
        stolen[name] = stolen_share(fitted, truth)
        for row in truth.rows:
            projected, measured = rates[row.setting.workers], row.samples_per_s.value
            errors.append(projected.value / measured - 1)
            widths.append(projected.relative_width)
            low, high = projected.ends
            is_inside = low <= measured <= high
            inside += is_inside
            print(
                f"| {name} | {row.setting.workers} | {projected.value:,.0f} ({low:,.0f} to "
                f"{high:,.0f}) | {measured:,.0f} | {errors[-1]:+.1%} | {'yes' if is_inside else 'no'} |",
                flush=True,
            )
    error, width = float(np.median(np.abs(errors))), float(np.median(widths))
    print(f"\nmedian error {error:.1%}, {inside} of {len(errors)} inside, median width {width:.0%}")
    print(f"taken by the hypervisor: {'; '.join(f'{name} {share}' for name, share in stolen.items())}")
    return error <= MOST_ERROR and inside >= LEAST_INSIDE and width <= MOST_WIDTH


def worker_s(results: Results) -> dict[Probe, float]:
    """Return the worker-seconds of each probe."""
    seconds: dict[Probe, float] = {}
    for trial, record in results.records.items():
        spec = results.trials[trial]
        probe = spec.workers, spec.batch_per_worker
        seconds[probe] = seconds.get(probe, 0.0) + spec.workers * record.wall_s
    return seconds


def adaptive(home: Path) -> bool:
    all_met = True
    print(HEADER)
    for name, (workload, _, batches) in WORKLOADS.items():
        label = name.replace(" ", "-")
        grid = run(home / f"{label}-grid", workload, list(COUNTS), list(batches), **GRID)
        auto = run(home / f"{label}-auto", workload, "auto", list(batches), **GRID)
        spent = [sum(worker_s(results).values()) for results in (grid, auto)]
        answers = [answer(list(results.setting_times)) for results in (grid, auto)]
        all_met = print_comparison(name, answers, spent, stolen_share(grid, auto)) and all_met
    return all_met


def crowds(home: Path) -> bool:
    """Project 16 workers with several values of the exponent.

    Uses the link as probed by the 6 workers of the projection, because 16 workers shared the link of a grid.
    """
    print("| from | power | median error of the step | root mean square |\n| --- | --- | --- | --- |")
    lines, all_met = list(_lines(home)), True
    for fitted in ((1, 2, 4), (1, 2, 4, 8)):
        for power in (1.0, 1.5, 1.75, step_model.TURNS, 2.25, 2.5):
            with unittest.mock.patch.object(step_model, "TURNS", power):
                off = np.array([_off(line, hardware, fitted) for line, hardware in lines])
            error, rms = float(np.median(np.abs(np.expm1(off)))), float(np.sqrt(np.mean(off**2)))
            print(f"| {', '.join(map(str, fitted))} | {power:g} | {error:.1%} | {rms:.1%} |", flush=True)
            all_met = all_met and (power != step_model.TURNS or error <= MOST_ERROR)
    return all_met


def _off(line: dict[int, StepTiming], hardware: Node, fitted: tuple[int, ...]) -> float:
    """Return log(projected / measured) for a step of 16 workers."""
    model = fit_throughput([line[workers] for workers in fitted], hardware)
    return math.log(model.parts(16, line[16].batch_per_worker).step_s / line[16].step_s)


def _lines(home: Path) -> Iterator[tuple[dict[int, StepTiming], Node]]:
    """Yield the steps of each batch by worker count, and the hardware."""
    for name, (workload, batch, batches) in WORKLOADS.items():
        label = name.replace(" ", "-")
        few = run(home / f"{label}-fitted", workload, list(FITTED), [batch], repeats=3, seconds=3)
        grid = run(home / f"{label}-grid", workload, list(COUNTS), list(batches), **GRID)
        steps = step_timings(grid, grid.rows[0].setting)
        for grid_batch in batches:
            line = {step.workers: step for step in steps if step.batch_per_worker == grid_batch}
            yield line, node(few, few.rows[0].setting, None)


LADDER = (1, 2, 3, 4, 6, 8)
LADDER_COLUMNS = (
    "workload,batch_per_worker,workers,repeat,step_s,local_s,load_s,cores_per_worker,latency_s,bandwidth,payload"
)


def ladder(home: Path) -> bool:
    """Print one row per repeat of each setting: its median step, the parts of its steps, and the probed link."""
    print(LADDER_COLUMNS)
    for name, (workload, _, batches) in WORKLOADS.items():
        ends = [batches[0], batches[-1]]
        results = run(home / f"{name.replace(' ', '-')}-ladder", workload, list(LADDER), ends, repeats=3, seconds=1.5)
        timings = {(t.workers, t.batch_per_worker): t for t in step_timings(results, results.rows[0].setting)}
        hardware = node(results, results.rows[0].setting, None)
        wire = hardware.network.inside if hardware.network else None
        link = (wire.latency_s, wire.bandwidth_bytes_per_s) if wire else ("", "")
        parts = {step.setting: step.parts.of_repeats for step in results.steps}
        for row in results.rows:
            setting = row.setting
            cores = timings[setting.workers, setting.batch_per_worker].cores
            for repeat, log_step in row.pace.step.repeats.items():
                spans, step_s = parts[setting][repeat], math.exp(log_step)
                scale = step_s / sum(spans.values())
                not_local_s = spans.get("communication", 0.0) + spans.get("waiting", 0.0)
                values = (step_s, step_s - not_local_s * scale, spans.get("data", 0.0) * scale, cores or "", *link)
                head = f"{name},{setting.batch_per_worker},{setting.workers},{repeat}"
                numbers = ",".join(f"{value:.6g}" if value != "" else "" for value in values)
                print(f"{head},{numbers},{hardware.payload_bytes or 0:.0f}", flush=True)
        print(f"{name}: taken by the hypervisor: {stolen_share(results)}", file=sys.stderr)
    return True


HEADER = (
    "| workload | grid recommends | auto recommends | worker-seconds, grid | auto | share | taken by the hypervisor |\n"
    "| --- | --- | --- | --- | --- | --- | --- |"
)


def answer(points: list) -> Probe:  # type: ignore[type-arg]
    row = recommend(scaling(points, adaptive=True)).row
    assert row is not None
    return row.setting.workers, row.setting.batch_per_worker


def stolen_share(*studies: Results) -> str:
    """Return the mean share of the demanded CPU time that a hypervisor took from the trials, per study."""
    shares = [[stolen.share for stolen in study.stolen] for study in studies]
    return " and ".join(f"{np.mean(of_study):.1%}" if of_study else "unknown" for of_study in shares)


def print_comparison(name: str, answers: list[Probe], spent: list[float], stolen: str) -> bool:
    """Print a row of the table, and return whether the target is met."""
    grid, auto = (f"{workers} x {batch}" for workers, batch in answers)
    share = spent[1] / spent[0]
    print(
        f"| {name} | {grid} | {auto} | {spent[0]:,.0f} | {spent[1]:,.0f} | {share:.0%} | {stolen} |",
        flush=True,
    )
    return answers[0] == answers[1] and share <= MOST_SHARE


def exchange(_: Path) -> bool:
    sweep()
    return True


if __name__ == "__main__":
    home = Path(sys.argv[2]) if len(sys.argv) > 2 else Path(tempfile.mkdtemp(prefix="worldsize-cores-"))
    parts = {"projection": projection, "adaptive": adaptive, "crowds": crowds, "exchange": exchange, "ladder": ladder}
    part = parts.get(sys.argv[1] if len(sys.argv) > 1 else "")
    if part is None:
        sys.exit(__doc__)
    sys.exit(0 if part(home) else 1)
