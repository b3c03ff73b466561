"""Two nodes on one machine: network namespaces connected by a virtual cable with an adjustable rate.

Needs root and iproute2 (`ip`, `tc`).
"""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass

INTERFACE = "veth0"
BURST_S, QUEUE_S = 0.001, 0.1
"""Burst and queue, as seconds of traffic at the full rate. The burst is short, or small transfers would look too fast.
The queue is long, so that no packet is dropped."""
MTU = 9_000
"""Bytes per packet. With large packets, headers take 1 % of the rate instead of 5 %."""
FRAME = 100
"""Allowance for the headers around a packet, in bytes. A packet that does not fit into the burst would be dropped."""
_numbers = itertools.count()


@dataclass(frozen=True, kw_only=True)
class Node:
    namespace: str
    address: str

    def command(self, argv: list[str]) -> list[str]:
        """Return a command that runs `argv` on this node."""
        return ["ip", "netns", "exec", self.namespace, *argv]


@dataclass(frozen=True, kw_only=True)
class Cable:
    nodes: tuple[Node, Node]

    def environment(self, port: int = 29_500) -> dict[str, str]:
        """Return the variables with which ranks connect. Rank 0 is on the first node, where all ports are free."""
        return {"MASTER_ADDR": self.nodes[0].address, "MASTER_PORT": str(port), "GLOO_SOCKET_IFNAME": INTERFACE}

    def limit(self, mbit_per_s: float) -> None:
        """Set the rate of each direction."""
        for node in self.nodes:
            _run(f"tc -n {node.namespace} {shaping(mbit_per_s)}")


def shaping(mbit_per_s: float) -> str:
    """Return the arguments of `tc` that limit what a node sends."""
    bytes_per_s = mbit_per_s * 1e6 / 8
    burst, queue = round(max(BURST_S * bytes_per_s, MTU + FRAME)), round(QUEUE_S * bytes_per_s)
    return f"qdisc replace dev {INTERFACE} root tbf rate {round(mbit_per_s * 1e6)}bit burst {burst} limit {queue}"


def limit_here(mbit_per_s: float) -> None:
    """Set the rate of what this node sends. For processes that run on a node."""
    _run(f"tc {shaping(mbit_per_s)}")


@contextmanager
def two_nodes(mbit_per_s: float) -> Iterator[Cable]:
    """Create two nodes. At the end, remove them and kill everything that still runs on them."""
    number = next(_numbers)
    nodes = tuple(
        Node(namespace=f"worldsize-{os.getpid()}-{number}-{name}", address=f"10.77.0.{place}")
        for place, name in enumerate("ab", start=1)
    )
    cable = Cable(nodes=(nodes[0], nodes[1]))
    try:
        for node in nodes:
            _run(f"ip netns add {node.namespace}")
        first, second = (node.namespace for node in nodes)
        _run(f"ip link add {INTERFACE} netns {first} type veth peer name {INTERFACE} netns {second}")
        for node in nodes:
            _run(f"ip -n {node.namespace} address add {node.address}/24 dev {INTERFACE}")
            for interface in ("lo", INTERFACE):
                _run(f"ip -n {node.namespace} link set {interface} up mtu {MTU}")
        cable.limit(mbit_per_s)
        yield cable
    finally:
        for node in nodes:
            _remove(node.namespace)


def _remove(namespace: str) -> None:
    """Remove a namespace and kill its processes, which would otherwise keep it alive."""
    inside = subprocess.run(["ip", "netns", "pids", namespace], capture_output=True, text=True, check=False)
    for pid in inside.stdout.split():
        with suppress(ProcessLookupError):
            os.kill(int(pid), signal.SIGKILL)
    subprocess.run(["ip", "netns", "delete", namespace], capture_output=True, check=False)


def _run(command: str) -> None:
    done = subprocess.run(command.split(), capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{command}: {done.stderr.strip()}"
