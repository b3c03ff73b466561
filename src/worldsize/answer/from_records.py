"""Convert trials and their records into inputs of the analysis: setting and variant, step times, learning curves.

Also into inputs of a projection: parts of the step, the machine, and the overhead outside the step.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from worldsize.analysis.estimate import Floats
from worldsize.analysis.learning.noise_scale import NoiseScale, noise_scale, squared_norms
from worldsize.analysis.learning.variants import TrainingRun
from worldsize.analysis.projection.overhead import Overhead
from worldsize.analysis.projection.step_model import Node, StepTiming, threads_per_core
from worldsize.analysis.speed.breakdown import WAITING, Exposed, Traffic, exposed
from worldsize.analysis.speed.hardware import Usage, crowded_share, usage
from worldsize.analysis.speed.largest_batch import BatchTry
from worldsize.analysis.speed.network import Link, Network, Wire, fit_link, node_layout
from worldsize.analysis.speed.scaling import TimedTrial, period_means
from worldsize.folder.launches import LaunchFolder, launch_folders
from worldsize.folder.record import TrialRecord
from worldsize.folder.study_folder import StudyFolder
from worldsize.spec.setting import Setting
from worldsize.spec.study import TrialSpec

if TYPE_CHECKING:
    from worldsize.answer.results import Results

TrialResult = tuple[TrialSpec, TrialRecord]
"""A probe or training trial with measurements: it neither failed nor ran out of memory."""


def usable_trials(trial: TrialSpec, record: TrialRecord) -> Iterator[TrialResult]:
    """Yield the trial itself, or, for a search for the largest batch, each batch that fits, as a separate probe with
    that single try."""
    if record.outcome in ("failed", "out_of_memory") or trial.kind == "pretrain":
        return
    if trial.largest is None:
        yield trial, record
    for attempt in record.tries:
        if attempt.outcome == "finished":
            fields = {"spans": attempt.spans, "warmup_steps": attempt.warmup_steps, "tries": (attempt,)}
            size = {"batch_per_worker": attempt.batch_per_worker, "largest": None}
            yield trial.model_copy(update=size), record.model_copy(update=fields)


def batch_tries(trial: TrialSpec, record: TrialRecord) -> Iterator[BatchTry]:
    """Batches tried by a search for the largest, whatever its outcome."""
    for attempt in record.tries:
        yield BatchTry(
            setting=replace(trial.setting, batch_per_worker=attempt.batch_per_worker),
            fits=attempt.outcome == "finished",
            samples_per_s=attempt.samples_per_s,
            memory_bytes=attempt.memory_bytes,
        )


def probes_first(pairs: Iterable[TrialResult]) -> dict[Setting, list[TrialResult]]:
    """Group trials by setting. Keep only the probes of a setting if it has any, because training also evaluates and
    saves."""
    by_setting: dict[Setting, list[TrialResult]] = defaultdict(list)
    for trial, record in pairs:
        by_setting[trial.setting].append((trial, record))
    return {
        setting: [pair for pair in group if pair[0].kind == "probe"] or group for setting, group in by_setting.items()
    }


def measured(folder: StudyFolder, pairs: Iterable[TrialResult]) -> Iterator[TimedTrial]:
    pairs = list(pairs)
    probes = {trial.setting: trial for trial, _ in pairs if trial.kind == "probe"}
    for trial, record in pairs:
        counted = folder.counted_steps(record)
        step_s = folder.step_s(record)[: 0 if record.outcome == "diverged" else None]
        period = trial.strategy.period
        steps = period_means(step_s, period)
        yield TimedTrial(
            setting=trial.setting,
            kind="probe" if trial.kind == "probe" else "train",
            repeat=trial.repeat,
            launch=record.launch,
            step_s=steps,
            # A block has whole periods.
            blocks=None if counted.blocks is None else counted.blocks[::period][: len(steps)],
            like_a_probe=_like_a_probe(trial, probes.get(trial.setting)),
        )


def _like_a_probe(trial: TrialSpec, probe: TrialSpec | None) -> bool:
    """Whether each step of a training trial does what a step of the probe of its setting does."""
    if probe is None or trial.train is None:
        return True
    does_more = trial.train.measure_noise_scale or trial.train.clip_norm is not None
    changes = trial.workload.unfreeze_epoch is not None or trial.workload.freeze != probe.workload.freeze
    return not does_more and not changes and trial.optimizer.name == probe.optimizer.name


def trained(trial: TrialSpec, record: TrialRecord, metric: str) -> TrainingRun:
    until = trial.train.until if trial.train else None
    epochs = [epoch for epoch in record.epochs if metric in epoch.test]
    assert record.outcome != "failed"
    assert record.outcome != "out_of_memory"
    return TrainingRun(
        setting=trial.setting,
        variant=trial.variant,
        variant_without_lr=trial.family_label,
        family=trial.optimizer.family,
        lr=trial.optimizer.lr,
        scaled=trial.peak_lr / trial.optimizer.lr,
        repeat=trial.repeat,
        outcome=record.outcome,
        steps=np.cumsum([epoch.steps for epoch in epochs], dtype=np.float64),
        samples=np.cumsum([epoch.samples for epoch in epochs], dtype=np.float64),
        seconds=np.cumsum([epoch.train_s for epoch in epochs], dtype=np.float64),
        metric=np.array([epoch.test[metric] for epoch in epochs]),
        train_metric=np.array([epoch.train[metric] for epoch in epochs if metric in epoch.train]),
        final=None if record.outcome == "diverged" else record.metrics.get(metric),
        goal=np.array([epoch.test.get(until.metric, np.nan) for epoch in epochs]) if until else None,
    )


def spans(folder: StudyFolder, pairs: list[TrialResult]) -> dict[int, Floats]:
    """Return an array of steps x ranks x SPANS for each repeat."""
    by_repeat: dict[int, list[Floats]] = defaultdict(list)
    for trial, record in pairs:
        by_repeat[trial.repeat].append(folder.span_s(record))
    return {repeat: np.concatenate(arrays) for repeat, arrays in by_repeat.items()}


def exchange(
    folder: StudyFolder, pairs: list[TrialResult], workers: int
) -> tuple[Exposed | None, list[float], Traffic | None]:
    """Return the exposed time of the gradient exchange, its total time by torch's own clock, and the traffic."""
    blocks = [folder.exposed(record) for _, record in pairs if record.exposed]
    totals = [record.exchange["total_s"] for _, record in pairs if record.exchange.get("total_s")]
    size = next((record.exchange["bytes"] for _, record in pairs if "bytes" in record.exchange), None)
    exposure = exposed([steps for _, steps in blocks], [kinds for kinds, _ in blocks])
    if size is None or not totals:
        return exposure, totals, None
    return exposure, totals, Traffic(bytes=size, seconds=float(np.mean(totals)), workers=workers)


