"""The plan of a study in the terminal: trials, launches, cost, jobs, and the exact commands."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Iterator, Mapping
from textwrap import indent
from typing import Any

from rich.console import Group
from rich.table import Table
from rich.text import Text

from worldsize.data.catalog import WorkloadFacts
from worldsize.launch.commands import mpirun_command, torchrun_command
from worldsize.launch.slurm.script import job_script
from worldsize.launch.slurm.target import job_of
from worldsize.plan.cost import Cost
from worldsize.plan.grid import Site
from worldsize.plan.plan import Launch, Plan, full_grid
from worldsize.report.words.numbers import counted, duration, number, percent
from worldsize.report.write.console import ACCENT, plain_table
from worldsize.spec.optimizer import Search
from worldsize.spec.study import StudySpec, TrialSpec
from worldsize.spec.training import steps_per_epoch
from worldsize.study.study import Study


def plan_view(study: Study, cost: Cost, everything: bool) -> Group:
    """Trials, launches, cost, and the exact commands."""
    spec, plan = study.spec, study.plan
    facts = study.facts
    kinds = Counter(trial.kind for trial in plan.trials.values())
    kinds_words = ", ".join(f"{count} {kind}" for kind, count in kinds.items())
    basis = "from steps measured before" if cost.measured else "rough: nothing is measured yet"
    parts: list[Any] = [
        Text.assemble((spec.name, "bold"), f": {spec.workload.name}, {facts.title}"),
        Text(
            f"{counted(len(plan.trials), 'trial')} ({kinds_words}) in "
            f"{counted(len(plan.launches), 'launch', 'launches')}; about {duration(cost.wall_s)}, "
            f"{number(cost.worker_s)} worker-seconds ({basis})"
        ),
        *[Text(words) for words in job_words(study.sites, cost)],
        *[Text(words) for words in _more_to_come(spec)],
        *([Text(f"It cannot run here yet: {missing}", style="yellow")] if (missing := study.missing_data()) else []),
        Text(""),
        _steps_table(plan, facts),
        Text(""),
    ]
    scripted: set[str] = set()  # one script per place is shown: the others differ only in names and sizes
    for index, launch in enumerate(plan.launches, start=1):
        parts.append(Text(f"{launch.id(index)}: {counted(len(launch.trials), 'trial')}", style=f"bold {ACCENT}"))
        parts.append(Text(f"  {launch_command(study, launch, index)}"))
        shown = launch.trials if everything else launch.trials[:8]
        more = [] if len(shown) == len(launch.trials) else [f"and {len(launch.trials) - len(shown)} more (--all)"]
        parts.append(Text(f"  {', '.join([*shown, *more])}", style="dim"))
        if (everything or launch.place not in scripted) and (script := planned_script(study, launch, index)):
            scripted.add(launch.place)
            parts.append(Text(script))
    return Group(*parts)


def _more_to_come(spec: StudySpec) -> Iterator[str]:
    """Trials that are not in the plan yet or may end early."""
    if spec.adaptive:
        trained = "; then what it recommends is trained" if spec.train else ""
        yield (
            f"adaptive: these probes first, then more while the answer can still change, up to "
            f"{counted(max(spec.axes.workers), 'worker')}; the full grid has {len(full_grid(spec))}{trained}"
        )
    if spec.axes.largest is not None:
        yield f"batch_per_worker: doubled from {spec.axes.largest.first}, then the largest that fits is closed in on"
    for entry in spec.axes.optimizer:
        if isinstance(entry.lr, Search) and entry.lr.divergence_within is not None:
            within = percent(entry.lr.divergence_within)
            yield f"{entry.name}: more rates, until the one that diverges is known to {within}"
    if any(entry.prunes for entry in spec.axes.optimizer):
        yield "hopeless trials of a search are stopped early; steps and times here are the most there can be"
    elif spec.train is not None and (spec.train.until or spec.train.plateau):
        yield "training may end sooner; steps and times here are the most there can be"


def _steps_table(plan: Plan, facts: WorkloadFacts) -> Table:
    """steps = epochs x samples / global batch, for each setting."""
    table = plain_table(gap=2)
    for header in ("workers", "batch/worker", "global batch", "optimizer", "rate", "steps/epoch", "steps", "epochs"):
        table.add_column(header, justify="right")
    seen: dict[tuple[Any, ...], TrialSpec] = {}
    for trial in (trial for trial in plan.trials.values() if trial.kind != "pretrain"):
        key = (trial.workers, trial.batch_per_worker, trial.accumulation, trial.kind == "train" and trial.optimizer)
        seen.setdefault(key, trial)
    trained = [trial for trial in seen.values() if trial.train] or list(seen.values())
    for trial in sorted(trained, key=_place_in_table):
        epoch_steps = steps_per_epoch(facts.train_samples, trial.global_batch)
        cells = [str(trial.workers), str(trial.batch_per_worker), str(trial.global_batch)]
        if trial.train:
            steps = trial.train.total_steps(facts.train_samples, trial.global_batch)
            cells += [
                trial.optimizer.family,
                f"{trial.peak_lr:g}",
                str(epoch_steps),
                str(steps),
                f"{steps / epoch_steps:g}",
            ]
        else:
            cells += ["", "", str(epoch_steps), "search" if trial.largest else "probe", ""]
        table.add_row(*cells)
    return table


def _place_in_table(trial: TrialSpec) -> tuple[Any, ...]:
    return trial.batch_per_worker, trial.workers, trial.optimizer.family, trial.optimizer.momentum, trial.peak_lr


def launch_command(study: Study, launch: Launch, number: int) -> str:
    """The shell command that starts a launch."""
    spec, folder, launch_id = study.sites[launch.place].spec, study.folder, launch.id(number)
    if spec.slurm is not None:
        job = job_of(spec, folder, launch_id, launch.workers, name=launch_id)
        script = shlex.quote(f"{folder}/launches/{launch_id}/job.sh")
        return f"sbatch {script}   # nodes: {job.nodes}, workers per node: {job.workers_per_node}"
    build = mpirun_command if spec.run_on == "mpi" else torchrun_command
    return shlex.join(build(folder, launch_id, launch.workers, "python"))


def planned_script(study: Study, launch: Launch, number: int) -> str:
    """The full job script; empty if the launch is not a job."""
    spec, launch_id = study.sites[launch.place].spec, launch.id(number)
    if spec.slurm is None:
        return ""
    job = job_of(spec, study.folder, launch_id, launch.workers, name=f"ws-{spec.name[:40]}-{launch_id}")
    return "\n" + indent(job_script(job, spec.slurm), "    ")


def job_words(sites: Mapping[str, Site], cost: Cost) -> Iterator[str]:
    """One line for each place that runs jobs."""
    for place, node_s in cost.node_s.items():
        slurm = sites[place].spec.slurm
        assert slurm is not None
        where = f"on {place or 'Slurm'}" + (f" in partition {slurm.partition}" if slurm.partition else "")
        jobs = f"{counted(slurm.max_jobs, 'job')} at once, each of {slurm.time} at most"
        yield f"{where}: about {number(node_s / 3600)} node-hours, {jobs}; waiting in the queue comes on top"
