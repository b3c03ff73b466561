"""The files in the folder of a launch, and `LaunchFolder`, which reads them.

The driver writes launch.json before the launch starts, job.json or process.json when it starts, and end.json at the
end. Rank 0 writes interconnect.json and phases.json, and a rank that fails writes failure-rankNN.json.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

from worldsize.errors import DamagedError
from worldsize.folder.files import Model, Pid, read_lines, read_model, write_model
from worldsize.folder.study_folder import StudyFolder, is_name
from worldsize.spec.base import Count, FileName, Frozen
from worldsize.spec.place import PlaceOrNone

LaunchKind = Literal["probe", "train", "pretrain", "smoke"]
Reason = Literal["", "interrupted", "cancelled", "time limit", "node failure", "preempted", "lost", "setup failed"]
"""Why a launch ended, if its processes did not end by themselves."""
EventKind = Literal["start", "progress", "evaluation", "epoch", "trying", "try", "stopped", "end"]
"""Values of `event` in the events.jsonl of a trial."""


class LaunchFile(Frozen):
    """launch.json: the trials to run, and everything that is fixed when processes start."""

    kind: LaunchKind
    """Kind of its trials. `smoke` has no trials."""
    place: PlaceOrNone = ""
    """Name of the place it runs on, if the study has several."""
    workers: Count
    threads: Count
    memory_limit_gb: float | None
    """Memory limit per worker, in 10^9 bytes."""
    keep_freed_memory: bool = True
    """Whether processes keep the memory that they free. Does not apply with a memory limit on the CPU."""
    device: Literal["cpu", "cuda"]
    backend: Literal["gloo", "nccl"]
    trials: tuple[str, ...]
    metric: str
    higher_is_better: bool
    interconnect_probe_s: float
    """Time for measuring the links between ranks, in seconds. 0: they are not measured."""
    search_curves: dict[str, tuple[tuple[float, ...], ...]]
    """For each search: one curve per earlier trial, with the metric after each epoch."""
    commit: str | None
    """Git commit of the user's code."""
    data: str
    cache: str
    launched_at: float
    """Time of the launch, in Unix time."""


class LaunchEnd(Frozen):
    """end.json: how a launch ended, its wall time, and how that time was spent."""

    wall_s: float
    started_at: float
    returncode: int | None
    hung: bool
    patience_s: float
    """Longest time without progress that was allowed."""
    last_step: int | None
    reason: Reason = ""
    queued_s: float | None = None
    """Time in a queue before the start. Not part of `wall_s`."""
    attempts: int = 1
    """How often the job started. A scheduler can put a job back into its queue."""
    job: str | None = None
    """Id of the job, as reported by Slurm or by the job itself."""
    phases_s: dict[str, float] | None = None
    """Wall time of each phase. None: rank 0 ended before it wrote them."""
    culprit: str | None = None
    """The trial during which the launch ended early."""
    cause: str | None = None


class JobFile(Frozen):
    """job.json: arguments of Slurm's commands. Name and id are checked, so that they cannot act as options."""

    name: FileName
    id: FileName | None
    """None: Slurm has not reported it yet, or the job is submitted by hand."""
    submitted_at: float | None


class ProcessFile(Frozen):
    """process.json: the launcher on this machine. A pid can be reused, but pid and start time together are unique."""

    pid: Pid
    started_at: float | None


class PhasesFile(Frozen):
    """phases.json: the time of rank 0 in each phase, from process start to the last trial."""

    phases_s: dict[str, float]
    ended_at: float


class RankFailure(Frozen):
    """failure-rankNN.json: the error with which a rank ended."""

    rank: int
    trial: str | None
    """None: the rank had not started a trial."""
    step: int | None
    at: float
    type: str
    """Class of the exception."""
    error: str
    out_of_memory: bool = False
    disk_full: bool = False


