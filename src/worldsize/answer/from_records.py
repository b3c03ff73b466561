"""Trials and their records -> what the analysis takes: which setting and variant each is, its times, its curve.

What a projection takes from a study: steps by cause, the machine they ran on, and the time above the step.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from worldsize.analysis.estimate import Floats
from worldsize.analysis.learning.noise_scale import NoiseScale, noise_scale, of_ranks
from worldsize.analysis.learning.variants import TrainingRun
from worldsize.analysis.projection.overhead import Overhead
from worldsize.analysis.projection.step_model import Node, StepTiming, threads_per_core
from worldsize.analysis.speed.breakdown import WAITING, Exposed, Traffic, exposed
from worldsize.analysis.speed.hardware import Usage, usage
from worldsize.analysis.speed.largest_batch import BatchTry
from worldsize.analysis.speed.network import Link, Network, Wire, fit_link
from worldsize.analysis.speed.scaling import TimedTrial, block_means
from worldsize.folder.launches import LaunchFolder, launch_folders
from worldsize.folder.record import TrialRecord
from worldsize.folder.study_folder import StudyFolder
from worldsize.spec.setting import Setting
from worldsize.spec.study import TrialSpec

if TYPE_CHECKING:
    from worldsize.answer.results import Results

TrialResult = tuple[TrialSpec, TrialRecord]
"""A probe or a training trial that measured something: it did not fail, nor run out of memory."""


def usable_trials(trial: TrialSpec, record: TrialRecord) -> Iterator[TrialResult]:
    """What of a trial the analysis takes: itself; of a search for the largest batch, each batch that fits as a probe of
    its own, which has that one try."""
    if record.outcome in ("failed", "out_of_memory") or trial.kind == "pretrain":
        return
    if trial.largest is None:
        yield trial, record
    for each in record.tries:
        if each.outcome == "finished":
            own = {"spans": each.spans, "warmup_steps": each.warmup_steps, "tries": (each,)}
            size = {"batch_per_worker": each.batch_per_worker, "largest": None}
            yield trial.model_copy(update=size), record.model_copy(update=own)


def batch_tries(trial: TrialSpec, record: TrialRecord) -> Iterator[BatchTry]:
    """Batches of a search for the largest, whatever became of it."""
    for each in record.tries:
        yield BatchTry(
            setting=replace(trial.setting, batch_per_worker=each.batch_per_worker),
            fits=each.outcome == "finished",
            samples_per_s=each.samples_per_s,
            memory_bytes=each.memory_bytes,
        )


def probes_first(ended: Iterable[TrialResult]) -> dict[Setting, list[TrialResult]]:
    """Trials of each setting: its probes, where there are any, since training also evaluates and saves."""
    by_setting: dict[Setting, list[TrialResult]] = defaultdict(list)
    for trial, record in ended:
        by_setting[trial.setting].append((trial, record))
    return {setting: [pair for pair in here if pair[0].kind == "probe"] or here for setting, here in by_setting.items()}


def measured(folder: StudyFolder, ended: Iterable[TrialResult]) -> Iterator[TimedTrial]:
    for trial, record in ended:
        step_s = folder.step_s(record)[: 0 if record.outcome == "diverged" else None]
        yield TimedTrial(
            setting=trial.setting,
            kind="probe" if trial.kind == "probe" else "train",
            repeat=trial.repeat,
            step_s=block_means(step_s, trial.strategy.period),
        )


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


def spans(folder: StudyFolder, here: list[TrialResult]) -> dict[int, Floats]:
    """Steps x ranks x SPANS of each repeat."""
    found: dict[int, list[Floats]] = defaultdict(list)
    for trial, record in here:
        found[trial.repeat].append(folder.span_s(record))
    return {repeat: np.concatenate(each) for repeat, each in found.items()}


def exchange(
    folder: StudyFolder, here: list[TrialResult], workers: int
) -> tuple[Exposed | None, list[float], Traffic | None]:
    """What exchanging gradients adds to a step; what it takes by torch's own clock; what was sent how fast."""
    blocks = [folder.exposed(record) for _, record in here if record.exposed]
    totals = [record.exchange["total_s"] for _, record in here if record.exchange.get("total_s")]
    size = next((record.exchange["bytes"] for _, record in here if "bytes" in record.exchange), None)
    found = exposed([steps for _, steps in blocks], [kinds for kinds, _ in blocks])
    if size is None or not totals:
        return found, totals, None
    return found, totals, Traffic(bytes=size, seconds=float(np.mean(totals)), workers=workers)


