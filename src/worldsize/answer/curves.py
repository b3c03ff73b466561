"""Data for figures beyond the tables: learning curves, overhead outside the step, one step in detail, telemetry."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from worldsize.analysis.estimate import log_interval, mean_interval
from worldsize.analysis.learning.noise_scale import noise_series, of_ranks
from worldsize.analysis.speed.breakdown import waiting_apart
from worldsize.answer.as_dict import flat_setting, plain
from worldsize.answer.from_records import TrialResult
from worldsize.answer.results import Results
from worldsize.folder.launches import launch_folders
from worldsize.folder.record import Epoch
from worldsize.spec.setting import Setting, setting_order

MOST_EPOCHS = 80
"""A longer curve is thinned to this many points, more densely at its beginning, where it changes most."""
MOST_SAMPLES = 150
"""Telemetry samples per device."""
MOST_RANKS = 16
MOST_NOISE = 8

Groups = dict[tuple[Setting, str], list[TrialResult]]


def ended(results: Results) -> list[TrialResult]:
    """Trials that ended with a usable outcome."""
    pairs = ((results.trials[trial_id], record) for trial_id, record in results.records.items())
    return [
        (trial, record)
        for trial, record in pairs
        if record.outcome not in ("failed", "out_of_memory") and trial.kind != "pretrain"
    ]


def by_variant(pairs: Sequence[TrialResult]) -> Groups:
    """Group training trials by setting and variant, in the order of the scaling table."""
    groups: Groups = defaultdict(list)
    for trial, record in pairs:
        if trial.kind == "train":
            groups[trial.setting, trial.variant].append((trial, record))
    return dict(sorted(groups.items(), key=lambda item: setting_order(item[0][0])))


def training(results: Results, groups: Groups) -> list[dict[str, Any]]:
    """Training time, final losses and final metric, over the repeats that learned."""
    metric = results.facts.metric
    rows = []
    for (setting, variant), pairs in groups.items():
        learned = [record for _, record in pairs if record.outcome in ("finished", "plateaued") and record.epochs]
        values: dict[str, list[float | None]] = {
            "train_s": [sum(epoch.train_s for epoch in record.epochs) for record in learned],
            "wall_s": [record.wall_s for record in learned],
            "epochs": [len(record.epochs) for record in learned],
            "train_loss": [record.epochs[-1].train_loss for record in learned],
            "test_loss": [record.metrics.get("loss") for record in learned],
            "metric": [record.metrics.get(metric) for record in learned],
        }
        peak = pairs[0][0].peak_lr
        rows.append(
            {
                **flat_setting(setting),
                "variant": variant,
                "peak_lr": peak,
                "repeats": len(pairs),
                "learned": len(learned),
                **{name: _estimate(numbers, by_factors=name != "metric") for name, numbers in values.items()},
            }
        )
    return rows


def _estimate(values: Sequence[float | None], *, by_factors: bool) -> dict[str, Any] | None:
    """Interval of the mean. `by_factors` keeps the interval of values that cannot be negative above 0."""
    known = [value for value in values if value is not None]
    if by_factors and all(value > 0 for value in known):
        return plain(log_interval(known)) if known else None
    return plain(mean_interval(known)) if known else None


def curves(results: Results, groups: Groups) -> list[dict[str, Any]]:
    """Learning curve of each variant: mean and range over the repeats that learned, at the epochs they all have.

    If none learned, the repeat that got furthest.
    """
    metric = results.facts.metric
    rows = []
    for (setting, variant), pairs in groups.items():
        diverged = [record for _, record in pairs if record.outcome == "diverged"]
        learned = [record.epochs for _, record in pairs if record.outcome != "diverged" and record.epochs]
        shown = learned or [max((record.epochs for record in diverged), key=len, default=())]
        length = min(map(len, shown), default=0)
        indices = thinned(length, MOST_EPOCHS)
        if not length and not diverged:
            continue
        steps = np.mean([np.cumsum([epoch.steps for epoch in epochs[:length]]) for epochs in shown], axis=0)
        rows.append(
            {
                **flat_setting(setting),
                "variant": variant,
                "family": pairs[0][0].optimizer.family,
                "rate": pairs[0][0].peak_lr,
                "repeats": len(pairs),
                "diverged": len(diverged),
                "diverged_at_steps": sorted(r.diverged_at_step for r in diverged if r.diverged_at_step is not None),
                "epochs": length,
                "epoch": [int(index) + 1 for index in indices],
                "step": [float(steps[index]) for index in indices],
                "train_loss": _over_repeats(shown, indices, lambda epoch: epoch.train_loss),
                "test_loss": _over_repeats(shown, indices, lambda epoch: epoch.test.get("loss")),
                "train_metric": _over_repeats(shown, indices, lambda epoch: epoch.train.get(metric)),
                "test_metric": _over_repeats(shown, indices, lambda epoch: epoch.test.get(metric)),
            }
        )
    return rows


def thinned(length: int, most: int) -> list[int]:
    """Indices to keep: all of a short series; always the first and the last."""
    if length <= most:
        return list(range(length))
    half = most // 2
    even = np.linspace(0, length - 1, half)
    early = np.geomspace(1, length, most - half) - 1
    return sorted({int(index) for index in np.concatenate([even, early])} | {0, length - 1})


def _over_repeats(shown: Sequence[Sequence[Epoch]], indices: Sequence[int], value: Any) -> dict[str, list[Any]] | None:
    """Mean, lowest and highest value at each index; None if nothing was measured."""
    rows = [[value(epochs[index]) for epochs in shown] for index in indices]
    known = [[number for number in row if number is not None] for row in rows]
    if not any(known):
        return None
    return {
        "value": [sum(row) / len(row) if row else None for row in known],
        "low": [min(row) if row else None for row in known],
        "high": [max(row) if row else None for row in known],
    }


def launches(results: Results) -> list[dict[str, Any]]:
    """Wall time of each launch by phase, on the driver's clock; for a job, also its time in the queue."""
    rows = []
    for folder in launch_folders(results.folder):
        launch, end = folder.launch, folder.end
        if launch is None or end is None:  # still running, or killed with its driver
            continue
        if end.phases_s is not None or end.job:
            rows.append(
                {
                    "launch": folder.name,
                    "kind": launch.kind,
                    "workers": launch.workers,
                    "place": launch.place,
                    "wall_s": end.wall_s,
                    "phases_s": dict(end.phases_s or {}),
                    "job": end.job,
                    "queued_s": end.queued_s,
                    "attempts": end.attempts,
                    "reason": end.reason,
                }
            )
    return rows


