"""Measure the seconds from the start of torchrun to the end of the first step: our worker with ten probes, and a bare
script."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np

from tests.made import write_launch
from worldsize.folder.files import write_atomic
from worldsize.folder.record import SPAN_UNIT_S
from worldsize.folder.study_folder import StudyFolder
from worldsize.launch.commands import worker_environment
from worldsize.launch.local import LocalTarget
from worldsize.launch.target import PreparedLaunch
from worldsize.spec.optimizer import OptimizerSpec
from worldsize.spec.study import ProbeSpec, TrialSpec
from worldsize.spec.workload import WorkloadSpec

WORKERS, BATCH, PROBES = 2, 64, 10


def ours(path: Path) -> float:
    folder = StudyFolder(path)
    trials = [
        TrialSpec(
            id=f"{number:04d}",
            kind="probe",
            workload=WorkloadSpec(name="digits"),
            workers=WORKERS,
            batch_per_worker=BATCH,
            scaling="weak",
            optimizer=OptimizerSpec(lr=0.05, momentum=0.9),
            strategy="ddp",
            precision="fp32",
            peak_lr=0.0,
            repeat=number,
            seed=number,
            threads_per_worker=1,
            probe=ProbeSpec(max_seconds=0.1),
        )
        for number in range(PROBES)
    ]
    for trial in trials:
        write_atomic(folder.trial(trial.id) / "spec.json", trial.model_dump_json().encode())
    ids = [trial.id for trial in trials]
    launched_at = time.time()
    write_launch(folder.launch("0001"), workers=WORKERS, trials=tuple(ids), launched_at=launched_at)
    LocalTarget().start(PreparedLaunch.stored(folder, "0001", hang_timeout_s=120), lambda *_: None).wait()
    records = [folder.record(trial_id) for trial_id in ids]
    assert all(record is not None for record in records)
    first = records[0]
    assert first is not None
    spans = np.load(folder.trial(ids[0]) / first.spans[0].name)
    return first.started_at + first.phases_s["preparation"] + float(spans[0, 0]) * SPAN_UNIT_S - launched_at


def bare(path: Path) -> float:
    """Time a script written by hand: import torch, join gloo, run one step of the same model."""
    path.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={WORKERS}"]
    script = [str(Path(__file__).with_name("bare_script.py")), str(path / "first-step")]
    launched_at = time.time()
    subprocess.run([*command, *script], check=True, capture_output=True, env=os.environ | worker_environment(1))
    return float((path / "first-step").read_text()) - launched_at
