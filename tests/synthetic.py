"""Study folders as a machine of known laws would leave them: real plans and records, made-up times, no processes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from worldsize.machine import Machine
from worldsize.plan import Launch, Plan
from worldsize.record import SPAN_UNIT_S, SPANS, Epoch, TrialRecord
from worldsize.results import Results, load
from worldsize.spec import TrialSpec
from worldsize.store import StudyFolder, save_array, write_json
from worldsize.study import Study
from worldsize.train_spec import steps_per_epoch

STEPS = 60
Times = Callable[[TrialSpec], Mapping[str, float]]
"""Seconds of each span of a step, by name; those not named are 0."""
Curve = Callable[[TrialSpec, int], float]
"""The metric after so many steps."""


@dataclass(frozen=True, kw_only=True)
class Made:
    """What is made up."""

    times: Times
    noise: float = 0.01
    accuracy: Curve = field(default=lambda *_: 0.9)
    above_s: Mapping[str, float] = field(default_factory=lambda: {"preparation": 1.0, "evaluation": 0.5})
    environment: Mapping[str, object] = field(default_factory=lambda: {"device": "cpu", "cores": 16})
    gradient_bytes: float = 1e6


def write_study(folder: Path, text: str, made: Made, machine: Machine | None = None) -> Results:
    """The first plan of a study, run to its end."""
    study = Study.from_text(text, machine=machine or Machine(cores=16, gpus=0))
    home = StudyFolder(folder)
    study._write(home)
    run_plan(home, study.plan(), made, study)
    return load(folder)


def run_plan(home: StudyFolder, plan: Plan, made: Made, study: Study) -> None:
    """What has no record yet."""
    for number, launch in enumerate(plan.launches, start=1):
        name = f"{number:04d}-{launch.kind}-w{launch.workers}"
        _end(home, name, launch)
        for trial_id in launch.trials:
            if not home.has_record(trial_id):
                home.write_record(_record(home, plan.trials[trial_id], name, made, study))


def _end(home: StudyFolder, name: str, launch: Launch) -> None:
    phases = {"process start": 4.0 + 0.1 * launch.workers, "training": 10.0, "process end": 1.0}
    write_json(home.launch(name) / "end.json", {"wall_s": sum(phases.values()), "phases_s": phases, "culprit": None})


def _record(home: StudyFolder, trial: TrialSpec, launch: str, made: Made, study: Study) -> TrialRecord:
    rng = np.random.default_rng([trial.workers, trial.batch_per_worker, trial.repeat, trial.kind == "probe"])
    samples = study.facts.train_samples
    home.trial(trial.id).mkdir(parents=True, exist_ok=True)
    spans = _spans(trial, made, rng)
    files = tuple(
        save_array(home.trial(trial.id) / f"spans-rank{rank:02d}.npy", rank, spans) for rank in range(trial.workers)
    )
    step_s = float(spans.sum(axis=1).mean()) * SPAN_UNIT_S
    epochs = _epochs(trial, made, step_s, samples) if trial.train else ()
    return TrialRecord(
        trial=trial.id,
        outcome="finished",
        launch=launch,
        started_at=0.0,
        wall_s=1.0,
        phases_s=dict(made.above_s) if trial.train else {},
        columns=SPANS,
        warmup_steps=0,
        spans=files,
        samples=sum(epoch.samples for epoch in epochs),
        epochs=epochs,
        compute={"gradient_bytes": made.gradient_bytes},
        precision_reached=True if trial.kind == "probe" else None,
        environment={**made.environment, "hosts": ["node"] * trial.workers},
    )


def _spans(trial: TrialSpec, made: Made, rng: np.random.Generator) -> np.ndarray:
    times = made.times(trial)
    means = np.array([times.get(name, 0.0) for name in SPANS])
    # Steps scatter, and so do repeats: the machine is never the same twice.
    shake = np.exp(rng.normal(0, made.noise, (STEPS, 1)) + rng.normal(0, made.noise))
    return np.asarray(np.round(means * shake / SPAN_UNIT_S), dtype=np.uint32)


def _epochs(trial: TrialSpec, made: Made, step_s: float, samples: int) -> tuple[Epoch, ...]:
    assert trial.train is not None
    steps = steps_per_epoch(samples, trial.global_batch)
    found = []
    for number in range(trial.train.planned_epochs(samples, trial.global_batch)):
        accuracy = made.accuracy(trial, (number + 1) * steps)
        found.append(
            Epoch(
                epoch=number,
                steps=steps,
                samples=samples,
                train_loss=1 - accuracy,
                test={"loss": 1 - accuracy, "accuracy": accuracy},
                train={"loss": 1 - accuracy, "accuracy": accuracy},
                test_samples=100,
                train_s=steps * step_s,
                evaluation_s=0.1,
            )
        )
        if trial.train.until is not None and trial.train.until.reached(found[-1].test[trial.train.until.metric]):
            break
    return tuple(found)
