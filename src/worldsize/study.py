"""The Python API, and what the command line calls: a study from a file, its plan, its run; a folder's results."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Self

from worldsize.analysis.points import Measured, Setting, points
from worldsize.analysis.recommend import Answer, Finding, recommend
from worldsize.analysis.scaling import Series, scaling
from worldsize.catalog import WORKLOADS, WorkloadFacts, facts_of
from worldsize.data.sets import data_root, require
from worldsize.errors import Problem, SpecError, StoreError
from worldsize.estimate import Estimate, estimate
from worldsize.launch.runner import Progress, Silent, run_plan
from worldsize.lock import study_lock
from worldsize.machine import Machine, this_machine
from worldsize.plan import PRETRAIN_ID, Plan, make_plan, problems
from worldsize.record import TrialRecord
from worldsize.spec import StudySpec, TrialSpec
from worldsize.store import StudyFolder, read_json, write_atomic, write_json
from worldsize.studyfile import StudyFile, dump_yaml, find_study


class Study:
    """A study that can be run: its spec has no problems on this machine.

    >>> study = Study.from_file("quickstart", set=["train.epochs=1"])
    >>> results = study.run()
    >>> results.table()
    """

    def __init__(self, spec: StudySpec, machine: Machine, plan: Plan, facts: WorkloadFacts) -> None:
        self.spec, self.machine, self.facts, self._plan = spec, machine, facts, plan

    @classmethod
    def from_file(
        cls, study: str | Path, set: Iterable[str] = (), machine: Machine | None = None, *, small: bool = False
    ) -> Self:
        """A file, or the name of a built-in study. `set` takes what `--set` takes: "train.epochs=2"."""
        return cls._from(StudyFile.read(find_study(str(study))), set, machine, small=small)

    @classmethod
    def from_text(cls, text: str, set: Iterable[str] = (), machine: Machine | None = None) -> Self:
        """The YAML itself."""
        return cls._from(StudyFile(text, "study"), set, machine)

    @classmethod
    def _from(
        cls, file: StudyFile, assignments: Iterable[str], machine: Machine | None, *, small: bool = False
    ) -> Self:
        if small:
            file.apply_small()
        for assignment in assignments:
            file.override(assignment)
        spec, machine = file.spec(), machine or this_machine()
        found = problems(spec, machine)
        if found:
            raise SpecError([Problem(text, file.where(loc)) for loc, text in found])
        plan, facts = make_plan(spec), facts_of(spec.workload, data_root())
        largest = max(trial.global_batch for trial in plan.trials.values() if trial.kind != "pretrain")
        if largest > facts.train_samples:
            axis = "global_batch" if spec.axes.global_batch else "batch_per_worker"
            text = (
                f"a global batch of {largest} is more than the {facts.train_samples} training samples; use smaller ones"
            )
            raise SpecError([Problem(text, file.where(("axes", axis)))])
        return cls(spec, machine, plan, facts)

    @property
    def default_folder(self) -> Path:
        return Path("runs") / self.spec.name

    def plan(self) -> Plan:
        return self._plan

    def estimate(self, folder: Path | None = None) -> Estimate:
        """What the whole plan costs; from the steps that `folder` has measured, where it has."""
        folder = folder or self.default_folder
        known = load(folder).step_s() if (folder / "study.yaml").exists() else {}
        return estimate(self.spec, self._plan, self.machine, self.facts, known)

    def run(
        self,
        folder: Path | str | None = None,
        *,
        progress: Progress | None = None,
        take_over: bool = False,
        retry_failed: bool = False,
    ) -> Results:
        """Runs what has no record yet. KeyboardInterrupt leaves a folder that the same call continues."""
        home = StudyFolder(Path(folder) if folder is not None else self.default_folder)
        self._check_same(home)
        self._check_data()
        with study_lock(home.path, take_over=take_over):
            if not home.study_file.exists():
                self._write(home)
            if retry_failed:
                _forget_failures(home)
            # The plan as stored: a later version of worldsize may number or order trials differently.
            plan, _ = _read_plan(home)
            self._check_device(home)
            run_plan(home, self.spec, plan, self.machine, progress or Silent())
        return load(home.path)

    def _check_same(self, home: StudyFolder) -> None:
        if not home.study_file.exists():
            # What a start that was stopped at once leaves behind is ours.
            ours = {"lock.json", "plan.json", ".lock.guard"}
            if home.path.exists() and not (home.path.is_dir() and {item.name for item in home.path.iterdir()} <= ours):
                raise StoreError(f"{home.path} exists and is not a study folder; choose another with --dir")
            return
        stored = StudyFile.read(home.study_file).spec()
        changes = differences(stored.model_dump(mode="json"), self.spec.model_dump(mode="json"))
        if changes:
            listed = "\n".join(f"  {change}" for change in changes)
            raise StoreError(
                f"{home.path} holds this study with other values:\n{listed}\n"
                "undo the change to continue it, or give a new folder with --dir"
            )

    def _check_device(self, home: StudyFolder) -> None:
        """Steps of a CPU and of a GPU are not repeats of one another."""
        device, began = self.machine.device(self.spec.device), read_json(home.plan_file)["device"]
        if device != began:
            raise StoreError(
                f"{home.path} was begun on {began}, and this machine would continue it on {device}; "
                f"continue it where it began, or give a new folder with --dir"
            )

    def _check_data(self) -> None:
        """Before anything trains: every file there, and the bytes that were published."""
        used = [self.spec.workload]
        if self.spec.pretrain is not None:
            used.append(self.spec.pretrain.workload)
            facts_of(self.spec.pretrain.workload, data_root())  # the study's own was counted when it was made
        for workload in used:
            entry = WORKLOADS.get(workload.name)
            if entry is not None and entry.dataset is not None:
                require(entry.dataset, data_root())

    def _write(self, home: StudyFolder) -> None:
        facts = {
            "device": self.machine.device(self.spec.device),
            "facts": asdict(self.facts),
            "estimate": asdict(self.estimate(home.path)),
        }
        write_json(home.plan_file, {**self._plan.to_dict(), **facts})
        # Last: a folder with a study.yaml is a study folder.
        write_atomic(home.study_file, dump_yaml(self.spec).encode())


@dataclass(frozen=True)
class Results:
    """A study folder, read: its spec, the records so far, and what follows from them."""

    folder: StudyFolder
    spec: StudySpec
    facts: WorkloadFacts
    trials: dict[str, TrialSpec]
    records: dict[str, TrialRecord]
    damaged: tuple[str, ...]

    @cached_property
    def series(self) -> list[Series]:
        return scaling(points(self._measured()), higher_is_better=self.facts.higher_is_better)

    @cached_property
    def answer(self) -> Answer:
        answer = recommend(
            self.series,
            higher_is_better=self.facts.higher_is_better,
            trained=self.spec.train is not None and not self.left(),
        )
        return replace(answer, findings=(*answer.findings, *self._findings()))

    def table(self) -> list[dict[str, Any]]:
        """The scaling table, a dict a row: workers, batches, step time, samples/s, speedup, efficiency, metric."""
        return [flat_row(row) for series in self.series for row in series.rows]

    def step_s(self) -> dict[tuple[int, int], float]:
        """Measured median step time by (workers, batch per worker)."""
        rows = [row for series in self.series for row in series.rows]
        return {(row.setting.workers, row.setting.batch_per_worker): row.step_s.value for row in rows}

    def left(self) -> list[str]:
        return [trial_id for trial_id in self.trials if trial_id not in self.records]

    def failed(self) -> list[TrialRecord]:
        return [record for record in self.records.values() if record.outcome == "failed"]

    def to_dict(self) -> dict[str, Any]:
        """For machines: the answer, the table, and how every trial ended."""
        row = self.answer.row
        return {
            "study": self.spec.name,
            "workload": self.spec.workload.name,
            "scaling": self.spec.axes.scaling,
            "metric": self.facts.metric,
            "unit": self.facts.unit,
            "units_per_sample": self.facts.units_per_sample,
            "answer": {
                "verdict": self.answer.verdict,
                "setting": flat_row(row) if row else None,
                "findings": [asdict(finding) for finding in self.answer.findings],
            },
            "table": self.table(),
            "trials": {
                trial_id: self.records[trial_id].outcome if trial_id in self.records else "left"
                for trial_id in self.trials
            },
        }

    def _measured(self) -> Iterable[Measured]:
        for trial_id, record in self.records.items():
            trial = self.trials[trial_id]
            if record.outcome == "failed" or trial.kind == "pretrain":
                continue
            diverged = record.outcome == "diverged"
            yield Measured(
                setting=Setting(
                    workers=trial.workers,
                    batch_per_worker=trial.batch_per_worker,
                    scaling=trial.scaling,
                    strategy=trial.strategy,
                    precision=trial.precision,
                ),
                kind=trial.kind,
                repeat=trial.repeat,
                step_s=self.folder.step_s(record)[: 0 if diverged else None],
                variant=variant_label(trial, len(self.spec.starts)),
                metric=None if diverged else record.metrics.get(self.facts.metric),
            )

    def _findings(self) -> Iterable[Finding]:
        for code, outcome in (("trials-failed", "failed"), ("trials-diverged", "diverged")):
            count = sum(record.outcome == outcome for record in self.records.values())
            if count:
                yield Finding(code=code, numbers={"trials": count})
        imprecise = sum(record.precision_reached is False for record in self.records.values())
        if imprecise and self.spec.probe:
            yield Finding(
                code="precision-not-reached", numbers={"trials": imprecise, "percent": self.spec.probe.precision * 100}
            )
        if self.left():
            yield Finding(code="trials-left", numbers={"trials": len(self.left())})


def load(folder: Path | str) -> Results:
    """Reads a study folder, finished or not, on any machine. Damaged records are named, never used."""
    home = StudyFolder.existing(Path(folder))
    spec = StudyFile.read(home.study_file).spec()
    records, damaged = {}, []
    plan, facts = _read_plan(home)
    trials = dict(plan.trials)
    for trial_id in trials:
        try:
            record = home.record(trial_id)
        except ValueError:
            damaged.append(trial_id)
            continue
        if record is not None:
            records[trial_id] = record
    return Results(home, spec, facts, trials, records, tuple(damaged))


def _read_plan(home: StudyFolder) -> tuple[Plan, WorkloadFacts]:
    try:
        stored = read_json(home.plan_file)
        return Plan.from_dict(stored), WorkloadFacts(**stored["facts"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise StoreError(
            f"{home.plan_file} is missing, damaged or of another version ({type(error).__name__}); "
            "use the version that made the folder, or a new folder"
        ) from error


def variant_label(trial: TrialSpec, starts: int) -> str:
    """What tells trials of one setting apart in what they learn: `sgd 0.05 momentum 0.9, from scratch`."""
    optimizer = trial.optimizer
    momentum = f" momentum {optimizer.momentum:g}" if optimizer.momentum else ""
    start = "pretrained" if trial.workload.pretrained else "from scratch"
    decay = f" decay {optimizer.weight_decay:g}" if optimizer.weight_decay else ""
    return f"{optimizer.name} {optimizer.rate:g}{momentum}{decay}" + (f", {start}" if starts > 1 else "")


def flat_row(row: Any) -> dict[str, Any]:
    flat = asdict(row)
    setting = flat.pop("setting")
    return {**setting, "global_batch": row.setting.global_batch, **flat}


def differences(old: Any, new: Any, path: str = "") -> list[str]:
    """`train.epochs: 2 -> 3`, one line a changed value."""
    if isinstance(old, dict) and isinstance(new, dict):
        return [
            line
            for key in dict.fromkeys([*old, *new])
            for line in differences(old.get(key), new.get(key), f"{path}.{key}" if path else key)
        ]
    return [] if old == new else [f"{path}: {_short(old)} -> {_short(new)}"]


def _short(value: Any) -> str:
    return "nothing" if value is None else str(value)


def _forget_failures(home: StudyFolder) -> None:
    """Failed records are set aside, so that their trials run again."""
    for trial_id in home.trial_ids():
        try:
            record = home.record(trial_id)
        except ValueError:  # damaged: the run itself sets it aside
            continue
        # Trials begin with what pretraining leaves: if it diverged, that is a failure too.
        if record is not None and (
            record.outcome == "failed" or (record.outcome, trial_id) == ("diverged", PRETRAIN_ID)
        ):
            path = home.trial(trial_id) / "record.json"
            path.rename(path.with_name("record.json.failed"))


__all__: Sequence[str] = ["Results", "Study", "load"]
