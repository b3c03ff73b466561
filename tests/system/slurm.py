"""A real Slurm on this machine, from Debian's packages: munged, slurmctld and two slurmd, all of them gone at the end.

Needs root (slurmd starts jobs) and the packages slurm-wlm and munge. Everything lies in one folder.
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
"""Of each node, more than there are: tests are about the life of jobs, not about speed."""
PARTITIONS = (
    "debug Default=YES PreemptMode=OFF",
    "idle PreemptMode=CANCEL",  # its jobs make way for those of the next
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
    """With which commands find this cluster and no other."""
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
        """At once, as a node or a controller that lost its power."""
        process = self.daemons.pop(name)
        process.kill()
        process.wait()

    def jobs(self) -> dict[str, str]:
        """Job -> state, of all that Slurm still knows."""
        lines = self.call("squeue", "--noheader", "--states=all", "--format=%i|%T").splitlines()
        return dict(line.split("|", 1) for line in lines)

    def clear(self) -> None:
        """No job, no process of one, both nodes at work: what the next test may rely on."""
        for name in ("slurmctld", *NODES):
            if name not in self.daemons or self.daemons[name].poll() is not None:
                self._start(name, ["slurmctld", "-D"] if name == "slurmctld" else ["slurmd", "-D", "-N", name])
        wait(lambda: subprocess.run(["scontrol", "ping"], env=self.environment, capture_output=True).returncode == 0)
        self.call("scancel", "--user=root")
        wait(
            lambda: not self.call("squeue", "--noheader"), 60
        )  # a node tells a new controller of old jobs at its leisure
        self.end_steps()
        wait(self.idle, 40)

    def idle(self) -> bool:
        """Both nodes; each is listed once a partition."""
        lines = set(self.call("sinfo", "--noheader", "--Node", "--format=%N|%T").splitlines())
        states = dict(line.split("|") for line in lines)
        for name, state in states.items():
            if state.startswith(("down", "drain")):
                with suppress(AssertionError):  # not yet back: asked again
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
                preexec_fn=tie_to_parent,  # also where the tests themselves are killed
            )

    def end_steps(self) -> None:
        """What a stopped slurmd left running: known by the configuration in its environment."""
        daemons = {process.pid for process in self.daemons.values()}
        mine = f"SLURM_CONF={self.folder / 'slurm.conf'}".encode()
        for pid in psutil.pids():
            if pid in daemons or pid == os.getpid():
                continue
            with suppress(OSError):
                inside = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
                if mine in inside:
                    os.kill(pid, signal.SIGKILL)


def free_ports(count: int) -> list[int]:
    sockets = [socket.socket() for _ in range(count)]
    for each in sockets:
        each.bind(("127.0.0.1", 0))
    ports = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return ports


def wait(condition: Callable[[], bool], seconds: float = 30) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "waited too long for Slurm"
        time.sleep(0.2)


@contextmanager
def cluster(folder: Path) -> Iterator[Cluster]:
    for program in ("munged", "slurmctld", "slurmd", "sbatch"):
        assert shutil.which(program, path=_search_path()), f"{program} is missing: install slurm-wlm and munge"
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
    made = Cluster(folder, environment)
    try:
        _start_munge(made)
        made.start_controller()
        for name in NODES:
            made.start_node(name)
        wait(lambda: subprocess.run(["scontrol", "ping"], env=environment, capture_output=True).returncode == 0)
        wait(made.idle, 60)
        yield made
    finally:
        with suppress(Exception):
            subprocess.run(["scancel", "--user=root"], env=environment, capture_output=True, timeout=10, check=False)
        for process in made.daemons.values():
            process.kill()
            process.wait()
        made.daemons.clear()
        made.end_steps()


def _start_munge(made: Cluster) -> None:
    """With a key of its own; a munged of the machine, if it has one, is left alone."""
    home = made.folder / "munge"
    home.chmod(0o711)
    key = home / "key"
    key.write_bytes(os.urandom(1024))
    key.chmod(0o600)
    made._start(
        "munged",
        [
            *("munged", "--foreground", "--force", f"--key-file={key}", f"--socket={home}/socket"),
            *(f"--pid-file={home}/pid", f"--log-file={home}/log", f"--seed-file={home}/seed"),
        ],
    )
    wait(lambda: (home / "socket").exists())


def _search_path() -> str:
    return os.environ.get("PATH", "") + ":/usr/sbin:/sbin"


def left_behind(made: Cluster) -> list[psutil.Process]:
    """Processes that still know this cluster."""
    found = []
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            if process.pid != os.getpid() and process.environ().get("SLURM_CONF") == str(made.folder / "slurm.conf"):
                found.append(process)
    return found
