"""Problems that make a study impossible, reported before anything runs, each with its location in the study."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any, Literal

from worldsize.data.catalog import METRICS, WorkloadFacts, metric_bounds, workload_problem
from worldsize.machine import Machine
from worldsize.plan.grid import Site, auto_capacity, auto_counts, matches, product, sites, study_points
from worldsize.spec.base import Loc
from worldsize.spec.place import OnSlurm, nodes_for
from worldsize.spec.study import StudySpec
from worldsize.spec.training import UntilSpec, steps_per_epoch
from worldsize.spec.workload import WorkloadSpec

Problems = Iterator[tuple[Loc, str]]


def idle_places(spec: StudySpec) -> Problems:
    used = {point.place for point in study_points(spec)}
    for index, on in enumerate(spec.places):
        if on and on not in used:
            yield ("run_on", index), f"`skip` leaves nothing to run on {on}; remove the place or shorten `skip`"


def place_problems(spec: StudySpec, machine: Machine) -> Problems:
    """Yield the problems of all places. `machine` is the one that the driver runs on; for what it lacks, see
    `machine_lacks`."""
    yield from _one_machine_twice(spec)
    for on, site in sites(spec, machine).items():
        problems_here = [*_jobs(site.spec, site.device), *_strategies(site.spec, site.device)]
        if site.spec.slurm is not None:
            problems_here += _capacity(site)
        yield from _at_site(spec, on, site, problems_here)


def machine_lacks(spec: StudySpec, machine: Machine) -> Problems:
    """Yield what the driver's machine lacks to run the study. A plan needs none of it."""
    for on, site in sites(spec, machine).items():
        if site.spec.slurm is None:
            yield from _at_site(spec, on, site, _capacity(site))


def _one_machine_twice(spec: StudySpec) -> Problems:
    local = [on for on, place in spec.places.items() if place in ("local", "mpi")]
    if len(local) > 1:
        text = (
            f"{' and '.join(local)} are the same machine, so their runs would disturb each other; write one study for "
            "each"
        )
        yield ("run_on", list(spec.places).index(local[1])), text


def _at_site(spec: StudySpec, on: str, site: Site, problems_here: Iterable[tuple[Loc, str]]) -> Problems:
    """Yield the problems of one place, with its name if there are several places."""
    is_first = on == next(iter(spec.places))
    for loc, text in problems_here:
        if loc[0] == "pretrain" and not is_first:
            continue  # pretraining runs only on the first place
        match loc:
            case ("axes", "workers", int(index)) if on:
                workers = site.spec.axes.workers[index]
                count_loc: Loc = ("axes", "workers", spec.axes.workers.index(workers))
                yield (
                    count_loc,
                    f"on {on}: {text}, or leave it out there with `skip: [{{place: {on}, workers: {workers}}}]`",
                )
            case _:
                yield loc, f"on {on}: {text}" if on else text


def _capacity(site: Site) -> Problems:
    """Yield problems with workers that would have no core or GPU of their own."""
    spec, machine, device = site.spec, site.machine, site.device
    if device == "cuda" and not machine.gpus:
        where = "run_on requests no GPU: add slurm.gpus_per_node, or" if spec.slurm else "this machine has no GPU;"
        yield ("device",), f"device=cuda, but {where} use `device: cpu`"
        return
    owner = "of the job" if spec.slurm else "of this machine"
    capacity, noun = machine.capacity(device, spec.threads_per_worker), "GPU" if device == "cuda" else "core"
    units = machine.gpus if device == "cuda" else machine.cores
    available = f"{units} {noun}" + ("s" if units != 1 else "")
    for loc, workers in _worker_counts(spec):
        if workers > capacity and not spec.oversubscribe:
            threads = f" of {spec.threads_per_worker} threads" if spec.threads_per_worker > 1 and noun == "core" else ""
            yield (
                loc,
                f"workers={workers}{threads} is more than the {available} {owner}; "
                "use fewer, or `oversubscribe: true` to let them share",
            )
    gpu_strategies = (index for index, strategy in enumerate(spec.axes.strategy) if strategy.name == "fsdp")
    for index in gpu_strategies if device == "cuda" and spec.oversubscribe else ():
        strategy = spec.axes.strategy[index]
        most = max((point.workers for point in study_points(spec) if point.strategy == strategy), default=0)
        if most > machine.gpus:
            yield (
                ("axes", "strategy", index),
                f"fsdp needs one GPU per worker, and {most} workers would share {machine.gpus}; "
                "use fewer workers, ddp or zero",
            )


