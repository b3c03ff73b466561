"""Estimates the cost of a plan before it runs; a rough estimate, marked as such, until steps have been measured."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from worldsize.data.catalog import WorkloadFacts
from worldsize.folder.record import SPANS
from worldsize.plan.grid import Site
from worldsize.plan.plan import Plan
from worldsize.spec.place import nodes_for
from worldsize.spec.setting import Setting
from worldsize.spec.study import TrialSpec
from worldsize.spec.training import steps_per_epoch

LAUNCH_START_S = 6.0
"""Time of a launch before its first step: importing torch in the launcher and in each worker, and connecting."""
CORE_FLOP_PER_S = 2e10
"""Speed of a core at float32 on small layers, used only until the first step of the study has been measured."""
GPU_FLOP_PER_S = 5e12
BYTES_A_STEP = 4 * (len(SPANS) + 1)
"""Bytes stored per rank and step: its spans and the loss."""
BYTES_A_SECOND = 500
"""Bytes of telemetry and events stored per rank and second."""
BYTES_A_TRIAL = 100_000
"""Spec, record and log."""
BYTES_OF_WEIGHTS = 100_000_000
"""Saved weights, if a study keeps them: 25 million, since their number is known only once the model is built."""
BYTES_OF_REPORT = 20_000_000
"""The page, its previous version while it is replaced, figures and tables."""
HALVINGS = 5
"""Halvings of the gap between a batch and its double, until the gap is 5 % of the batch."""


@dataclass(frozen=True, kw_only=True)
class Cost:
    wall_s: float
    worker_s: float
    node_s: dict[str, float] = field(default_factory=dict)
    """Node-seconds that jobs occupy, by place, without waiting in the queue."""
    measured: bool
    """Whether step times of this study were known, or only the rough cost of a sample."""


StepTimes = Mapping[Setting, float]
"""Measured seconds per step."""


def estimate(sites: Mapping[str, Site], plan: Plan, facts: WorkloadFacts, step_s: StepTimes) -> Cost:
    """The cost of the plan, from measured step times where they are known."""
    wall = worker = 0.0
    node = {on: 0.0 for on, site in sites.items() if site.spec.slurm is not None}
    for launch in plan.launches:
        site = sites[launch.place]
        seconds = LAUNCH_START_S
        for trial in (plan.trials[trial_id] for trial_id in launch.trials):
            known = step_s.get(trial.setting)
            step = known if known is not None else _guessed_step_s(trial, facts, site)
            seconds += trial_s(trial, facts, step)
        wall += seconds
        worker += seconds * launch.workers
        if site.spec.slurm is not None:
            node[launch.place] += seconds * nodes_for(site.spec.slurm, launch.workers)
    return Cost(wall_s=wall, worker_s=worker, node_s=node, measured=bool(step_s))


def space_bytes(sites: Mapping[str, Site], plan: Plan, facts: WorkloadFacts) -> int:
    """Bytes that the plan will write into its folder; a high estimate."""
    total = float(BYTES_OF_REPORT)
    for trial in plan.trials.values():
        step_s = _guessed_step_s(trial, facts, sites[trial.place])
        seconds = trial_s(trial, facts, step_s)
        steps = trial.train.total_steps(facts.train_samples, trial.global_batch) if trial.train else seconds / step_s
        step_bytes = BYTES_A_STEP
        if trial.train is not None and trial.train.measure_noise_scale:
            step_bytes += 4 * (trial.accumulation + 1)
        total += trial.workers * (steps * step_bytes + seconds * BYTES_A_SECOND) + BYTES_A_TRIAL
        total += BYTES_OF_WEIGHTS if trial.train is not None and trial.train.save_weights else 0
    return math.ceil(total)


def trial_s(trial: TrialSpec, facts: WorkloadFacts, step_s: float) -> float:
    """Seconds that a trial takes at this step time; an evaluation pass costs a third of a training one.

    A search for the largest batch costs as much as trying every batch up to the size of the data.
    """
    if trial.probe is not None and trial.largest is not None:
        most = facts.train_samples // (trial.workers * trial.accumulation)
        doublings = max(math.log2(min(trial.largest.max or most, most) / trial.batch_per_worker), 0)
        return (doublings + HALVINGS) * trial.probe.max_seconds
    if trial.probe is not None:
        return min(trial.probe.max_seconds, 50 * step_s) + (trial.probe.warmup_steps + 1) * step_s
    assert trial.train is not None
    steps = trial.train.total_steps(facts.train_samples, trial.global_batch)
    epochs = -(-steps // steps_per_epoch(facts.train_samples, trial.global_batch))
    evaluation = facts.test_samples / trial.global_batch * step_s / 3
    return steps * step_s + epochs * evaluation


def _guessed_step_s(trial: TrialSpec, facts: WorkloadFacts, site: Site) -> float:
    machine, device = site.machine, site.device
    rate = GPU_FLOP_PER_S if device == "cuda" else CORE_FLOP_PER_S * trial.threads_per_worker
    sharing = max(1.0, trial.workers / machine.capacity(device, trial.threads_per_worker)) if machine.cores else 1.0
    return 1e-3 + trial.samples_per_worker_step * facts.train_flop_per_sample / rate * sharing