def usages(folder: StudyFolder, pairs: list[TrialResult]) -> list[list[Usage]]:
    """Return the hardware usage of the ranks of each trial with telemetry.

    Ranks with a single sample are omitted, because it spans no time.
    """
    by_trial = []
    for _, record in pairs:
        columns = record.telemetry_columns
        samples_by_rank = [_rows_of_try(record, columns, rows) for rows in folder.telemetry(record)]
        by_trial.append([usage(columns, rows) for rows in samples_by_rank if len(rows) > 1])
    return [ranks for ranks in by_trial if ranks]


def crowded_shares(folder: StudyFolder, pairs: Iterable[TrialResult]) -> Iterator[float]:
    """Yield the share of the cores that other processes used, for each trial on a single host that recorded it."""
    for trial, record in pairs:
        cores, hosts = record.environment.get("host_cores"), record.environment.get("hosts")
        if not isinstance(cores, int) or cores < 1 or not isinstance(hosts, list) or len(set(map(str, hosts))) != 1:
            continue
        for ranks in usages(folder, [(trial, record)]):
            share = crowded_share(ranks, cores=cores, needed=trial.workers * trial.threads_per_worker)
            if share is not None:
                yield share


def _rows_of_try(record: TrialRecord, columns: Sequence[str], rows: Floats) -> Floats:
    """Return all rows or, for one batch of a search, only those recorded while that batch was timed."""
    if len(record.tries) != 1:
        return rows
    (attempt,) = record.tries
    if attempt.timed_from is None or attempt.timed_until is None:
        return rows[:0]
    sampled_at = rows[:, columns.index("at_s")] + record.started_at
    return np.asarray(rows[(sampled_at >= attempt.timed_from) & (sampled_at <= attempt.timed_until)])


