"""Launches on this machine: torchrun or mpirun as a child process that cannot outlive the driver."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import psutil

from worldsize.folder.launches import LaunchEnd, LaunchFolder, ProcessFile, Reason
from worldsize.launch.commands import mpi_environment, mpirun_command, torchrun_command
from worldsize.launch.follow import Follower
from worldsize.launch.stacks import dump_stacks
from worldsize.launch.target import OnEvent, PreparedLaunch, Progress, RunningLaunch
from worldsize.machine import process_started_at, same_process, tie_to_parent

POLL_S = 0.1
STOP_GRACE_S = 3.0


@dataclass(frozen=True, kw_only=True)
class LocalTarget:
    """Starts one launch at a time: two would share the cores that they measure."""

    launcher: Literal["torchrun", "mpirun"] = "torchrun"
    oversubscribe: bool = False
    progress: Progress = field(default_factory=Progress)
    at_once: int = 1
    poll_s: float = POLL_S

    def start(self, prepared: PreparedLaunch, on_event: OnEvent) -> LocalRunning:
        environment = os.environ | prepared.environment
        command = torchrun_command(prepared.folder.path, prepared.launch_id, prepared.workers)
        if self.launcher == "mpirun":
            command = mpirun_command(prepared.folder.path, prepared.launch_id, prepared.workers)
            environment |= mpi_environment(root=os.geteuid() == 0, oversubscribe=self.oversubscribe)
        return LocalRunning(prepared, command, environment, prepared.path / f"{self.launcher}.log", on_event)

    def adopt(self, open_launches: Sequence[PreparedLaunch], on_event: OnEvent) -> Sequence[RunningLaunch]:  # noqa: ARG002
        """End the launches: processes that are not our children can be neither waited for nor tied to this process."""
        for prepared in open_launches:
            if end_leftover(prepared.files):
                self.progress.note(f"{prepared.launch_id}: killed; an earlier driver had left it running")
        return ()


class LocalRunning:
    def __init__(
        self,
        prepared: PreparedLaunch,
        command: list[str],
        environment: dict[str, str],
        log_file: Path,
        on_event: OnEvent,
    ) -> None:
        self.prepared, self._on_event = prepared, on_event
        self._follower = Follower(prepared.folder, prepared.path, list(prepared.trials), prepared.hang_timeout_s)
        self._started, self._started_at = time.monotonic(), time.time()
        with log_file.open("ab") as log:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=environment,
                start_new_session=True,  # Ctrl-C reaches only the driver, which ends the launch itself
                preexec_fn=tie_to_parent,
            )
        pid = self._process.pid
        prepared.files.write(ProcessFile(pid=pid, started_at=process_started_at(pid)))

    @property
    def known_to_run(self) -> bool:
        """Always true: the launcher is a child process, so `poll` sees its end at once."""
        return True

    def poll(self) -> LaunchEnd | None:
        has_exited = self._process.poll() is not None
        self._pass_on()
        if has_exited:
            return self._end()
        if not self._follower.hung():
            return None
        dump_stacks(str(self.prepared.folder.path), self.prepared.launch_id)
        return self._end(hung=True)

    def stop(self) -> LaunchEnd:
        """Ask rank 0 to stop after a step. On a second Ctrl-C, or after STOP_GRACE_S, kill the processes."""
        try:
            (self.prepared.path / "stop").touch()
            self._process.wait(STOP_GRACE_S)
        except (KeyboardInterrupt, subprocess.TimeoutExpired, OSError):
            pass
        return self._end(reason="interrupted")

    def wait(self) -> LaunchEnd:
        """Follow the launch to its end, without a runner."""
        while (end := self.poll()) is None:
            time.sleep(POLL_S)
        return end

    def _pass_on(self) -> None:
        for trial_id, event in self._follower.events():
            self._on_event(trial_id, event)

    def _end(self, *, hung: bool = False, reason: Reason = "") -> LaunchEnd:
        if self._process.poll() is None:
            end_tree(self._process.pid)
        self._process.wait()
        wall_s = time.monotonic() - self._started
        self._pass_on()
        return LaunchEnd(
            wall_s=wall_s,
            started_at=self._started_at,
            returncode=self._process.returncode,
            hung=hung,
            reason=reason,
            patience_s=self._follower.patience_s(),
            last_step=self._follower.last_step,
        )


def end_tree(pid: int) -> None:
    """Kill a process and everything it started. Each rank has its own session, so killing the group is not enough."""
    try:
        root = psutil.Process(pid)
        processes = [root, *root.children(recursive=True)]
    except psutil.NoSuchProcess:
        return
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            process.kill()
    psutil.wait_procs(processes, timeout=10)


def end_leftover(launch: LaunchFolder) -> bool:
    """End a launch that outlived its driver, and return whether there was one.

    This happens on systems where a child cannot be tied to its parent. Pid and start time identify the launch.
    """
    process = launch.process
    if process is None or process.started_at is None or not same_process(process.pid, process.started_at):
        return False
    end_tree(process.pid)
    return True
