"""Trials and their records -> what the analysis takes: which setting and variant each is, its times, its curve."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from worldsize.analysis.batches import Tried
from worldsize.analysis.breakdown import Exposed, Traffic, exposed
from worldsize.analysis.learning import Trained
from worldsize.analysis.link import Link, fit_link
from worldsize.analysis.noise_scale import NoiseScale, noise_scale, of_ranks
from worldsize.analysis.points import Measured, Setting, block_means
from worldsize.analysis.stats import Floats
from worldsize.analysis.telemetry import Usage, usage
from worldsize.optimizer_spec import OptimizerSpec
from worldsize.record import TrialRecord
from worldsize.spec import TrialSpec
from worldsize.store import StudyFolder, read_json, whole

Ended = tuple[TrialSpec, TrialRecord]
"""A probe or a training trial that measured something: it did not fail, nor run out of memory."""


def measuring(trial: TrialSpec, record: TrialRecord) -> Iterator[Ended]:
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


def tried(trial: TrialSpec, record: TrialRecord) -> Iterator[Tried]:
    """Batches of a search for the largest, whatever became of it."""
    for each in record.tries:
        yield Tried(
            setting=setting_of(trial.model_copy(update={"batch_per_worker": each.batch_per_worker})),
            fits=each.outcome == "finished",
            samples_per_s=each.samples_per_s,
            memory_bytes=each.memory_bytes,
        )


def setting_of(trial: TrialSpec) -> Setting:
    return Setting(
        workers=trial.workers,
        batch_per_worker=trial.batch_per_worker,
        accumulation=trial.accumulation,
        scaling=trial.scaling,
        strategy=trial.strategy.label,
        precision=trial.precision,
        on=trial.on,
    )


def labels(trial: TrialSpec, starts: int) -> tuple[str, str]:
    """What tells trials of one setting apart in what they learn, without the rate and with it.

    `momentum 0.9, linear rule` and `momentum 0.9 rate 0.05, linear rule`.
    """
    optimizer = trial.optimizer
    name = optimizer.family + (f" {optimizer.momentum:g}" if optimizer.momentum else "")
    extra = "".join(f", {words}" for words in _settings(optimizer))
    if starts > 1:
        extra += ", pretrained" if trial.workload.pretrained else ", from scratch"
    return name + extra, f"{name} rate {optimizer.rate:.9g}{extra}"


def _settings(optimizer: OptimizerSpec) -> Iterable[str]:
    """Every value that it brings itself: two that differ in anything must not look alike."""
    if optimizer.trust != OptimizerSpec.model_fields["trust"].default:
        yield f"trust {optimizer.trust:.9g}"
    if optimizer.weight_decay:
        yield f"decay {optimizer.weight_decay:.9g}"
    if optimizer.rate_rule is not None:
        yield "unscaled" if optimizer.rate_rule == "none" else f"{optimizer.rate_rule} rule"
    if optimizer.warmup_epochs is not None:
        yield f"warm-up {optimizer.warmup_epochs:.9g}" if optimizer.warmup_epochs else "no warm-up"


def probes_first(ended: Iterable[Ended]) -> dict[Setting, list[Ended]]:
    """Trials of each setting: its probes, where there are any, since training also evaluates and saves."""
    by_setting: dict[Setting, list[Ended]] = defaultdict(list)
    for trial, record in ended:
        by_setting[setting_of(trial)].append((trial, record))
    return {setting: [pair for pair in here if pair[0].kind == "probe"] or here for setting, here in by_setting.items()}


def measured(folder: StudyFolder, ended: Iterable[Ended]) -> Iterator[Measured]:
    for trial, record in ended:
        step_s = folder.step_s(record)[: 0 if record.outcome == "diverged" else None]
        yield Measured(
            setting=setting_of(trial),
            kind="probe" if trial.kind == "probe" else "train",
            repeat=trial.repeat,
            step_s=block_means(step_s, trial.strategy.period),
        )


def trained(trial: TrialSpec, record: TrialRecord, metric: str, starts: int) -> Trained:
    until = trial.train.until if trial.train else None
    epochs = [epoch for epoch in record.epochs if metric in epoch.test]
    assert record.outcome != "failed"
    assert record.outcome != "out_of_memory"
    kin, variant = labels(trial, starts)
    return Trained(
        setting=setting_of(trial),
        variant=variant,
        kin=kin,
        family=trial.optimizer.family,
        rate=trial.optimizer.rate,
        scaled=trial.peak_rate / trial.optimizer.rate,
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


def spans(folder: StudyFolder, here: list[Ended]) -> tuple[tuple[str, ...], dict[int, Floats]]:
    """The names of the spans, and steps x ranks x spans of each repeat. Records of an older format are left out."""
    columns = here[0][1].columns
    found: dict[int, list[Floats]] = defaultdict(list)
    for trial, record in here:
        if record.columns == columns:
            found[trial.repeat].append(folder.span_s(record))
    return columns, {repeat: np.concatenate(each) for repeat, each in found.items()}


def exchange(
    folder: StudyFolder, here: list[Ended], workers: int
) -> tuple[Exposed | None, list[float], Traffic | None]:
    """What exchanging gradients adds to a step; what it takes by torch's own clock; what was sent how fast."""
    blocks = [folder.exposed(record) for _, record in here if record.exposed]
    totals = [record.exchange["total_s"] for _, record in here if record.exchange.get("total_s")]
    size = next((record.exchange["bytes"] for _, record in here if "bytes" in record.exchange), None)
    found = exposed([steps for _, steps in blocks], [kinds for kinds, _ in blocks])
    if size is None or not totals:
        return found, totals, None
    return found, totals, Traffic(bytes=size, seconds=float(np.mean(totals)), workers=workers)


