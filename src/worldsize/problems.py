"""What makes a study impossible, said before anything runs: each problem with the place in the study that says so."""

from __future__ import annotations

from collections import Counter
from importlib.util import find_spec
from typing import Any

from worldsize.catalog import unfit
from worldsize.grid import matches, product, study_points
from worldsize.machine import Machine
from worldsize.problems_target import Found, idle_targets, target_problems
from worldsize.spec import StudySpec, WorkloadSpec
from worldsize.yaml_tree import Loc


def problems(spec: StudySpec, here: Machine) -> list[tuple[Loc, str]]:
    """All that the study and the machines alone can tell; `here` is the one that the driver runs on."""
    if idle := list(idle_targets(spec)):
        return [*idle, *_points(spec)]
    return [
        *_workloads(spec),
        *_twice(spec),
        *target_problems(spec, here),
        *_noise_scale(spec),
        *_searches(spec),
        *_adaptive(spec),
        *_largest_batch(spec),
        *_points(spec),
    ]


def _workloads(spec: StudySpec) -> Found:
    used: list[tuple[Loc, WorkloadSpec]] = [(("workload",), spec.workload)]
    if spec.pretrain is not None:
        used.append((("pretrain", "workload"), spec.pretrain.workload))
    for loc, workload in used:
        if text := unfit(workload):
            yield loc, text


def _twice(spec: StudySpec) -> Found:
    remedy = "twice, which would run the same trials again; use `repeats` for that"
    for axis in type(spec.axes).model_fields:
        values = getattr(spec.axes, axis)
        if not isinstance(values, tuple):
            continue  # a search, a switch
        seen: set[Any] = set()
        for index, value in enumerate(values if axis != "optimizer" else ()):
            if value in seen:
                yield ("axes", axis, index), f"axes.{axis} names {getattr(value, 'label', value)} {remedy}"
            seen.add(value)
    settings: set[Any] = set()
    for index, entry in enumerate(spec.axes.optimizer):
        here = [setting.model_copy(update={"name": setting.family}) for setting in entry.settings()]
        counts = Counter(here)
        twice = next((setting for setting in here if setting in settings or counts[setting] > 1), None)
        if twice is not None:
            yield ("axes", "optimizer", index), f"axes.optimizer names {twice.name} {twice.rate:g} {remedy}"
        settings |= counts.keys()


def _noise_scale(spec: StudySpec) -> Found:
    if spec.train is None or not spec.train.noise_scale:
        return
    for index, strategy in enumerate(spec.axes.strategy):
        if strategy.name != "ddp" or strategy.sync_batch_norm:
            yield (
                ("axes", "strategy", index),
                f"noise_scale compares what each worker's own samples say, which {strategy.label} does not keep apart; "
                "use ddp, or leave noise_scale out",
            )
    if all(point.workers * point.accumulation == 1 for point in study_points(spec)):
        yield (
            ("train", "noise_scale"),
            "noise_scale compares parts of a batch, and every point has one worker and no accumulation; "
            "add a count of workers, or `accumulation: 2`",
        )


def _searches(spec: StudySpec) -> Found:
    for index, entry in enumerate(spec.axes.optimizer):
        if entry.tpe is not None and find_spec("optuna") is None:
            yield (
                ("axes", "optimizer", index, "tpe"),
                f"tpe={entry.tpe} needs Optuna, which is not installed; `pip install worldsize[optuna]`, or leave tpe "
                "out for an even grid",
            )
        if spec.train and spec.train.schedule.name == "one-cycle" and any(entry.warmup_epochs or ()):
            yield (
                ("axes", "optimizer", index, "warmup_epochs"),
                "warmup_epochs and the schedule one-cycle both begin with a rise: keep one",
            )
        if entry.searched() and spec.train is None:
            yield ("axes", "optimizer", index), "a search needs training to compare by; add `train:`"


def _adaptive(spec: StudySpec) -> Found:
    if spec.axes.adaptive and spec.train is not None and len(spec.targets) > 1:
        yield (
            ("train",),
            f"an adaptive study trains one setting, the recommended one, and this one has {len(spec.targets)} targets; "
            "leave train out, or list the counts",
        )
    if spec.axes.adaptive and spec.probe is None:
        yield (
            ("probe",),
            "probe=false leaves an adaptive study nothing to decide by; leave probe out, or list the counts",
        )
    if spec.axes.adaptive and spec.axes.largest is not None:
        yield (
            ("axes", "batch_per_worker"),
            "an adaptive study compares batches that are known, and `largest: true` is still looking for them; list "
            "the batches, or list the counts",
        )


def _largest_batch(spec: StudySpec) -> Found:
    search = spec.axes.largest
    if search is None:
        return
    loc: Loc = ("axes", "batch_per_worker")
    if search.most is not None and search.most < search.start:
        yield (
            (*loc, "most"),
            f"most={search.most} is less than start={search.start}, the first that is tried; raise it, or lower start",
        )
    if spec.train is not None:
        yield (
            ("train",),
            "train needs to know its batch, and `largest: true` is still looking for it; leave train out, then list "
            "the batch that was found in a study of its own",
        )
    for index, strategy in enumerate(spec.axes.strategy):
        if strategy.name == "fsdp" or strategy.sync_batch_norm:
            yield (
                ("axes", "strategy", index),
                f"{strategy.label} exchanges inside forward, where ranks would wait forever for one that ran out of "
                "memory; search with ddp or zero, or list the batches",
            )


def _points(spec: StudySpec) -> Found:
    everything = list(product(spec))
    for index, skip in enumerate(spec.skip):
        if not any(matches(skip, point) for point in everything):
            yield ("skip", index), "this `skip` entry matches no point of the study; correct or remove it"
    points = study_points(spec)
    if not points:
        yield ("skip",), "`skip` leaves out every point; nothing would run"
    batches = spec.axes.global_batch
    if not batches:
        return
    for batch, workers, parts in sorted({(point.global_batch, point.workers, point.accumulation) for point in points}):
        if batch % (workers * parts):
            among = f"workers={workers}" + (f" x accumulation={parts}" if parts > 1 else "")
            yield (
                ("axes", "global_batch", batches.index(batch)),
                f"global_batch={batch} does not divide among {among}; "
                f"use a multiple of {workers * parts}, or skip the combination",
            )
