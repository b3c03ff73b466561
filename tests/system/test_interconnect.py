"""Links of real ranks: on this machine, and on two nodes whose cable has a known rate."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.system.netns import Cable, two_nodes
from tests.system.ranks import run_ranks, tried
from worldsize.analysis.speed.network import Link, fit_link
from worldsize.worker.measure.links import SIZES

Seen = list[dict[str, Any]]


def measured(folder: Path, hosts: list[str], *, budget_s: float = 3.0, cable: Cable | None = None) -> Seen:
    """What each rank wrote. With a cable, a rank on each of its nodes."""
    run_ranks("tests.system.link_ranks", folder, str(budget_s), *hosts, ranks=len(hosts), cable=cable)
    return [json.loads((folder / f"rank{rank}.json").read_text()) for rank in range(len(hosts))]


def by_size(seen: Seen, kind: str) -> dict[int, list[float]]:
    return {row["size_bytes"]: row["seconds"] for row in seen[0]["sweep"]["times"] if row["kind"] == kind}


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> Seen:
    """By two ranks of this machine."""
    return measured(tmp_path_factory.mktemp("ranks"), ["here", "here"])


def test_the_sweep_keeps_to_its_box(seen: Seen) -> None:
    for rank in seen:
        assert rank["took_s"] <= 5.0  # 3, and what a busy machine adds to connecting and to one repetition
        assert rank["groups_left"] == 0


def test_ranks_agree_to_the_digit(seen: Seen) -> None:
    assert seen[0]["sweep"] == seen[1]["sweep"]


def test_every_size_was_repeated(seen: Seen) -> None:
    rows = seen[0]["sweep"]["times"]
    assert {(row["kind"], row["host"], row["workers"]) for row in rows} == {("inside", "here", 2)}
    sizes = [row["size_bytes"] for row in rows]
    assert sizes == list(SIZES[: len(sizes)])
    assert len(sizes) >= 6
    assert all(len(row["seconds"]) >= 3 and min(row["seconds"]) > 0 for row in rows)
    medians = {size: float(np.median(seconds)) for size, seconds in by_size(seen, "inside").items()}
    assert medians[sizes[-1]] > 3 * medians[1024]


@pytest.mark.long
def test_inside_across_and_all_are_measured_apart(tmp_path: Path) -> None:
    seen = measured(tmp_path, ["a", "a", "b"], budget_s=1.0)
    kinds = {(row["kind"], row["host"], row["workers"]) for row in seen[0]["sweep"]["times"]}
    assert kinds == {("inside", "a", 2), ("across", None, 2), ("all", None, 3)}
    assert all(rank["sweep"] == seen[0]["sweep"] and rank["groups_left"] == 0 for rank in seen)


@pytest.fixture(scope="module")
def cable() -> Iterator[Cable]:
    with two_nodes(100) as made:
        yield made


@pytest.mark.long
@pytest.mark.parametrize("mbit_per_s", [200, 800])
def test_the_rate_of_a_cable_is_found(tmp_path: Path, cable: Cable, mbit_per_s: int) -> None:
    cable.limit(mbit_per_s)
    seen: list[Any] = []

    def run(folder: Path) -> None:
        seen[:] = measured(folder, ["a", "b"], cable=cable)

    def check(_: Path) -> None:
        link: Link | None = fit_link(2, by_size(seen, "across"))
        assert link is not None
        assert link.bandwidth_bytes_per_s.value * 8e-6 == pytest.approx(mbit_per_s, rel=0.1)
        assert seen[0]["took_s"] <= 5.0

    tried(tmp_path, run, check)
    assert seen[0]["sweep"] == seen[1]["sweep"]


@pytest.mark.long
def test_the_rate_can_change_under_traffic_and_nothing_is_left(tmp_path: Path) -> None:
    program = tmp_path / "blocks.py"
    program.write_text(
        "import socket, sys, time\n"
        "if sys.argv[1] == 'send':\n"
        "    with socket.create_connection((sys.argv[2], 7000)) as line:\n"
        "        while True: line.sendall(bytes(65536))\n"
        "server = socket.create_server(('', 7000))\n"
        "print('ready', flush=True)\n"
        "line, _ = server.accept()\n"
        "while True:\n"
        "    began, left = time.perf_counter(), 1_000_000\n"
        "    while left > 0: left -= len(line.recv(min(left, 65536)))\n"
        "    print(time.perf_counter() - began, flush=True)\n"
    )
    with two_nodes(80) as cable:
        first, second = cable.nodes
        start = [sys.executable, str(program)]
        receiver = subprocess.Popen(second.command([*start, "receive"]), stdout=subprocess.PIPE, text=True)
        assert receiver.stdout is not None
        assert receiver.stdout.readline() == "ready\n"
        sender = subprocess.Popen(first.command([*start, "send", second.address]))
        slow = [float(receiver.stdout.readline()) for _ in range(6)]
        cable.limit(400)
        quick = [float(receiver.stdout.readline()) for _ in range(20)][-10:]
    assert [sender.wait(5), receiver.wait(5)] == [-9, -9]  # what still ran in the nodes went with them
    receiver.stdout.close()
    assert 8 / float(np.median(slow)) == pytest.approx(80, rel=0.15)
    assert 8 / float(np.median(quick)) == pytest.approx(400, rel=0.15)
    left = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=True).stdout
    assert first.namespace not in left
    assert second.namespace not in left
