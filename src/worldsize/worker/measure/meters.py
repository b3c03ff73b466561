"""Meters of this process and its machine (from psutil and /sys) and of one GPU (from NVML).

Counters are stored as counters; rates are computed later. Each meter consists of sources. A source raises if the GPU,
the driver or the container does not offer its values.
"""

from __future__ import annotations

import resource
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pynvml
import torch

MeterSource = Callable[[], Mapping[str, float]]
"""Reads the current values of some telemetry columns. If it raises, they are NaN in that row."""

BYTES_PER_WORD = 4
"""InfiniBand counts data in words of four bytes."""


class ProcessMeter:
    """The meter of this rank: all of its threads. CPU time includes its child processes, such as data loaders."""

    def __init__(self, tasks: Path = Path("/proc/self/task")) -> None:
        self._process = psutil.Process()
        self._tasks = tasks

    def sources(self) -> dict[str, MeterSource]:
        return {
            "process cpu": self.cpu,
            "process memory": self.memory,
            "process faults": self.faults,
            "process delay": self.delay,
            "process disk": self.disk,
        }

    def cpu(self) -> dict[str, float]:
        # This has a finer resolution than /proc, which counts hundredths of a second.
        ended = resource.getrusage(resource.RUSAGE_CHILDREN)
        return {"process_cpu_s": time.process_time() + ended.ru_utime + ended.ru_stime + sum(self._children_s())}

    def _children_s(self) -> Iterator[float]:
        """Yield the CPU time of each running child process, on systems that list them."""
        for task in self._tasks.iterdir():
            children = ""
            with suppress(OSError):  # not every kernel lists them, and threads come and go
                children = (task / "children").read_text()
            for child in children.split():
                with suppress(psutil.Error):
                    times = psutil.Process(int(child)).cpu_times()
                    yield times.user + times.system + times.children_user + times.children_system

    def memory(self) -> dict[str, float]:
        return {"process_memory_bytes": self._process.memory_info().rss}

    def faults(self) -> dict[str, float]:
        used = resource.getrusage(resource.RUSAGE_SELF)
        return {"process_page_faults": used.ru_minflt + used.ru_majflt}

    def delay(self) -> dict[str, float]:
        """Return the time that the main thread was ready to run but had no core: others were running on it."""
        _, waited_ns, _ = (self._tasks.parent / "schedstat").read_text().split()
        return {"process_delay_s": int(waited_ns) * 1e-9}

    def disk(self) -> dict[str, float]:
        """Return bytes read from and written to storage, without the page cache and sockets."""
        counters = self._process.io_counters()
        return {"process_read_bytes": counters.read_bytes, "process_written_bytes": counters.write_bytes}


class HostMeter:
    """The meter of the whole machine, including all other processes."""

    def __init__(self, system: Path = Path("/sys")) -> None:
        self._disks = frozenset(path.parent.name for path in system.glob("block/*/device"))
        self._nics = frozenset(path.parent.name for path in system.glob("class/net/*/device"))
        self._rdma = sorted(system.glob("class/infiniband/*/ports/*/counters"))

    def sources(self) -> dict[str, MeterSource]:
        sources: dict[str, MeterSource] = {
            "host cpu": self.cpu,
            "host memory": self.memory,
            "host network": self.network,
        }
        if self._disks:
            sources["host disk"] = self.disk
        if self._rdma:
            sources["host rdma"] = self.rdma
        return sources

    def cpu(self) -> dict[str, float]:
        """Return busy core-seconds since boot, and those that the hypervisor gave to other virtual machines."""
        times = psutil.cpu_times()
        # `user` includes `guest`.
        busy_s = times.user + times.nice + times.system + times.irq + times.softirq
        return {"host_cpu_s": busy_s, "host_stolen_s": times.steal}

    def memory(self) -> dict[str, float]:
        """Return memory in use, without caches that the system would drop before it swaps."""
        memory = psutil.virtual_memory()
        return {"host_memory_bytes": memory.total - memory.available}

    def disk(self) -> dict[str, float]:
        """Return bytes of physical disks. Volumes and loop devices would count twice; network disks are omitted."""
        disks = [disk for name, disk in psutil.disk_io_counters(perdisk=True).items() if name in self._disks]
        return {
            "host_read_bytes": sum(disk.read_bytes for disk in disks),
            "host_written_bytes": sum(disk.write_bytes for disk in disks),
        }

    def network(self) -> dict[str, float]:
        """Return bytes of physical network cards, since bridges and bonds would count twice.

        A container has no physical cards: there, all interfaces except loopback count.
        """
        counters = psutil.net_io_counters(pernic=True)
        loopback = counters.pop("lo", None)
        cards = [card for name, card in counters.items() if not self._nics or name in self._nics]
        values: dict[str, float] = {
            "host_sent_bytes": sum(card.bytes_sent for card in cards),
            "host_received_bytes": sum(card.bytes_recv for card in cards),
        }
        if loopback is not None:  # what is sent there is also received there
            values["host_loopback_bytes"] = loopback.bytes_sent
        return values

    def rdma(self) -> dict[str, float]:
        """Return bytes of RDMA. NCCL over InfiniBand or RoCE bypasses the kernel's counters of network cards."""
        return {
            "host_rdma_sent_bytes": BYTES_PER_WORD * _total(path / "port_xmit_data" for path in self._rdma),
            "host_rdma_received_bytes": BYTES_PER_WORD * _total(path / "port_rcv_data" for path in self._rdma),
        }


