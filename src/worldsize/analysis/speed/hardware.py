"""Turns sampled telemetry into figures: utilization, memory, energy.

Samples come at uneven times, so every mean is weighted by time. Missing values are left out, never counted as 0.

Model FLOP utilization: how much of the compute capacity of the devices goes into the model.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from worldsize.analysis.estimate import Estimate, Floats

THROTTLES = ("power", "thermal", "other")


@dataclass(frozen=True, kw_only=True)
class Usage:
    """Hardware use of one rank in one trial. None: not seen by this rank. Means and rates cover training time."""

    seconds: float
    """Seconds of training that the figures cover, including evaluations in between."""
    gpu_busy_percent: float | None
    gpu_power_w: float | None
    gpu_memory_bytes: float | None
    """Peak over the whole trial, like all peaks in this class."""
    joules_per_sample: float | None
    """This GPU's energy per sample of the global batch: the values of all ranks add up."""
    throttled: dict[str, float]
    """Share of the time that clocks were throttled, by cause; empty if no GPU reported it."""
    process_cores: float | None
    process_memory_bytes: float | None
    host_cores: float | None
    host_stolen_cores: float | None
    """Cores that a hypervisor gave to other guests."""
    host_sent_bytes_per_s: float | None
    """Without loopback."""


@dataclass(frozen=True, kw_only=True)
class Hardware:
    """How a setting used the hardware, over its trials. Values that add up are sums over ranks."""

    gpu_busy_percent: float | None
    gpu_memory_bytes: float | None
    """The fullest GPU."""
    gpu_power_w: float | None
    """Sum over all GPUs."""
    joules_per_sample: float | None
    throttled: dict[str, float]
    process_cores: float | None
    """Sum over all ranks."""
    process_memory_bytes: float | None
    """The largest rank."""
    network_bytes_per_s: float | None
    """Sent by the first host, without loopback."""
    stolen_share: float | None
    """Share of the wanted CPU time that a hypervisor gave to other guests, on the host that lost the most."""


def hardware(trials: Sequence[Sequence[Usage]]) -> Hardware:
    """Hardware use over `trials`, each given by its ranks."""

    def mean(values: Sequence[float | None]) -> float | None:
        known = [value for value in values if value is not None]
        return float(np.mean(known)) if known else None

    def total(values: Sequence[float | None]) -> float | None:
        known = [value for value in values if value is not None]
        return sum(known) if known else None

    every = [rank for ranks in trials for rank in ranks]
    peaks = [rank.gpu_memory_bytes for rank in every if rank.gpu_memory_bytes is not None]
    sizes = [rank.process_memory_bytes for rank in every if rank.process_memory_bytes is not None]
    return Hardware(
        gpu_busy_percent=mean([rank.gpu_busy_percent for rank in every]),
        gpu_memory_bytes=max(peaks, default=None),
        gpu_power_w=mean([total([rank.gpu_power_w for rank in ranks]) for ranks in trials]),
        joules_per_sample=mean([joules_per_sample(ranks) for ranks in trials]),
        throttled={kind: mean([rank.throttled.get(kind) for rank in every]) or 0.0 for kind in THROTTLES},
        process_cores=mean([total([rank.process_cores for rank in ranks]) for ranks in trials]),
        process_memory_bytes=max(sizes, default=None),
        network_bytes_per_s=mean([rank.host_sent_bytes_per_s for rank in every]),
        stolen_share=mean([lost.share if (lost := stolen(ranks)) else None for ranks in trials]),
    )


def usage(columns: Sequence[str], rows: Floats) -> Usage:
    trial = _Series(columns, rows)
    training = _Series(columns, rows[training_rows(trial.column("samples"))])
    spent, trained = training.joules(), training.rise("samples")
    shares = {kind: training.mean(f"gpu_throttled_{kind}") for kind in THROTTLES}
    return Usage(
        seconds=float(np.ptp(training.at_s)) if len(training.at_s) else 0.0,
        gpu_busy_percent=training.mean("gpu_busy_percent"),
        gpu_power_w=training.mean("gpu_power_w"),
        gpu_memory_bytes=trial.peak("gpu_memory_bytes"),
        joules_per_sample=spent / trained if spent is not None and trained else None,
        throttled={kind: share for kind, share in shares.items() if share is not None},
        process_cores=training.rate("process_cpu_s"),
        process_memory_bytes=trial.peak("process_memory_bytes"),
        host_cores=training.rate("host_cpu_s"),
        host_stolen_cores=training.rate("host_stolen_s"),
        host_sent_bytes_per_s=training.rate("host_sent_bytes"),
    )