def usages(folder: StudyFolder, here: list[Ended]) -> list[list[Usage]]:
    """Of the ranks of each trial that was watched. One row is no time: a try that short is none of them."""
    found = []
    for _, record in here:
        columns = record.telemetry_columns
        watched = [_rows_of_try(record, columns, rows) for rows in folder.telemetry(record)]
        found.append([usage(rank, columns, rows) for rank, rows in enumerate(watched) if len(rows) > 1])
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


def noise_scales(folder: StudyFolder, ended: Iterable[Ended], starts: int) -> list[tuple[Setting, str, NoiseScale]]:
    """Of each variant trained with `noise_scale`, over the second half of its steps and all its repeats."""
    rows: dict[tuple[Setting, str], list[tuple[Floats, Floats]]] = defaultdict(list)
    for trial, record in ended:
        parts = trial.workers * trial.accumulation  # one alone has nothing to compare its gradient with
        if record.noise and record.outcome != "diverged" and parts > 1:
            small, big = of_ranks(folder.noise(record))
            half = len(big) // 2
            rows[setting_of(trial), labels(trial, starts)[1]].append((small[half:], big[half:]))
    found = []
    for (setting, variant), each in rows.items():
        small, big = (np.concatenate(side) for side in zip(*each, strict=True))
        found.append((setting, variant, noise_scale(small, big, setting.global_batch / small.shape[1])))
    return found


def links(folder: StudyFolder) -> list[tuple[str, Link]]:
    """What the links between ranks can do, by kind (inside a node, across nodes, all), over all launches."""
    times: dict[tuple[str, str, int], dict[int, list[float]]] = defaultdict(lambda: defaultdict(list))
    for launch in folder.launches():
        path = launch / "interconnect.json"
        with whole(path):
            rows: list[dict[str, Any]] = read_json(path)["sweep"]["times"] if path.exists() else []
            on = read_json(launch / "launch.json").get("on", "") if rows else ""
            for row in rows:
                kind, workers = str(row["kind"]), int(row["workers"])
                times[str(on), kind, workers][int(row["size_bytes"])] += map(float, row["seconds"])
    found = [(on, kind, fit_link(workers, sizes)) for (on, kind, workers), sizes in sorted(times.items())]
    return [(kind, replace(link, on=on)) for on, kind, link in found if link is not None]