def _worker_counts(spec: StudySpec) -> Iterator[tuple[Loc, int]]:
    """Yield every worker count of the study with its location in the file."""
    for index, workers in enumerate(spec.axes.workers):
        yield ("axes", "workers", index), workers
    if spec.pretrain is not None:
        yield ("pretrain", "workers"), spec.pretrain.workers


def _jobs(spec: StudySpec, device: Literal["cpu", "cuda"]) -> Problems:
    """Yield problems that only a study on Slurm can have."""
    slurm = spec.slurm
    if slurm is None:
        return
    for loc, workers in _worker_counts(spec):
        nodes = nodes_for(slurm, workers)
        if workers % nodes:
            yield (
                loc,
                f"workers={workers} does not divide among the {nodes} nodes that it needs with "
                f"{slurm.workers_per_node} on each; use a multiple of {nodes}, or set slurm.workers_per_node in run_on",
            )
    per_node, gpus = slurm.workers_per_node or 0, slurm.gpus_per_node
    if gpus and per_node > gpus and not spec.oversubscribe:
        yield (
            ("run_on",),
            f"workers_per_node={per_node} is more than gpus_per_node={gpus}; use at most {gpus}, or `oversubscribe: "
            "true` to let workers share a GPU",
        )
    if spec.axes.largest is not None and device == "cpu" and spec.memory_limit_gb is None:
        yield (
            ("axes", "batch_per_worker"),
            "`largest: true` on Slurm's CPU nodes needs `memory_limit_gb`, because their memory is unknown; add it",
        )


def _strategies(spec: StudySpec, device: Literal["cpu", "cuda"]) -> Problems:
    for index, strategy in enumerate(spec.axes.strategy):
        loc: Loc = ("axes", "strategy", index)
        if strategy.sync_batch_norm and device == "cpu":
            yield loc, "sync_batch_norm: torch supports it on GPUs only, and this study runs on cpu; remove it"
        if strategy.sync_batch_norm and spec.workload.freeze is not None:
            yield loc, "sync_batch_norm replaces layers that `freeze` refers to; remove one of the two"
        if strategy.name == "fsdp" and spec.workload.unfreeze_epoch is not None:
            yield (
                loc,
                f"fsdp shards a model once, so unfreeze_epoch={spec.workload.unfreeze_epoch} cannot change later which "
                "parameters are trained; use ddp or zero, or remove unfreeze_epoch",
            )
        if (strategy.name != "ddp" or strategy.sync_batch_norm) and max(spec.axes.workers) == 1:
            yield (
                loc,
                f"{strategy.label} needs several workers, and axes.workers has only 1; add a worker count or use ddp",
            )


def data_problems(spec: StudySpec, facts: WorkloadFacts) -> list[tuple[Loc, str]]:
    issues: list[tuple[Loc, str]] = []
    largest = max(point.global_batch for point in study_points(spec))
    if largest > facts.train_samples:
        axis = "global_batch" if spec.axes.global_batch else "batch_per_worker"
        text = (
            f"a global batch of {largest} is more than the {facts.train_samples} training samples; use a smaller batch"
        )
        issues.append((("axes", axis), text))
    if spec.train is not None and spec.train.until is not None and spec.train.until.metric not in facts.metrics:
        text = (
            f"until.metric={spec.train.until.metric} is not measured by {spec.workload.name}; "
            f"use one of {', '.join(facts.metrics)}"
        )
        issues.append((("train", "until", "metric"), text))
    elif spec.train is not None and spec.train.until is not None:
        issues += [(("train", "until"), text) for text in _wrong_way(spec.train.until, facts)]
    issues += _warm_up_too_long(spec, facts)
    if spec.train is not None and spec.train.label_smoothing and not facts.classifies:
        text = (
            f"label_smoothing={spec.train.label_smoothing:g} needs a built-in workload with classes, which "
            f"{spec.workload.name} is not; remove it, or smooth in your own loss"
        )
        issues.append((("train", "label_smoothing"), text))
    return issues


