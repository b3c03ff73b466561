"""Batch size: throughput, utilization, memory and steps to the target by batch size; tables and figures."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

from worldsize.analysis.estimate import Estimate
from worldsize.analysis.speed.largest_batch import BatchRow
from worldsize.answer.evidence import Evidence
from worldsize.answer.laws import VariantBatchModel
from worldsize.answer.results import Results
from worldsize.report.blocks import Column, Table, how_columns, setting_columns, table
from worldsize.report.figures.model import Axis, Figure, Line, Panel, axis_for, batch_axis, color, line
from worldsize.report.sections.hardware import GPU_UTILIZATION, MFU
from worldsize.report.words.numbers import LEVEL_WORDS, counted, integer, whole
from worldsize.report.words.quantities import BATCH_PER_WORKER, EPOCH_TIME, RUNS, VARIANT, Quantity, throughput
from worldsize.report.words.settings import distinguished
from worldsize.spec.setting import Setting

MAX_SERIES = 6

GPU_MEMORY = Quantity(
    key="gpu_memory_bytes", title="peak GPU memory", short="peak GPU\nmemory, GB", unit="GB", factor=1e-9
)
PROCESS_MEMORY = Quantity(
    key="process_memory_bytes",
    title="memory of the largest process",
    short="process\nmemory, GB",
    unit="GB",
    factor=1e-9,
)
OUTCOME = Quantity(key="outcome", title="outcome")
FROM_BATCH = Quantity(key="smallest_batch", title="from batch", digits=integer)
TO_BATCH = Quantity(key="largest_batch", title="to batch", digits=integer)
S_MIN = Quantity(
    key="least_steps",
    title="S_min",
    unit="steps",
    digits=whole,
    about="Fewest steps to the target, with a very large batch.",
)
B_CRIT = Quantity(
    key="critical_batch",
    title="B_crit",
    unit="samples",
    digits=whole,
    about="Critical batch: the global batch at which reaching the target takes twice S_min steps.",
)
LAW = Quantity(key="law", title="follows the law")


@dataclass(frozen=True, kw_only=True)
class BatchUse:
    """Throughput and hardware use of a setting, or a setting that ran out of memory."""

    setting: Setting
    fits: bool = True
    samples_per_s: Estimate | None = None
    epoch_s: Estimate | None = None
    gpu_busy_percent: float | None = None
    mfu: Estimate | None = None
    gpu_memory_bytes: float | None = None
    process_memory_bytes: float | None = None
    repeats: int | None = None


def batch_rows(evidence: Evidence) -> list[BatchUse]:
    """Return the settings that fit in memory, including those of a search for the largest batch."""
    results = evidence.results
    usages = dict(results.hardware)
    tried = _tried(results)
    train_samples = results.facts.train_samples
    rows = []
    for row in results.rows:
        usage, attempt = usages.get(row.setting), tried.get(row.setting)
        # A search for the largest batch records memory but no telemetry.
        gpu_bytes, process_bytes = (
            (usage.gpu_memory_bytes, usage.process_memory_bytes) if usage else _memory_used(results, attempt)
        )
        rows.append(
            BatchUse(
                setting=row.setting,
                samples_per_s=row.samples_per_s,
                epoch_s=row.samples_per_s.time_for(train_samples),
                gpu_busy_percent=usage.gpu_busy_percent if usage else None,
                mfu=results.mfus.get(row.setting),
                gpu_memory_bytes=gpu_bytes,
                process_memory_bytes=process_bytes,
                repeats=row.repeats,
            )
        )
    measured = {row.setting for row in rows}
    for setting, attempt in tried.items():
        if (
            attempt.fits and attempt.samples_per_s and setting not in measured
        ):  # its step times were lost with its processes
            gpu_bytes, process_bytes = _memory_used(results, attempt)
            rows.append(
                BatchUse(
                    setting=setting,
                    samples_per_s=attempt.samples_per_s,
                    epoch_s=attempt.epoch_s,
                    gpu_memory_bytes=gpu_bytes,
                    process_memory_bytes=process_bytes,
                    repeats=attempt.tries,
                )
            )
    return rows


def _tried(results: Results) -> dict[Setting, BatchRow]:
    return {
        replace(search.setting, batch_per_worker=row.batch_per_worker): row
        for search in results.largest
        for row in search.rows
    }


def _memory_used(results: Results, attempt: BatchRow | None) -> tuple[float | None, float | None]:
    """Return the GPU memory and the process memory that a search recorded, in bytes."""
    memory_bytes = attempt.memory_bytes if attempt else None
    on_gpu = any(str(record.environment.get("device")).startswith("cuda") for record in results.records.values())
    return (memory_bytes, None) if on_gpu else (None, memory_bytes)


def out_of_memory(evidence: Evidence, rows: Sequence[BatchUse]) -> list[BatchUse]:
    """Return the settings that ran out of memory, in a search for the largest batch or in a trial, and never fit."""
    results = evidence.results
    trials = [results.trials[name] for name, record in results.records.items() if record.outcome == "out_of_memory"]
    failed = {setting for setting, attempt in _tried(results).items() if not attempt.fits}
    failed |= {trial.setting for trial in trials if not trial.largest}
    return [
        BatchUse(setting=setting, fits=False)
        for setting in sorted(failed - {row.setting for row in rows}, key=_workers_and_batch)
    ]


def _workers_and_batch(setting: Setting) -> tuple[int, int]:
    return setting.workers, setting.batch_per_worker


def batch(evidence: Evidence) -> Figure | None:
    """Draw throughput, utilization and memory by batch size, with crosses where memory ran out."""
    rows = sorted(batch_rows(evidence), key=lambda row: _workers_and_batch(row.setting))
    groups: dict[str, list[BatchUse]] = {}
    for row in rows:
        name = distinguished(row, rows, but=("batch_per_worker",)) or counted(row.setting.workers, "worker")
        groups.setdefault(name, []).append(row)
    too_large = out_of_memory(evidence, rows)
    shown = {name: group for name, group in list(groups.items())[:MAX_SERIES] if len(group) > 1 or too_large}
    if not shown:
        return None
    drawn = [row for group in shown.values() for row in group]
    axis = batch_axis([row.setting.batch_per_worker for row in (*drawn, *too_large)], BATCH_PER_WORKER.title)
    pace = throughput(evidence.results.facts)
    paces = _lines(shown, pace, lambda row: row.samples_per_s)
    panels = [
        Panel(x=axis, y=axis_for(pace.heading, paces, from_zero=True), marks=(*paces, *_crosses(too_large))),
        *_panel(shown, axis, GPU_UTILIZATION, lambda row: row.gpu_busy_percent, most=100.0),
        *(
            _panel(shown, axis, GPU_MEMORY, lambda row: row.gpu_memory_bytes)
            or _panel(shown, axis, PROCESS_MEMORY, lambda row: row.process_memory_bytes)
        ),
    ]
    best = max(drawn, key=lambda row: row.samples_per_s.value if row.samples_per_s else 0.0)
    assert best.samples_per_s is not None
    highest = pace.said(best.samples_per_s.value)
    title = f"Highest throughput at batch {best.setting.batch_per_worker:,} per worker: {highest}"
    if too_large:
        title += f"; batch {too_large[0].setting.batch_per_worker:,} runs out of memory"
    return Figure(
        key="batch",
        title=title,
        panels=tuple(panels),
        note="Where throughput no longer rises, a larger batch per worker only costs memory. "
        + f"Bands: {LEVEL_WORDS}s."
        + (" Crosses: out of memory." if too_large else ""),
    )


def _lines(
    shown: dict[str, list[BatchUse]], quantity: Quantity, of: Callable[[BatchUse], Estimate | float | None]
) -> list[Line]:
    lines = [
        line(
            name,
            group,
            quantity,
            x=lambda row: row.setting.batch_per_worker,
            y=of,
            lead=partial(_lead, name),
            after=lambda row: counted(row.repeats, "run") if row.repeats else "",
            color=color(index),
        )
        for index, (name, group) in enumerate(shown.items())
    ]
    return [drawn for drawn in lines if drawn.x]


def _lead(name: str, row: BatchUse) -> str:
    return f"{name}, batch {row.setting.batch_per_worker:,}"


def _crosses(too_large: Sequence[BatchUse]) -> list[Line]:
    """Return crosses on the x axis at the batches that did not fit."""
    if not too_large:
        return []
    settings = [row.setting for row in too_large]
    return [
        Line(
            name="out of memory",
            color="gray",  # not the color of a series
            connected=False,
            symbol="cross",
            x=tuple(setting.batch_per_worker for setting in settings),
            y=(0.0,) * len(settings),
            hover=tuple(
                f"batch {setting.batch_per_worker:,} per worker, {counted(setting.workers, 'worker')}\nout of memory"
                for setting in settings
            ),
        )
    ]


def _panel(
    shown: dict[str, list[BatchUse]],
    axis: Axis,
    quantity: Quantity,
    of: Callable[[BatchUse], float | None],
    most: float | None = None,
) -> list[Panel]:
    lines = _lines(shown, quantity, of)
    return [Panel(x=axis, y=Axis(title=quantity.heading, from_zero=True, most=most), marks=tuple(lines))] * bool(lines)


def batch_sheet(evidence: Evidence) -> Table | None:
    """Return throughput, memory and outcome of each batch size; None for a single one that fits."""
    fitting = batch_rows(evidence)
    too_large = out_of_memory(evidence, fitting)
    if len({row.setting.batch_per_worker for row in fitting}) < 2 and not too_large:
        return None
    rows = sorted((*fitting, *too_large), key=lambda row: _workers_and_batch(row.setting))
    on_gpu = any(row.gpu_memory_bytes is not None for row in rows)
    answer = evidence.results.answer.row
    chosen = answer.setting if answer and evidence.results.largest else None
    columns: list[Column[BatchUse]] = [
        *setting_columns(rows, global_batch=False),
        Column(quantity=throughput(evidence.results.facts), of=lambda row: row.samples_per_s),
        Column(quantity=EPOCH_TIME, of=lambda row: row.epoch_s),
        Column(quantity=GPU_UTILIZATION, of=lambda row: row.gpu_busy_percent, terminal=False),
        Column(quantity=MFU, of=lambda row: row.mfu, terminal=False),
        Column(quantity=GPU_MEMORY, of=lambda row: row.gpu_memory_bytes),
        Column(quantity=PROCESS_MEMORY, of=lambda row: row.process_memory_bytes, terminal=not on_gpu),
        Column(quantity=OUTCOME, of=lambda row: "fits" if row.fits else "out of memory", terminal=bool(too_large)),
        Column(quantity=RUNS, of=lambda row: row.repeats, terminal=False),
    ]
    return table(
        "batch",
        "Throughput and memory by batch size",
        rows,
        columns,
        note="Epoch: time for all training samples at this throughput, without loading the first batch or evaluation.",
        marked=next((row for row in rows if row.setting == chosen), None),
    )


FOLLOWED = {
    "holds": "yes",
    "steps-rise": "no: more steps at the largest batch",
    "examples-fall": "no: fewer samples at the largest batch",
}


def batch_model(evidence: Evidence) -> Table | None:
    """Return the law of steps to the target by batch size, fitted to each variant."""
    rows = evidence.batch_models
    columns: list[Column[VariantBatchModel]] = [
        Column(quantity=VARIANT, of=lambda row: row.variant),
        *how_columns(rows),
        Column(quantity=FROM_BATCH, of=lambda row: row.setting.global_batch),
        Column(quantity=TO_BATCH, of=lambda row: row.largest_batch),
        Column(quantity=S_MIN, of=lambda row: row.model.least_steps),
        Column(quantity=B_CRIT, of=lambda row: row.model.critical_batch),
        Column(quantity=LAW, of=lambda row: FOLLOWED[row.model.law]),
        Column(quantity=RUNS, of=lambda row: row.runs),
    ]
    return table(
        "batch-model",
        "Steps to the target by global batch",
        rows,
        columns,
        note="The law: steps to the target = S_min (1 + B_crit / global batch). Far below B_crit, doubling the batch "
        "halves the steps; far above it, a larger batch saves almost none. 80 % intervals. B_crit is searched from 1/8 "
        "of the smallest batch to 128 times the largest: an interval that ends at a limit may extend beyond it.",
    )
