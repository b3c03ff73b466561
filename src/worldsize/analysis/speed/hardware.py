"""Computes utilization, memory use and energy from sampled telemetry, and model FLOP utilization from throughput.

Samples are not evenly spaced in time, so every mean is weighted by time. Missing values are left out, never counted
as 0.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from worldsize.analysis.estimate import Estimate, Floats

THROTTLES = ("power", "thermal", "other")


@dataclass(frozen=True, kw_only=True)
class Usage:
    """Hardware use of one rank in one trial. None: not recorded by this rank. Means and rates cover training time."""

    seconds: float
    """Seconds of training that means and rates cover, including evaluations in between."""
    gpu_busy_percent: float | None
    gpu_power_w: float | None
    gpu_memory_bytes: float | None
    """Peak over the whole trial, like all peaks in this class."""
    joules_per_sample: float | None
    """Energy of this GPU per sample of the global batch, so that the values of all ranks add up."""
    throttled: dict[str, float]
    """Share of the time in which clocks were throttled, by cause; empty if no GPU reported it."""
    process_cores: float | None
    process_memory_bytes: float | None
    page_faults_per_sample: float | None
    """Page faults of this rank per sample of the global batch, in the second half of training, when its memory has
    grown to what it needs."""
    host_cores: float | None
    host_stolen_cores: float | None
    """Cores that a hypervisor gave to other guests."""
    host_sent_bytes_per_s: float | None
    """Bytes sent by the host, excluding loopback."""


@dataclass(frozen=True, kw_only=True)
class Hardware:
    """Hardware use of one setting, averaged over its trials. Quantities that add up are summed over ranks."""

    gpu_busy_percent: float | None
    gpu_memory_bytes: float | None
    """Peak of the fullest GPU."""
    gpu_power_w: float | None
    """Sum over all GPUs."""
    joules_per_sample: float | None
    throttled: dict[str, float]
    process_cores: float | None
    """Sum over all ranks."""
    process_memory_bytes: float | None
    """Peak of the largest rank."""
    page_faults_per_step: float | None
    """Mean over the ranks, in the second half of training."""
    network_bytes_per_s: float | None
    """Sent by one host on average, excluding loopback."""
    stolen_share: float | None
    """Share of the requested CPU time that a hypervisor gave to other guests, on the host that lost the most."""


def hardware(trials: Sequence[Sequence[Usage]], global_batch: int) -> Hardware:
    """Return the hardware use over `trials` of a setting, each a sequence of its ranks."""

    def mean(values: Sequence[float | None]) -> float | None:
        known = [value for value in values if value is not None]
        return float(np.mean(known)) if known else None

    def total(values: Sequence[float | None]) -> float | None:
        known = [value for value in values if value is not None]
        return sum(known) if known else None

    all_ranks = [rank for ranks in trials for rank in ranks]
    faults = mean([rank.page_faults_per_sample for rank in all_ranks])
    gpu_peaks = [rank.gpu_memory_bytes for rank in all_ranks if rank.gpu_memory_bytes is not None]
    process_peaks = [rank.process_memory_bytes for rank in all_ranks if rank.process_memory_bytes is not None]
    return Hardware(
        gpu_busy_percent=mean([rank.gpu_busy_percent for rank in all_ranks]),
        gpu_memory_bytes=max(gpu_peaks, default=None),
        gpu_power_w=mean([total([rank.gpu_power_w for rank in ranks]) for ranks in trials]),
        joules_per_sample=mean([joules_per_sample(ranks) for ranks in trials]),
        throttled={kind: mean([rank.throttled.get(kind) for rank in all_ranks]) or 0.0 for kind in THROTTLES},
        process_cores=mean([total([rank.process_cores for rank in ranks]) for ranks in trials]),
        process_memory_bytes=max(process_peaks, default=None),
        page_faults_per_step=None if faults is None else faults * global_batch,
        network_bytes_per_s=mean([rank.host_sent_bytes_per_s for rank in all_ranks]),
        stolen_share=mean([lost.share if (lost := stolen(ranks)) else None for ranks in trials]),
    )


def usage(columns: Sequence[str], rows: Floats) -> Usage:
    """Return the hardware use of one rank from its telemetry, one row per sample."""
    trial = _Series(columns, rows)
    training = _Series(columns, rows[training_rows(trial.column("samples"))])
    joules, samples = training.joules(), training.rise("samples")
    settled = _Series(columns, rows[second_half(trial.column("samples"))])
    faults, settled_samples = settled.rise("process_page_faults"), settled.rise("samples")
    shares = {kind: training.mean(f"gpu_throttled_{kind}") for kind in THROTTLES}
    return Usage(
        seconds=float(np.ptp(training.at_s)) if len(training.at_s) else 0.0,
        gpu_busy_percent=training.mean("gpu_busy_percent"),
        gpu_power_w=training.mean("gpu_power_w"),
        gpu_memory_bytes=trial.peak("gpu_memory_bytes"),
        joules_per_sample=joules / samples if joules is not None and samples else None,
        throttled={kind: share for kind, share in shares.items() if share is not None},
        process_cores=training.rate("process_cpu_s"),
        process_memory_bytes=trial.peak("process_memory_bytes"),
        page_faults_per_sample=faults / settled_samples if faults is not None and settled_samples else None,
        host_cores=training.rate("host_cpu_s"),
        host_stolen_cores=training.rate("host_stolen_s"),
        host_sent_bytes_per_s=training.rate("host_sent_bytes"),
    )


def training_rows(samples: Floats) -> slice:
    """Return the rows during which training processed samples, or all rows if it processed none.

    The first and the last interval are only partly training, and are left out if others remain.
    """
    rising = np.flatnonzero(np.diff(samples) > 0)
    if not len(rising):
        return slice(None)
    if len(rising) > 2:
        return slice(int(rising[0]) + 1, int(rising[-1]) + 1)
    return slice(int(rising[0]), int(rising[-1]) + 2)


def second_half(samples: Floats) -> slice:
    """Return the rows during which training processed the second half of its samples."""
    if not len(samples):
        return slice(None)
    ended = int(np.searchsorted(samples, samples[-1])) + 1
    return slice(int(np.searchsorted(samples, samples[-1] / 2, side="right")), ended)


def joules_per_sample(usages: Sequence[Usage]) -> float | None:
    """Return the sum over the GPUs of a trial; None if the energy of any GPU is unknown, so that the sum is too low."""
    on_gpu = [
        use
        for use in usages
        if use.gpu_busy_percent is not None or use.gpu_memory_bytes or use.joules_per_sample is not None
    ]
    known = [use.joules_per_sample for use in on_gpu if use.joules_per_sample is not None]
    return sum(known) if known and len(known) == len(on_gpu) else None


def foreign_cores(ranks: Sequence[Usage]) -> float | None:
    """Return how many cores of a host were busy with anything but `ranks`, which must be all ranks on that host.

    This includes cores that a hypervisor gave to other guests. None: not recorded.
    """
    host = [rank.host_cores + (rank.host_stolen_cores or 0.0) for rank in ranks if rank.host_cores is not None]
    own = [rank.process_cores for rank in ranks if rank.process_cores is not None]
    return max(float(np.mean(host)) - sum(own), 0.0) if host and len(own) == len(ranks) else None


CROWDED_SHARE = 0.1
"""Other processes that use less than this share of the cores are not worth a finding."""


def crowded_share(ranks: Sequence[Usage], *, cores: int, needed: int) -> float | None:
    """Return the share of the cores of a host that other processes used; 0 if they left enough cores free.

    `needed`: cores that the ranks need, all of which must run on this host. None: not recorded.
    """
    foreign = foreign_cores(ranks)
    if foreign is None:
        return None
    in_the_way = foreign >= CROWDED_SHARE * cores and foreign + needed > (1 + CROWDED_SHARE / 2) * cores
    return min(foreign / cores, 1.0) if in_the_way else 0.0


@dataclass(frozen=True, kw_only=True)
class Stolen:
    """CPU time that a hypervisor withheld from a host during training, and all that it wanted, in core-seconds."""

    seconds: float
    wanted_s: float

    @property
    def share(self) -> float:
        return self.seconds / self.wanted_s


def stolen(ranks: Sequence[Usage]) -> Stolen | None:
    """Return the stolen CPU time of the host that lost the largest share. None: not recorded."""
    hosts = [
        Stolen(seconds=rank.host_stolen_cores * rank.seconds, wanted_s=wanted * rank.seconds)
        for rank in ranks
        if rank.host_cores is not None
        and rank.host_stolen_cores is not None
        and (wanted := rank.host_cores + rank.host_stolen_cores) * rank.seconds > 0
    ]
    return max(hosts, key=lambda host: host.share, default=None)


class _Series:
    """Telemetry columns by name; a missing column is all NaN."""

    def __init__(self, columns: Sequence[str], rows: Floats) -> None:
        self._columns, self._rows = columns, rows
        self.at_s = self.column("at_s")

    def column(self, name: str) -> Floats:
        if name not in self._columns:
            return np.full(len(self._rows), np.nan)
        return np.asarray(self._rows[:, self._columns.index(name)], dtype=np.float64)

    def known(self, name: str) -> tuple[Floats, Floats]:
        """Return the times and values of the samples in which the value is known."""
        values = self.column(name)
        is_known = np.isfinite(values) & np.isfinite(self.at_s)
        return self.at_s[is_known], values[is_known]

    def peak(self, name: str) -> float | None:
        _, values = self.known(name)
        return float(values.max()) if len(values) else None

    def rise(self, name: str) -> float | None:
        """Return the total increase of a counter. A decrease is a restart of the counter, and adds nothing."""
        _, values = self.known(name)
        return float(np.maximum(np.diff(values), 0).sum()) if len(values) > 1 else None

    def rate(self, name: str) -> float | None:
        """Return the increase of a counter per second."""
        at_s, _ = self.known(name)
        rise = self.rise(name)
        return rise / float(np.ptp(at_s)) if rise is not None and np.ptp(at_s) > 0 else None

    def joules(self) -> float | None:
        """Return the energy by the GPU's counter, else by the trapezoid rule: sum (P_i + P_i+1)/2 (t_i+1 - t_i)."""
        if (counted := self.rise("gpu_energy_j")) is not None:
            return counted
        at_s, power_w = self.known("gpu_power_w")
        return float(np.trapezoid(power_w, at_s)) if len(at_s) > 1 else None

    def mean(self, name: str) -> float | None:
        """Return the mean over time. Each sample counts for half of the gaps beside it, as in the trapezoid rule."""
        at_s, values = self.known(name)
        if not len(values):
            return None
        gaps = np.diff(at_s)
        weights = (np.append(gaps, 0) + np.insert(gaps, 0, 0)) / 2
        if weights.sum() <= 0:
            weights = np.ones(len(values))
        return float(np.average(values, weights=weights))


def mfu(samples_per_s: Estimate, *, flop_per_sample: float, workers: int, peak_flop_s: float) -> Estimate:
    """Return MFU = samples/s * FLOP per sample / (workers * peak FLOP/s per worker).

    The interval is that of the throughput. A value above 1 means that the peak is wrong for this device and precision.
    """
    factor = flop_per_sample / (workers * peak_flop_s)
    return samples_per_s.scaled(factor)
