"""The class `Study`, which plans and runs a study. Together with `answer/results.py`, it is the Python API."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal, Self

from worldsize.answer.results import Results, load, read_plan
from worldsize.data.catalog import WorkloadFacts, facts_of
from worldsize.data.sets import data_root
from worldsize.errors import DataError, DiskFullError, InputError, Problem
from worldsize.folder.files import is_disk_full, write_atomic, write_model
from worldsize.folder.lock import study_lock
from worldsize.folder.record import TrialRecord
from worldsize.folder.study_folder import StudyFolder
from worldsize.launch.local import LocalTarget
from worldsize.launch.prepare import prepare, prepare_smoke
from worldsize.launch.runner import Run
from worldsize.launch.slurm.queue import Queue, Slurm
from worldsize.launch.slurm.target import SlurmTarget
from worldsize.launch.target import PreparedLaunch, Progress, RunSite, Target
from worldsize.machine import Machine, this_machine
from worldsize.plan.cost import Cost, estimate, space_bytes
from worldsize.plan.grid import Site, fitting_counts, resolve, sites
from worldsize.plan.plan import PRETRAIN_ID, Plan, PlanFile, make_plan
from worldsize.plan.problems import auto_problems, data_problems, machine_lacks, problems, workload_problems
from worldsize.spec.base import Loc
from worldsize.spec.file import StudyFile, dump_yaml, find_study
from worldsize.spec.study import StudySpec
from worldsize.study.adaptive_rounds import first_points, next_adaptive_round
from worldsize.study.checks import (
    JobOptions,
    check_data,
    check_device,
    check_job_options,
    check_space,
    free_bytes,
    megabytes,
    require_same_study,
)
from worldsize.study.more_time import check_more_time, with_more_time
from worldsize.study.search_rounds import next_search_round


class Study:
    """A study that can be planned and, unless this machine lacks something, run.

    >>> study = Study("quickstart", overrides={"train.epochs": 1})
    >>> results = study.run()
    >>> results.to_rows()
    """

    spec: StudySpec
    """The study as specified, with its defaults filled in."""
    plan: Plan
    """The trials and launches, as far as they are known before anything is measured."""
    facts: WorkloadFacts
    sites: dict[str, Site]
    """The sites where it runs, by the name of the place."""
    folder: Path
    """The study folder: `runs/NAME`, or the one that was given."""
    data: Path
    """The folder with the data sets."""
    lacks: tuple[Problem, ...]
    """What this machine lacks to run the study. A plan needs none of it; `run` raises it as an error."""
    runs_here_with: dict[str, Any]
    """Overrides with which the study would run on this machine. Empty if it runs as it is, or if none are known."""
    left_out: tuple[int, ...]
    """Worker counts of a built-in study that do not fit on this machine. They are not in `spec`. Empty if an override
    sets the counts."""

    def __init__(
        self,
        source: str | Path | Mapping[str, Any] | StudySpec | StudyFile,
        overrides: Mapping[str, Any] | None = None,
        *,
        run_on: str | None = None,
        small: bool = False,
        folder: Path | str | None = None,
        data: Path | str | None = None,
        machine: Machine | None = None,
    ) -> None:
        """`source` is a study file, the name of a built-in study, or a study as a dict or StudySpec.

        `overrides` changes fields by dotted key: `{"train.epochs": 2}`. `small` takes the study's small version.
        `run_on` is local, slurm or mpi, or one of the study's places. `folder` is the study folder (default:
        `runs/NAME`), `data` the folder with the data sets (default: `WORLDSIZE_DATA`, or the user's cache), and
        `machine` a machine other than this one. A built-in study uses those of its worker counts that fit on the
        machine; counts in `overrides` or in a file of your own are kept.
        """
        file = _file_of(source)
        if small:
            file.apply_small("small=True")
        if run_on is not None:
            file.move_to(run_on, f"run_on={run_on!r}")
        for key, value in (overrides or {}).items():
            file.override(key, value)
        machine = machine or this_machine()
        self.data = data_root(None if data is None else Path(data))
        written = file.spec()
        _refuse(workload_problems(written), file)
        self.facts = facts_of(written.workload, self.data)
        _refuse(auto_problems(written, machine, self.facts), file)
        spec = resolve(written, machine, self.facts)
        self.left_out = _counts_left_out(spec, machine) if file.may_leave_out_counts else ()
        self.spec = spec = _without_counts(spec, self.left_out)
        _refuse(problems(spec, machine), file)
        lacks = list(machine_lacks(spec, machine))
        self.lacks = tuple(file.problem(text, loc) for loc, text in lacks)
        self.runs_here_with = _changes_to_fit(spec, machine, [loc for loc, _ in lacks])
        _refuse(data_problems(spec, self.facts), file)
        self.sites, self.plan = sites(spec, machine, self.data), make_plan(spec, first_points(spec))
        self.folder = Path("runs") / spec.name if folder is None else Path(folder)

    @classmethod
    def from_text(
        cls,
        text: str,
        overrides: Mapping[str, Any] | None = None,
        *,
        run_on: str | None = None,
        small: bool = False,
        folder: Path | str | None = None,
        data: Path | str | None = None,
        machine: Machine | None = None,
    ) -> Self:
        """Create a study from the text of a study file. The other arguments are those of `Study`."""
        file = StudyFile(text, "study")
        return cls(file, overrides, run_on=run_on, small=small, folder=folder, data=data, machine=machine)

    @property
    def _study_folder(self) -> StudyFolder:
        return StudyFolder(self.folder)

    def estimate(self) -> Cost:
        """Return the cost of the whole plan, from the measured steps in its folder if there are any."""
        known = load(self.folder).step_s() if self._study_folder.study_file.exists() else {}
        return estimate(self.sites, self.plan, self.facts, known)

    def missing_data(self) -> str | None:
        """Return a message about data that is missing or damaged, with the remedy; None if all data is there.

        This checks only the names and sizes of files.
        """
        try:
            check_data(self.spec, self.data, deep=False)
        except DataError as error:
            return str(error)
        return None

    def run(
        self,
        *,
        progress: Progress | None = None,
        take_over: bool = False,
        retry_failed: bool = False,
        jobs: JobOptions | None = None,
        more_s: float | None = None,
    ) -> Results:
        """Run the trials without a record. After a KeyboardInterrupt, the same call continues.

        `take_over` takes over from a driver that no longer runs. `retry_failed` runs failed trials again. `more_s` then
        spends about this many seconds on more repeats of the counts between which the answer is open.
        """
        for _ in self.turns(
            progress=progress, take_over=take_over, retry_failed=retry_failed, jobs=jobs, more_s=more_s
        ):
            pass
        return load(self.folder)

    def turns(
        self,
        *,
        progress: Progress | None = None,
        take_over: bool = False,
        retry_failed: bool = False,
        jobs: JobOptions | None = None,
        more_s: float | None = None,
    ) -> Generator[None, None, None]:
        """Do the same as `run`, and yield before each launch, while nothing is running. So studies can take turns."""
        progress, jobs = progress or Progress(), jobs or JobOptions()
        self._require_machine()
        check_job_options(self.spec, self._study_folder, jobs)
        if more_s is not None:
            check_more_time(self.spec, more_s, jobs)
        with self._full_disk_reported(), self._opened(take_over=take_over) as stored:
            plan: Plan | None = stored
            if retry_failed:
                _forget_failures(self._study_folder)
            run_sites = self._run_sites(progress, jobs)
            if jobs.smoke:
                self._smoke(stored, run_sites)
            while plan is not None:
                run = Run(self._study_folder, plan, self.facts, run_sites, progress)
                if not (yield from run.turns(detach=jobs.detach)):
                    break
                plan = self._search_on(plan, progress)
                if plan is None and more_s is not None and not self._left().trials:
                    results = load(self.folder)
                    plan, more_s = self._store(with_more_time(self.spec, results.plan, results, more_s), progress), None

    def prepare(self) -> list[PreparedLaunch]:
        """Write launches for the trials without a record, to be started by hand, and return them.

        A later `run` closes those that were not started.
        """
        self._require_machine()
        home = StudyFolder(self.folder.absolute())  # they may be started from another folder
        with self._opened() as plan:
            left = {
                launch: [trial for trial in launch.trials if not home.has_record(trial)] for launch in plan.launches
            }
            return [
                prepare(home, plan, self.facts, self.sites[launch.place], launch, trials)
                for launch, trials in left.items()
                if trials
            ]

    def _require_machine(self) -> None:
        if self.lacks:
            hint = f"this would run here: overrides={self.runs_here_with}"
            raise InputError([*self.lacks, *([Problem(hint)] if self.runs_here_with else [])])

    @contextmanager
    def _opened(self, *, take_over: bool = False) -> Iterator[Plan]:
        """Open and lock the folder. Yield the stored plan, because a later version may number trials differently."""
        home = self._study_folder
        same = require_same_study(self.spec, self.plan, home)
        check_data(self.spec, self.data)
        if (left := self._left()).trials:
            check_space(home, space_bytes(self.sites, left, self.facts), len(left.trials))
        with study_lock(home.path, take_over=take_over):
            if not same or not home.study_file.exists():
                home.remove_temporaries()
                self._write()
            check_device(self._devices, home)
            yield read_plan(home).plan

    def _left(self) -> Plan:
        """Return the known trials without a record."""
        home = self._study_folder
        plan = read_plan(home).plan if home.study_file.exists() else self.plan
        trials = {name: trial for name, trial in plan.trials.items() if not home.has_record(name)}
        return Plan(trials=trials, launches=())

    @contextmanager
    def _full_disk_reported(self) -> Iterator[None]:
        """If a disk is full, on the driver or a rank, report how much space the rest of the study needs."""
        try:
            yield
        except (OSError, DiskFullError) as error:
            if isinstance(error, OSError) and not is_disk_full(error):
                raise
            left = self._left()
            needed = megabytes(space_bytes(self.sites, left, self.facts))
            raise DiskFullError(
                f"the disk is full: {error}. Finished trials are kept. The {len(left.trials)} left need about "
                f"{needed}, and {self.folder} has {megabytes(free_bytes(self.folder))} free; free some space, then "
                "run the same command again to continue"
            ) from error

    def _run_sites(self, progress: Progress, jobs: JobOptions) -> dict[str, RunSite]:
        queue = Queue(Slurm(), progress)
        run_sites = {}
        for on, site in self.sites.items():
            spec = site.spec
            launcher: Literal["torchrun", "mpirun"] = "mpirun" if spec.run_on == "mpi" else "torchrun"
            target: Target = (
                LocalTarget(launcher=launcher, oversubscribe=spec.oversubscribe, progress=progress)
                if spec.slurm is None
                else SlurmTarget(spec, queue, progress, detach=jobs.detach, cancel=jobs.cancel)
            )
            run_sites[on] = RunSite(spec=spec, machine=site.machine, data=site.data, target=target)
        return run_sites

    def _smoke(self, plan: Plan, run_sites: dict[str, RunSite]) -> None:
        """Run a short job on each place that has trials left."""
        home = self._study_folder
        for on, site in run_sites.items():
            left = [trial for trial in plan.trials.values() if trial.place == on and not home.has_record(trial.id)]
            if left and isinstance(site.target, SlurmTarget):
                most = max(trial.workers for trial in left)
                site.target.smoke(prepare_smoke(home, self.facts, site, most, on))

    @property
    def _devices(self) -> dict[str, Literal["cpu", "cuda"]]:
        """The device of each place."""
        return {on: site.device for on, site in self.sites.items()}

    def _search_on(self, plan: Plan, progress: Progress) -> Plan | None:
        """Return the plan with the next round of its searches, after storing it; None if the searches are done."""
        results = load(self.folder)
        if results.damaged:  # the next run sets them aside and repeats their trials before the search continues
            return None
        climb = next_adaptive_round(self.spec, plan, results) if self.spec.adaptive else None
        more = climb or next_search_round(self.spec, plan, results.records)
        return None if more is None else self._store(more, progress)

    def _store(self, plan: Plan, progress: Progress) -> Plan:
        """Store a plan that grew before it runs, and return it."""
        home = self._study_folder
        write_model(home.plan_file, read_plan(home).model_copy(update={"plan": plan}))
        progress.plan_grew(plan)
        return plan

    def _write(self) -> None:
        write_model(self._study_folder.plan_file, PlanFile(plan=self.plan, device=self._devices, facts=self.facts))
        # Last: a folder with a study.yaml is a study folder.
        write_atomic(self._study_folder.study_file, dump_yaml(self.spec).encode())


def _file_of(source: str | Path | Mapping[str, Any] | StudySpec | StudyFile) -> StudyFile:
    if isinstance(source, StudyFile):  # from `from_text`, which created it for this study
        return source
    if isinstance(source, StudySpec):
        return StudyFile.from_values(source.model_dump(mode="json"))
    if isinstance(source, Mapping):
        return StudyFile.from_values(source)
    return StudyFile.read(find_study(str(source)))


def _changes_to_fit(spec: StudySpec, machine: Machine, lacking: Sequence[Loc]) -> dict[str, Any]:
    """Return overrides with which the study runs on this machine, given the locations of what the machine lacks."""
    if lacking == [("device",)]:
        on_cpu = spec.model_copy(update={"device": "cpu"})
        rest = [loc for loc, _ in machine_lacks(on_cpu, machine)]
        return {"device": "cpu", **_changes_to_fit(on_cpu, machine, rest)}
    if lacking and all(loc[:2] == ("axes", "workers") for loc in lacking):
        fitting = fitting_counts(spec, machine)
        return {"axes.workers": list(fitting)} if fitting else {"oversubscribe": True}
    return {}


def _counts_left_out(spec: StudySpec, machine: Machine) -> tuple[int, ...]:
    """Return the counts that do not fit on this machine; none if no count fits, since nothing would be left to run."""
    fitting = fitting_counts(spec, machine)
    return tuple(count for count in spec.axes.workers if fitting and count not in fitting)


def _without_counts(spec: StudySpec, left_out: tuple[int, ...]) -> StudySpec:
    if not left_out:
        return spec
    workers = tuple(count for count in spec.axes.workers if count not in left_out)
    skip = tuple(entry for entry in spec.skip if entry.workers not in left_out)
    return spec.model_copy(update={"axes": spec.axes.model_copy(update={"workers": workers}), "skip": skip})


def _refuse(issues: Iterable[tuple[Loc, str]], file: StudyFile) -> None:
    """Raise all problems, each with its location in the file."""
    if located := [file.problem(text, loc) for loc, text in issues]:
        raise InputError(located)


def runs_again(record: TrialRecord) -> bool:
    """Whether `--retry-failed` runs the trial again. Pretraining that diverged counts as failed, because trials need
    its weights."""
    return record.outcome == "failed" or (
        record.outcome in ("diverged", "out_of_memory") and record.trial == PRETRAIN_ID
    )


def _forget_failures(home: StudyFolder) -> None:
    """Set failed records aside, so that their trials run again."""
    for trial_id in home.trial_ids():
        try:
            record = home.record(trial_id)
        except ValueError:  # damaged: the run itself sets it aside
            continue
        if record is not None and runs_again(record):
            home.set_aside(trial_id, "failed")
