"""What psutil and /sys tell of this process and of the machine it runs on. Counters stay counters: rates come later."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

import psutil

Source = Callable[[], Mapping[str, float]]
"""Reads some columns of telemetry, now. May raise: its columns then stay empty in that row."""

BYTES_A_WORD = 4
"""InfiniBand counts data in words of four bytes."""


class ProcessMeter:
    """Of this rank alone: all of its threads, none of its children."""

    def __init__(self) -> None:
        self._process = psutil.Process()

    def sources(self) -> dict[str, Source]:
        return {"process cpu": self.cpu, "process memory": self.memory, "process disk": self.disk}

    def cpu(self) -> dict[str, float]:
        # Finer than the hundredths of a second that /proc counts in.
        return {"process_cpu_s": time.process_time()}

    def memory(self) -> dict[str, float]:
        return {"process_memory_bytes": self._process.memory_info().rss}

    def disk(self) -> dict[str, float]:
        """What reached storage: reads from the page cache and from sockets are not in it."""
        counted = self._process.io_counters()
        return {"process_read_bytes": counted.read_bytes, "process_written_bytes": counted.write_bytes}


class HostMeter:
    """Of the whole machine, whoever uses it."""

    def __init__(self, system: Path = Path("/sys")) -> None:
        self._disks = frozenset(path.parent.name for path in system.glob("block/*/device"))
        self._nics = frozenset(path.parent.name for path in system.glob("class/net/*/device"))
        self._rdma = sorted(system.glob("class/infiniband/*/ports/*/counters"))

    def sources(self) -> dict[str, Source]:
        found: dict[str, Source] = {"host cpu": self.cpu, "host memory": self.memory, "host network": self.network}
        if self._disks:
            found["host disk"] = self.disk
        if self._rdma:
            found["host rdma"] = self.rdma
        return found

    def cpu(self) -> dict[str, float]:
        """Core-seconds at work since boot; those a hypervisor kept for others apart. (`user` holds `guest`.)"""
        times = psutil.cpu_times()
        busy_s = times.user + times.nice + times.system + times.irq + times.softirq
        return {"host_cpu_s": busy_s, "host_stolen_s": times.steal}

    def memory(self) -> dict[str, float]:
        """What could not be had without swapping: caches that would give way are not in it."""
        memory = psutil.virtual_memory()
        return {"host_memory_bytes": memory.total - memory.available}

    def disk(self) -> dict[str, float]:
        """Physical disks only: volumes and loop devices lie on them and would count twice. No network file systems."""
        counted = [disk for name, disk in psutil.disk_io_counters(perdisk=True).items() if name in self._disks]
        return {
            "host_read_bytes": sum(disk.read_bytes for disk in counted),
            "host_written_bytes": sum(disk.write_bytes for disk in counted),
        }

    def network(self) -> dict[str, float]:
        """Physical cards, for bridges and bonds lie on them; inside a container there are none, so all but loopback."""
        cards = psutil.net_io_counters(pernic=True)
        loopback = cards.pop("lo", None)
        counted = [card for name, card in cards.items() if not self._nics or name in self._nics]
        values: dict[str, float] = {
            "host_sent_bytes": sum(card.bytes_sent for card in counted),
            "host_received_bytes": sum(card.bytes_recv for card in counted),
        }
        if loopback is not None:  # what is sent there is what is received
            values["host_loopback_bytes"] = loopback.bytes_sent
        return values

    def rdma(self) -> dict[str, float]:
        """NCCL over InfiniBand or RoCE passes the kernel by, and with it every counter of the network cards."""
        return {
            "host_rdma_sent_bytes": BYTES_A_WORD * _total(path / "port_xmit_data" for path in self._rdma),
            "host_rdma_received_bytes": BYTES_A_WORD * _total(path / "port_rcv_data" for path in self._rdma),
        }


def _total(files: Iterable[Path]) -> int:
    return sum(int(file.read_text()) for file in files)