def _wrong_way(until: UntilSpec, facts: WorkloadFacts) -> Iterator[str]:
    """Yield problems with a target that is met before training begins, or never."""
    metric = METRICS.get(until.metric)
    rises = facts.higher_is_better if until.metric == facts.metric else metric is not None and metric.higher_is_better
    known = until.metric == facts.metric or metric is not None
    if known and rises and until.at_most is not None:
        yield f"until.at_most={until.at_most:g}: a higher {until.metric} is better; use at_least"
    if known and not rises and until.at_least is not None:
        yield f"until.at_least={until.at_least:g}: a lower {until.metric} is better; use at_most"
    if (until.at_least or 0) > metric_bounds(until.metric)[1]:
        yield f"until.at_least={until.at_least:g}: {until.metric} is at most 1; write 0.9 for 90 %"


def _warm_up_too_long(spec: StudySpec, facts: WorkloadFacts) -> Problems:
    if spec.train is None:
        return
    for point in study_points(spec):
        own = point.optimizer.warmup_epochs
        epochs = spec.train.warmup_epochs if own is None else own
        steps = spec.train.total_steps(facts.train_samples, point.global_batch)
        rising = epochs * steps_per_epoch(facts.train_samples, point.global_batch)
        if rising > steps:
            yield (
                ("train", "warmup_epochs") if own is None else ("axes", "optimizer", point.entry, "warmup_epochs"),
                f"warmup_epochs={epochs:g} is {rising:.0f} steps at global batch {point.global_batch}, "
                f"more than the {steps} steps of training; use a shorter warm-up",
            )
            return


def auto_problems(spec: StudySpec, machine: Machine, facts: WorkloadFacts) -> Problems:
    """Yield why `workers: auto` cannot be resolved. `machine` is the one that the driver runs on."""
    if not spec.axes.is_auto:
        return
    loc: Loc = ("axes", "workers")
    if len(spec.places) > 1:
        yield loc, f"workers: auto needs one place, and the study has {len(spec.places)}; list the counts"
        return
    (place,) = spec.places.values()
    if isinstance(place, OnSlurm) and not (place.slurm.gpus_per_node or place.slurm.workers_per_node):
        yield (
            loc,
            "workers: auto needs the number of workers per node; set run_on.slurm.workers_per_node, or list the counts",
        )
        return
    if auto_capacity(spec, machine) > 1 and len(auto_counts(spec, machine, facts)) < 2:
        batches = spec.axes.global_batch
        batch = f"global_batch={list(batches)}" if batches else "batch_per_worker"
        rule = "does not divide among more workers" if batches else "for 2 workers exceeds the training data"
        yield loc, f"workers: auto finds no count above 1: {batch} {rule}; use another batch, or `workers: [1]`"


def problems(spec: StudySpec, machine: Machine) -> list[tuple[Loc, str]]:
    """Return all problems of a resolved study that do not need the data. `machine` is that of the driver."""
    if too_many := spec.too_many_trials():  # `auto` may have added counts since the study was read
        return [((), too_many)]
    if idle := list(idle_places(spec)):
        return [*idle, *_points(spec)]
    return [
        *_twice(spec),
        *place_problems(spec, machine),
        *_noise_scale(spec),
        *_searches(spec),
        *_adaptive(spec),
        *_largest_batch(spec),
        *_points(spec),
    ]


def workload_problems(spec: StudySpec) -> Problems:
    """Yield problems of the workloads. They are checked before samples are counted."""
    used: list[tuple[Loc, WorkloadSpec]] = [(("workload",), spec.workload)]
    if spec.pretrain is not None:
        used.append((("pretrain", "workload"), spec.pretrain.workload))
    for loc, workload in used:
        if text := workload_problem(workload):
            yield loc, text