def usages(folder: StudyFolder, here: list[TrialResult]) -> list[list[Usage]]:
    """Of the ranks of each trial that was watched. One row is no time: a try that short is none of them."""
    found = []
    for _, record in here:
        columns = record.telemetry_columns
        watched = [_rows_of_try(record, columns, rows) for rows in folder.telemetry(record)]
        found.append([usage(columns, rows) for rows in watched if len(rows) > 1])
    return [ranks for ranks in found if ranks]


def _rows_of_try(record: TrialRecord, columns: Sequence[str], rows: Floats) -> Floats:
    """All rows, but for one batch of a search: those from when it was timed."""
    if len(record.tries) != 1:
        return rows
    (own,) = record.tries
    if own.timed_from is None or own.timed_until is None:
        return rows[:0]
    at = rows[:, columns.index("at_s")] + record.started_at
    return np.asarray(rows[(at >= own.timed_from) & (at <= own.timed_until)])


def noise_scales(folder: StudyFolder, ended: Iterable[TrialResult]) -> list[tuple[Setting, str, NoiseScale]]:
    """Of each variant trained with `noise_scale`, over the second half of its steps and all its repeats."""
    rows: dict[tuple[Setting, str], list[tuple[Floats, Floats]]] = defaultdict(list)
    for trial, record in ended:
        parts = trial.workers * trial.accumulation  # one alone has nothing to compare its gradient with
        if record.noise and record.outcome != "diverged" and parts > 1:
            small, big = of_ranks(folder.noise(record))
            half = len(big) // 2
            rows[trial.setting, trial.variant].append((small[half:], big[half:]))
    found = []
    for (setting, variant), each in rows.items():
        small, big = (np.concatenate(side) for side in zip(*each, strict=True))
        found.append((setting, variant, noise_scale(small, big, setting.global_batch / small.shape[1])))
    return found


def links(folder: StudyFolder) -> list[tuple[str, Link]]:
    """What the links between ranks can do, by kind (inside a node, across nodes, all), over all launches."""
    times: dict[tuple[str, str, int], dict[int, list[float]]] = defaultdict(lambda: defaultdict(list))
    for launch in launch_folders(folder):
        measured = launch.interconnect
        on = launch.prepared().place if measured else ""
        for row in measured.sweep.times if measured else ():
            times[on, row.kind, row.workers][row.size_bytes] += row.seconds
    found = [(on, kind, fit_link(workers, sizes)) for (on, kind, workers), sizes in sorted(times.items())]
    return [(kind, replace(link, place=on)) for on, kind, link in found if link is not None]


START = ("process start", "process end")


def step_timings(results: Results, like: Setting) -> list[StepTiming]:
    """Every measured setting of this strategy and precision, whatever its batch."""
    step_s = {row.setting: row.step_s.value for row in results.rows}
    cores = {setting: found.process_cores for setting, found in results.hardware}
    found = []
    for each in results.steps:
        setting = each.setting
        if (setting.strategy, setting.precision) != (like.strategy, like.precision):
            continue
        whole = each.parts.step_s.value
        apart = sum(each.parts.spans[name].value for name in ("communication", WAITING) if name in each.parts.spans)
        # The step is a median, its parts are means: the parts keep their shares.
        scale = step_s[setting] / whole
        used = cores.get(setting)
        found.append(
            StepTiming(
                workers=setting.workers,
                batch_per_worker=setting.batch_per_worker,
                accumulation=setting.accumulation,
                step_s=step_s[setting],
                local_s=(whole - apart) * scale,
                load_s=each.parts.spans["data"].value * scale if "data" in each.parts.spans else 0.0,
                cores=used / setting.workers if used and _on_cpu(results) else None,
            )
        )
    return found


