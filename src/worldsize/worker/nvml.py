"""One GPU as NVML sees it. What a GPU, a driver or a container does not offer raises, field by field."""

from __future__ import annotations

from typing import Any

import pynvml
import torch

from worldsize.worker.meters import Source

POWER = 0x04 | 0x80
"""Software power cap, hardware power brake."""
THERMAL = 0x20 | 0x40
"""Too hot, as the driver or as the chip itself sees it."""
OTHER = 0x10 | 0x200 | 0x400
"""Held to the clocks of a sync group; limits of the board; reliability."""
HARDWARE = 0x08
"""The chip slows itself down. It says so beside the reason, so alone it is a reason of its own.
Idle clocks and clocks that somebody set (0x01, 0x02, 0x100) are not throttling."""


def gpu_id(device: torch.device) -> str:
    """The same for two ranks on one GPU, whatever CUDA_VISIBLE_DEVICES made of its number. Empty for a CPU."""
    return str(torch.cuda.get_device_properties(device).uuid) if device.type == "cuda" else ""


class GpuMeter:
    def __init__(self, uuid: str, nvml: Any = pynvml) -> None:
        """Found by its UUID: NVML's numbers know nothing of CUDA_VISIBLE_DEVICES.

        Raises NVMLError where there is no driver, or no such GPU for it. NVML stays open until the process ends.
        """
        self._nvml = nvml
        nvml.nvmlInit()
        self._handle = self._find(uuid)

    def _find(self, uuid: str) -> Any:
        """CUDA leaves out of the UUID whether it is a whole GPU or a slice of one."""
        try:
            return self._nvml.nvmlDeviceGetHandleByUUID(f"GPU-{uuid}")
        except self._nvml.NVMLError:
            return self._nvml.nvmlDeviceGetHandleByUUID(f"MIG-{uuid}")

    def sources(self) -> dict[str, Source]:
        return {
            "gpu utilisation": self.utilisation,
            "gpu memory": self.memory,
            "gpu power": self.power,
            "gpu energy": self.energy,
            "gpu clocks": self.clocks,
            "gpu temperature": self.temperature,
            "gpu throttling": self.throttling,
        }

    def utilisation(self) -> dict[str, float]:
        """Share of the last fraction of a second in which any kernel ran, however small, waiting ones of NCCL too."""
        rates = self._nvml.nvmlDeviceGetUtilizationRates(self._handle)
        return {"gpu_busy_percent": rates.gpu, "gpu_memory_busy_percent": rates.memory}

    def memory(self) -> dict[str, float]:
        """Of the GPU, not of this process: what torch keeps in reserve and what others hold is gone as well."""
        memory = self._nvml.nvmlDeviceGetMemoryInfo(self._handle)
        return {"gpu_memory_bytes": memory.used, "gpu_memory_total_bytes": memory.total}

    def power(self) -> dict[str, float]:
        return {"gpu_power_w": self._nvml.nvmlDeviceGetPowerUsage(self._handle) / 1e3}

    def energy(self) -> dict[str, float]:
        """Since the driver was loaded. Misses no peak between two samples, as the integral of power does."""
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
        except self._nvml.NVMLError_FunctionNotFound:  # a driver that knows it by its old name
            reasons = self._nvml.nvmlDeviceGetCurrentClocksThrottleReasons(self._handle)
        return throttled(reasons)


def throttled(reasons: int) -> dict[str, float]:
    """1 where the clocks are held down for a reason of that kind, else 0."""
    power, thermal = bool(reasons & POWER), bool(reasons & THERMAL)
    other = bool(reasons & OTHER) or (bool(reasons & HARDWARE) and not (power or thermal))
    return {"gpu_throttled_power": power, "gpu_throttled_thermal": thermal, "gpu_throttled_other": other}