def noise_scales(folder: StudyFolder, pairs: Iterable[TrialResult]) -> list[tuple[Setting, str, NoiseScale]]:
    """Return the noise scale of each variant that measured it, over the second half of its steps and all repeats."""
    rows: dict[tuple[Setting, str], list[tuple[Floats, Floats]]] = defaultdict(list)
    for trial, record in pairs:
        parts = trial.workers * trial.accumulation  # the noise scale compares gradients of two or more parts
        if record.noise and record.outcome != "diverged" and parts > 1:
            small, big = squared_norms(folder.noise(record))
            half = len(big) // 2
            rows[trial.setting, trial.variant].append((small[half:], big[half:]))
    scales = []
    for (setting, variant), blocks in rows.items():
        small, big = (np.concatenate(arrays) for arrays in zip(*blocks, strict=True))
        scales.append((setting, variant, noise_scale(small, big, setting.global_batch / small.shape[1])))
    return scales


def links(folder: StudyFolder) -> list[tuple[str, Link]]:
    """Return latency and bandwidth between ranks, by kind (inside a node, across nodes, all), over all launches."""
    times: dict[tuple[str, str, int], dict[int, list[float]]] = defaultdict(lambda: defaultdict(list))
    for launch in launch_folders(folder):
        measured = launch.interconnect
        place = launch.prepared().place if measured else ""
        for row in measured.sweep.times if measured else ():
            times[place, row.kind, row.workers][row.size_bytes] += row.seconds
    fits = [(place, kind, fit_link(workers, sizes)) for (place, kind, workers), sizes in sorted(times.items())]
    return [(kind, replace(link, place=place)) for place, kind, link in fits if link is not None]


START = ("process start", "process end")


def step_timings(results: Results, like: Setting) -> list[StepTiming]:
    """Return the step timing of every measured setting with this strategy and precision, at any batch."""
    step_s = {row.setting: row.step_s.value for row in results.rows}
    cores = {setting: hardware.process_cores for setting, hardware in results.hardware}
    timings = []
    for step in results.steps:
        setting = step.setting
        if (setting.strategy, setting.precision) != (like.strategy, like.precision):
            continue
        total_s = step.parts.step_s.value
        exchange_s = sum(
            step.parts.spans[name].value for name in ("communication", WAITING) if name in step.parts.spans
        )
        # The step is a mean of medians and its parts are means, so the parts are scaled to keep their shares.
        scale = step_s[setting] / total_s
        busy_cores = cores.get(setting)
        timings.append(
            StepTiming(
                workers=setting.workers,
                batch_per_worker=setting.batch_per_worker,
                accumulation=setting.accumulation,
                step_s=step_s[setting],
                local_s=(total_s - exchange_s) * scale,
                load_s=step.parts.spans["data"].value * scale if "data" in step.parts.spans else 0.0,
                cores=busy_cores / setting.workers if busy_cores and _on_cpu(results) else None,
            )
        )
    return timings


