"""Real scaling on the cores of this machine: a few counts measured, larger ones projected, then measured.

    python -m tests.bench.cores projection [FOLDER]     1, 2, 3, 4, 6 workers -> 8, 12, 16
    python -m tests.bench.cores adaptive [FOLDER]       workers: auto against the grid of 5 counts x 4 batches
    python -m tests.bench.cores crowds FOLDER           16 workers from fewer, for each batch of those grids
    python -m tests.bench.cores exchange                all-reduces of bare gloo on 2 to 16 processes
    python -m tests.bench.cores ladder [FOLDER]         1, 2, 3, 4, 6, 8 workers x 2 batches, as the CSV that
                                                        tests.bench.rules scores

Wants 16 quiet cores, and says what a hypervisor kept of them; gloo, one thread a worker. A FOLDER that holds the
measurements already is only read. Prints Markdown; exit code 1 when a target is missed.
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
from worldsize.analysis.projection import step_model as grounds
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
"""Name: the workload, the batch of the projection, the batches of the grid: such that no doubling of the best one gains
about the 1.33 times that decide, where two grids would not agree either."""
GRID = {"repeats": 3, "seconds": 1.5}
MOST_ERROR, LEAST_INSIDE, MOST_WIDTH, MOST_SHARE = 0.10, 6, 0.40, 0.40


def run(folder: Path, workload: str, workers: object, batches: object, *, repeats: float, seconds: float) -> Results:
    if (folder / "plan.json").exists() and _is_done(found := load(folder)):
        return found
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
    """An adaptive study may have stopped between two rounds."""
    return not results.left() and not (
        results.spec.adaptive and next_adaptive_round(results.spec, results.plan, results) is not None
    )


def projection(home: Path) -> bool:
    errors, widths, inside = [], [], 0
    disturbed = {}
    print("| workload | workers | projected samples/s (80 %) | measured | error | inside |")
    print("| --- | --- | --- | --- | --- | --- |")
    for name, (workload, batch, _) in WORKLOADS.items():
        label = name.replace(" ", "-")
        fitted = run(home / f"{label}-fitted", workload, list(FITTED), [batch], repeats=3, seconds=3)
        found = predict(fitted, Question(workers=ASKED))
        told = {option.workers: option.samples_per_s for option in found.options if not option.measured}
        truth = run(home / f"{label}-truth", workload, list(ASKED), [batch], repeats=3, seconds=3)
        disturbed[name] = kept(fitted, truth)
        for row in truth.rows:
            projected, measured = told[row.setting.workers], row.samples_per_s.value
            errors.append(projected.value / measured - 1)
            widths.append(projected.relative_width)
            low, high = projected.ends
            holds = low <= measured <= high
            inside += holds
            print(
                f"| {name} | {row.setting.workers} | {projected.value:,.0f} ({low:,.0f} to "
                f"{high:,.0f}) | {measured:,.0f} | {errors[-1]:+.1%} | {'yes' if holds else 'no'} |",
                flush=True,
            )
    error, width = float(np.median(np.abs(errors))), float(np.median(widths))
    print(f"\nmedian error {error:.1%}, {inside} of {len(errors)} inside, median width {width:.0%}")
    print(f"kept by the hypervisor: {'; '.join(f'{name} {share}' for name, share in disturbed.items())}")
    return error <= MOST_ERROR and inside >= LEAST_INSIDE and width <= MOST_WIDTH


def worker_s(results: Results) -> dict[Probe, float]:
    """Of the probes themselves."""
    found: dict[Probe, float] = {}
    for trial, record in results.records.items():
        spec = results.trials[trial]
        probe = spec.workers, spec.batch_per_worker
        found[probe] = found.get(probe, 0.0) + spec.workers * record.wall_s
    return found


def adaptive(home: Path) -> bool:
    fine = True
    print(HEADER)
    for name, (workload, _, batches) in WORKLOADS.items():
        label = name.replace(" ", "-")
        grid = run(home / f"{label}-grid", workload, list(COUNTS), list(batches), **GRID)
        auto = run(home / f"{label}-auto", workload, "auto", list(batches), **GRID)
        spent = [sum(worker_s(each).values()) for each in (grid, auto)]
        fine = told(name, [answer(list(each.setting_times)) for each in (grid, auto)], spent, kept(grid, auto)) and fine
    return fine


def crowds(home: Path) -> bool:
    """With the link as probed by the 6 workers of the projection: that of a grid was probed in the crowd itself."""
    print("| from | power | median error of the step | root mean square |\n| --- | --- | --- | --- |")
    lines, fine = list(_lines(home)), True
    for fitted in ((1, 2, 4), (1, 2, 4, 8)):
        for power in (1.0, 1.5, 1.75, grounds.TURNS, 2.25, 2.5):
            with unittest.mock.patch.object(grounds, "TURNS", power):
                off = np.array([_off(line, where, fitted) for line, where in lines])
            error, rms = float(np.median(np.abs(np.expm1(off)))), float(np.sqrt(np.mean(off**2)))
            print(f"| {', '.join(map(str, fitted))} | {power:g} | {error:.1%} | {rms:.1%} |", flush=True)
            fine = fine and (power != grounds.TURNS or error <= MOST_ERROR)
    return fine


def _off(line: dict[int, StepTiming], where: Node, fitted: tuple[int, ...]) -> float:
    """log(projected / measured) of a step of 16 workers."""
    model = fit_throughput([line[workers] for workers in fitted], where)
    return math.log(model.parts(16, line[16].batch_per_worker).step_s / line[16].step_s)


def _lines(home: Path) -> Iterator[tuple[dict[int, StepTiming], Node]]:
    """The counts of each batch."""
    for name, (workload, batch, batches) in WORKLOADS.items():
        label = name.replace(" ", "-")
        few = run(home / f"{label}-fitted", workload, list(FITTED), [batch], repeats=3, seconds=3)
        grid = run(home / f"{label}-grid", workload, list(COUNTS), list(batches), **GRID)
        steps = step_timings(grid, grid.rows[0].setting)
        for each in batches:
            line = {step.workers: step for step in steps if step.batch_per_worker == each}
            yield line, node(few, few.rows[0].setting, None)


LADDER = (1, 2, 3, 4, 6, 8)
LADDER_COLUMNS = (
    "workload,batch_per_worker,workers,repeat,step_s,local_s,load_s,cores_per_worker,latency_s,bandwidth,payload"
)


def ladder(home: Path) -> bool:
    """Prints one row per repeat of each setting: its median step, the parts of its steps, and the probed link."""
    print(LADDER_COLUMNS)
    for name, (workload, _, batches) in WORKLOADS.items():
        ends = [batches[0], batches[-1]]
        results = run(home / f"{name.replace(' ', '-')}-ladder", workload, list(LADDER), ends, repeats=3, seconds=1.5)
        timings = {(t.workers, t.batch_per_worker): t for t in step_timings(results, results.rows[0].setting)}
        where = node(results, results.rows[0].setting, None)
        wire = where.network.inside if where.network else None
        link = (wire.latency_s, wire.bandwidth_bytes_per_s) if wire else ("", "")
        parts = {step.setting: step.parts.of_repeats for step in results.steps}
        for row in results.rows:
            setting = row.setting
            cores = timings[setting.workers, setting.batch_per_worker].cores
            for repeat, log_step in row.pace.step.repeats.items():
                spans, step_s = parts[setting][repeat], math.exp(log_step)
                scale = step_s / sum(spans.values())
                away_s = spans.get("communication", 0.0) + spans.get("waiting", 0.0)
                values = (step_s, step_s - away_s * scale, spans.get("data", 0.0) * scale, cores or "", *link)
                head = f"{name},{setting.batch_per_worker},{setting.workers},{repeat}"
                numbers = ",".join(f"{value:.6g}" if value != "" else "" for value in values)
                print(f"{head},{numbers},{where.payload_bytes or 0:.0f}", flush=True)
        print(f"{name}: kept by the hypervisor {kept(results)}", file=sys.stderr)
    return True


HEADER = (
    "| workload | grid recommends | auto recommends | worker-seconds, grid | auto | share | kept by the hypervisor |\n"
    "| --- | --- | --- | --- | --- | --- | --- |"
)


def answer(points: list) -> Probe:  # type: ignore[type-arg]
    row = recommend(scaling(points, adaptive=True)).row
    assert row is not None
    return row.setting.workers, row.setting.batch_per_worker


def kept(*studies: Results) -> str:
    """Of the CPU time that was wanted, on the mean over the trials of each: who was disturbed saw another machine."""
    shares = [[found.share for found in each.stolen] for each in studies]
    return " and ".join(f"{np.mean(each):.1%}" if each else "not seen" for each in shares)


def told(name: str, answers: list[Probe], spent: list[float], disturbed: str) -> bool:
    words, share = [f"{workers} x {batch}" for workers, batch in answers], spent[1] / spent[0]
    print(
        f"| {name} | {words[0]} | {words[1]} | {spent[0]:,.0f} | {spent[1]:,.0f} | {share:.0%} | {disturbed} |",
        flush=True,
    )
    return answers[0] == answers[1] and share <= MOST_SHARE


def exchange(_: Path) -> bool:
    sweep()
    return True


if __name__ == "__main__":
    place = Path(sys.argv[2]) if len(sys.argv) > 2 else Path(tempfile.mkdtemp(prefix="worldsize-cores-"))
    parts = {"projection": projection, "adaptive": adaptive, "crowds": crowds, "exchange": exchange, "ladder": ladder}
    part = parts.get(sys.argv[1] if len(sys.argv) > 1 else "")
    if part is None:
        sys.exit(__doc__)
    sys.exit(0 if part(place) else 1)
