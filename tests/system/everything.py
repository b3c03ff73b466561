"""A document that has every figure and every table: made up, from known laws, for what must be shown of all of them."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np

from tests.made import Made, write_study
from worldsize.report.blocks import Document
from worldsize.report.document import document
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


def everything(folder: Path) -> Document:
    """Links, jobs, noise and the exchange have no files of their own here: they are put into the document."""
    made = Made(
        times=_times,
        noise=0.02,
        rank_noise=0.03,
        accuracy=_accuracy,
        telemetry={"process_cpu_s": 0.8, "process_memory_bytes": 4e8, "gpu_busy_percent": 71, "gpu_memory_bytes": 6e9},
        largest_rate=1.0,
        failing=("0003",),
    )
    found = document(write_study(folder / "study", STUDY, made))
    found["steps"] = [_exchanged(each) for each in found["steps"]]
    found["links"] = [_link()]
    job = {"job": "4711", "queued_s": 95.0, "attempts": 2, "reason": "time limit"}
    found["launches"] = [{**launch, **(job if launch is found["launches"][0] else {})} for launch in found["launches"]]
    found["tries"] = [{"workers": 1, "batch_per_worker": 8192, "outcome": "out_of_memory"}]
    trained = found["training"][0]
    steps = list(range(1, 200, 2))
    samples = [50.0 + 2.0 * step for step in steps]
    found["noise_over_time"] = [{**trained, "step": steps, "samples": samples}]
    found["noise_scale"] = [{**trained, "value": 400.0, "low": 300.0, "high": 520.0}]
    return found


def _times(trial: TrialSpec) -> dict[str, float]:
    computing = 0.004 + 0.01 * trial.samples_per_worker_step / 64
    parts = {"data": 0.02, "copy": 0.01, "forward": 0.45, "backward": 0.45, "optimizer": 0.05, "rest": 0.02}
    exchange = 0.0015 * math.log2(trial.workers) if trial.workers > 1 else 0.0
    return {**{name: computing * share for name, share in parts.items()}, "communication": exchange}


def _accuracy(trial: TrialSpec, steps: int) -> float:
    return 0.1 + 0.88 * (1 - math.exp(-3 * steps / (900 * (1 + 400 / trial.global_batch))))


def _exchanged(each: dict[str, Any]) -> dict[str, Any]:
    if each["setting"]["workers"] == 1:
        return each
    exposed = {"seconds": {"value": 0.002, "low": 0.0015, "high": 0.0025}, "with_s": 0.012, "without_s": 0.01}
    traffic = {"bytes": 4e6, "seconds": 0.004, "workers": each["setting"]["workers"], "algbw": 1e9, "busbw": 1.2e9}
    return {**each, "exposed": exposed, "traffic": traffic, "total_s": {"value": 0.004, "low": 0.003, "high": 0.005}}


def _link() -> dict[str, Any]:
    sizes = []
    for size in np.geomspace(1e3, 6.4e7, 9).astype(int).tolist():
        seconds = 2e-4 + size / 1e9
        time = {"value": seconds, "low": seconds * 0.9, "high": seconds * 1.1}
        one = {"size_bytes": size, "seconds": time}
        sizes.append(
            {**one, "repetitions": 40, "algbw_bytes_per_s": size / seconds, "busbw_bytes_per_s": size / seconds}
        )
    law = {"latency_s": {"value": 1e-4, "low": 9e-5, "high": 1.1e-4}}
    law["bandwidth_bytes_per_s"] = {"value": 1e9, "low": 9e8, "high": 1.1e9}
    return {"kind": "inside", "place": "", "workers": 2, **law, "sizes": sizes, "misfit": 0.01, "poor": False}
