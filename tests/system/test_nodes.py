"""Beyond one machine without a scheduler: two hosts with names and addresses of their own, and MPI."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import worldsize
from tests.system.conftest import PLANTED, processes_of
from tests.system.netns import INTERFACE, Cable, Node, two_nodes

pytestmark = pytest.mark.long

STUDY = """\
name: nodes
workload: digits
axes: {workers: [1, 2], batch_per_worker: [16]}
probe: {max_seconds: 0.3, repeats: 2}
repeats: 1
oversubscribe: true
"""
ONCE = ("--set", "probe.repeats=1")
"""Each repeat is a launch, and by hand one is enough."""
MBIT_PER_S = (200, 100, 50)


def worldsize_command(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "worldsize.cli.main", *arguments],
        env={**os.environ, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=240,
        check=False,
    )


def on_host(node: Node, name: str, line: str) -> list[str]:
    """A line of shell, on a host with a name of its own, which nobody can resolve: addresses must do."""
    named = ["unshare", "--uts", "bash", "-c", 'hostname "$0" && exec bash -c "$1"', name, line]
    return node.command(named)


def test_two_hosts_meet_by_the_printed_commands_and_scale_as_their_link_allows(tmp_path: Path) -> None:
    study = tmp_path / "nodes.yaml"
    study.write_text(STUDY)
    efficiency = {}
    with two_nodes(MBIT_PER_S[0]) as cable:
        for limit in MBIT_PER_S:
            cable.limit(limit)
            results = run_by_hand(study, tmp_path / f"a study at {limit}", cable)
            link = dict(results.links)["across"].bandwidth_bytes_per_s.value * 8e-6
            efficiency[limit] = next(row.efficiency.value for row in results.rows if row.setting.workers == 2)
            print(f"{limit} Mbit/s: measured {link:.1f}, efficiency of 2 workers {efficiency[limit]:.3f}")
            assert link == pytest.approx(limit, rel=0.1)
    assert list(efficiency.values()) == sorted(efficiency.values(), reverse=True)
    assert efficiency[MBIT_PER_S[-1]] < 0.5 * efficiency[MBIT_PER_S[0]]
    folder = results.folder.path
    again = worldsize_command("run", str(study), "--dir", str(folder), *ONCE)
    assert again.returncode == 0, again.stdout
    assert len(list(folder.glob("launches/*"))) == 1  # nothing was left to run
    assert processes_of(folder) == []


def run_by_hand(study: Path, folder: Path, cable: Cable) -> worldsize.Results:
    """What `by-hand` prints, typed on each host."""
    hosts = [node.address for node in cable.nodes]
    options = ("--nodes", "2", "--hosts", ",".join(hosts), "--dir", str(folder), *ONCE)
    printed = worldsize_command("by-hand", str(study), *options)
    assert printed.returncode == 0, printed.stdout
    lines = [line for line in printed.stdout.splitlines() if not line.startswith("#")]
    assert len(lines) == 2
    processes = [
        subprocess.Popen(
            on_host(node, name, line),
            env={**os.environ, "GLOO_SOCKET_IFNAME": INTERFACE},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for node, name, line in zip(cable.nodes, ("first", "second"), lines, strict=True)
    ]
    outputs = [process.communicate(timeout=180)[0] for process in processes]
    assert [process.returncode for process in processes] == [0, 0], outputs
    results = worldsize.load(folder)
    assert {record.outcome for record in results.records.values()} == {"finished"}
    assert len(results.records) == 2
    pairs = [record for record in results.records.values() if results.trials[record.trial].workers == 2]
    assert all(sorted(record.environment["hosts"]) == ["first", "second"] for record in pairs)  # type: ignore[type-var,arg-type]
    return results


@pytest.fixture
def mpi(tmp_path: Path) -> Path:
    assert shutil.which("mpirun"), "mpirun is missing: install openmpi-bin"
    study = tmp_path / "nodes.yaml"
    study.write_text(STUDY + "run_on: mpi\ninterconnect_probe_s: 0\n")
    return study


def test_mpirun_starts_the_workers_of_a_study(mpi: Path, tmp_path: Path) -> None:
    done = worldsize_command("run", str(mpi), "--dir", str(tmp_path / "study"))
    assert done.returncode == 0, done.stdout
    results = worldsize.load(tmp_path / "study")
    assert {record.outcome for record in results.records.values()} == {"finished"}
    assert {len(record.spans) for record in results.records.values()} == {1, 2}
    assert processes_of(tmp_path / "study") == []


def test_a_rank_killed_under_mpirun_is_named_and_tried_again(mpi: Path, tmp_path: Path) -> None:
    planted = {"PLANTED": "kill:1:000:2:once", "PLANTED_MARKER": str(tmp_path / "mark"), "PYTHONPATH": str(PLANTED)}
    done = worldsize_command("run", str(mpi), "--dir", str(tmp_path / "study"), **planted)
    assert done.returncode == 0, done.stdout
    assert "killed by SIGKILL" in done.stdout
    assert processes_of(tmp_path / "study") == []
