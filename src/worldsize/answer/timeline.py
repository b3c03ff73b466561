"""When things happened: launches by phase, one step across ranks, load of the devices while it trained."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from worldsize.analysis.speed.breakdown import WAITING, waiting_apart
from worldsize.answer.from_records import TrialResult
from worldsize.answer.results import Results
from worldsize.folder.launches import launch_folders
from worldsize.spec.setting import Setting

MOST_SAMPLES = 150
"""Telemetry samples per device."""
MOST_RANKS = 16


@dataclass(frozen=True, kw_only=True)
class LaunchTime:
    """Wall time of a launch by phase, on the driver's clock; for a job, also its time in the queue."""

    launch: str
    kind: str
    workers: int
    place: str
    wall_s: float
    """For a job, from its last start to its end."""
    phases_s: Mapping[str, float]
    """Empty: rank 0 ended before it could say."""
    job: str | None
    """None: it was not a job."""
    queued_s: float | None
    """From submission to the first start."""
    attempts: int
    reason: str
    """Why it ended; empty if its own processes ended it."""


def launches(results: Results) -> list[LaunchTime]:
    """Launches that ended and said where their time went, or were jobs."""
    rows = []
    for folder in launch_folders(results.folder):
        launch, end = folder.launch, folder.end
        if launch is None or end is None:  # still running, or killed with its driver
            continue
        if end.phases_s is not None or end.job:
            rows.append(
                LaunchTime(
                    launch=folder.name,
                    kind=launch.kind,
                    workers=launch.workers,
                    place=launch.place,
                    wall_s=end.wall_s,
                    phases_s=dict(end.phases_s or {}),
                    job=end.job,
                    queued_s=end.queued_s,
                    attempts=end.attempts,
                    reason=end.reason,
                )
            )
    return rows


@dataclass(frozen=True, kw_only=True)
class OneStep:
    """The median step of a trial, span by span for each rank."""

    setting: Setting
    trial: str
    step: int
    step_s: float
    spans: tuple[str, ...]
    begin_s: tuple[float, ...]
    """When each rank begins. Ranks finish the exchange together, so they are aligned at its end."""
    of_ranks: tuple[tuple[float, ...], ...]
    """Seconds of each span, for the first ranks."""


def one_step(results: Results, pairs: Sequence[TrialResult]) -> OneStep | None:
    """The median step at the largest worker count, where scaling ends."""
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
    names = [*record.columns, WAITING] if span_s.shape[1] > len(record.columns) else list(record.columns)
    if WAITING in names:  # a rank waits before the transfer
        order = [*range(names.index("communication")), names.index(WAITING), names.index("communication")]
        order += [index for index in range(len(names)) if index not in order]
        span_s, names = span_s[:, order], [names[index] for index in order]
    exchange_end_s = (
        span_s[:, : names.index("communication") + 1].sum(axis=1) if "communication" in names else span_s.sum(axis=1)
    )
    return OneStep(
        setting=trial.setting,
        trial=trial.id,
        step=step + record.warmup_steps,
        step_s=float(step_s[step]),
        spans=tuple(names),
        begin_s=tuple((exchange_end_s.max() - exchange_end_s)[:MOST_RANKS].tolist()),
        of_ranks=tuple(map(tuple, span_s[:MOST_RANKS].tolist())),
    )


@dataclass(frozen=True, kw_only=True)
class DeviceLoad:
    """Load of one device over time; None: not seen at that moment."""

    rank: int
    at_s: tuple[float, ...]
    """Since the trial began."""
    busy: tuple[float | None, ...]
    """Percent: utilization of a GPU, or share of a core that a process used."""
    memory_bytes: tuple[float | None, ...]


@dataclass(frozen=True, kw_only=True)
class Telemetry:
    """Load and memory of the first devices of a trial, thinned."""

    setting: Setting
    trial: str
    of: Literal["gpu", "process"]
    devices: tuple[DeviceLoad, ...]


def telemetry(results: Results, pairs: Sequence[TrialResult]) -> Telemetry | None:
    """The devices of the longest trial on the most workers."""
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
            load = DeviceLoad(rank=rank, at_s=tuple(at_s.tolist()), busy=_seen(busy), memory_bytes=_seen(memory))
            devices.append(load)
    of: Literal["gpu", "process"] = "gpu" if on_gpu else "process"
    return Telemetry(setting=trial.setting, trial=trial.id, of=of, devices=tuple(devices)) if devices else None


def _rate(at_s: npt.NDArray[np.float64], counter: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Rate over the interval that ends at each sample; NaN for the first sample and for very short intervals."""
    gaps = np.diff(at_s)
    long_enough = gaps > 0.3 * float(np.median(gaps)) if len(gaps) else gaps > 0
    rates = np.divide(np.diff(counter), gaps, out=np.full(len(gaps), np.nan), where=long_enough & (gaps > 0))
    return np.concatenate([[np.nan], rates])


def _seen(values: npt.NDArray[np.float64]) -> tuple[float | None, ...]:
    return tuple(float(value) if np.isfinite(value) else None for value in values)
