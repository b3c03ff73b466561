"""What to project: worker counts, price, budget, deadline, and the network to assume.

A network is described by its rates, or named after a machine with published rates.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from worldsize.analysis.speed.network import Network, Wire
from worldsize.errors import InputError, did_you_mean, shorten

UNITS = {"B": 1.0, "KB": 1e3, "MB": 1e6, "GB": 1e9, "TB": 1e12, "bit": 0.125, "Mbit": 0.125e6, "Gbit": 0.125e9}
TIMES = {"ns": 1e9, "us": 1e6, "ms": 1e3, "s": 1.0}
"""Number of these units per second."""
ASSUMED_LATENCY_S = {"inside": 2e-6, "across": 5e-6}
"""Latency of a declared network that states none. It matters little for gradients of several megabytes."""
PART = re.compile(
    r"^(?:(?P<places>\d+)\s*[x×]\s*)?(?P<rate>\d+(?:\.\d+)?(?:e\d+)?)\s*(?P<unit>[A-Za-z]+)/s(?P<node>/node)?"
    r"(?:\s+(?P<time>\d+(?:\.\d+)?)\s*(?P<time_unit>ns|us|µs|ms|s))?$"
)


def default_counts(largest: int) -> tuple[int, ...]:
    """Return the worker counts to project to by default: 2, 4 and 8 times the largest measured one."""
    return tuple(largest * factor for factor in (2, 4, 8))


def parse_network(text: str) -> Network:
    """Parse `8 x 450GB/s 2us, 50GB/s 5us`: workers per node, rate and latency inside a node, then those across nodes.

    Rates are per worker; `50GB/s/node` is shared by the workers of a node. A single part describes a single node. The
    text may also be the name of a preset.
    """
    name = text.strip().lower()
    if name in PRESETS:
        return PRESETS[name]
    parts = [part.strip() for part in text.split(",")]
    if len(parts) > 2 or not (first := PART.match(parts[0])):
        raise InputError(
            f"network {shorten(text)} is neither a preset nor of the form '8 x 450GB/s 2us, 50GB/s 5us' (workers per "
            f"node x rate inside it, rate across nodes). {did_you_mean(name, PRESETS)}"
        )
    if first["places"] is None or int(first["places"]) < 1:
        raise InputError(f"network {text!r} lacks the number of workers per node; write '8 x 450GB/s 2us, ...'")
    if first["node"]:
        raise InputError(f"network {text!r}: a rate inside a node is per worker; only one across nodes may be '/node'")
    inside = _wire(first, "inside", text)
    across = None
    if len(parts) == 2:
        second = PART.match(parts[1])
        if second is None or second["places"]:
            raise InputError(f"network {text!r}: {parts[1]!r} is not a rate across nodes such as '50GB/s 5us'")
        across = _wire(second, "across", text)
    return Network(
        inside=inside,
        across=across,
        workers_per_node=int(first["places"]),
        source=f"declared: {text.strip()}",
    )


def _wire(part: re.Match[str], where: str, text: str) -> Wire:
    unit = next((factor for name, factor in UNITS.items() if name == part["unit"]), None)
    if unit is None:
        raise InputError(f"network {text!r}: unknown unit {part['unit']}/s; use one of {', '.join(UNITS)}, then '/s'")
    rate = float(part["rate"]) * unit
    if rate <= 0:
        raise InputError(f"network {text!r} has a rate of 0; use a positive rate")
    latency = ASSUMED_LATENCY_S[where]
    if part["time"]:
        latency = float(part["time"]) / TIMES[part["time_unit"].replace("µ", "u")]
    return Wire(latency_s=latency, bandwidth_bytes_per_s=rate, shared_by_node=bool(part["node"]))


def _preset(workers_per_node: int, inside_gb: float, across_gb: float, source: str, *, node: bool = False) -> Network:
    return Network(
        inside=Wire(latency_s=ASSUMED_LATENCY_S["inside"], bandwidth_bytes_per_s=inside_gb * 1e9),
        across=Wire(latency_s=ASSUMED_LATENCY_S["across"], bandwidth_bytes_per_s=across_gb * 1e9, shared_by_node=node),
        workers_per_node=workers_per_node,
        source=source,
    )


PRESETS: dict[str, Network] = {
    "dgx-h100": _preset(8, 450, 50, "NVIDIA DGX H100 datasheet: NVLink 900 GB/s both ways, 400 Gbit/s per GPU"),
    "dgx-a100": _preset(8, 300, 25, "NVIDIA DGX A100 datasheet: NVLink 600 GB/s both ways, 200 Gbit/s per GPU"),
    "dgx1-v100": _preset(
        8, 150, 50, "NVIDIA DGX-1 V100 datasheet: NVLink 300 GB/s both ways, 4 x EDR 100 Gbit/s per node", node=True
    ),
    "aws-p4d": _preset(8, 300, 50, "AWS p4d.24xlarge: NVSwitch 600 GB/s both ways, 400 Gbit/s EFA per node", node=True),
    "aws-p5": _preset(8, 450, 400, "AWS p5.48xlarge: NVSwitch 900 GB/s both ways, 3200 Gbit/s EFA per node", node=True),
    "pcie4-100g": _preset(
        8, 31.5, 12.5, "PCI Express 4.0 x16, 31.5 GB/s per direction; 100 Gbit/s Ethernet per node", node=True
    ),
    "pcie3-10g": _preset(
        4, 15.75, 1.25, "PCI Express 3.0 x16, 15.75 GB/s per direction; 10 Gbit/s Ethernet per node", node=True
    ),
}
"""Published peak rates in one direction, with assumed latencies. Real transfers reach 60 to 95 % of the rates; the
intervals allow for that."""


@dataclass(frozen=True, kw_only=True)
class Question:
    workers: tuple[int, ...]
    batch_per_worker: int | None = None
    """None: that of the study's answer. Not allowed for strong scaling, where the study sets the global batch."""
    goal: float | None = None
    """Target value of the metric. None: the study's own."""
    price: float | None = None
    """Price per worker-hour, in any currency."""
    budget: float | None = None
    deadline_s: float | None = None
    network: Network | None = None
    workers_per_node: int | None = None