class LinkTimes(Frozen):
    """Raw times of all-reduces of one size in one group of ranks."""

    kind: Literal["inside", "across", "all"]
    host: str | None
    """The node, for a group inside one node."""
    workers: Count
    size_bytes: int
    seconds: tuple[float, ...]
    """For each repetition, in order: the time of the slowest rank of the group."""


class LinkSweep(Frozen):
    budget_s: float
    took_s: float
    """Time on rank 0 from the first all-reduce to the end of the last one."""
    times: tuple[LinkTimes, ...]


class InterconnectFile(Frozen):
    """interconnect.json: measured times of the links between ranks."""

    hosts: tuple[str, ...]
    """Host of each rank."""
    sweep: LinkSweep


Written = LaunchFile | LaunchEnd | JobFile | ProcessFile | PhasesFile | InterconnectFile | RankFailure
"""All kinds of files that a launch folder can hold."""


class LaunchFolder:
    """Reads the files of a launch. An absent file is None; a damaged file raises DamagedError."""

    def __init__(self, path: Path) -> None:
        self.path, self.name = path, path.name

    @property
    def launch(self) -> LaunchFile | None:
        return self._read("launch.json", LaunchFile)

    def prepared(self) -> LaunchFile:
        """Return launch.json. Raises DamagedError if it is missing, because each launch that was started has one."""
        launch = self.launch
        if launch is None:
            raise DamagedError(f"{self.path / 'launch.json'} is missing; restore it from a copy, or use a new folder")
        return launch

    @property
    def is_prepared(self) -> bool:
        return (self.path / "launch.json").exists()

    @property
    def end(self) -> LaunchEnd | None:
        return self._read("end.json", LaunchEnd)

    @property
    def is_over(self) -> bool:
        """Whether a driver has closed the launch. The file itself can be damaged."""
        return (self.path / "end.json").exists()

    @property
    def job(self) -> JobFile | None:
        return self._read("job.json", JobFile)

    @property
    def process(self) -> ProcessFile | None:
        return self._read("process.json", ProcessFile)

    @property
    def phases(self) -> PhasesFile | None:
        return self._read("phases.json", PhasesFile)

    @property
    def interconnect(self) -> InterconnectFile | None:
        return self._read("interconnect.json", InterconnectFile)

    @property
    def failures(self) -> tuple[RankFailure, ...]:
        """Failures of the ranks, the earliest first."""
        failures = [read_model(path, RankFailure) for path in self.path.glob("failure-rank*.json")]
        return tuple(sorted(failures, key=lambda failure: failure.at))

    def job_events(self) -> list[dict[str, Any]]:
        """Return the events that the job itself has written."""
        events, _ = read_lines(self.path / "job-events.jsonl")
        return [event for event in events if is_name(event.get("job")) and isinstance(event.get("at"), int | float)]

    def write(self, file: Written) -> None:
        """Write a file under the name of its kind."""
        name = f"failure-rank{file.rank:02d}.json" if isinstance(file, RankFailure) else NAMES[type(file)]
        write_model(self.path / name, file)

    def _read(self, name: str, model: type[Model]) -> Model | None:
        try:
            return read_model(self.path / name, model)
        except FileNotFoundError:
            return None


NAMES: dict[type, str] = {
    LaunchFile: "launch.json",
    LaunchEnd: "end.json",
    JobFile: "job.json",
    ProcessFile: "process.json",
    PhasesFile: "phases.json",
    InterconnectFile: "interconnect.json",
}


def launch_folders(folder: StudyFolder) -> list[LaunchFolder]:
    """Return the launches of a study in the order of their numbers."""
    return [LaunchFolder(path) for path in folder.launches()]


def kind_of(event: dict[str, Any]) -> EventKind:
    kind: EventKind = event["event"]
    return kind


def queued_s(job: JobFile, events: list[dict[str, Any]]) -> float | None:
    """Return the time from submission to the first start. None if the job has not started or was submitted by hand."""
    start = next((event for event in events if event["event"] == "start"), None)
    if start is None or job.submitted_at is None:
        return None
    return max(0.0, float(start["at"]) - job.submitted_at)