def _total(files: Iterable[Path]) -> int:
    return sum(int(file.read_text()) for file in files)


POWER = 0x04 | 0x80
"""NVML's bits for throttling by power: software power cap, hardware power brake."""
THERMAL = 0x20 | 0x40
"""Bits for throttling by heat, decided by the driver or by the chip itself."""
OTHER = 0x10 | 0x200 | 0x400
"""Bits for other reasons: clocks of a sync group, limits of the board, reliability."""
HARDWARE = 0x08
"""Bit for slowdown by the chip. Usually a reason is set too; if not, it counts as another reason.
Idle clocks and clocks set by a user (0x01, 0x02, 0x100) are not throttling."""


def gpu_id(device: torch.device) -> str:
    """Return the UUID of the GPU, or "" for a CPU. Unlike its index, it does not depend on CUDA_VISIBLE_DEVICES."""
    return str(torch.cuda.get_device_properties(device).uuid) if device.type == "cuda" else ""


class GpuMeter:
    def __init__(self, uuid: str, nvml: Any = pynvml) -> None:
        """Find the GPU by its UUID, because NVML's indexes ignore CUDA_VISIBLE_DEVICES.

        Raise NVMLError without a driver, or if the driver has no such GPU. NVML stays open until the process ends.
        """
        self._nvml = nvml
        nvml.nvmlInit()
        self._handle = self._find(uuid)

    def _find(self, uuid: str) -> Any:
        """Return NVML's handle. CUDA's UUID does not show whether this is a whole GPU or a MIG slice, so try both."""
        try:
            return self._nvml.nvmlDeviceGetHandleByUUID(f"GPU-{uuid}")
        except self._nvml.NVMLError:
            return self._nvml.nvmlDeviceGetHandleByUUID(f"MIG-{uuid}")

    def sources(self) -> dict[str, MeterSource]:
        return {
            "gpu utilization": self.utilization,
            "gpu memory": self.memory,
            "gpu power": self.power,
            "gpu energy": self.energy,
            "gpu clocks": self.clocks,
            "gpu temperature": self.temperature,
            "gpu throttling": self.throttling,
        }

    def utilization(self) -> dict[str, float]:
        """Return the percentage of the last moments in which any kernel ran, even a small one or one that waits."""
        rates = self._nvml.nvmlDeviceGetUtilizationRates(self._handle)
        return {"gpu_busy_percent": rates.gpu, "gpu_memory_busy_percent": rates.memory}

    def memory(self) -> dict[str, float]:
        """Return the memory of the whole GPU, including torch's cache and other processes."""
        memory = self._nvml.nvmlDeviceGetMemoryInfo(self._handle)
        return {"gpu_memory_bytes": memory.used, "gpu_memory_total_bytes": memory.total}

    def power(self) -> dict[str, float]:
        return {"gpu_power_w": self._nvml.nvmlDeviceGetPowerUsage(self._handle) / 1e3}

    def energy(self) -> dict[str, float]:
        """Return the energy since the driver was loaded. Unlike sampled power, it includes peaks between samples."""
        return {"gpu_energy_j": self._nvml.nvmlDeviceGetTotalEnergyConsumption(self._handle) / 1e3}

    def clocks(self) -> dict[str, float]:
        nvml, handle = self._nvml, self._handle
        return {
            "gpu_core_mhz": nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_SM),
            "gpu_memory_mhz": nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_MEM),
        }

    def temperature(self) -> dict[str, float]:
        nvml = self._nvml
        return {"gpu_temperature_c": nvml.nvmlDeviceGetTemperature(self._handle, nvml.NVML_TEMPERATURE_GPU)}

    def throttling(self) -> dict[str, float]:
        try:
            reasons = self._nvml.nvmlDeviceGetCurrentClocksEventReasons(self._handle)
        except self._nvml.NVMLError_FunctionNotFound:  # older drivers have the old name
            reasons = self._nvml.nvmlDeviceGetCurrentClocksThrottleReasons(self._handle)
        return throttled(reasons)


def throttled(reasons: int) -> dict[str, float]:
    """Return, for each kind of reason, whether the clocks are reduced for it."""
    power, thermal = bool(reasons & POWER), bool(reasons & THERMAL)
    other = bool(reasons & OTHER) or (bool(reasons & HARDWARE) and not (power or thermal))
    return {"gpu_throttled_power": power, "gpu_throttled_thermal": thermal, "gpu_throttled_other": other}
