"""What the targets of a study cannot run: more workers than fit, jobs that ask for what does not add up."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from worldsize.grid import machines_of, on_target, study_points
from worldsize.machine import Machine
from worldsize.on_spec import nodes_for, per_node
from worldsize.spec import StudySpec
from worldsize.yaml_tree import Loc

Found = Iterator[tuple[Loc, str]]


def idle_targets(spec: StudySpec) -> Found:
    used = {point.on for point in study_points(spec)}
    for on in spec.targets:
        if on and on not in used:
            yield ("on", on), f"`skip` leaves nothing to run on {on}; remove the target, or skip less"


def target_problems(spec: StudySpec, here: Machine) -> Found:
    """Of all of them; `here` is the machine that the driver runs on."""
    yield from _one_machine_twice(spec)
    for on, machine in machines_of(spec, here).items():
        yield from _on_target(spec, on, machine)


def _one_machine_twice(spec: StudySpec) -> Found:
    here = [on for on, place in spec.targets.items() if place in ("local", "mpi")]
    if len(here) > 1:
        text = f"{' and '.join(here)} are all this machine, and would disturb each other's times; make a study of each"
        yield ("on", here[1]), text


def _on_target(spec: StudySpec, on: str, machine: Machine) -> Found:
    """What this target cannot run; of several, it is named."""
    device, alone = machine.device(spec.device), on_target(spec, on)
    first = on == next(iter(spec.targets))
    for loc, text in [
        *_places(alone, machine, device),
        *_jobs(alone, device),
        *_strategies(alone, machine, device),
    ]:
        if loc[0] == "pretrain" and not first:
            continue  # it runs on the first target alone
        match loc:
            case ("axes", "workers", int(index)) if on:
                workers = alone.axes.workers[index]
                place: Loc = ("axes", "workers", spec.axes.workers.index(workers))
                yield place, f"on {on}: {text}, or leave it out there with `skip: [{{on: {on}, workers: {workers}}}]`"
            case _:
                yield loc, f"on {on}: {text}" if on else text


def _places(spec: StudySpec, machine: Machine, device: Literal["cpu", "cuda"]) -> Found:
    if device == "cuda" and not machine.gpus:
        where = "on.slurm asks for none: add gpus_per_node, or" if spec.slurm else "no GPU is visible here;"
        yield ("device",), f"device=cuda, but {where} use `device: cpu`"
        return
    places, noun = machine.places(device, spec.threads), "GPUs" if device == "cuda" else "cores"
    counts: list[tuple[Loc, int]] = [
        (("axes", "workers", index), workers) for index, workers in enumerate(spec.axes.workers)
    ]
    if spec.pretrain is not None:
        counts.append((("pretrain", "workers"), spec.pretrain.workers))
    for loc, workers in counts:
        if workers > places and not spec.oversubscribe:
            own = f" of {spec.threads} threads" if spec.threads > 1 and noun == "cores" else ""
            have = machine.gpus if noun == "GPUs" else machine.cores
            yield (
                loc,
                f"workers={workers}{own} is more than the {have} {noun} here; "
                "use fewer, or `oversubscribe: true` to let them share",
            )


def _jobs(spec: StudySpec, device: Literal["cpu", "cuda"]) -> Found:
    """What only a study on Slurm can have wrong."""
    slurm = spec.slurm
    if slurm is None:
        return
    counts: list[tuple[Loc, int]] = [(("axes", "workers", at), workers) for at, workers in enumerate(spec.axes.workers)]
    if spec.pretrain is not None:
        counts.append((("pretrain", "workers"), spec.pretrain.workers))
    for loc, workers in counts:
        nodes = nodes_for(slurm, workers, spec.most_workers)
        if workers % nodes:
            yield (
                loc,
                f"workers={workers} does not divide among the {nodes} nodes that it needs with "
                f"{per_node(slurm, spec.most_workers)} on each; use a multiple, or set on.slurm.workers_per_node",
            )
    each, gpus = per_node(slurm, spec.most_workers), slurm.gpus_per_node
    if gpus and each > gpus and not spec.oversubscribe:
        yield (
            ("on",),
            f"workers_per_node={each} is more than gpus_per_node={gpus}; use as many, or `oversubscribe: true` to let "
            "workers share a GPU",
        )
    if spec.axes.largest is not None and device == "cpu" and spec.memory_limit_gb is None:
        yield (
            ("axes", "batch_per_worker"),
            "`largest: true` on Slurm's CPU nodes needs `memory_limit_gb`: their memory is not known here",
        )


def _strategies(spec: StudySpec, machine: Machine, device: Literal["cpu", "cuda"]) -> Found:
    for index, strategy in enumerate(spec.axes.strategy):
        loc: Loc = ("axes", "strategy", index)
        if strategy.sync_batch_norm and device == "cpu":
            yield loc, "sync_batch_norm: torch has it for GPUs only, and this study runs on cpu; leave it out"
        if strategy.sync_batch_norm and spec.workload.freeze is not None:
            yield loc, "sync_batch_norm makes new layers, which `freeze` would not know; leave one of the two out"
        most = max((point.workers for point in study_points(spec) if point.strategy == strategy), default=0)
        if strategy.name == "fsdp" and device == "cuda" and most > machine.gpus:
            yield (
                loc,
                f"fsdp needs a GPU for each worker, and {most} workers would share {machine.gpus}; "
                "use fewer workers, or ddp or zero",
            )
        if strategy.name == "fsdp" and spec.workload.unfreeze_epoch is not None:
            yield (
                loc,
                f"fsdp shards a model once, so unfreeze_epoch={spec.workload.unfreeze_epoch} cannot change what is "
                "trained; use ddp or zero, or leave unfreeze_epoch out",
            )
        if (strategy.name != "ddp" or strategy.sync_batch_norm) and max(spec.axes.workers) == 1:
            yield (
                loc,
                f"{strategy.label} is about several workers, and axes.workers has only 1; add a count, or use ddp",
            )
