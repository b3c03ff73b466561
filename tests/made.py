"""Write study folders of simulated machines with known laws: real plans and records, made-up times, no processes."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, is_dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, Literal, TypeVar, cast, get_origin, get_type_hints

import numpy as np

from worldsize.analysis.estimate import Estimate
from worldsize.analysis.speed.breakdown import Exposed, StepParts, Traffic
from worldsize.analysis.speed.network import Link, Wire, fit_link, ring_allreduce_s
from worldsize.answer.results import Results, load
from worldsize.folder.launches import LaunchEnd, LaunchFile, LaunchFolder
from worldsize.folder.record import SPAN_UNIT_S, SPANS, ArrayFile, Epoch, Failure, TrialRecord
from worldsize.folder.study_folder import StudyFolder, save_array
from worldsize.machine import Machine
from worldsize.plan.plan import Launch, Plan
from worldsize.spec.file import StudyFile
from worldsize.spec.study import TrialSpec
from worldsize.spec.training import steps_per_epoch
from worldsize.study.study import Study

STEPS = 60
Times = Callable[[TrialSpec], Mapping[str, float]]
"""Seconds of each span of a step, by name. Missing spans are 0."""
Curve = Callable[[TrialSpec, int], float]
"""The metric after a number of steps."""


@dataclass(frozen=True, kw_only=True)
class Made:
    """The laws of a simulated machine."""

    times: Times
    noise: float = 0.01
    rank_noise: float = 0.0
    """Noise of every span on every rank. If 0, all ranks measure the same times."""
    accuracy: Curve = field(default=lambda *_: 0.9)
    overhead_s: Mapping[str, float] = field(default_factory=lambda: {"preparation": 1.0, "evaluation": 0.5})
    environment: Mapping[str, object] = field(default_factory=lambda: {"device": "cpu", "cores": 16})
    gradient_bytes: float = 1e6
    telemetry: Mapping[str, float] = field(default_factory=dict)
    """Value of each column; for a counter (`..._s`), its growth per second. Empty for no telemetry."""
    largest_rate: float = math.inf
    """The learning rate above which training diverges."""
    failing: tuple[str, ...] = ()
    """Numbers of trials that fail."""


def write_study(folder: Path, text: str, made: Made, machine: Machine | None = None) -> Results:
    """Write a study with all trials of its first plan, and load its results."""
    study = Study.from_text(text, folder=folder, machine=machine or Machine(cores=16, gpus=0))
    study._write()
    run_plan(StudyFolder(folder), study.plan, made, study)
    return load(folder)


def study_set(text: str, *assignments: str, **options: Any) -> Study:
    """Return a study after assignments like those of `--set`."""
    file = StudyFile(text, "study")
    for assignment in assignments:
        file.override_text(assignment)
    return Study(file, **options)


def run_plan(home: StudyFolder, plan: Plan, made: Made, study: Study) -> None:
    """Write launches, and records for the trials without one. Launches do not have a place."""
    for number, launch in enumerate(plan.launches, start=1):
        name = f"{number:04d}-{launch.kind}-w{launch.workers}"
        write_launch(home.launch(name), kind=launch.kind, workers=launch.workers, trials=launch.trials)
        _end(home, name, launch)
        for trial_id in launch.trials:
            if not home.has_record(trial_id):
                home.write_record(_record(home, plan.trials[trial_id], name, made, study))


def write_launch(path: Path, **changes: Any) -> None:
    """Write launch.json: a probe launch of 2 workers on CPUs, unless `changes` say otherwise."""
    common: dict[str, Any] = {
        "kind": "probe",
        "workers": 2,
        "threads": 1,
        "memory_limit_gb": None,
        "device": "cpu",
        "backend": "gloo",
        "trials": (),
        "metric": "accuracy",
        "higher_is_better": True,
        "search_curves": {},
        "interconnect_probe_s": 0.0,
        "commit": None,
        "data": "",
        "cache": "",
        "launched_at": 0.0,
    }
    LaunchFolder(path).write(LaunchFile(**(common | changes)))


def write_end(path: Path, **changes: Any) -> None:
    """Write end.json: a launch that finished, unless `changes` say otherwise."""
    common: dict[str, Any] = {"wall_s": 1.0, "started_at": 0.0, "returncode": 0, "hung": False, "patience_s": 30.0}
    common |= {"last_step": None}
    LaunchFolder(path).write(LaunchEnd(**(common | changes)))


def _end(home: StudyFolder, name: str, launch: Launch) -> None:
    phases = {"process start": 4.0 + 0.1 * launch.workers, "training": 10.0, "evaluation": 2.0, "process end": 1.0}
    write_end(home.launch(name), wall_s=sum(phases.values()), phases_s=phases)


def _record(home: StudyFolder, trial: TrialSpec, launch: str, made: Made, study: Study) -> TrialRecord:
    path = home.trial(trial.id)
    path.mkdir(parents=True, exist_ok=True)
    common: dict[str, Any] = {
        "trial": trial.id,
        "launch": launch,
        "started_at": 0.0,
        "wall_s": 20.0,
        "environment": {**made.environment, "hosts": ["node"] * trial.workers},
    }
    if trial.id.split("-")[0] in made.failing:
        log = ("loading", "<script>alert('log')</script>", "RuntimeError: planted")
        failure = Failure(rank=0, step=3, error="RuntimeError: <b>planted</b>", log=log)
        return TrialRecord(**common, outcome="failed", failure=failure)
    spans = _spans(trial, made)
    step_s = float(spans[0].sum(axis=1).mean()) * SPAN_UNIT_S
    diverged = trial.kind == "train" and trial.peak_lr > made.largest_rate
    epochs = _epochs(trial, made, step_s, study.facts.train_samples, diverged) if trial.train else ()
    return TrialRecord(
        **common,
        outcome="diverged" if diverged else "finished",
        diverged_at_step=7 if diverged else None,
        phases_s=dict(made.overhead_s) if trial.train else {},
        columns=SPANS,
        warmup_steps=0,
        spans=tuple(save_array(path / f"spans-rank{rank:02d}.npy", rank, of) for rank, of in enumerate(spans)),
        telemetry=_telemetry(path, trial, made),
        telemetry_columns=("at_s", *made.telemetry) if made.telemetry else (),
        samples=sum(epoch.samples for epoch in epochs),
        epochs=epochs,
        compute={"gradient_bytes": made.gradient_bytes},
        precision_reached=True if trial.kind == "probe" else None,
    )


def _spans(trial: TrialSpec, made: Made) -> list[np.ndarray]:
    """Return the spans of each rank."""
    rng = np.random.default_rng([trial.workers, trial.batch_per_worker, trial.repeat, trial.kind == "probe"])
    times = made.times(trial)
    means = np.array([times.get(name, 0.0) for name in SPANS])
    # Steps differ, and so do repeats: a machine is never exactly the same twice.
    step_noise = np.exp(rng.normal(0, made.noise, (STEPS, 1)) + rng.normal(0, made.noise))
    rank_noise = np.exp(rng.normal(0, made.rank_noise, (trial.workers, STEPS, len(SPANS))))
    return [np.asarray(np.round(means * step_noise * factor / SPAN_UNIT_S), dtype=np.uint32) for factor in rank_noise]


def _telemetry(path: Path, trial: TrialSpec, made: Made) -> tuple[ArrayFile, ...]:
    if not made.telemetry:
        return ()
    at_s = np.linspace(0, 20, 40)
    columns = [at_s * value if name.endswith("_s") else np.full(40, value) for name, value in made.telemetry.items()]
    rows = np.stack([at_s, *columns], axis=1)
    return tuple(save_array(path / f"telemetry-rank{rank:02d}.npy", rank, rows) for rank in range(trial.workers))


def _epochs(trial: TrialSpec, made: Made, step_s: float, samples: int, diverged: bool) -> tuple[Epoch, ...]:
    assert trial.train is not None
    steps = steps_per_epoch(samples, trial.global_batch)
    epochs: list[Epoch] = []
    for number in range(2 if diverged else trial.train.planned_epochs(samples, trial.global_batch)):
        accuracy = made.accuracy(trial, (number + 1) * steps)
        loss = 10.0 ** (3 * number) if diverged else 1 - accuracy
        epochs.append(
            Epoch(
                epoch=number,
                steps=steps,
                samples=samples,
                train_loss=loss,
                test={"loss": loss, "accuracy": accuracy},
                train={"loss": loss, "accuracy": accuracy},
                test_samples=100,
                train_s=steps * step_s,
                evaluation_s=0.1,
            )
        )
        if trial.train.until is not None and trial.train.until.reached(epochs[-1].test[trial.train.until.metric]):
            break
    return tuple(epochs)


STUDY = """\
name: made
workload: digits
axes:
  workers: [1, 2, 4]
  batch_per_worker: [64]
  optimizer: [{name: momentum, lr: 0.05}]
