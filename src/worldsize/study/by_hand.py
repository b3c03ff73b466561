"""Commands to start launches by hand: torchrun on each host, mpirun or sbatch."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator

from worldsize.errors import InputError
from worldsize.launch.commands import mpirun_command, node_commands
from worldsize.launch.slurm.target import prepare_by_hand
from worldsize.launch.target import PreparedLaunch
from worldsize.machine import Machine
from worldsize.spec.study import StudySpec
from worldsize.study.study import Study

HOST = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:-]*")


def nodes_like(machine: Machine, nodes: int) -> Machine:
    """Return the total of this number of machines like this one."""
    return Machine(cores=machine.cores * nodes, gpus=machine.gpus * nodes)


def commands_by_hand(study: Study, *, nodes: int, hosts: str, port: int) -> list[str]:
    """Return shell commands, with comments that tell where to run each. Checks everything before writing anything."""
    names = hosts.split(",") if hosts else [f"HOST{number}" for number in range(1, nodes + 1)]
    if len(names) != nodes or not all(HOST.fullmatch(name) for name in names):
        raise InputError(
            f"--hosts {hosts!r} is not a list of {nodes} hosts; write addresses like --hosts 10.0.0.1,10.0.0.2"
        )
    for launch in study.plan.launches:
        is_local = study.spec.places[launch.place] == "local"
        if is_local and launch.workers % min(nodes, launch.workers):
            raise InputError(f"workers={launch.workers} does not divide among --nodes {nodes}; use a multiple")
    lines = []
    for prepared in study.prepare():
        lines.append(f"# {prepared.launch_id}: trials {len(prepared.trials)}, workers {prepared.workers}")
        lines += _commands(study.sites[prepared.place].spec, prepared, names, port)
    return lines or [f"# nothing is left to run in {study.folder}"]


def _commands(spec: StudySpec, prepared: PreparedLaunch, hosts: list[str], port: int) -> Iterator[str]:
    if spec.slurm is not None:
        yield shlex.join(["sbatch", str(prepare_by_hand(prepared, spec))])
        return
    variables = [f"{key}={value}" for key, value in prepared.environment.items()]
    prefix = f"env {shlex.join(variables)} WORLDSIZE_LAUNCHED_AT=$(date +%s) "
    if spec.run_on == "mpi":
        yield prefix + shlex.join(mpirun_command(prepared.folder.path, prepared.launch_id, prepared.workers))
        return
    # Use as many hosts as the workers of this launch divide among.
    host_count = max(n for n in range(1, min(len(hosts), prepared.workers) + 1) if prepared.workers % n == 0)
    used = hosts[:host_count]
    commands = node_commands(prepared.folder.path, prepared.launch_id, prepared.workers // host_count, used, port=port)
    for host, command in zip(used, commands, strict=True):
        yield f"# on {host}:"
        yield prefix + shlex.join(command)