def _twice(spec: StudySpec) -> Problems:
    remedy = "twice, which would run the same trials again; use `repeats` to repeat trials"
    for axis in type(spec.axes).model_fields:
        values = getattr(spec.axes, axis)
        if not isinstance(values, tuple):
            continue  # a search or a flag
        seen: set[Any] = set()
        for index, value in enumerate(values if axis != "optimizer" else ()):
            if value in seen:
                yield ("axes", axis, index), f"axes.{axis} lists {getattr(value, 'label', value)} {remedy}"
            seen.add(value)
    settings: set[Any] = set()
    for index, entry in enumerate(spec.axes.optimizer):
        expanded = [setting.model_copy(update={"name": setting.family}) for setting in entry.settings()]
        counts = Counter(expanded)
        twice = next((setting for setting in expanded if setting in settings or counts[setting] > 1), None)
        if twice is not None:
            yield ("axes", "optimizer", index), f"axes.optimizer lists {twice.name} {twice.lr:g} {remedy}"
        settings |= counts.keys()


def _noise_scale(spec: StudySpec) -> Problems:
    if spec.train is None or not spec.train.measure_noise_scale:
        return
    for index, strategy in enumerate(spec.axes.strategy):
        if strategy.name != "ddp" or strategy.sync_batch_norm:
            yield (
                ("axes", "strategy", index),
                f"measure_noise_scale compares the gradients of single workers, which {strategy.label} does not keep "
                "separate; use ddp, or remove measure_noise_scale",
            )
    if all(point.workers * point.accumulation == 1 for point in study_points(spec)):
        yield (
            ("train", "measure_noise_scale"),
            "measure_noise_scale compares parts of a batch, and every point has one worker and no accumulation; "
            "add a worker count, or `accumulation: 2`",
        )


def _searches(spec: StudySpec) -> Problems:
    for index, entry in enumerate(spec.axes.optimizer):
        if spec.train and spec.train.schedule.name == "one-cycle" and any(entry.warmup_epochs or ()):
            yield (
                ("axes", "optimizer", index, "warmup_epochs"),
                "warmup_epochs and the one-cycle schedule both start with a warm-up; remove one of them",
            )
        if entry.searched() and spec.train is None:
            yield ("axes", "optimizer", index), "a search compares the results of training; add `train:`"


def _adaptive(spec: StudySpec) -> Problems:
    if spec.adaptive and spec.train is not None and len(spec.places) > 1:
        yield (
            ("train",),
            f"an adaptive study trains only the recommended setting, and this one has {len(spec.places)} places; "
            "remove train, or list the counts",
        )
    if spec.adaptive and spec.probe is None:
        yield (
            ("probe",),
            "an adaptive study needs probes, which probe=false turns off; remove `probe`, or set `adaptive: false`",
        )
    if spec.adaptive and spec.axes.largest is not None:
        yield (
            ("axes", "batch_per_worker"),
            "an adaptive study compares listed batches, but `largest: true` searches for one; list the batches, or "
            "list the counts",
        )


def _largest_batch(spec: StudySpec) -> Problems:
    search = spec.axes.largest
    if search is None:
        return
    loc: Loc = ("axes", "batch_per_worker")
    if search.max is not None and search.max < search.first:
        yield (
            (*loc, "max"),
            f"max={search.max} is less than first={search.first}, the first batch tried; raise max or lower first",
        )
    if spec.train is not None:
        yield (
            ("train",),
            "train needs a known batch, but `largest: true` searches for one; remove train, then train with the batch "
            "that was found in a second study",
        )
    for index, strategy in enumerate(spec.axes.strategy):
        if strategy.name == "fsdp" or strategy.sync_batch_norm:
            yield (
                ("axes", "strategy", index),
                f"{strategy.label} communicates during forward, where ranks would wait forever for one that ran out of "
                "memory; search with ddp or zero, or list the batches",
            )


def _points(spec: StudySpec) -> Problems:
    everything = list(product(spec))
    for index, skip in enumerate(spec.skip):
        if not any(matches(skip, point) for point in everything):
            yield ("skip", index), "this `skip` entry matches no point of the study; correct or remove it"
    points = study_points(spec)
    if not points:
        yield ("skip",), "`skip` removes every point, so nothing would run; shorten it"
    batches = spec.axes.global_batch
    if not batches:
        return
    for batch, workers, parts in sorted({(point.global_batch, point.workers, point.accumulation) for point in points}):
        if batch % (workers * parts):
            among = f"workers={workers}" + (f" x accumulation={parts}" if parts > 1 else "")
            yield (
                ("axes", "global_batch", batches.index(batch)),
                f"global_batch={batch} does not divide evenly among {among}; "
                f"use a multiple of {workers * parts}, or skip this combination",
            )
