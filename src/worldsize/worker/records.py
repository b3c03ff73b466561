"""Make the record of a trial from its measurements, and save its arrays and weights."""

from __future__ import annotations

import hashlib
import os
import platform
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from pydantic import JsonValue
from torch import nn

from worldsize import __version__
from worldsize.folder.record import SPANS, ArrayFile, TrialRecord
from worldsize.folder.study_folder import StudyFolder, save_array
from worldsize.worker import models
from worldsize.worker.loop import Result, Trainer
from worldsize.worker.measure.flops import count_flop, peak_flops
from worldsize.worker.measure.telemetry import COLUMNS
from worldsize.worker.workloads.base import batch


@dataclass(frozen=True, kw_only=True)
class Measurements:
    """What rank 0 knows about a finished trial, in addition to its Trainer."""

    result: Result
    arrays: Mapping[str, tuple[ArrayFile, ...]]
    """Saved arrays by name, one file per rank."""
    trained_model: nn.Module | None
    """None if its weights are not saved."""
    started_at: float
    phases_s: Mapping[str, float]
    environment: Mapping[str, Any]


class Recorder:
    """Makes the records of the trials of a launch, on rank 0."""

    def __init__(self, folder: StudyFolder, launch_id: str) -> None:
        self._folder, self._launch_id = folder, launch_id
        self._compute_facts: dict[str, dict[str, JsonValue]] = {}

    def record(self, trainer: Trainer, measured: Measurements) -> TrialRecord:
        """Save losses and weights, and return the record. The caller writes it last."""
        trial, result, arrays = trainer.trial, measured.result, measured.arrays
        losses = np.concatenate([np.zeros(0, np.float32), *trainer.losses])
        tries = [
            attempt.model_copy(update={"spans": arrays.get(f"spans-b{attempt.batch_per_worker}", ())})
            for attempt in result.tries
        ]
        return TrialRecord(
            trial=trial.id,
            outcome=result.outcome,
            launch=self._launch_id,
            started_at=measured.started_at,
            wall_s=sum(measured.phases_s.values()),
            phases_s=dict(measured.phases_s),
            columns=SPANS,
            warmup_steps=result.warmup_steps,
            spans=arrays.get("spans", ()),
            blocks=self._save_blocks(trial.id, result),
            tries=tuple(tries),
            exposed=arrays.get("exposed", ()),
            noise=arrays.get("noise", ()),
            compute=self.compute_facts(trainer) if trial.kind == "probe" else {},
            telemetry=arrays["telemetry"],
            telemetry_columns=COLUMNS,
            exchange=trainer.strategy.exchange_facts() if "exposed" in arrays else {},
            losses=save_array(self._folder.trial(trial.id) / "losses.npy", 0, losses),
            weights=self._save_weights(trial.id, measured),
            transfer=trainer.left_out,
            known=trainer.workload.theory,
            samples=trainer.samples,
            epochs=result.epochs,
            diverged_at_step=result.diverged_at_step,
            precision_reached=result.precision_reached,
            environment=dict(measured.environment),
        )

    def compute_facts(self, trainer: Trainer) -> dict[str, JsonValue]:
        """Return FLOP per sample, peak FLOP/s of the device and bytes of gradients, computed once per workload."""
        trial, workload, module = trainer.trial, trainer.workload, trainer.strategy.module
        key = f"{trial.precision} {trial.workload.model_dump_json()}"
        if key not in self._compute_facts:
            inputs, targets = batch(workload.train, torch.arange(min(4, len(workload.train))), trainer.team.device)
            flop = count_flop(module, workload.loss, workload.prepare(inputs), targets)
            peak = peak_flops(trainer.team.device, trial.precision, flop.in_convolutions)
            trainable = [parameter for parameter in module.parameters() if parameter.requires_grad]
            facts: dict[str, JsonValue] = {
                "flop_per_sample": flop.per_sample,
                "flop_unknown": flop.reason,
                "gradient_bytes": sum(parameter.numel() * parameter.element_size() for parameter in trainable),
            }
            if peak is not None:
                facts |= {"peak_flop_s": peak.flop_s, "peak_source": peak.source}
            self._compute_facts[key] = facts
        return self._compute_facts[key]

    def _save_blocks(self, trial_id: str, result: Result) -> ArrayFile | None:
        if result.blocks is None:
            return None
        return save_array(self._folder.trial(trial_id) / "blocks.npy", 0, result.blocks)

    def _save_weights(self, trial_id: str, measured: Measurements) -> ArrayFile | None:
        if measured.trained_model is None or measured.result.outcome == "diverged":
            return None
        path = self._folder.trial(trial_id) / "weights.pt"
        models.save_weights(measured.trained_model, path)
        return ArrayFile(rank=0, name=path.name, sha256=hashlib.sha256(path.read_bytes()).hexdigest())


def save_arrays(
    folder: Path, trainer: Trainer, result: Result, telemetry: npt.NDArray[np.float64]
) -> dict[str, dict[str, Any]]:
    """Save the arrays of this rank, and return their files by name. All ranks save the same arrays."""
    trial, rank = trainer.trial, trainer.team.rank
    arrays: dict[str, npt.NDArray[Any] | None] = {
        "spans": None if trial.largest else trainer.clock.spans(),
        **{f"spans-b{size}": spans for size, spans in result.spans_of_tries.items()},
        "exposed": result.exposed,
        "noise": trainer.noise.rows() if trial.train and trial.train.measure_noise_scale else None,
        "telemetry": telemetry,
    }
    return {
        name: save_array(folder / f"{name}-rank{rank:02d}.npy", rank, array).model_dump(mode="json")
        for name, array in arrays.items()
        if array is not None
    }


def environment(device: torch.device, backend: str) -> dict[str, Any]:
    """Return the hardware and software of a trial: what is needed to repeat it, or to explain differences."""
    facts: dict[str, Any] = {
        "host": socket.gethostname(),
        "cpu": _cpu_model(),
        "cores": len(os.sched_getaffinity(0)),
        "host_cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "keeps_freed_memory": "MALLOC_TRIM_THRESHOLD_" in os.environ,
        "device": device.type,
        "backend": backend,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": np.__version__,
        "worldsize": __version__,
        "system": f"{platform.system()} {platform.release()}",
    }
    if device.type == "cuda":
        facts["gpus"] = torch.cuda.device_count()
        facts["gpu"] = torch.cuda.get_device_name(device)
        facts["gpu_memory_gib"] = round(torch.cuda.get_device_properties(device).total_memory / 1024**3, 1)
        facts["cuda"] = torch.version.cuda
        facts["nccl"] = ".".join(str(number) for number in torch.cuda.nccl.version())
    return facts


def _cpu_model() -> str:
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        return platform.processor()
    names = [line.partition(":")[2].strip() for line in text.splitlines() if line.startswith("model name")]
    return names[0] if names else platform.machine()
