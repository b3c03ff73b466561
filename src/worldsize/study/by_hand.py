"""Launches that are started by hand: torchrun on each of several hosts, or sbatch."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator

from worldsize.errors import InputError
from worldsize.launch.commands import mpirun_command, node_commands, worker_environment
from worldsize.launch.slurm.target import prepare_by_hand
from worldsize.launch.target import PreparedLaunch
from worldsize.machine import Machine
from worldsize.spec.study import StudySpec
from worldsize.study.study import Study

HOST = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:-]*")


def nodes_like(machine: Machine, nodes: int) -> Machine:
    """The total of this many machines like this one."""
    return Machine(cores=machine.cores * nodes, gpus=machine.gpus * nodes)


def commands_by_hand(study: Study, *, nodes: int, hosts: str, port: int) -> list[str]:
    """Shell commands; comments say where to run each. Everything is checked before anything is written."""
    names = hosts.split(",") if hosts else [f"HOST{number}" for number in range(1, nodes + 1)]
    if len(names) != nodes or not all(HOST.fullmatch(name) for name in names):
        raise InputError(
            f"--hosts {hosts!r} names no {nodes} hosts; write addresses with commas: --hosts 10.0.0.1,10.0.0.2"
        )
    for launch in study.plan.launches:
        plain = study.spec.places[launch.place] == "local"
        if plain and launch.workers % min(nodes, launch.workers):
            raise InputError(f"workers={launch.workers} does not divide among --nodes {nodes}; use a count that does")
    lines = []
    for work in study.prepare():
        lines.append(f"# {work.launch_id}: trials {len(work.trials)}, workers {work.workers}")
        lines += _commands(study.sites[work.place].spec, work, names, port)
    return lines or [f"# nothing is left to run in {study.folder}"]


def _commands(spec: StudySpec, work: PreparedLaunch, hosts: list[str], port: int) -> Iterator[str]:
    if spec.slurm is not None:
        yield shlex.join(["sbatch", str(prepare_by_hand(work, spec))])
        return
    fixed = [f"{key}={value}" for key, value in worker_environment(work.threads, work.cpu_limit_gb).items()]
    begin = f"env {shlex.join(fixed)} WORLDSIZE_LAUNCHED_AT=$(date +%s) "
    if spec.run_on == "mpi":
        yield begin + shlex.join(mpirun_command(work.folder.path, work.launch_id, work.workers))
        return
    # A launch may have fewer workers than the study: then use as many hosts as they divide among.
    used = hosts[: max(n for n in range(1, min(len(hosts), work.workers) + 1) if work.workers % n == 0)]
    commands = node_commands(work.folder.path, work.launch_id, work.workers // len(used), used, port=port)
    for host, command in zip(used, commands, strict=True):
        yield f"# on {host}:"
        yield begin + shlex.join(command)
