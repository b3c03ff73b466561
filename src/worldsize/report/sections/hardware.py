"""Hardware use during training: one row per setting, and each device over time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from worldsize.analysis.estimate import Estimate
from worldsize.analysis.speed.hardware import Hardware
from worldsize.answer.evidence import Evidence
from worldsize.answer.timeline import MAX_SAMPLES, DeviceLoad
from worldsize.report.blocks import Column, Table, setting_columns, table
from worldsize.report.figures.model import Axis, Figure, Line, Panel, color
from worldsize.report.sections.steps import MIN_SHARE
from worldsize.report.words.glossary import meaning
from worldsize.report.words.numbers import counted, number, percent, percents
from worldsize.report.words.quantities import RUNS, Quantity, explained
from worldsize.spec.setting import Setting


@dataclass(frozen=True, kw_only=True)
class HardwareRow:
    setting: Setting
    hardware: Hardware
    mfu: Estimate | None


def _gigabytes(key: str, title: str, short: str, about: str) -> Quantity:
    return Quantity(key=key, title=title, short=short, unit="GB", factor=1e-9, about=about)


MFU = Quantity(
    key="mfu",
    title="MFU",
    unit="%",
    factor=100,
    digits=percents,
    about=meaning("mfu"),
)
GPU_UTILIZATION = Quantity(
    key="gpu_busy_percent",
    title="GPU utilization",
    short="GPU\nutil.",
    unit="%",
    digits=percents,
    about="Share of the time during which a kernel ran.",
)
GPU_MEMORY = _gigabytes("gpu_memory_bytes", "peak GPU memory", "GPU\nmemory", "Highest memory use of any GPU.")
GPU_POWER = Quantity(key="gpu_power_w", title="GPU power", short="GPU\npower", unit="W", about="Sum over all GPUs.")
JOULES = Quantity(
    key="joules_per_sample",
    title="energy per sample",
    short="joules/\nsample",
    unit="J",
    about="Energy of all GPUs per training sample.",
)
THROTTLED = Quantity(
    key="throttled_share",
    title="throttled",
    unit="%",
    factor=100,
    digits=percents,
    about="Share of the time during which power or heat limits lowered GPU clocks.",
)
CORES = Quantity(
    key="process_cores", title="cores used", short="cores", about="CPU cores, summed over all worker processes."
)
MEMORY = _gigabytes("process_memory_bytes", "peak memory", "memory", "Highest memory use of any worker process.")
PAGE_FAULTS = Quantity(
    key="page_faults_per_step",
    title="page faults per step",
    short="faults/\nstep",
    about="Pages of memory that a worker requests from the system in each step. Thousands make steps slower.",
)
MIN_FAULTS = 20.0
CPU_STEAL = Quantity(
    key="stolen_share",
    title="CPU steal",
    short="CPU\nsteal",
    unit="%",
    factor=100,
    digits=percents,
    about="Share of the requested CPU time that a hypervisor gave to other guests, on the most affected host.",
)
NETWORK = Quantity(
    key="network_bytes_per_s",
    title="network",
    unit="MB/s",
    factor=1e-6,
    about="Traffic that the first host sent to other hosts.",
)
MIN_NETWORK = 1e6
"""Bytes per second. Less traffic than this does not come from training."""
HARDWARE: tuple[tuple[Quantity, Callable[[HardwareRow], Estimate | float | None], float], ...] = (
    (MFU, lambda row: row.mfu, 0.0),
    (GPU_UTILIZATION, lambda row: row.hardware.gpu_busy_percent, 0.0),
    (GPU_MEMORY, lambda row: row.hardware.gpu_memory_bytes, 0.0),
    (GPU_POWER, lambda row: row.hardware.gpu_power_w, 0.0),
    (JOULES, lambda row: row.hardware.joules_per_sample, 0.0),
    (THROTTLED, lambda row: sum(row.hardware.throttled.values()), 0.0),
    (CORES, lambda row: row.hardware.process_cores, 0.0),
    (MEMORY, lambda row: row.hardware.process_memory_bytes, 0.0),
    (PAGE_FAULTS, lambda row: row.hardware.page_faults_per_step, MIN_FAULTS),
    (CPU_STEAL, lambda row: row.hardware.stolen_share, MIN_SHARE),
    (NETWORK, lambda row: row.hardware.network_bytes_per_s, MIN_NETWORK),
)
"""Columns, their values, and the value from which a terminal shows them."""


def hardware_table(evidence: Evidence) -> Table | None:
    """Return one row per setting, with the columns that were measured and are not 0 everywhere."""
    results = evidence.results
    rows = [
        HardwareRow(setting=setting, hardware=hardware, mfu=results.mfus.get(setting))
        for setting, hardware in results.hardware
    ]
    columns = []
    for quantity, of, least in HARDWARE:
        most = max((_value(of(row)) for row in rows), default=0.0)
        if most > 0:
            columns.append(Column(quantity=quantity, of=of, terminal=most >= least))
    if not columns:
        return None
    note = explained(column.quantity for column in columns)
    repeats = {row.setting: row.repeats for row in results.rows}
    settings = setting_columns(rows, global_batch=False)
    runs = Column[HardwareRow](quantity=RUNS, of=lambda row: repeats.get(row.setting), terminal=False)
    return table("hardware", "Hardware use during training", rows, [*settings, *columns, runs], note=note)


def _value(cell: Estimate | float | None) -> float:
    return cell.value if isinstance(cell, Estimate) else cell or 0.0


MAX_DEVICES = 8
UTILIZATION = {
    "gpu": Quantity(key="busy", title="GPU utilization", unit="%"),
    "process": Quantity(key="busy", title="CPU of a worker", unit="% of a core"),
}
OCCUPIED = {
    "gpu": Quantity(key="memory_bytes", title="GPU memory", unit="GB", factor=1e-9),
    "process": Quantity(key="memory_bytes", title="memory of a worker", unit="GB", factor=1e-9),
}


def devices(evidence: Evidence) -> Figure | None:
    """Draw utilization and memory of each device over time."""
    telemetry = evidence.telemetry
    if telemetry is None or all(len(device.at_s) < 3 for device in telemetry.devices):
        return None
    on_gpu = telemetry.of == "gpu"
    noun = "GPU of rank" if on_gpu else "rank"
    shown = telemetry.devices[:MAX_DEVICES]

    def panel(
        quantity: Quantity, values: Callable[[DeviceLoad], tuple[float | None, ...]], *, most: float | None
    ) -> Panel:
        lines = [
            _over_time(f"{noun} {device.rank}", device.at_s, values(device), quantity, color(index))
            for index, device in enumerate(shown)
        ]
        time = Axis(title="time since the trial began, s", from_zero=True)
        return Panel(x=time, y=Axis(title=quantity.heading, from_zero=True, most=most), marks=tuple(lines))

    utilization, occupied = UTILIZATION[telemetry.of], OCCUPIED[telemetry.of]
    busy = [value for device in shown for value in device.busy if value is not None]
    peak = max((value for device in shown for value in device.memory_bytes if value is not None), default=0.0)
    title = "Memory over time"
    if busy:
        used = percent(float(np.mean(busy)) / 100)
        title = (
            f"Average GPU utilization was {used}; the fullest GPU"
            if on_gpu
            else f"A worker used {used} of a CPU core on average; the largest"
        )
        title += f" used {occupied.said(peak)} of memory"
    left = telemetry.setting.workers - len(shown)
    return Figure(
        key="devices",
        title=title,
        panels=(
            panel(utilization, lambda device: device.busy, most=100.0 if on_gpu else None),
            panel(occupied, lambda device: device.memory_bytes, most=None),
        ),
        note="Utilization that drops shows when training waited, for example for data. "
        f"Trial {telemetry.trial}, the longest on the most workers."
        + (" Not all samples are drawn." if any(len(device.at_s) >= MAX_SAMPLES for device in shown) else "")
        + (f" {counted(left, 'more rank is', 'more ranks are')} not drawn." if left else ""),
    )


def _over_time(
    name: str, at_s: tuple[float, ...], values: tuple[float | None, ...], quantity: Quantity, hue: str
) -> Line:
    """Return a line with gaps where no value was recorded."""
    return Line(
        name=name,
        color=hue,
        symbol="none",
        x=at_s,
        y=tuple(None if value is None else value * quantity.factor for value in values),
        hover=tuple(
            "" if value is None else f"{name}, {number(seconds)} s\n{quantity.title} {quantity.said(value)}"
            for seconds, value in zip(at_s, values, strict=True)
        ),
    )