def node(results: Results, like: Setting, workers_per_node: int | None) -> Node:
    """Describe a node of the machine from the records."""
    record = _any_record(results)
    facts = record.environment if record else {}
    hosts = facts.get("hosts")
    ranks_by_host = Counter(map(str, hosts)) if isinstance(hosts, list) else Counter()
    max_on_host = max(ranks_by_host.values(), default=0)
    cores, gpus = facts.get("cores"), facts.get("gpus")
    threads = results.spec.threads_per_worker
    largest_count = max((row.setting.workers for row in results.rows), default=1)
    shared_cores = cores if isinstance(cores, int) and _on_cpu(results) else None
    per_node = max(shared_cores // threads, 1) if shared_cores else largest_count
    if isinstance(gpus, int):
        per_node = gpus
    # Several hosts show how many workers fit on each; a single host might have been oversubscribed.
    per_node = workers_per_node or (max_on_host if len(ranks_by_host) > 1 else max(per_node, max_on_host))
    return Node(
        workers_per_node=per_node,
        cores=shared_cores,
        network=_probed(results.links, per_node, shared_cores),
        payload_bytes=_payload(results, like),
    )


def overheads(results: Results, workers_per_node: int) -> list[Overhead]:
    """Return the overhead outside the steps of every training trial that did not fail.

    The interconnect probe is excluded, because it is not part of training.
    """
    entries = []
    for trial_id, record in results.records.items():
        trial = results.trials[trial_id]
        if trial.kind != "train" or record.outcome == "failed" or not record.epochs:
            continue
        phases = record.phases_s
        evaluated = max(sum(bool(epoch.test) for epoch in record.epochs), 1)
        entries.append(
            Overhead(
                workers=trial.workers,
                workers_on_node=node_layout(trial.workers, workers_per_node)[0],
                start_s=_start_s(results, record),
                preparation_s=phases.get("preparation", 0.0) + phases.get("warm-up", 0.0),
                evaluation_s=(phases.get("evaluation", 0.0) + phases.get("gaps", 0.0)) / evaluated,
                saving_s=phases.get("saving", 0.0),
            )
        )
    return entries


def _start_s(results: Results, record: TrialRecord) -> float:
    """Return the time to start and end processes. A launch pays it once, so a single training run pays all of it."""
    end = LaunchFolder(results.folder.launch(record.launch)).end
    phases = (end.phases_s if end else None) or {}
    return sum(phases.get(name, 0.0) for name in START)


def _probed(links: list[tuple[str, Link]], workers_per_node: int, cores: int | None) -> Network | None:
    """Choose a link of each kind: the one with the most workers; inside a node, preferably one with a core per thread.
    Links that latency and bandwidth do not describe well are ignored."""
    inside, across = (
        [link for kind, link in links if kind == link_kind and not link.is_poor] for link_kind in ("inside", "across")
    )
    if not inside and not across:
        return None
    inside_link = max(inside, key=lambda link: (-threads_per_core(link.workers, cores), link.workers), default=None)
    across_link = max(across, key=lambda link: link.workers, default=None)
    return Network(
        # Oversubscribed cores slow a link down by about the number of threads per core: 16 workers on 16 cores had 1.6
        # to 2.1 times the latency of 6 workers, and 1 / 1.8 of their bandwidth.
        inside=_wire(inside_link, slowdown=threads_per_core(inside_link.workers, cores)) if inside_link else None,
        # One rank per node took part, so it did not share the link of its node.
        across=_wire(across_link, shared=True) if across_link else None,
        workers_per_node=workers_per_node,
        source="measured",
    )


def _wire(link: Link, *, slowdown: float = 1.0, shared: bool = False) -> Wire:
    return Wire(
        latency_s=link.latency_s.value / slowdown,
        bandwidth_bytes_per_s=link.bandwidth_bytes_per_s.value * slowdown,
        shared_by_node=shared,
    )


def _payload(results: Results, like: Setting) -> float | None:
    for trial_id, record in results.records.items():
        trial = results.trials[trial_id]
        if (trial.strategy, trial.precision) != (like.strategy, like.precision):
            continue
        size = record.exchange.get("bytes") or record.compute.get("gradient_bytes")
        if isinstance(size, float | int):
            return float(size)
    return None


def _any_record(results: Results) -> TrialRecord | None:
    """Return the record of the trial with the most workers, because it lists all hosts."""
    candidates = [record for record in results.records.values() if record.environment]
    return max(candidates, key=lambda record: results.trials[record.trial].workers, default=None)


def _on_cpu(results: Results) -> bool:
    record = _any_record(results)
    return record is not None and record.environment.get("device") == "cpu"