def node(results: Results, like: Setting, workers_per_node: int | None) -> Node:
    """The machine as the records tell of it."""
    record = _any_record(results)
    facts = record.environment if record else {}
    hosts = facts.get("hosts")
    on_hosts = Counter(map(str, hosts)) if isinstance(hosts, list) else Counter()
    a_host = max(on_hosts.values(), default=0)
    cores, gpus = facts.get("cores"), facts.get("gpus")
    threads = results.spec.threads_per_worker
    most = max((row.setting.workers for row in results.rows), default=1)
    shared_cores = cores if isinstance(cores, int) and _on_cpu(results) else None
    places = max(shared_cores // threads, 1) if shared_cores else most
    if isinstance(gpus, int):
        places = gpus
    # Several hosts show how many each takes; one may have been made to take more than it has room for.
    places = workers_per_node or (a_host if len(on_hosts) > 1 else max(places, a_host))
    return Node(
        workers_per_node=places,
        cores=shared_cores,
        network=_probed(results.links, places, shared_cores),
        payload_bytes=_payload(results, like),
    )


def overheads(results: Results, workers_per_node: int) -> list[Overhead]:
    """Of every training trial that ended by itself. The probe of the interconnect is ours, not the training's."""
    found = []
    for trial_id, record in results.records.items():
        trial = results.trials[trial_id]
        if trial.kind != "train" or record.outcome == "failed" or not record.epochs:
            continue
        phases = record.phases_s
        evaluated = max(sum(bool(epoch.test) for epoch in record.epochs), 1)
        found.append(
            Overhead(
                workers=trial.workers,
                workers_on_node=min(trial.workers, workers_per_node),
                start_s=_start_s(results, record),
                preparation_s=phases.get("preparation", 0.0) + phases.get("warm-up", 0.0),
                evaluation_s=(phases.get("evaluation", 0.0) + phases.get("gaps", 0.0)) / evaluated,
                saving_s=phases.get("saving", 0.0),
            )
        )
    return found


def _start_s(results: Results, record: TrialRecord) -> float:
    """Paid once a launch; a training alone would pay all of it."""
    end = LaunchFolder(results.folder.launch(record.launch)).end
    phases = (end.phases_s if end else None) or {}
    return sum(phases.get(name, 0.0) for name in START)


def _probed(links: list[tuple[str, Link]], workers_per_node: int, cores: int | None) -> Network | None:
    """Of each kind the group with most workers, inside a node one whose threads had a core each where there is one;
    what two numbers do not describe is left out."""
    inside, across = (
        [link for kind, link in links if kind == wanted and not link.is_poor] for wanted in ("inside", "across")
    )
    if not inside and not across:
        return None
    freest = max(inside, key=lambda link: (-threads_per_core(link.workers, cores), link.workers), default=None)
    widest = max(across, key=lambda link: link.workers, default=None)
    return Network(
        # In a crowd a link reads slower by about its threads a core: 16 workers on 16 cores had 1.6 to 2.1 times the
        # latency of 6, and 1 / 1.8 of their rate.
        inside=_wire(freest, crowd=threads_per_core(freest.workers, cores)) if freest else None,
        # One rank of each node took part: it had the node's link for itself.
        across=_wire(widest, shared=True) if widest else None,
        workers_per_node=workers_per_node,
        source="measured",
    )


def _wire(link: Link, *, crowd: float = 1.0, shared: bool = False) -> Wire:
    return Wire(
        latency_s=link.latency_s.value / crowd,
        bandwidth_bytes_per_s=link.bandwidth_bytes_per_s.value * crowd,
        shared_by_node=shared,
    )


def _payload(results: Results, like: Setting) -> float | None:
    for trial_id, record in results.records.items():
        trial = results.trials[trial_id]
        if (trial.strategy, trial.precision) != (like.strategy, like.precision):
            continue
        found = record.exchange.get("bytes") or record.compute.get("gradient_bytes")
        if isinstance(found, float | int):
            return float(found)
    return None


def _any_record(results: Results) -> TrialRecord | None:
    """Of the trial with most workers: its hosts are all there are."""
    ended = [record for record in results.records.values() if record.environment]
    return max(ended, key=lambda record: results.trials[record.trial].workers, default=None)


def _on_cpu(results: Results) -> bool:
    record = _any_record(results)
    return record is not None and record.environment.get("device") == "cpu"