def one_step(results: Results, pairs: Sequence[TrialResult]) -> dict[str, Any] | None:
    """The median step at the largest worker count, where scaling ends, span by span for each rank.

    Ranks finish the exchange together, so the ranks are aligned at its end.
    """
    timed = [(trial, record) for trial, record in pairs if record.outcome != "diverged"]
    if not timed:
        return None
    trial, record = max(timed, key=lambda pair: (pair[0].workers, pair[0].kind == "probe", -pair[0].repeat))
    spans = results.folder.span_s(record)
    if trial.workers < 2 or not len(spans):
        return None
    step_s = spans.sum(axis=2).max(axis=1)
    step = int(np.argsort(step_s)[len(step_s) // 2])
    span_s = waiting_apart(record.columns, spans[step : step + 1])[0]
    names = [*record.columns, "waiting"] if span_s.shape[1] > len(record.columns) else list(record.columns)
    if "waiting" in names:  # a rank waits before the transfer
        order = [*range(names.index("communication")), names.index("waiting"), names.index("communication")]
        order += [index for index in range(len(names)) if index not in order]
        span_s, names = span_s[:, order], [names[index] for index in order]
    exchange_end_s = (
        span_s[:, : names.index("communication") + 1].sum(axis=1) if "communication" in names else span_s.sum(axis=1)
    )
    return {
        **flat_setting(trial.setting),
        "trial": trial.id,
        "step": step + record.warmup_steps,
        "step_s": float(step_s[step]),
        "spans": names,
        "begin_s": [float(late) for late in (exchange_end_s.max() - exchange_end_s)[:MOST_RANKS]],
        "of_ranks": span_s[:MOST_RANKS].tolist(),
        "ranks": trial.workers,
    }


def telemetry(results: Results, pairs: Sequence[TrialResult]) -> dict[str, Any] | None:
    """Load and memory of each device over time, for the longest trial on the most workers."""
    watched = [(trial, record) for trial, record in pairs if record.telemetry]
    if not watched:
        return None
    trial, record = max(watched, key=lambda pair: (pair[0].workers, pair[1].wall_s))
    rows = results.folder.telemetry(record)
    column = {name: index for index, name in enumerate(record.telemetry_columns)}
    on_gpu = "gpu_busy_percent" in column and any(
        np.isfinite(samples[:, column["gpu_busy_percent"]]).any() for samples in rows
    )
    devices = []
    for rank, samples in enumerate(rows[:MOST_RANKS]):
        kept = samples[np.unique(np.linspace(0, len(samples) - 1, min(len(samples), MOST_SAMPLES)).astype(int))]
        at_s = kept[:, column["at_s"]]
        if on_gpu:
            busy, memory = kept[:, column["gpu_busy_percent"]], kept[:, column["gpu_memory_bytes"]]
        else:
            busy = _rate(at_s, kept[:, column["process_cpu_s"]]) * 100
            memory = kept[:, column["process_memory_bytes"]]
        if np.isfinite(busy).any() or np.isfinite(memory).any():
            devices.append({"rank": rank, "at_s": _plain(at_s), "busy": _plain(busy), "memory_bytes": _plain(memory)})
    about = {**flat_setting(trial.setting), "trial": trial.id, "of": "gpu" if on_gpu else "process"}
    return {**about, "ranks": trial.workers, "devices": devices} if devices else None


def _rate(at_s: npt.NDArray[np.float64], counter: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Rate over the interval that ends at each sample; NaN for the first sample and for very short intervals."""
    gaps = np.diff(at_s)
    long_enough = gaps > 0.3 * float(np.median(gaps)) if len(gaps) else gaps > 0
    rates = np.divide(np.diff(counter), gaps, out=np.full(len(gaps), np.nan), where=long_enough & (gaps > 0))
    return np.concatenate([[np.nan], rates])


def _plain(values: npt.NDArray[np.float64]) -> list[float | None]:
    return [float(value) if np.isfinite(value) else None for value in values]


def noise_over_time(results: Results, groups: Groups) -> list[dict[str, Any]]:
    """Noise scale over the course of training, for the first repeat of each variant that recorded it."""
    rows: list[dict[str, Any]] = []
    for (setting, variant), pairs in groups.items():
        record = next((record for _, record in pairs if record.noise and record.outcome != "diverged"), None)
        if record is None or len(rows) == MOST_NOISE or setting.workers * setting.accumulation == 1:
            continue
        small, big = of_ranks(results.folder.noise(record))
        if len(big) < 2:
            continue
        series = noise_series(small, big, setting.global_batch / small.shape[1])
        indices = np.linspace(0, len(series) - 1, min(len(series), MOST_SAMPLES)).astype(int)
        values = _plain(series[indices])
        rows.append(
            {
                **flat_setting(setting),
                "variant": variant,
                "step": [int(index) + 1 for index in indices],
                "samples": [value if value is None or value > 0 else None for value in values],
            }
        )
    return rows
