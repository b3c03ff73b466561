"""What the folder of a launch holds, file by file, and `LaunchFolder`, which reads them.

The driver writes launch.json before the launch starts, job.json or process.json when it starts, and end.json last of
all. Rank 0 writes interconnect.json and phases.json, and a rank that fails writes failure-rankNN.json.
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
"""Why a launch ended, where its own processes did not end it."""
EventKind = Literal["start", "progress", "evaluation", "epoch", "trying", "try", "stopped", "end"]
"""The `event` of a line in the events.jsonl of a trial."""


class LaunchFile(Frozen):
    """launch.json: the trials to run, and all that is fixed at process start."""

    kind: LaunchKind
    """What its trials are; `smoke` has none."""
    place: PlaceOrNone = ""
    """The place, where the study has several."""
    workers: Count
    threads: Count
    memory_limit_gb: float | None
    """Per worker."""
    device: Literal["cpu", "cuda"]
    backend: Literal["gloo", "nccl"]
    trials: tuple[str, ...]
    metric: str
    higher_is_better: bool
    interconnect_probe_s: float
    """How long to measure the links between ranks; 0: they are not measured."""
    search_curves: dict[str, tuple[tuple[float, ...], ...]]
    """By search: the metric of its earlier trials, epoch by epoch."""
    commit: str | None
    """The commit of the user's own repository."""
    data: str
    cache: str
    launched_at: float
    """Unix time."""


class LaunchEnd(Frozen):
    """end.json: how a launch ended, its wall time and where that went."""

    wall_s: float
    started_at: float
    returncode: int | None
    hung: bool
    patience_s: float
    """The longest silence that was allowed."""
    last_step: int | None
    reason: Reason = ""
    queued_s: float | None = None
    """Time in a queue before it began; not part of `wall_s`."""
    attempts: int = 1
    """How often the job started: a scheduler may put it back into its queue."""
    job: str | None = None
    """The id of its job, as Slurm or the job itself reported it."""
    phases_s: dict[str, float] | None = None
    """Where the wall time went; None: rank 0 ended before it could say."""
    culprit: str | None = None
    """The trial in which it ended early."""
    cause: str | None = None


class JobFile(Frozen):
    """job.json: what Slurm's commands are given, so neither name nor id may be an option, nor several."""

    name: FileName
    id: FileName | None
    """None: Slurm has not said, or somebody submits it by hand."""
    submitted_at: float | None


class ProcessFile(Frozen):
    """process.json: the launcher on this machine. With its start time, a pid names one process for good."""

    pid: Pid
    started_at: float | None


class PhasesFile(Frozen):
    """phases.json: where the time of rank 0 went, from process start to the last trial."""

    phases_s: dict[str, float]
    ended_at: float


class RankFailure(Frozen):
    """failure-rankNN.json: what a rank said about its end."""

    rank: int
    trial: str | None
    """None: it had not begun one."""
    step: int | None
    at: float
    type: str
    """The class of the exception."""
    error: str
    out_of_memory: bool = False
    disk_full: bool = False


class LinkTimes(Frozen):
    """All-reduces of one size by one group, raw."""

    kind: Literal["inside", "across", "all"]
    host: str | None
    """The node of a group inside one."""
    workers: Count
    size_bytes: int
    seconds: tuple[float, ...]
    """Per repetition, in order: the maximum over the ranks of the group."""


class LinkSweep(Frozen):
    budget_s: float
    took_s: float
    """On rank 0, from the first all-reduce to the end of the last."""
    times: tuple[LinkTimes, ...]


class InterconnectFile(Frozen):
    """interconnect.json: what the links between the ranks can do."""

    hosts: tuple[str, ...]
    """Per rank."""
    sweep: LinkSweep


Written = LaunchFile | LaunchEnd | JobFile | ProcessFile | PhasesFile | InterconnectFile | RankFailure
"""Any file of a launch."""


class LaunchFolder:
    """Reads the files of a launch. What is absent is None; what is not as it was written raises DamagedError."""

    def __init__(self, path: Path) -> None:
        self.path, self.name = path, path.name

    @property
    def launch(self) -> LaunchFile | None:
        return self._read("launch.json", LaunchFile)

    def prepared(self) -> LaunchFile:
        """launch.json of a launch that was started, which must have one."""
        launch = self.launch
        if launch is None:
            raise DamagedError(f"{self.path / 'launch.json'} is missing; put back a whole copy, or use a new folder")
        return launch

    @property
    def is_prepared(self) -> bool:
        return (self.path / "launch.json").exists()

    @property
    def end(self) -> LaunchEnd | None:
        return self._read("end.json", LaunchEnd)

    @property
    def is_over(self) -> bool:
        """Whether a driver has closed it, whatever that driver wrote."""
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
        """The earliest first."""
        failures = [read_model(path, RankFailure) for path in self.path.glob("failure-rank*.json")]
        return tuple(sorted(failures, key=lambda failure: failure.at))

    def job_events(self) -> list[dict[str, Any]]:
        """What the job has written about itself."""
        events, _ = read_lines(self.path / "job-events.jsonl")
        return [event for event in events if is_name(event.get("job")) and isinstance(event.get("at"), int | float)]

    def write(self, file: Written) -> None:
        """Writes a file under the name of its kind."""
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
    """The launches of a study, in the order of their numbers."""
    return [LaunchFolder(path) for path in folder.launches()]


def kind_of(event: dict[str, Any]) -> EventKind:
    kind: EventKind = event["event"]
    return kind


def queued_s(job: JobFile, events: list[dict[str, Any]]) -> float | None:
    """Time from submission to the first start; None if it has not started or was submitted by hand."""
    start = next((event for event in events if event["event"] == "start"), None)
    if start is None or job.submitted_at is None:
        return None
    return max(0.0, float(start["at"]) - job.submitted_at)
