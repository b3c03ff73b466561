"""Find out why a launch ended before its trials did: the first rank that failed, its error, and whether to retry."""

from __future__ import annotations

import errno
import os
import re
import signal
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from worldsize.folder.files import has_room
from worldsize.folder.launches import LaunchFolder, kind_of
from worldsize.folder.record import Failure, Outcome, Try
from worldsize.folder.study_folder import TRIAL_MARK, StudyFolder, read_text

LOG_LINES = 40
PEER_LOST = re.compile(r"connection (closed|reset)|broken pipe|peer|socket|timed out|nccl", re.IGNORECASE)
"""Matches the error of a rank that lost its connection because another rank failed."""
MPIRUN_FAILURE = re.compile(r"process rank (\d+) with PID \d+ on node \S+ exited on signal (\d+)")
LAUNCHER_LOGS = ("torchrun.log", "mpirun.log")
TORCHRUN_FAILURE = re.compile(r"rank\s*: (\d+) .*?exitcode\s*: (-?\d+)", re.DOTALL)


@dataclass(frozen=True, kw_only=True)
class Cause:
    failure: Failure
    retryable: bool
    """True for killed, lost and hung processes, which may be bad luck; False for an error in the code."""
    outcome: Outcome = "failed"
    """Outcome of the trial if it is not retried."""
    disk_full: bool = False
    """Not the fault of the trial: every other trial would fail too until space is freed."""
    is_input: bool = False
    """The study asks for something that does not exist, such as a model or a file: every other trial would fail too."""


def find_cause(
    launch: Path, trial_id: str, *, workers: int, hung: bool, patience_s: float, last_step: int | None
) -> Cause:
    """Return why a launch ended early.

    The order of blame: a full disk, a hang, a rank killed by a signal, a rank out of memory, and then the earliest
    error that is not the loss of a peer.
    """

    def cause(
        rank: int | None,
        error: str,
        *,
        retryable: bool,
        step: int | None = last_step,
        is_input: bool = False,
        disk_full: bool = False,
        outcome: Outcome = "failed",
    ) -> Cause:
        log = tuple(trial_log(launch, trial_id, rank)[-LOG_LINES:])
        failure = Failure(rank=rank, step=step, error=error, log=log)
        return Cause(failure=failure, retryable=retryable, is_input=is_input, disk_full=disk_full, outcome=outcome)

    failures = LaunchFolder(launch).failures
    if full := [failure for failure in failures if failure.disk_full]:
        return cause(full[0].rank, full[0].error, retryable=False, step=full[0].step, disk_full=True)
    if not has_room(launch):  # ranks may have been unable to write their failure
        return cause(None, os.strerror(errno.ENOSPC), retryable=False, disk_full=True)
    if hung:
        return cause(None, f"no sign of life for {patience_s:.0f} s; the processes were killed", retryable=True)
    killed = killed_ranks("".join(_text(launch / name) for name in LAUNCHER_LOGS))
    if killed:
        rank, number = killed[0]
        name = signal.Signals(number).name
        hint = " (the system may have run out of memory)" if name == "SIGKILL" else ""
        return cause(rank, f"killed by {name}{hint}", retryable=True)
    if full := [failure for failure in failures if failure.out_of_memory]:
        # The other ranks lost this one, and their errors can be anything.
        first = full[0]
        error = f"{first.type}: {first.error}"
        return cause(first.rank, error, retryable=False, step=first.step, outcome="out_of_memory")
    own = [failure for failure in failures if workers == 1 or not PEER_LOST.search(failure.error)]
    if own:
        first = own[0]
        error, is_input = f"{first.type}: {first.error}", first.type in ("InputError", "DataError")
        return cause(first.rank, error, retryable=False, step=first.step, is_input=is_input)
    if failures:
        error = f"lost the connection to the other ranks ({failures[0].type}: {failures[0].error.splitlines()[0]})"
        return cause(failures[0].rank, error, retryable=True)
    return cause(None, "the processes ended without an error but did not finish the trial", retryable=True)


def killed_ranks(report: str) -> list[tuple[int, int]]:
    """Return (rank, signal) pairs from the launcher's report, the root cause first.

    SIGTERM does not count: the launcher sends it to the other ranks.
    """
    root = report.rfind("Root Cause")
    parts = [report[root:], report[:root]] if root >= 0 else [report]
    killed = [(int(rank), -int(code)) for part in parts for rank, code in TORCHRUN_FAILURE.findall(part)]
    killed += [(int(rank), int(number)) for rank, number in MPIRUN_FAILURE.findall(report)]
    return [(rank, number) for rank, number in killed if number > 0 and number != signal.SIGTERM]


def any_trial_began(launch: Path) -> bool:
    """Return whether any trial began. If not, the launch itself failed."""
    return any(TRIAL_MARK in _text(path) for path in launch.glob("rank*.log"))


def current_trial(launch: Path, left: Sequence[str]) -> str:
    """Return which of the trials without a record was running when the launch ended.

    Trials that take turns have no record until all of them are done. A rank that failed names its trial; else it is the
    one that rank 0 worked on last.
    """
    named = [failure.trial for failure in LaunchFolder(launch).failures if failure.trial is not None]
    marks = [line for line in _text(launch / "rank00.log").splitlines() if line.startswith(TRIAL_MARK)]
    last = [line.removeprefix(TRIAL_MARK) for line in marks[-1:]]
    return next((trial_id for trial_id in [*named, *last] if trial_id in left), left[0])


def trial_log(launch: Path, trial_id: str, rank: int | None = None) -> list[str]:
    """Return the lines that the processes printed during one trial. Each starts with its rank, unless `rank` is set."""
    pattern = "rank*.log" if rank is None else f"rank{rank:02d}.log"
    lines: list[str] = []
    for path in sorted(launch.glob(pattern)):
        number = path.stem.removeprefix("rank")
        inside = False
        for line in _text(path).splitlines():
            if line.startswith(TRIAL_MARK):
                inside = line == f"{TRIAL_MARK}{trial_id}"
            elif inside:
                lines.append(line if rank is not None else f"[{number}] {line}")
    return lines


def reported_tries(folder: StudyFolder, trial_id: str) -> tuple[Try, ...]:
    """Return the tries of a largest-batch search that was cut off, as reported by rank 0.

    A try without a result counts as out of memory.
    """
    tries: list[Try] = []
    under_way: int | None = None
    for event in folder.events(trial_id):
        match kind_of(event):
            case "start":  # drop the tries of an earlier attempt
                tries, under_way = [], None
            case "trying":
                under_way = event["batch_per_worker"]
            case "try":
                fields = {name: value for name, value in event.items() if name in Try.model_fields}
                tries.append(Try.from_plain(fields))
                under_way = None
    if under_way is not None:
        tries.append(Try(batch_per_worker=under_way, outcome="out_of_memory"))
    return tuple(tries)


def launch_log(launch: Path) -> list[str]:
    """Return the last lines that a launch printed, for a launch in which no trial began."""
    paths = sorted(launch.glob("rank*.log")) or [launch / name for name in ("job.log", *LAUNCHER_LOGS)]
    return [line for path in paths for line in _text(path).splitlines()[-LOG_LINES:]]


def _text(path: Path) -> str:
    try:
        return read_text(path)
    except FileNotFoundError:
        return ""
