"""Estimate the cost of a plan before it runs. The estimate is rough, and marked as such, until steps are measured."""

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
"""Time of a launch before its first step: importing torch in the launcher and in each worker, then connecting."""
CORE_FLOP_PER_S = 2e10
"""Speed of a core at float32 on small layers. Used only until the first step of the study is measured."""
GPU_FLOP_PER_S = 5e12
"""The same for a GPU."""
BYTES_PER_STEP = 4 * (len(SPANS) + 1)
"""Bytes stored per rank and step: its spans and the loss."""
BYTES_PER_SECOND = 3_000
"""Bytes of telemetry and events stored per rank and second."""
BYTES_PER_TRIAL = 100_000
"""Bytes of the spec, record and log of a trial."""
BYTES_OF_WEIGHTS = 100_000_000
"""Bytes of saved weights. Assumes 25 million weights, because their number is unknown until the model is built."""
BYTES_OF_REPORT = 20_000_000
"""Bytes of the page, its previous version while it is replaced, figures and tables."""
PROBE_STEPS = 6
"""Fewest steps of a probe after its warm-up."""
PROBE_SHARE = 1.3
"""Time of a probe as a multiple of its time limit: it also warms up, and measures what exchanging gradients adds."""
HALVINGS = 5
"""Number of times that the gap between a batch and its double is halved until it is below 5 % of the batch."""


@dataclass(frozen=True, kw_only=True)
class Cost:
    wall_s: float
    worker_s: float
    node_s: dict[str, float] = field(default_factory=dict)
    """Node-seconds of the jobs at each place, excluding time in the queue."""
    measured: bool
    """Whether measured step times of this study were used. If not, the cost is a rough estimate."""


StepTimes = Mapping[Setting, float]
"""Measured seconds per step."""


def estimate(sites: Mapping[str, Site], plan: Plan, facts: WorkloadFacts, step_s: StepTimes) -> Cost:
    """Estimate the cost of the plan, from measured step times where they are known."""
    wall_s = worker_s = 0.0
    node_s = {place: 0.0 for place, site in sites.items() if site.spec.slurm is not None}
    for launch in plan.launches:
        site = sites[launch.place]
        seconds = LAUNCH_START_S
        for trial in (plan.trials[trial_id] for trial_id in launch.trials):
            measured_s = step_s.get(trial.setting)
            seconds += trial_s(trial, facts, _guessed_step_s(trial, facts, site) if measured_s is None else measured_s)
        wall_s += seconds
        worker_s += seconds * launch.workers
        if site.spec.slurm is not None:
            node_s[launch.place] += seconds * nodes_for(site.spec.slurm, launch.workers)
    return Cost(wall_s=wall_s, worker_s=worker_s, node_s=node_s, measured=bool(step_s))


def space_bytes(sites: Mapping[str, Site], plan: Plan, facts: WorkloadFacts) -> int:
    """Return a high estimate of the bytes that the plan will write into its folder."""
    total = float(BYTES_OF_REPORT)
    for trial in plan.trials.values():
        step_s = _guessed_step_s(trial, facts, sites[trial.place])
        seconds = trial_s(trial, facts, step_s)
        steps = trial.train.total_steps(facts.train_samples, trial.global_batch) if trial.train else seconds / step_s
        step_bytes = BYTES_PER_STEP
        if trial.train is not None and trial.train.measure_noise_scale:
            step_bytes += 4 * (trial.accumulation + 1)
        total += trial.workers * (steps * step_bytes + seconds * BYTES_PER_SECOND) + BYTES_PER_TRIAL
        total += BYTES_OF_WEIGHTS if trial.train is not None and trial.train.save_weights else 0
    return math.ceil(total)


def trial_s(trial: TrialSpec, facts: WorkloadFacts, step_s: float) -> float:
    """Estimate the seconds of a trial at this step time. Evaluation takes a third of the time of training per sample.

    A search for the largest batch is assumed to try all batches up to the size of the data.
    """
    if trial.probe is not None and trial.largest is not None:
        limit = facts.train_samples // (trial.workers * trial.accumulation)
        doublings = max(math.log2(min(trial.largest.max or limit, limit) / trial.batch_per_worker), 0)
        return (doublings + HALVINGS) * trial.probe.max_seconds
    if trial.probe is not None:
        least_s = (trial.probe.warmup_steps + PROBE_STEPS) * step_s
        return max(PROBE_SHARE * trial.probe.max_seconds, least_s)
    assert trial.train is not None
    steps = trial.train.total_steps(facts.train_samples, trial.global_batch)
    epochs = -(-steps // steps_per_epoch(facts.train_samples, trial.global_batch))
    evaluation = facts.test_samples / trial.global_batch * step_s / 3
    return steps * step_s + epochs * evaluation


def _guessed_step_s(trial: TrialSpec, facts: WorkloadFacts, site: Site) -> float:
    machine, device = site.machine, site.device
    flop_per_s = GPU_FLOP_PER_S if device == "cuda" else CORE_FLOP_PER_S * trial.threads_per_worker
    sharing = max(1.0, trial.workers / machine.capacity(device, trial.threads_per_worker)) if machine.cores else 1.0
    return 1e-3 + trial.samples_per_worker_step * facts.train_flop_per_sample / flop_per_s * sharing
