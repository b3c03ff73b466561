"""The plan of a study in the terminal: trials, launches, cost, jobs, and the exact commands."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from textwrap import indent
from typing import Any

from rich.console import Group
from rich.text import Text

from worldsize.data.catalog import WorkloadFacts
from worldsize.launch.commands import mpirun_command, torchrun_command, worker_environment
from worldsize.launch.slurm.script import Job, job_script
from worldsize.launch.slurm.target import job_of
from worldsize.plan.cost import Cost
from worldsize.plan.grid import Site
from worldsize.plan.plan import Launch, Plan, full_grid
from worldsize.report.blocks import Column, setting_columns, table
from worldsize.report.words.numbers import counted, duration, integer, number, percent, rate, rough_duration
from worldsize.report.words.quantities import LEARNING_RATE, Quantity
from worldsize.report.write.console import ACCENT
from worldsize.report.write.terminal import TerminalTable
from worldsize.spec.optimizer import Search
from worldsize.spec.study import StudySpec, TrialSpec
from worldsize.spec.training import steps_per_epoch
from worldsize.study.study import Study


def plan_view(study: Study, cost: Cost, everything: bool, command_that_fits: str = "") -> Group:
    """Trials, launches, cost, and the exact commands."""
    spec, plan = study.spec, study.plan
    facts = study.facts
    kinds = Counter(trial.kind for trial in plan.trials.values())
    kinds_words = ", ".join(f"{count} {kind}" for kind, count in kinds.items())
    basis = "from steps measured before" if cost.measured else "rough: nothing is measured yet"
    time = duration(cost.wall_s) if cost.measured else rough_duration(cost.wall_s)
    parts: list[Any] = [
        Text.assemble((spec.name, "bold"), f": {spec.workload.name}, {facts.title}"),
        Text(
            f"{counted(len(plan.trials), 'trial')} ({kinds_words}) in "
            f"{counted(len(plan.launches), 'launch', 'launches')}; about {time}, "
            f"{_worker_time(cost.worker_s)} ({basis})"
        ),
        *[Text(words) for words in job_words(study.sites, cost)],
        *[Text(words) for words in _more_to_come(spec)],
        *[Text(words, style="yellow") for words in _missing(study, command_that_fits)],
        Text(""),
        _steps_table(plan, facts),
        Text(""),
    ]
    scripted: set[str] = set()  # only one script per place is shown, because others differ only in names and sizes
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


def _missing(study: Study, command_that_fits: str) -> Iterator[str]:
    """Yield what keeps the study, or some of its worker counts, from running on this machine."""
    if note := left_out_words(study):
        yield note
    for problem in study.lacks:
        yield f"Cannot run here: {problem}"
    if command_that_fits:
        yield f"This would run here: {command_that_fits}"
    if missing := study.missing_data():
        yield f"Cannot run yet: {missing}"


def left_out_words(study: Study) -> str:
    """Return which worker counts of a built-in study are left out because they do not fit; empty if all fit."""
    if not study.left_out:
        return ""
    site = next(site for site in study.sites.values() if site.spec.slurm is None)
    on_gpus = site.device == "cuda"
    units = counted(site.machine.gpus, "GPU") if on_gpus else counted(site.machine.cores, "core")
    return f"Left out: {workers_words(study.left_out)}, because this machine has only {units}."


def workers_words(counts: Sequence[int]) -> str:
    """`1 worker`, `1, 2 and 4 workers`."""
    listed = [str(count) for count in counts]
    joined = " and ".join(filter(None, [", ".join(listed[:-1]), listed[-1]]))
    return f"{joined} worker" if list(counts) == [1] else f"{joined} workers"


def _more_to_come(spec: StudySpec) -> Iterator[str]:
    """Yield sentences about trials that are not in the plan yet, or that may end early."""
    if spec.adaptive:
        trained = "; then the recommended setting is trained" if spec.train else ""
        yield (
            f"Adaptive: these probes run first, then more as long as the answer can still change, up to "
            f"{counted(max(spec.axes.workers), 'worker')}; the full grid has {len(full_grid(spec))} probes{trained}"
        )
    if spec.axes.largest is not None:
        yield (
            f"Largest batch: trials double the batch per worker from {spec.axes.largest.first}, then search for the "
            "largest one that fits"
        )
    for entry in spec.axes.optimizer:
        if isinstance(entry.lr, Search) and entry.lr.divergence_within is not None:
            within = percent(entry.lr.divergence_within)
            yield f"{entry.name}: more learning rates follow, until the rate that diverges is known to within {within}"
    if any(entry.prunes for entry in spec.axes.optimizer):
        yield "Trials of a search that fall far behind are stopped early, so steps and times are upper limits"
    elif spec.train is not None and (spec.train.until or spec.train.plateau):
        yield "Training may end early, so steps and times are upper limits"


def _worker_time(seconds: float) -> str:
    return f"{number(seconds / 3600)} worker-hours" if seconds >= 3600 else f"{integer(seconds)} worker-seconds"


def _steps_table(plan: Plan, facts: WorkloadFacts) -> TerminalTable:
    """Return a table of steps = epochs x samples / global batch, for each setting."""
    seen: dict[tuple[Any, ...], TrialSpec] = {}
    for trial in (trial for trial in plan.trials.values() if trial.kind != "pretrain"):
        seen.setdefault((trial.setting, trial.variant if trial.train else None), trial)
    trials = sorted([trial for trial in seen.values() if trial.train] or seen.values(), key=_place_in_table)
    columns: list[Column[TrialSpec]] = [
        *setting_columns(trials),
        Column(quantity=OPTIMIZER, of=lambda trial: _optimizer(trial) if trial.train else None),
        Column(quantity=LEARNING_RATE, of=lambda trial: trial.peak_lr if trial.train else None),
        Column(quantity=STEPS_PER_EPOCH, of=lambda trial: steps_per_epoch(facts.train_samples, trial.global_batch)),
        Column(quantity=STEPS_OR_KIND, of=lambda trial: _steps(trial, facts)),
        Column(quantity=EPOCHS, of=lambda trial: _epochs(trial, facts)),
    ]
    made = table("plan", "", trials, columns)
    assert made is not None
    return TerminalTable(made)


OPTIMIZER = Quantity(key="optimizer", title="optimizer")
STEPS_PER_EPOCH = Quantity(key="steps_per_epoch", title="steps per epoch", short="steps/\nepoch", digits=integer)
STEPS_OR_KIND = Quantity(key="steps", title="steps", digits=integer)
EPOCHS = Quantity(key="epochs", title="epochs", digits=lambda value: integer(value) if value >= 10 else rate(value))


def _optimizer(trial: TrialSpec) -> str:
    """`momentum 0.9, linear rule, pretrained`"""
    return trial.family_label


def _steps(trial: TrialSpec, facts: WorkloadFacts) -> int | str:
    if trial.train:
        return trial.train.total_steps(facts.train_samples, trial.global_batch)
    return "search" if trial.largest else "probe"


def _epochs(trial: TrialSpec, facts: WorkloadFacts) -> float | None:
    if not trial.train:
        return None
    epoch_steps = steps_per_epoch(facts.train_samples, trial.global_batch)
    return trial.train.total_steps(facts.train_samples, trial.global_batch) / epoch_steps


def _place_in_table(trial: TrialSpec) -> tuple[Any, ...]:
    return (
        trial.global_batch if trial.scaling == "strong" else trial.batch_per_worker,
        trial.workers,
        trial.strategy.label,
        trial.family_label,
        trial.peak_lr,
    )


def _job(spec: StudySpec, folder: Path, launch: Launch, launch_id: str, *, name: str) -> Job:
    environment = worker_environment(spec.threads_per_worker, keep_freed_memory=spec.keep_freed_memory)
    return job_of(spec, folder, launch_id, launch.workers, name=name, environment=environment)


def launch_command(study: Study, launch: Launch, number: int) -> str:
    """Return the shell command that starts a launch."""
    spec, folder, launch_id = study.sites[launch.place].spec, study.folder, launch.id(number)
    if spec.slurm is not None:
        job = _job(spec, folder, launch, launch_id, name=launch_id)
        script = shlex.quote(f"{folder}/launches/{launch_id}/job.sh")
        return f"sbatch {script}   # nodes: {job.nodes}, workers per node: {job.workers_per_node}"
    build = mpirun_command if spec.run_on == "mpi" else torchrun_command
    return shlex.join(build(folder, launch_id, launch.workers, "python"))


def planned_script(study: Study, launch: Launch, number: int) -> str:
    """Return the full job script of a launch; empty if the launch is not a Slurm job."""
    spec, launch_id = study.sites[launch.place].spec, launch.id(number)
    if spec.slurm is None:
        return ""
    job = _job(spec, study.folder, launch, launch_id, name=f"ws-{spec.name[:40]}-{launch_id}")
    return "\n" + indent(job_script(job, spec.slurm), "    ")


def job_words(sites: Mapping[str, Site], cost: Cost) -> Iterator[str]:
    """Yield one line for each place that runs jobs."""
    for place, node_s in cost.node_s.items():
        slurm = sites[place].spec.slurm
        assert slurm is not None
        where = f"on {place or 'Slurm'}" + (f" in partition {slurm.partition}" if slurm.partition else "")
        jobs = f"at most {counted(slurm.max_jobs, 'job')} at once, each for at most {slurm.time}"
        yield f"{where}: about {number(node_s / 3600)} node-hours plus time in the queue; {jobs}"
