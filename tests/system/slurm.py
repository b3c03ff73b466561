"""A real Slurm on this machine: munged, slurmctld and two slurmd, which all end with the test.

Needs root, because slurmd starts jobs, and Debian's packages slurm-wlm and munge. All files are in one folder.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from worldsize.machine import tie_to_parent

NODES = ("n1", "n2")
CPUS = 4
"""CPUs per node. May be more than the machine has: the tests are about the life of jobs, not about speed."""
PARTITIONS = (
    "debug Default=YES PreemptMode=OFF",
    "idle PreemptMode=CANCEL",  # jobs of the next partition preempt its jobs
    "urgent PriorityTier=10 PreemptMode=OFF",
)
CONFIGURATION = """\
ClusterName=worldsize
SlurmctldHost={host}(127.0.0.1)
SlurmUser=root
AuthType=auth/munge
CredType=cred/munge
AuthInfo=socket={folder}/munge/socket,cred_expire=5
SlurmctldPort={ctld}
SlurmctldPidFile={folder}/slurmctld.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmctldTimeout=30
StateSaveLocation={folder}/state
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmdLogFile={folder}/slurmd-%n.log
SlurmdSpoolDir={folder}/spool-%n
SlurmdTimeout=10
SlurmdParameters=config_overrides
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
MpiDefault=none
ReturnToService=2
JobRequeue=1
KillWait=3
InactiveLimit=0
MinJobAge=300
MessageTimeout=5
SchedulerType=sched/backfill
SchedulerParameters=bf_interval=2,sched_interval=2,batch_sched_delay=0,default_queue_depth=100
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
"""


@dataclass
class Cluster:
    folder: Path
    environment: dict[str, str]
    """Variables with which Slurm's commands find this cluster."""
    daemons: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    def call(self, *argv: str) -> str:
        done = subprocess.run(argv, env=self.environment, capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 0, f"{argv}: {done.stderr}"
        return done.stdout

    def start_controller(self) -> None:
        self._start("slurmctld", ["slurmctld", "-D"])

    def start_node(self, name: str) -> None:
        self._start(name, ["slurmd", "-D", "-N", name])

    def stop(self, name: str) -> None:
        """Kill a daemon, like a power failure of its node."""
        process = self.daemons.pop(name)
        process.kill()
        process.wait()

    def jobs(self) -> dict[str, str]:
        """Return the state of every job that Slurm still knows, by id."""
        lines = self.call("squeue", "--noheader", "--states=all", "--format=%i|%T").splitlines()
        return dict(line.split("|", 1) for line in lines)

    def clear(self) -> None:
        """End all jobs and their processes, and wait until both nodes are idle, for the next test."""
        for name in ("slurmctld", *NODES):
            if name not in self.daemons or self.daemons[name].poll() is not None:
                self._start(name, ["slurmctld", "-D"] if name == "slurmctld" else ["slurmd", "-D", "-N", name])
        wait(lambda: subprocess.run(["scontrol", "ping"], env=self.environment, capture_output=True).returncode == 0)
        self.call("scancel", "--user=root")
        # Nodes may take long to report old jobs to a new controller.
        wait(lambda: not self.call("squeue", "--noheader"), 60)
        self.end_steps()
        wait(self.idle, 40)

    def idle(self) -> bool:
        """Return whether both nodes are idle. sinfo lists each node once per partition."""
        lines = set(self.call("sinfo", "--noheader", "--Node", "--format=%N|%T").splitlines())
        states = dict(line.split("|") for line in lines)
        for name, state in states.items():
            if state.startswith(("down", "drain")):
                with suppress(AssertionError):  # the node is not back yet; the caller asks again
                    self.call("scontrol", "update", f"nodename={name}", "state=resume")
        return len(lines) == len(NODES) and set(states.values()) == {"idle"}

    def _start(self, name: str, argv: list[str]) -> None:
        with (self.folder / f"{name}.out").open("ab") as log:
            self.daemons[name] = subprocess.Popen(
                argv,
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                preexec_fn=tie_to_parent,  # even if the tests are killed
            )

    def end_steps(self) -> None:
        """Kill what a stopped slurmd has left running, found by the configuration in its environment."""
        daemons = {process.pid for process in self.daemons.values()}
        variable = f"SLURM_CONF={self.folder / 'slurm.conf'}".encode()
        for pid in psutil.pids():
            if pid in daemons or pid == os.getpid():
                continue
            with suppress(OSError):
                if variable in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"):
                    os.kill(pid, signal.SIGKILL)


def free_ports(count: int) -> list[int]:
    sockets = [socket.socket() for _ in range(count)]
    for listener in sockets:
        listener.bind(("127.0.0.1", 0))
    ports = [listener.getsockname()[1] for listener in sockets]
    for listener in sockets:
        listener.close()
    return ports


def wait(condition: Callable[[], bool], seconds: float = 30) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "waited too long for Slurm"
        time.sleep(0.2)


@contextmanager
def cluster(folder: Path) -> Iterator[Cluster]:
    for program in ("munged", "slurmctld", "slurmd", "sbatch"):
        assert shutil.which(program, path=_search_path()), f"{program} is missing; install slurm-wlm and munge"
    (folder / "munge").mkdir(parents=True)
    (folder / "state").mkdir()
    folder.chmod(0o755)
    conf, host = folder / "slurm.conf", socket.gethostname()
    ctld, *slurmd = free_ports(1 + len(NODES))
    text = CONFIGURATION.format(host=host, folder=folder, ctld=ctld)
    for name, port in zip(NODES, slurmd, strict=True):
        text += f"NodeName={name} NodeHostname={host} NodeAddr=127.0.0.1 Port={port} CPUs={CPUS} State=UNKNOWN\n"
    for partition in PARTITIONS:
        text += f"PartitionName={partition} Nodes={','.join(NODES)} MaxTime=60 State=UP\n"
    conf.write_text(text)
    environment = {**os.environ, "SLURM_CONF": str(conf), "PATH": _search_path()}
    created = Cluster(folder, environment)
    try:
        _start_munge(created)
        created.start_controller()
        for name in NODES:
            created.start_node(name)
        wait(lambda: subprocess.run(["scontrol", "ping"], env=environment, capture_output=True).returncode == 0)
        wait(created.idle, 60)
        yield created
    finally:
        with suppress(Exception):
            subprocess.run(["scancel", "--user=root"], env=environment, capture_output=True, timeout=10, check=False)
        for process in created.daemons.values():
            process.kill()
            process.wait()
        created.daemons.clear()
        created.end_steps()


def _start_munge(target: Cluster) -> None:
    """Start munged with its own key, independent of any munged of the machine."""
    home = target.folder / "munge"
    home.chmod(0o711)
    key = home / "key"
    key.write_bytes(os.urandom(1024))
    key.chmod(0o600)
    target._start(
        "munged",
        [
            *("munged", "--foreground", "--force", f"--key-file={key}", f"--socket={home}/socket"),
            *(f"--pid-file={home}/pid", f"--log-file={home}/log", f"--seed-file={home}/seed"),
        ],
    )
    wait(lambda: (home / "socket").exists())


def _search_path() -> str:
    return os.environ.get("PATH", "") + ":/usr/sbin:/sbin"


def left_behind(ended: Cluster) -> list[psutil.Process]:
    """Return the processes that still have this cluster in their environment."""
    processes = []
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            if process.pid != os.getpid() and process.environ().get("SLURM_CONF") == str(ended.folder / "slurm.conf"):
                processes.append(process)
    return processes
