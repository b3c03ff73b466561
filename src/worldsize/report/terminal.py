"""The answer, the plan and the status in the terminal. Text from users is never read as markup."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rich.console import Console, ConsoleOptions, Group, RenderableType
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from worldsize.analysis.scaling import Row
from worldsize.analysis.stats import Interval
from worldsize.catalog import WorkloadFacts
from worldsize.data.sets import DataSetStatus
from worldsize.errors import visible
from worldsize.estimate import Cost
from worldsize.optimizer_spec import Search
from worldsize.plan import Plan, full_grid
from worldsize.prediction import outlook
from worldsize.record import Outcome, TrialRecord
from worldsize.report.batches import batches_view
from worldsize.report.exchange import exchange_view
from worldsize.report.jobs import job_words, launch_command, planned_script, queue_words
from worldsize.report.learning import how_words, learning_view
from worldsize.report.opening import answer_sentences, beyond, cautions, other_findings
from worldsize.report.steps import hardware_view, links_view, noise_view, steps_view
from worldsize.report.tables import ACCENT, how, plain_table
from worldsize.report.words import (
    LEVEL_WORDS,
    answer_sentence,
    counted,
    duration,
    largest_batch_sentences,
    metric_value,
    number,
    only_one_count,
    percent,
)
from worldsize.results import Results
from worldsize.spec import StudySpec, TrialSpec
from worldsize.study import Study
from worldsize.train_spec import steps_per_epoch


def answer_view(results: Results) -> Group:
    """The sentence, what else to know, the table; of several targets, one after another."""
    parts: list[Any] = []
    for on, each in results.apart.items():
        parts += [Text(f"\nOn {on}", style=f"bold {ACCENT}")] if len(results.apart) > 1 else []
        parts += _answer(each)
    parts += [Text(words, style="dim") for words in queue_words(results)]
    parts.append(Text(f"Everything measured is in {visible(str(results.folder.path))}", style="dim"))
    return Group(*parts)


def _answer(results: Results) -> list[Any]:
    answer, searched = results.answer, bool(results.largest)
    trained = answer.row is not None and answer.row.metric is not None
    sure = answer.verdict == "use" or searched or (only_one_count(answer) and trained)
    parts: list[Any] = [Text("")]
    parts += [Text(words, style="bold" if sure else "bold yellow") for words in answer_sentences(results)]
    parts += [Text(found["text"], style="yellow") for found in cautions(results)]
    parts += [Text(found["text"]) for found in beyond(outlook(results))]
    parts += [Text(found["text"], style="dim") for found in other_findings(results)]
    parts += batches_view(results)
    if results.series and not (searched and only_one_count(answer)):
        parts += [Text(""), scaling_table(results, results.facts.metric)]
    parts += steps_view(results)
    parts += exchange_view(results)
    parts += links_view(results)
    parts += hardware_view(results)
    parts += learning_view(results)
    return parts + noise_view(results)


def scaling_table(results: Results, metric: str) -> Table:
    rows = results.rows
    baseline = min(row.baseline_workers for row in rows)
    table = plain_table(
        f"{results.spec.axes.scaling} scaling against {counted(baseline, 'worker')}, with {LEVEL_WORDS}s"
    )
    settings = [row.setting for row in rows]
    mixed = bool(how(settings[0], settings))
    facts = results.facts
    headers = ["workers", "batch/\nworker", "global\nbatch", *(["how"] if mixed else []), "step time"]
    for header in [*headers, f"{facts.unit}/s", "speedup", "efficiency", f"test\n{metric}"]:
        table.add_column(header, justify="right", overflow="fold")
    chosen = results.answer.row if results.answer.verdict == "use" else None
    for row in rows:
        setting = row.setting
        told = [how(setting, settings)] if mixed else []
        table.add_row(
            *(str(setting.workers), str(setting.batch_per_worker), str(setting.global_batch), *told),
            _both(f"{number(row.step_s.value * 1e3)} ms", _narrow(row.step_s, 1e3)),
            _both(
                number(row.samples_per_s.value * facts.units_per_sample),
                _narrow(row.samples_per_s, facts.units_per_sample),
            ),
            _ratio(row, number(row.speedup.value), _narrow(row.speedup)),
            _ratio(
                row, percent(row.efficiency.value), f"{row.efficiency.low * 100:.0f}–{row.efficiency.high * 100:.0f}"
            ),
            "" if row.metric is None else metric_value(row.metric),
            style="bold" if row == chosen else "",
        )
    return table


def _ratio(row: Row, value: str, reach: str) -> Text:
    """The baseline is 1 by definition and has no interval."""
    return Text(value) if row.setting.workers == row.baseline_workers else _both(value, reach)


def _both(value: str, reach: str) -> Text:
    return Text.assemble(value, "\n", (reach, "dim not bold"))


def _narrow(interval: Interval, factor: float = 1.0) -> str:
    return f"{number(interval.low * factor)}–{number(interval.high * factor)}"


def plan_view(study: Study, cost: Cost, everything: bool) -> Group:
    """Trials, launches, cost, and the exact commands."""
    spec, plan = study.spec, study.plan()
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
        *[Text(words) for words in job_words(spec, cost)],
        *[Text(words) for words in _more_to_come(spec)],
        *([Text(f"It cannot run here yet: {missing}", style="yellow")] if (missing := study.missing_data()) else []),
        Text(""),
        _steps_table(plan, facts),
        Text(""),
    ]
    scripted: set[str] = set()  # of each target the first in full: the others differ in their names and sizes
    for index, launch in enumerate(plan.launches, start=1):
        parts.append(Text(f"{launch.id(index)}: {counted(len(launch.trials), 'trial')}", style=f"bold {ACCENT}"))
        parts.append(Text(f"  {launch_command(study, launch, index)}"))
        shown = launch.trials if everything else launch.trials[:8]
        more = [] if len(shown) == len(launch.trials) else [f"and {len(launch.trials) - len(shown)} more (--all)"]
        parts.append(Text(f"  {', '.join([*shown, *more])}", style="dim"))
        if (everything or launch.on not in scripted) and (script := planned_script(study, launch, index)):
            scripted.add(launch.on)
            parts.append(Text(script))
    return Group(*parts)


def _more_to_come(spec: StudySpec) -> Iterator[str]:
    """What is not in the plan yet, or may end before its last step."""
    if spec.axes.adaptive:
        trained = "; then what it recommends is trained" if spec.train else ""
        yield (
            f"adaptive: these probes first, then more while the answer can still change, up to "
            f"{counted(max(spec.axes.workers), 'worker')}; the full grid has {len(full_grid(spec))}{trained}"
        )
    if spec.axes.largest is not None:
        yield f"batch_per_worker: doubled from {spec.axes.largest.start}, then the largest that fits is closed in on"
    for entry in spec.axes.optimizer:
        if entry.tpe is not None:
            yield f"{entry.name}: a quarter of its {entry.tpe} settings; TPE proposes the rest from what these show"
        elif isinstance(entry.rate, Search) and entry.rate.edge is not None:
            yield f"{entry.name}: more rates, until the one that diverges is known to {percent(entry.rate.edge)}"
    if any(entry.stops_hopeless for entry in spec.axes.optimizer):
        yield "hopeless trials of a search are stopped early; steps and times here are the most there can be"
    elif spec.train is not None and (spec.train.until or spec.train.plateau):
        yield "training may end sooner; steps and times here are the most there can be"


def _steps_table(plan: Plan, facts: WorkloadFacts) -> Table:
    """steps = epochs x samples / global batch, both ways, for each setting."""
    table = plain_table(gap=2)
    for header in ("workers", "batch/worker", "global batch", "optimizer", "rate", "steps/epoch", "steps", "epochs"):
        table.add_column(header, justify="right")
    seen: dict[tuple[Any, ...], TrialSpec] = {}
    for trial in (trial for trial in plan.trials.values() if trial.kind != "pretrain"):
        key = (trial.workers, trial.batch_per_worker, trial.accumulation, trial.kind == "train" and trial.optimizer)
        seen.setdefault(key, trial)
    trained = [trial for trial in seen.values() if trial.train] or list(seen.values())
    for trial in sorted(trained, key=_place_in_table):
        each = steps_per_epoch(facts.train_samples, trial.global_batch)
        cells = [str(trial.workers), str(trial.batch_per_worker), str(trial.global_batch)]
        if trial.train:
            steps = trial.train.total_steps(facts.train_samples, trial.global_batch)
            cells += [trial.optimizer.family, f"{trial.peak_rate:g}", str(each), str(steps), f"{steps / each:g}"]
        else:
            cells += ["", "", str(each), "search" if trial.largest else "probe", ""]
        table.add_row(*cells)
    return table


def _place_in_table(trial: TrialSpec) -> tuple[Any, ...]:
    return trial.batch_per_worker, trial.workers, trial.optimizer.family, trial.optimizer.momentum, trial.peak_rate


def status_view(results: Results, running: str | None, holder: dict[str, Any] | None) -> Group:
    """How many are done, what runs now, why others failed."""
    outcomes = Counter(record.outcome for record in results.records.values())
    left = len(results.left()) - (1 if running else 0) - len(results.damaged)
    counts = [f"{outcomes['finished']} finished"]
    kinds: tuple[Outcome, ...] = ("plateaued", "stopped", "diverged", "out_of_memory", "failed")
    counts += [f"{outcomes[kind]} {kind.replace('_', ' ')}" for kind in kinds if outcomes[kind]]
    counts += [f"{len(results.damaged)} damaged"] if results.damaged else []
    counts += ["1 running"] if running else []
    parts: list[Any] = [
        Text.assemble(
            (results.spec.name, "bold"), f": {', '.join([*counts, f'{left} left'])} of {len(results.trials)}"
        ),
    ]
    for on, each in results.apart.items():
        lead = f"On {on}: " if len(results.apart) > 1 else ""
        parts += [Text(lead + words) for words in largest_batch_sentences(each.answer)]
        if each.series and not (each.largest and only_one_count(each.answer)):
            parts.append(Text(lead + answer_sentence(each.answer, each.facts.metric, how_words(each))))
        parts += [Text(lead + found["text"], style="yellow") for found in cautions(each)]
    if holder:
        parts.append(Text(f"run by pid {holder['pid']} on {holder['host']}" + (f"; now {running}" if running else "")))
    for record in results.failed():
        parts.append(failure_view(record))
    for trial_id in results.damaged:
        parts.append(Text(f"{trial_id}: its record is damaged; the next run sets it aside and runs the trial again"))
    return Group(*parts)


def failure_view(record: TrialRecord) -> Text:
    assert record.failure is not None
    failure = record.failure
    where = f"rank {failure.rank}" if failure.rank is not None else "no rank to blame"
    step = f", after step {failure.step}" if failure.step is not None else ""
    first_line = visible(failure.error).partition("\n")[0]
    text = Text.assemble((f"{record.trial} failed", "bold red"), f" ({where}{step}): {first_line}")
    for line in failure.log[-5:]:
        text.append(f"\n    {visible(line)}", style="dim")
    return text


def data_view(rows: list[DataSetStatus], root: Path) -> Group:
    table = plain_table(gap=2)
    for header in ("name", "here", "size", "what", "licence"):
        table.add_column(header, justify="right" if header == "size" else "left", overflow="fold")
    for row in rows:
        table.add_row(row.name, row.state, f"{row.size_bytes / 1e6:.0f} MB", row.title, row.licence)
    return Group(table, Text(f"in {visible(str(root))}; `worldsize data fetch NAME` downloads one", style="dim"))


class PlainConsole(Console):
    """Whatever is printed, in a table or a bar too: no character of the text steers the terminal."""

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterator[Segment]:
        for segment in super().render(renderable, options):
            yield segment if segment.control else Segment(visible(segment.text), segment.style)


def console(*, stderr: bool = False) -> Console:
    """No emoji codes, no markup: names and log lines are shown as they are. A file has room for a whole table."""
    found = PlainConsole(stderr=stderr, markup=False, emoji=False, highlight=False)
    if not found.is_terminal:
        found.width = 120
    return found