probe: {max_seconds: 1}
train: {epochs: 30}
repeats: 2
oversubscribe: true
"""


def made_study(folder: Path, text: str = STUDY, *, failing: tuple[str, ...] = ()) -> StudyFolder:
    """Write a study for report tests: speedup n^0.9, uneven ranks, telemetry, slower learning on more workers."""

    def times(trial: TrialSpec) -> dict[str, float]:
        step_s = 0.01 * trial.samples_per_worker_step / 64 * trial.workers**0.1
        shares = {"data": 0.02, "copy": 0.01, "forward": 0.4, "backward": 0.4, "optimizer": 0.05, "rest": 0.02}
        shares["communication"] = 0.1 if trial.workers > 1 else 0.0
        return {name: step_s * share for name, share in shares.items()}

    def accuracy(trial: TrialSpec, steps: int) -> float:
        epoch = steps * trial.global_batch / 12_000
        noise = float(np.random.default_rng([steps, trial.seed, trial.workers]).random())
        return max(0.1, 0.97 - 0.7 * math.exp(-epoch / (1 + trial.workers / 4)) - 0.003 * noise)

    made = Made(
        times=times,
        noise=0.02,
        rank_noise=0.03,
        accuracy=accuracy,
        environment={"host": "here", "torch": "2.13"},
        telemetry={"samples": 100.0, "process_cpu_s": 0.8, "process_memory_bytes": 4e8},
        largest_rate=1.0,
        failing=failing,
    )
    return write_study(folder, text, made).folder


def exchanged(step: StepParts) -> StepParts:
    """Add made-up exposed communication to a step, as if probes with and without the exchange had measured it."""
    workers = step.setting.workers
    if workers == 1:
        return step
    return replace(
        step,
        exposed=Exposed(seconds=Estimate(value=0.002, low=0.0015, high=0.0025), with_s=0.012, without_s=0.01),
        traffic=Traffic(bytes=4e6, seconds=0.004, workers=workers),
        total_s=Estimate(value=0.004, low=0.003, high=0.005),
    )


def made_link(latency_s: float = 1e-4, bandwidth_bytes_per_s: float = 1e9) -> Link:
    """Return a link of two workers, with repetitions that differ by 10 %."""
    wire = Wire(latency_s=latency_s, bandwidth_bytes_per_s=bandwidth_bytes_per_s)
    sizes = np.geomspace(1e3, 6.4e7, 9).astype(int).tolist()
    link = fit_link(
        2, {size: [ring_allreduce_s(size, 2, wire) * factor for factor in (0.9, 1.0, 1.1)] * 14 for size in sizes}
    )
    assert link is not None
    return link


HOSTILE = '"><img src=x onerror=alert(1)></script><script>alert(2)</script>\u2028|`*_[x](y)$\\x&#{}^~%;=1+1\x1b[31m\x00'
STRUCTURE = {"key", "section", "code", "color", "outcome", "ticks"}
"""Fields whose text never comes from outside. The same holds for all fields of type Literal."""
T = TypeVar("T")


def hostile(value: T, attack: str = f"={HOSTILE}") -> T:
    """Return a report, or part of one, with an attack in front of every text that could come from outside."""
    made: Any = value
    if isinstance(value, str) and value:
        made = f"{attack}{value}"
    elif isinstance(value, tuple):
        made = tuple(hostile(item, attack) for item in value)
    elif is_dataclass(value) and not isinstance(value, type):
        texts = {name: hostile(getattr(value, name), attack) for name in _fields_from_outside(type(value))}
        made = replace(value, **texts)
    return cast(T, made)


@cache
def _fields_from_outside(kind: type) -> list[str]:
    hints = get_type_hints(kind)
    return [name for name, hint in hints.items() if name not in STRUCTURE and get_origin(hint) is not Literal]
