"""Data over time: launches by phase, one step across ranks, load of the devices during a trial."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from worldsize.analysis.speed.breakdown import WAITING, separate_waiting
from worldsize.answer.from_records import TrialResult
from worldsize.answer.results import Results
from worldsize.folder.launches import launch_folders
from worldsize.spec.setting import Setting

MAX_SAMPLES = 150
"""Maximum number of telemetry samples per device."""
MAX_RANKS = 16


@dataclass(frozen=True, kw_only=True)
class LaunchTime:
    """Wall time of a launch by phase, on the driver's clock; for a batch job, also its time in the queue."""

    launch: str
    kind: str
    workers: int
    place: str
    wall_s: float
    """For a batch job, from its last start to its end."""
    phases_s: Mapping[str, float]
    """Empty if rank 0 ended before it could report them."""
    job: str | None
    """None if it was not a batch job."""
    queued_s: float | None
    """From submission to the first start."""
    attempts: int
    reason: str
    """Why the launch ended; empty if its own processes ended it."""


def launches(results: Results) -> list[LaunchTime]:
    """Return the launches that ended and either reported their phases or were batch jobs."""
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
    """Start time of each rank. Ranks finish the exchange together, so they are aligned at its end."""
    of_ranks: tuple[tuple[float, ...], ...]
    """Seconds of each span, for the first ranks."""


def one_step(results: Results, pairs: Sequence[TrialResult]) -> OneStep | None:
    """Return the median step at the largest worker count."""
    candidates = [(trial, record) for trial, record in pairs if record.outcome != "diverged"]
    if not candidates:
        return None
    trial, record = max(candidates, key=lambda pair: (pair[0].workers, pair[0].kind == "probe", -pair[0].repeat))
    spans = results.folder.span_s(record)
    if trial.workers < 2 or not len(spans):
        return None
    step_s = spans.sum(axis=2).max(axis=1)
    step = int(np.argsort(step_s)[len(step_s) // 2])
    span_s = separate_waiting(record.columns, spans[step : step + 1])[0]
    names = [*record.columns, WAITING] if span_s.shape[1] > len(record.columns) else list(record.columns)
    if WAITING in names:  # ranks wait before the transfer
        order = [*range(names.index("communication")), names.index(WAITING), names.index("communication")]
        order += [index for index in range(len(names)) if index not in order]
        span_s, names = span_s[:, order], [names[index] for index in order]
    exchange_end_s = (
        span_s[:, : names.index("communication") + 1].sum(axis=1) if "communication" in names else span_s.sum(axis=1)
    )
    return OneStep(
        setting=trial.setting,
        trial=trial.id,
        step=int(results.folder.counted_steps(record).steps[step]),
        step_s=float(step_s[step]),
        spans=tuple(names),
        begin_s=tuple((exchange_end_s.max() - exchange_end_s)[:MAX_RANKS].tolist()),
        of_ranks=tuple(map(tuple, span_s[:MAX_RANKS].tolist())),
    )


@dataclass(frozen=True, kw_only=True)
class DeviceLoad:
    """Load of one device over time; None where no value was recorded."""

    rank: int
    at_s: tuple[float, ...]
    """Seconds since the trial began."""
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
    """Return the load of the devices in the longest trial with the most workers."""
    with_telemetry = [(trial, record) for trial, record in pairs if record.telemetry]
    if not with_telemetry:
        return None
    trial, record = max(with_telemetry, key=lambda pair: (pair[0].workers, pair[1].wall_s))
    rows = results.folder.telemetry(record)
    column = {name: index for index, name in enumerate(record.telemetry_columns)}
    on_gpu = "gpu_busy_percent" in column and any(
        np.isfinite(samples[:, column["gpu_busy_percent"]]).any() for samples in rows
    )
    devices = []
    for rank, samples in enumerate(rows[:MAX_RANKS]):
        thinned = samples[np.unique(np.linspace(0, len(samples) - 1, min(len(samples), MAX_SAMPLES)).astype(int))]
        at_s = thinned[:, column["at_s"]]
        if on_gpu:
            busy, memory = thinned[:, column["gpu_busy_percent"]], thinned[:, column["gpu_memory_bytes"]]
        else:
            busy = _rate(at_s, thinned[:, column["process_cpu_s"]]) * 100
            memory = thinned[:, column["process_memory_bytes"]]
        if np.isfinite(busy).any() or np.isfinite(memory).any():
            load = DeviceLoad(
                rank=rank, at_s=tuple(at_s.tolist()), busy=_finite_or_none(busy), memory_bytes=_finite_or_none(memory)
            )
            devices.append(load)
    of: Literal["gpu", "process"] = "gpu" if on_gpu else "process"
    return Telemetry(setting=trial.setting, trial=trial.id, of=of, devices=tuple(devices)) if devices else None


def _rate(at_s: npt.NDArray[np.float64], counter: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Return the rate over the interval that ends at each sample; NaN for the first sample and over short intervals."""
    gaps = np.diff(at_s)
    long_enough = gaps > 0.3 * float(np.median(gaps)) if len(gaps) else gaps > 0
    rates = np.divide(np.diff(counter), gaps, out=np.full(len(gaps), np.nan), where=long_enough & (gaps > 0))
    return np.concatenate([[np.nan], rates])


def _finite_or_none(values: npt.NDArray[np.float64]) -> tuple[float | None, ...]:
    return tuple(float(value) if np.isfinite(value) else None for value in values)
