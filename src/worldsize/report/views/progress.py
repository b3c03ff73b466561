"""Progress of a running study: two live bars in a terminal, plain lines elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, SpinnerColumn, TaskID, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bars
from rich.text import Text

from worldsize.answer.results import load
from worldsize.data.catalog import WorkloadFacts
from worldsize.data.sets import DataFile
from worldsize.errors import visible
from worldsize.folder.launches import kind_of
from worldsize.folder.record import TrialRecord
from worldsize.launch.target import Progress
from worldsize.plan.cost import CORE_FLOP_PER_S, LAUNCH_START_S, StepTimes, trial_s
from worldsize.plan.plan import Plan
from worldsize.report.views.status import failure_view
from worldsize.report.words.numbers import byte_size, counted, duration, metric_value, number, rate
from worldsize.report.write.publish import LivePage
from worldsize.spec.study import TrialSpec
from worldsize.study.study import Study, runs_again

OUTCOME_WORDS = {"plateaued": "no longer improved", "stopped": "stopped early, far behind the others"}


RESULT_WIDTH = 24
"""Space for the result of a trial, so that the time left is below that of other trials."""


def _labels(plan: Plan) -> dict[str, str]:
    """Name each trial by its workers and by everything else that differs between the trials of the study."""
    trials = list(plan.trials.values())

    def varies(of: Callable[[TrialSpec], object]) -> bool:
        return len(set(map(of, trials))) > 1

    repeated = {trial.kind for trial in trials if trial.repeat}
    named: list[tuple[bool, Callable[[TrialSpec], str]]] = [
        (varies(lambda trial: trial.kind), lambda trial: trial.kind),
        (varies(_batch), _batch),
        (varies(lambda trial: trial.strategy), lambda trial: trial.strategy.label),
        (varies(lambda trial: trial.precision), lambda trial: trial.precision),
        (varies(lambda trial: trial.accumulation), lambda trial: f"{trial.accumulation}x accumulation"),
        (varies(lambda trial: trial.place), lambda trial: trial.place),
        (True, _optimizer),
        (True, lambda trial: f"run {trial.repeat + 1}" if trial.kind in repeated else ""),
    ]
    return {
        trial.id: ", ".join(
            filter(None, [counted(trial.workers, "worker"), *(words(trial) for shown, words in named if shown)])
        )
        for trial in trials
    }


def _batch(trial: TrialSpec) -> str:
    if trial.largest:
        return ""
    size = trial.batch_per_worker if trial.scaling == "weak" else trial.global_batch
    return f"{'' if trial.scaling == 'weak' else 'global '}batch {size:,}"


def _optimizer(trial: TrialSpec) -> str:
    return f"{trial.family_label}, lr {rate(trial.peak_lr)}" if trial.kind == "train" else ""


class StudyProgress(Progress):
    """Shows the progress of a study, with an estimate of the remaining time that improves as steps are measured."""

    def __init__(
        self,
        console: Console,
        plan: Plan,
        facts: WorkloadFacts,
        finished: set[str],
        step_s: StepTimes,
    ) -> None:
        self._console = console
        self._plan, self._facts, self._step_s = plan, facts, dict(step_s)
        self._left = [trial_id for trial_id in plan.trials if trial_id not in finished]
        self._total = len(plan.trials)
        self._live: Bars | None = None
        self._study_bar = self._trial_bar = TaskID(0)
        self._labels = _labels(plan)
        self._errors: set[str] = set()
        """Errors whose log has been shown."""
        self._ms: dict[str, float] = {}
        """Time per step of each trial, in milliseconds, as last reported."""
        self._started: set[str] = set()
        """Trials of launches that have started, so that their start takes no more time."""
        self._steps: dict[str, int | None] = {}
        self._shown = ""
        """Id of the trial whose bar is shown: the one that started last, if several run at once."""

    def __enter__(self) -> StudyProgress:
        if self._console.is_terminal and self._left:
            self._live = Bars(
                SpinnerColumn(),
                TextColumn("{task.description}", markup=False),
                BarColumn(bar_width=24),
                TextColumn("{task.fields[words]}", markup=False),
                console=self._console,
                transient=True,
            )
            self._study_bar = self._live.add_task("study", total=self._total, words="")
            self._trial_bar = self._live.add_task("", total=None, words="starting workers")
            self._live.start()
            self._show_study()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live:
            self._live.stop()

    def launch_started(self, launch_id: str, trials: Sequence[TrialSpec]) -> None:
        if self._live:
            if not self._shown:
                self._live.reset(self._trial_bar, total=None, description=launch_id, words="starting workers")
        else:
            workers = counted(max((trial.workers for trial in trials), default=1), "worker")
            self.note(f"Starting {workers} for {counted(len(trials), 'trial')}{self._time_left(', about ')}")
        self._started |= {trial.id for trial in trials}

    def trial_event(self, trial: TrialSpec, event: dict[str, Any]) -> None:
        if event["event"] == "progress":
            self._step_s[trial.setting] = trial.global_batch / event["samples_per_s"]
            self._ms[trial.id] = 1e3 * self._step_s[trial.setting]
        if self._live is None:
            return
        if kind_of(event) == "start":
            self._steps[trial.id] = event.get("steps")
        if kind_of(event) == "start" or not self._shown:
            self._shown = trial.id
            label = self._labels.get(trial.id, trial.id)
            self._live.reset(self._trial_bar, total=self._steps.get(trial.id), description=label, words="")
        match kind_of(event) if trial.id == self._shown else "":
            case "progress":
                pace = event["samples_per_s"] * self._facts.units_per_sample
                words = f"step {event['step']}, {number(pace)} {self._facts.unit}/s"
                self._live.update(self._trial_bar, completed=event["step"], words=words)
            case "trying":
                self._live.update(self._trial_bar, words=f"trying a batch of {event['batch_per_worker']}")
            case "evaluation":
                self._live.update(self._trial_bar, words="evaluating")
            case "epoch" if event["test"]:
                tested = ", ".join(f"{name} {metric_value(value)}" for name, value in event["test"].items())
                self._live.update(self._trial_bar, words=f"epoch {event['epoch'] + 1}: {tested}")
        self._show_study()

    def trial_ended(self, trial: TrialSpec, record: TrialRecord) -> None:
        if trial.id in self._left:
            self._left.remove(trial.id)
        if trial.id == self._shown:
            self._shown = ""
        if record.outcome == "failed":
            error = record.failure.error if record.failure else ""
            self._console.print(failure_view(record, log=error not in self._errors))
            self._errors.add(error)
        elif self._live is None or trial.kind == "train":
            self._console.print(self._ended_line(trial, record), soft_wrap=True)
        self._show_study()

    def plan_grew(self, plan: Plan) -> None:
        added = [trial_id for trial_id in plan.trials if trial_id not in self._plan.trials]
        self._plan, self._total, self._labels = plan, len(plan.trials), _labels(plan)
        self._left += added
        self.note(f"The study continues with {counted(len(added), 'more trial')}")
        self._show_study()

    def note(self, text: str) -> None:
        self._console.print(Text(visible(text)), soft_wrap=True)

    def _ended_line(self, trial: TrialSpec, record: TrialRecord) -> Text:
        """`[ 8/18]  2 workers, train, momentum 0.9, lr 0.05   test accuracy 0.9660   28 s left`"""
        done = self._total - len(self._left)
        width = max(map(len, self._labels.values()), default=0)
        label = self._labels.get(trial.id, trial.id)
        lead = f"[{done:>{len(str(self._total))}}/{self._total}]  {label:<{width}}  "
        left = "" if self._live else self._time_left("  ")
        return Text(f"{lead}{self._result(trial, record):<{RESULT_WIDTH}}{left}".rstrip())

    def _result(self, trial: TrialSpec, record: TrialRecord) -> str:
        if record.outcome == "diverged":
            return f"diverged at step {record.diverged_at_step}"
        if record.outcome == "out_of_memory":
            return "out of memory" + (f" on rank {record.failure.rank}" if record.failure else "")
        if record.tries:
            fitting = [attempt.batch_per_worker for attempt in record.tries if attempt.outcome == "finished"]
            largest = f"the largest that fits is {max(fitting):,}" if fitting else "none fits"
            return f"tried {counted(len(record.tries), 'batch', 'batches')}; {largest}"
        if record.outcome in OUTCOME_WORDS:
            return f"{OUTCOME_WORDS[record.outcome]} after {counted(len(record.epochs), 'epoch')}"
        name = self._facts.metric if self._facts.metric in record.metrics else "loss"
        if name in record.metrics:
            return f"test {name} {metric_value(record.metrics[name])}"
        if trial.id in self._ms:
            return f"{number(self._ms[trial.id])} ms/step"
        return f"finished in {duration(record.wall_s)}"

    def _show_study(self) -> None:
        if self._live:
            done = self._total - len(self._left)
            self._live.update(self._study_bar, completed=done, total=self._total, words=self._progress_words())

    def _progress_words(self) -> str:
        return f"{self._total - len(self._left)} of {self._total} done{self._time_left(', ')}"

    def _time_left(self, lead: str) -> str:
        return f"{lead}{duration(max(round(self.eta_s()), 1))} left" if self._left else ""

    def eta_s(self) -> float:
        """Return the estimated time left, in seconds. Before any step is measured it is a guess."""
        left = set(self._left)
        launches = sum(bool(left.intersection(launch.trials) - self._started) for launch in self._plan.launches)
        return launches * LAUNCH_START_S + sum(self._expected_s(self._plan.trials[trial_id]) for trial_id in left)

    def _expected_s(self, trial: TrialSpec) -> float:
        """Return the estimated time of a trial, in seconds.

        It is based on steps of the same setting, else on the mean time per sample in others, else on a guess.
        """
        step_s = self._step_s.get(trial.setting)
        if step_s is None:
            sample_times = [step_s / setting.samples_per_worker_step for setting, step_s in self._step_s.items()]
            guess = self._facts.train_flop_per_sample / CORE_FLOP_PER_S
            sample_s = sum(sample_times) / len(sample_times) if sample_times else guess
            step_s = trial.samples_per_worker_step * sample_s
        return trial_s(trial, self._facts, step_s)


@contextmanager
def watch(study: Study, console: Console, *, retry_failed: bool = False) -> Iterator[LivePage]:
    """Show the progress of a study and keep its page up to date while `study.run(progress=...)` runs."""
    before = load(study.folder) if (study.folder / "study.yaml").exists() else None
    records = before.records.values() if before else ()
    finished = {record.trial for record in records if not (retry_failed and runs_again(record))}
    plan = before.plan if before else study.plan  # a search may have extended it
    step_s = before.step_s() if before else {}
    with StudyProgress(console, plan, study.facts, finished, step_s) as display:
        page = LivePage(display, study.folder, study.sites)
        try:
            yield page
        finally:
            page.close()


class DownloadProgress:
    """Shows one bar per file in a terminal, and one line per 10 % elsewhere."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._bars: dict[str, TaskID] = {}
        self._tenths: dict[str, int] = {}
        self._live = Bars(
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=24),
            DownloadColumn(),
            TimeRemainingColumn(),
            console=console,
            disable=not console.is_terminal,
        )

    def __enter__(self) -> DownloadProgress:
        self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._live.stop()

    def __call__(self, file: DataFile, done: int, total: int) -> None:
        if file.path not in self._bars:
            self._bars[file.path] = self._live.add_task(file.path, total=total)
        self._live.update(self._bars[file.path], completed=done)
        tenth = 10 * done // max(total, 1)
        if not self._console.is_terminal and tenth > self._tenths.get(file.path, -1):
            self._tenths[file.path] = tenth
            self._console.print(Text(f"{file.path}: {byte_size(done)} of {byte_size(total)}"), soft_wrap=True)
