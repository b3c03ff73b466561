"""A study that can be run: from a file, its plan, its run. With `answer/results.py` this is the Python API."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal, Self

from worldsize.answer.results import Results, load, read_plan
from worldsize.data.catalog import WorkloadFacts, facts_of
from worldsize.data.sets import data_root
from worldsize.errors import DataError, DiskFullError, Problem, SpecError
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
from worldsize.plan.grid import Site, resolve, sites
from worldsize.plan.plan import PRETRAIN_ID, Plan, PlanFile, make_plan
from worldsize.plan.problems import auto_problems, data_problems, problems, workload_problems
from worldsize.spec.base import Loc
from worldsize.spec.file import StudyFile, dump_yaml, find_study
from worldsize.spec.study import StudySpec
from worldsize.study.adaptive_rounds import first_points, next_climb
from worldsize.study.checks import check_data, check_device, check_jobs, check_space, free_bytes, is_same, megabytes
from worldsize.study.search_rounds import next_round


class Study:
    """A study that can be run: its spec has no problems on this machine.

    >>> study = Study.from_file("quickstart", set=["train.epochs=1"])
    >>> results = study.run()
    >>> results.table()
    """

    def __init__(self, spec: StudySpec, sites: dict[str, Site], plan: Plan, facts: WorkloadFacts) -> None:
        self.spec, self.sites, self.facts, self._plan = spec, sites, facts, plan

    @classmethod
    def from_file(
        cls,
        study: str | Path,
        set: Iterable[str] = (),
        machine: Machine | None = None,
        *,
        small: bool = False,
        on: str | None = None,
    ) -> Self:
        """A file, or the name of a built-in study. `set` takes what `--set` takes: "train.epochs=2"; `on` moves it to
        local, slurm or mpi, or to one of its targets."""
        return cls._from(StudyFile.read(find_study(str(study))), set, machine, small=small, on=on)

    @classmethod
    def from_text(cls, text: str, set: Iterable[str] = (), machine: Machine | None = None) -> Self:
        """The YAML itself."""
        return cls._from(StudyFile(text, "study"), set, machine)

    @classmethod
    def _from(
        cls,
        file: StudyFile,
        assignments: Iterable[str],
        machine: Machine | None,
        *,
        small: bool = False,
        on: str | None = None,
    ) -> Self:
        if small:
            file.apply_small()
        if on is not None:
            file.move_to(on)
        for assignment in assignments:
            file.override(assignment)
        machine = machine or this_machine()
        spec = file.spec()
        _refuse(workload_problems(spec), file)
        facts = facts_of(spec.workload, data_root())
        _refuse(auto_problems(spec, machine, facts), file)
        spec = resolve(spec, machine, facts)
        _refuse(problems(spec, machine), file)
        _refuse(data_problems(spec, facts), file)
        return cls(spec, sites(spec, machine), make_plan(spec, first_points(spec)), facts)

    @property
    def default_folder(self) -> Path:
        return Path("runs") / self.spec.name

    def plan(self) -> Plan:
        return self._plan

    def estimate(self, folder: Path | None = None) -> Cost:
        """What the whole plan costs; from the steps that `folder` has measured, where it has."""
        folder = folder or self.default_folder
        known = load(folder).step_s() if (folder / "study.yaml").exists() else {}
        return estimate(self.sites, self._plan, self.facts, known)

    def missing_data(self) -> str | None:
        """What of a known data set would keep it from running here, and the remedy; by names and sizes of files."""
        try:
            check_data(self.spec, deep=False)
        except DataError as error:
            return str(error)
        return None

    def run(
        self,
        folder: Path | str | None = None,
        *,
        progress: Progress | None = None,
        take_over: bool = False,
        retry_failed: bool = False,
        smoke: bool = False,
        detach: bool = False,
        cancel: bool = False,
    ) -> Results:
        """Runs what has no record yet. KeyboardInterrupt leaves a folder that the same call continues.

        Of jobs: `smoke` submits a short one first, `detach` returns once all are submitted, and `cancel` ends them on
        KeyboardInterrupt, which else leaves them running for the next call to follow.
        """
        home = StudyFolder(Path(folder) if folder is not None else self.default_folder)
        progress = progress or Progress()
        check_jobs(self.spec, home, smoke=smoke, detach=detach, cancel=cancel)
        with self._full_disk_told(home), self._opened(home, take_over=take_over) as stored:
            plan: Plan | None = stored
            if retry_failed:
                _forget_failures(home)
            run_sites = self._run_sites(progress, detach=detach, cancel=cancel)
            if smoke:
                self._smoke(home, stored, run_sites)
            while plan is not None:
                if not Run(home, plan, self.facts, run_sites, progress).run(detach=detach):
                    break
                plan = self._search_on(home, plan, progress)
        return load(home.path)

    def prepare(self, folder: Path | str | None = None) -> list[PreparedLaunch]:
        """Launches for what has no record yet, to be started by hand. A later `run` closes those that were not."""
        home = StudyFolder(Path(folder) if folder is not None else self.default_folder)
        with self._opened(home) as plan:
            left = {launch: [each for each in launch.trials if not home.has_record(each)] for launch in plan.launches}
            return [
                prepare(home, plan, self.facts, self.sites[launch.on], launch, trials)
                for launch, trials in left.items()
                if trials
            ]

    @contextmanager
    def _opened(self, home: StudyFolder, *, take_over: bool = False) -> Iterator[Plan]:
        """The folder, ours alone, with its plan as stored: a later version may number or order trials differently."""
        same = is_same(self.spec, self._plan, home)
        check_data(self.spec)
        if (left := self._left(home)).trials:
            check_space(home, space_bytes(self.sites, left, self.facts), len(left.trials))
        with study_lock(home.path, take_over=take_over):
            if not same or not home.study_file.exists():
                home.remove_temporaries()
                self._write(home)
            check_device(self._devices, home)
            yield read_plan(home).plan

    def _left(self, home: StudyFolder) -> Plan:
        """The trials without a record, as far as they are known."""
        plan = read_plan(home).plan if home.study_file.exists() else self._plan
        trials = {name: trial for name, trial in plan.trials.items() if not home.has_record(name)}
        return Plan(trials=trials, launches=())

    @contextmanager
    def _full_disk_told(self, home: StudyFolder) -> Iterator[None]:
        """Says how much room the rest of the study needs when a disk fills up, here or on a rank."""
        try:
            yield
        except (OSError, DiskFullError) as error:
            if isinstance(error, OSError) and not is_disk_full(error):
                raise
            left = self._left(home)
            needed = megabytes(space_bytes(self.sites, left, self.facts))
            raise DiskFullError(
                f"the disk is full: {error}. Finished trials are kept. The {len(left.trials)} left need about "
                f"{needed}, and {home.path} has {megabytes(free_bytes(home.path))} free; free some space, then "
                "run the same command again to continue"
            ) from error

    def _run_sites(self, progress: Progress, *, detach: bool, cancel: bool) -> dict[str, RunSite]:
        queue = Queue(Slurm(), progress)
        run_sites = {}
        for on, site in self.sites.items():
            spec = site.spec
            launcher: Literal["torchrun", "mpirun"] = "mpirun" if spec.on == "mpi" else "torchrun"
            target: Target = (
                LocalTarget(launcher=launcher, oversubscribe=spec.oversubscribe, progress=progress)
                if spec.slurm is None
                else SlurmTarget(spec, queue, progress, detach=detach, cancel=cancel)
            )
            run_sites[on] = RunSite(spec=spec, machine=site.machine, target=target)
        return run_sites

    def _smoke(self, home: StudyFolder, plan: Plan, run_sites: dict[str, RunSite]) -> None:
        """A short job on each target that has something left to run."""
        for on, site in run_sites.items():
            left = [trial for trial in plan.trials.values() if trial.on == on and not home.has_record(trial.id)]
            if left and isinstance(site.target, SlurmTarget):
                most = max(trial.workers for trial in left)
                site.target.smoke(prepare_smoke(home, self.facts, site, most, on))

    @property
    def _devices(self) -> dict[str, Literal["cpu", "cuda"]]:
        """What each target computes on."""
        return {on: site.device for on, site in self.sites.items()}

    def _search_on(self, home: StudyFolder, plan: Plan, progress: Progress) -> Plan | None:
        """The plan with the next round of its searches, written down before any of it runs; None: they are done."""
        results = load(home.path)
        if results.damaged:  # the next run sets them aside, and runs their trials again before the search goes on
            return None
        climb = next_climb(self.spec, plan, results) if self.spec.axes.adaptive else None
        more = climb or next_round(self.spec, plan, results.records)
        if more is not None:
            write_model(home.plan_file, read_plan(home).model_copy(update={"plan": more}))
            progress.plan_grew(more)
        return more

    def _write(self, home: StudyFolder) -> None:
        write_model(home.plan_file, PlanFile(plan=self._plan, device=self._devices, facts=self.facts))
        # Last: a folder with a study.yaml is a study folder.
        write_atomic(home.study_file, dump_yaml(self.spec).encode())


def _refuse(found: Iterable[tuple[Loc, str]], file: StudyFile) -> None:
    """Raises all problems, each with its place in the file."""
    if told := [Problem(text, file.where(loc)) for loc, text in found]:
        raise SpecError(told)


def runs_again(record: TrialRecord) -> bool:
    """With `--retry-failed`: what failed. Trials begin with what pretraining leaves: if it diverged, it failed too."""
    return record.outcome == "failed" or (
        record.outcome in ("diverged", "out_of_memory") and record.trial == PRETRAIN_ID
    )


def _forget_failures(home: StudyFolder) -> None:
    """Failed records are set aside, so that their trials run again."""
    for trial_id in home.trial_ids():
        try:
            record = home.record(trial_id)
        except ValueError:  # damaged: the run itself sets it aside
            continue
        if record is not None and runs_again(record):
            home.set_aside(trial_id, "failed")