def training_rows(samples: Floats) -> slice:
    """The rows during which samples were trained on; all rows if none were.

    The first and the last interval are only partly training, and are left out if others remain.
    """
    rising = np.flatnonzero(np.diff(samples) > 0)
    if not len(rising):
        return slice(None)
    if len(rising) > 2:
        return slice(int(rising[0]) + 1, int(rising[-1]) + 1)
    return slice(int(rising[0]), int(rising[-1]) + 2)


def joules_per_sample(usages: Sequence[Usage]) -> float | None:
    """Sum over the GPUs of a trial; None if the energy of a watched GPU is unknown, because a part is not a total."""
    watched = [
        use
        for use in usages
        if use.gpu_busy_percent is not None or use.gpu_memory_bytes or use.joules_per_sample is not None
    ]
    known = [use.joules_per_sample for use in watched if use.joules_per_sample is not None]
    return sum(known) if known and len(known) == len(watched) else None


def foreign_cores(ranks: Sequence[Usage]) -> float | None:
    """Cores of the host that were busy with something other than these ranks, which must be all ranks on that host.

    Cores that a hypervisor gave to other guests count too. None: not seen.
    """
    host = [rank.host_cores + (rank.host_stolen_cores or 0.0) for rank in ranks if rank.host_cores is not None]
    own = [rank.process_cores for rank in ranks if rank.process_cores is not None]
    return max(float(np.mean(host)) - sum(own), 0.0) if host and len(own) == len(ranks) else None


@dataclass(frozen=True, kw_only=True)
class Stolen:
    """CPU time that a hypervisor withheld from a host during training, and the time it wanted, in core-seconds."""

    seconds: float
    wanted_s: float

    @property
    def share(self) -> float:
        return self.seconds / self.wanted_s


def stolen(ranks: Sequence[Usage]) -> Stolen | None:
    """The stolen CPU time of the host that lost the largest share. None: not seen."""
    hosts = [
        Stolen(seconds=rank.host_stolen_cores * rank.seconds, wanted_s=wanted * rank.seconds)
        for rank in ranks
        if rank.host_cores is not None
        and rank.host_stolen_cores is not None
        and (wanted := rank.host_cores + rank.host_stolen_cores) * rank.seconds > 0
    ]
    return max(hosts, key=lambda host: host.share, default=None)


class _Series:
    """Columns by name; a missing column was never seen."""

    def __init__(self, columns: Sequence[str], rows: Floats) -> None:
        self._columns, self._rows = columns, rows
        self.at_s = self.column("at_s")

    def column(self, name: str) -> Floats:
        if name not in self._columns:
            return np.full(len(self._rows), np.nan)
        return np.asarray(self._rows[:, self._columns.index(name)], dtype=np.float64)

    def known(self, name: str) -> tuple[Floats, Floats]:
        """When it was seen, and what."""
        values = self.column(name)
        seen = np.isfinite(values) & np.isfinite(self.at_s)
        return self.at_s[seen], values[seen]

    def peak(self, name: str) -> float | None:
        _, values = self.known(name)
        return float(values.max()) if len(values) else None

    def rise(self, name: str) -> float | None:
        """Total increase of a counter. Decreases are restarts of the counter, and add nothing."""
        _, values = self.known(name)
        return float(np.maximum(np.diff(values), 0).sum()) if len(values) > 1 else None

    def rate(self, name: str) -> float | None:
        """rise / time."""
        at_s, _ = self.known(name)
        rise = self.rise(name)
        return rise / float(np.ptp(at_s)) if rise is not None and np.ptp(at_s) > 0 else None

    def joules(self) -> float | None:
        """The GPU's own counter, else the trapezoid rule: sum (P_i + P_i+1)/2 (t_i+1 - t_i)."""
        if (counted := self.rise("gpu_energy_j")) is not None:
            return counted
        at_s, power_w = self.known("gpu_power_w")
        return float(np.trapezoid(power_w, at_s)) if len(at_s) > 1 else None

    def mean(self, name: str) -> float | None:
        """Mean weighted by time: each sample counts for half of the gaps beside it, as in the trapezoid rule."""
        at_s, values = self.known(name)
        if not len(values):
            return None
        gaps = np.diff(at_s)
        weights = (np.append(gaps, 0) + np.insert(gaps, 0, 0)) / 2
        if weights.sum() <= 0:
            weights = np.ones(len(values))
        return float(np.average(values, weights=weights))


def mfu(samples_per_s: Estimate, *, flop_per_sample: float, workers: int, peak_flop_s: float) -> Estimate:
    """MFU = samples/s * flop per sample / (workers * peak per worker).

    The interval is that of the throughput. A value above 1 means that the peak is wrong for this device and precision.
    """
    factor = flop_per_sample / (workers * peak_flop_s)
    return samples_per_s.scaled(factor)
