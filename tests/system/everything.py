"""A simulated study with every figure and every table, for tests that check all of them."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np

from tests.made import Made, write_end, write_study
from worldsize.answer.evidence import Evidence
from worldsize.answer.results import load
from worldsize.folder.launches import InterconnectFile, LaunchFolder, LinkSweep, LinkTimes, launch_folders
from worldsize.folder.record import SPAN_UNIT_S, ArrayFile, Try
from worldsize.folder.study_folder import StudyFolder, save_array
from worldsize.report.blocks import Report
from worldsize.report.pages import study_report
from worldsize.spec.study import TrialSpec

STUDY = """\
name: everything
workload: digits
axes:
  workers: [1, 2, 4]
  batch_per_worker: [32, 128]
  optimizer: [{name: momentum, lr: [0.0005, 3.0]}, {name: adam, lr: 0.001}]
probe: {max_seconds: 1}
train: {until: {metric: accuracy, at_least: 0.9, max_epochs: 60}, lr_rule: linear}
repeats: 2
"""
SCATTER = (0.9, 0.95, 1.0, 1.05, 1.1) * 8


def everything(folder: Path) -> Evidence:
    """Write a simulated study with links, a job, gradient noise, the exchange, and a batch that does not fit."""
    made = Made(
        times=_times,
        noise=0.02,
        rank_noise=0.03,
        accuracy=_accuracy,
        telemetry={"process_cpu_s": 0.8, "process_memory_bytes": 4e8, "gpu_busy_percent": 71, "gpu_memory_bytes": 6e9},
        largest_rate=1.0,
        failing=("0003",),
    )
    results = write_study(folder / "study", STUDY, made)
    for name, record in results.records.items():
        trial = results.trials[name]
        if record.outcome == "failed":
            tries = (Try(batch_per_worker=8192, outcome="out_of_memory"),)
            results.folder.write_record(record.model_copy(update={"tries": tries}))
        elif trial.workers > 1:
            measured = _exchange(results.folder, trial) if trial.kind == "probe" else _noise(results.folder, trial)
            results.folder.write_record(record.model_copy(update=measured))
    queued, linked = (results.folder.launch(launch.name) for launch in launch_folders(results.folder)[:2])
    phases = {"process start": 4.0, "training": 10.0}
    write_end(queued, phases_s=phases, job="4711", queued_s=95.0, attempts=2, reason="time limit")
    LaunchFolder(linked).write(InterconnectFile(hosts=("here", "here"), sweep=_sweep()))
    return Evidence(load(results.folder.path))


def report_of_everything(folder: Path) -> Report:
    return study_report(everything(folder), live=False)


def _times(trial: TrialSpec) -> dict[str, float]:
    computing = 0.004 + 0.01 * trial.samples_per_worker_step / 64
    parts = {"data": 0.02, "copy": 0.01, "forward": 0.45, "backward": 0.45, "optimizer": 0.05, "rest": 0.02}
    exchange = 0.0015 * math.log2(trial.workers) if trial.workers > 1 else 0.0
    return {**{name: computing * share for name, share in parts.items()}, "communication": exchange}


def _accuracy(trial: TrialSpec, steps: int) -> float:
    return 0.1 + 0.88 * (1 - math.exp(-3 * steps / (900 * (1 + 400 / trial.global_batch))))


def _exchange(home: StudyFolder, trial: TrialSpec) -> dict[str, Any]:
    """Write steps of 12 ms with the exchange of gradients, and of 10 ms without."""
    kinds = np.tile([1, 0, 0, 1], 10)
    noise = np.random.default_rng([trial.workers, trial.repeat]).normal(1, 0.02, len(kinds))
    steps = np.where(kinds, 0.012, 0.010) * noise / SPAN_UNIT_S
    rows = np.stack([kinds, np.round(steps)], axis=1).astype(np.uint32)
    exposed = _saved(home, trial, "exposed", rows)
    return {"exposed": exposed, "exchange": {"total_s": 0.004 * (1 + 0.05 * trial.repeat), "bytes": 4e6}}


def _noise(home: StudyFolder, trial: TrialSpec) -> dict[str, Any]:
    """Write squared norms of gradients with a noise scale of 400."""
    rng = np.random.default_rng([trial.workers, trial.repeat, trial.batch_per_worker])
    norms = [1 + 400 / trial.batch_per_worker, 1 + 400 / trial.global_batch]
    return {"noise": _saved(home, trial, "noise", (norms * rng.normal(1, 0.05, (200, 2))).astype(np.float32))}


def _saved(home: StudyFolder, trial: TrialSpec, name: str, rows: np.ndarray) -> tuple[ArrayFile, ...]:
    paths = (home.trial(trial.id) / f"{name}-rank{rank:02d}.npy" for rank in range(trial.workers))
    return tuple(save_array(path, rank, rows) for rank, path in enumerate(paths))


def _sweep() -> LinkSweep:
    sizes = np.geomspace(1e3, 6.4e7, 9).astype(int).tolist()
    seconds = {size: tuple((2e-4 + size / 1e9) * factor for factor in SCATTER) for size in sizes}
    times = [LinkTimes(kind="inside", host="here", workers=2, size_bytes=size, seconds=seconds[size]) for size in sizes]
    return LinkSweep(budget_s=1.0, took_s=1.0, times=tuple(times))
