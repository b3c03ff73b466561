"""Study folders made without any worker: real files, numbers from known laws, seeded. For tests of reports."""

from __future__ import annotations

import math
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from worldsize.catalog import WorkloadFacts
from worldsize.plan import make_plan
from worldsize.record import SPAN_UNIT_S, SPANS, Epoch, Failure, TrialRecord
from worldsize.spec import StudySpec, TrialSpec
from worldsize.store import StudyFolder, save_array, write_atomic, write_json
from worldsize.studyfile import StudyFile, dump_yaml

STUDY = """\
name: made
workload: digits
axes:
  workers: [1, 2, 4]
  batch_per_worker: [64]
  optimizer: [{name: momentum, rate: 0.05}]
probe: {max_seconds: 1}
train: {epochs: 30}
repeats: 2
oversubscribe: true
"""
FACTS = WorkloadFacts(
    title="digits",
    train_samples=12_000,
    test_samples=2_000,
    metric="accuracy",
    metrics=("loss", "accuracy"),
    train_flop_per_sample=1e6,
)
STEPS = 30
COLUMNS = ("at_s", "samples", "process_cpu_s", "process_memory_bytes")


def made_study(
    folder: Path, text: str = STUDY, *, failing: tuple[str, ...] = (), environment: Any = None
) -> StudyFolder:
    """Speedup n^0.9; the loss falls as exp(-epoch); a rate above 1 diverges; trials numbered in `failing` fail."""
    spec = StudyFile(text, "made").spec()
    plan = make_plan(spec)
    home = StudyFolder(folder)
    estimate = {"wall_s": 1.0, "worker_s": 1.0, "measured": False}
    write_json(home.plan_file, {**plan.to_dict(), "device": "cpu", "facts": asdict(FACTS), "estimate": estimate})
    for number, launch in enumerate(plan.launches, start=1):
        name = f"{number:04d}-{launch.kind}-w{launch.workers}"
        phases = {"process start": 4.0, "training": 10.0, "evaluation": 2.0, "saving": 0.1, "process end": 0.5}
        write_json(home.launch(name) / "end.json", {"wall_s": sum(phases.values()), "phases_s": phases})
        for trial_id in launch.trials:
            failed = trial_id.split("-")[0] in failing
            _record(home, spec, plan.trials[trial_id], name, failed, environment or {"host": "here", "torch": "2.13"})
    write_atomic(home.study_file, dump_yaml(spec).encode())
    return home


def _record(home: StudyFolder, spec: StudySpec, trial: TrialSpec, launch: str, failed: bool, environment: Any) -> None:
    rng = np.random.default_rng([trial.seed, trial.workers, trial.repeat, len(trial.id)])
    path = home.trial(trial.id)
    path.mkdir(parents=True)
    common: dict[str, Any] = {
        "trial": trial.id,
        "launch": launch,
        "started_at": 1.79e9,
        "wall_s": 20.0,
        "environment": environment,
    }
    if failed:
        log = ("loading", "<script>alert('log')</script>", "RuntimeError: planted")
        home.write_record(
            TrialRecord(
                **common,
                outcome="failed",
                failure=Failure(rank=0, step=3, error="RuntimeError: <b>planted</b>", log=log),
            )
        )
        return
    step_s = 0.01 * trial.worker_batch / 64 * trial.workers**0.1
    shares = np.array([0.02, 0.01, 0.4, 0.4, 0.1 if trial.workers > 1 else 0.0, 0.05, 0.02])
    spans, telemetry = [], []
    for rank in range(trial.workers):
        noise = np.exp(rng.normal(0, 0.03, (STEPS, len(SPANS))))
        spans.append(
            save_array(
                path / f"spans-rank{rank:02d}.npy", rank, (step_s * shares * noise / SPAN_UNIT_S).astype(np.uint32)
            )
        )
        at_s = np.linspace(0, 20, 40)
        rows = np.stack([at_s, at_s * 100, at_s * 0.8, np.full(40, 4e8)], axis=1)
        telemetry.append(save_array(path / f"telemetry-rank{rank:02d}.npy", rank, rows))
    diverged = trial.peak_rate > 1
    home.write_record(
        TrialRecord(
            **common,
            outcome="diverged" if diverged else "finished",
            columns=SPANS,
            warmup_steps=5,
            spans=tuple(spans),
            telemetry=tuple(telemetry),
            telemetry_columns=COLUMNS,
            phases_s={"preparation": 1.0, "training": 15.0, "evaluation": 4.0},
            samples=1000,
            epochs=_epochs(spec, trial, rng, diverged),
            diverged_at_step=7 if diverged else None,
        )
    )


def _epochs(spec: StudySpec, trial: TrialSpec, rng: np.random.Generator, diverged: bool) -> tuple[Epoch, ...]:
    if trial.kind != "train" or spec.train is None:
        return ()
    count = 2 if diverged else spec.train.epochs or 1
    found = []
    for epoch in range(count):
        loss = (
            10.0 ** (epoch * 3)
            if diverged
            else 0.1 + 2 * math.exp(-epoch / (1 + trial.workers / 4)) + 0.01 * float(rng.random())
        )
        tested = {"loss": loss, "accuracy": max(0.1, 1 - loss / 3)}
        trained = {"loss": loss * 0.9, "accuracy": max(0.1, 1 - loss / 3.3)}
        found.append(
            Epoch(
                epoch=epoch,
                steps=50,
                samples=3200,
                train_loss=loss * 1.1,
                test=tested,
                train=trained,
                train_s=10 / trial.workers**0.9,
                evaluation_s=1.0,
            )
        )
    return tuple(found)


HOSTILE = '"><img src=x onerror=alert(1)></script><script>alert(2)</script>\u2028|`*_[x](y)$\\x&#{}^~%;=1+1\x1b[31m\x00'
STRUCTURE = ("kind", "outcome", "scaling", "verdict", "code", "of", "command_kind")
"""Values that the program itself chooses among, not text from outside."""


def hostile(value: Any, key: str = "") -> Any:
    """The same document, with every text that could come from outside replaced; also names that are keys."""
    if isinstance(value, dict):
        keyed = key in ("metrics", "configuration") or (key == "environments")
        return {(f"{HOSTILE}{name}" if keyed else name): hostile(each, name) for name, each in value.items()}
    if isinstance(value, list):
        return [hostile(each, key) for each in value]
    if isinstance(value, str) and key not in (*STRUCTURE, "spans"):
        return f"={HOSTILE}{value}"
    return value
