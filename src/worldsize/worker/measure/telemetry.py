"""Utilization and memory of the hardware while a trial runs, sampled in a thread or at the ends of its turns.

Every rank samples its own process and its own GPU, so that a rank that differs from the others is visible. The first
rank of a host also samples the host. If ranks share a GPU, only the first of them samples it. A row holds all columns,
with NaN for values that this rank does not sample or could not read.
"""

from __future__ import annotations

import math
import os
import threading
import time
from collections.abc import Callable, Mapping

import numpy as np
import numpy.typing as npt

from worldsize.worker.measure.meters import GpuMeter, HostMeter, MeterSource, ProcessMeter, gpu_id
from worldsize.worker.parallel.team import Crew

COLUMNS = (
    "at_s",  # seconds since the trial began
    "samples",  # trained on since the trial began, over all ranks
    "telemetry_cpu_s",  # CPU time of the sampling
    *("process_cpu_s", "process_memory_bytes", "process_read_bytes", "process_written_bytes"),
    *("process_page_faults", "process_delay_s"),
    *("host_cpu_s", "host_stolen_s", "host_memory_bytes", "host_read_bytes", "host_written_bytes"),
    *("host_sent_bytes", "host_received_bytes", "host_loopback_bytes"),
    *("host_rdma_sent_bytes", "host_rdma_received_bytes"),
    *("gpu_busy_percent", "gpu_memory_busy_percent", "gpu_memory_bytes", "gpu_memory_total_bytes"),
    *("gpu_power_w", "gpu_energy_j", "gpu_core_mhz", "gpu_memory_mhz", "gpu_temperature_c"),
    *("gpu_throttled_power", "gpu_throttled_thermal", "gpu_throttled_other"),
)
INDEX = {name: number for number, name in enumerate(COLUMNS)}
COUNTERS = [
    INDEX[name]
    for name in (
        *("at_s", "samples", "telemetry_cpu_s", "process_cpu_s", "process_read_bytes", "process_written_bytes"),
        *("process_page_faults", "process_delay_s", "host_cpu_s", "host_stolen_s", "host_read_bytes"),
        *("host_written_bytes", "host_sent_bytes", "host_received_bytes", "host_loopback_bytes"),
        *("host_rdma_sent_bytes", "host_rdma_received_bytes", "gpu_energy_j"),
    )
]
"""Columns that only grow. The others are current values."""

PERIOD_S = 0.5
MAX_ROWS = 7_200
"""One hour. In a longer trial, every second row is dropped and the period doubles. Counters lose nothing by this."""
PATIENCE_S = 2.0
"""Timeout for a reading that hangs, as in NVML if a GPU is lost. The trial then continues without it."""


class Telemetry:
    """Telemetry of one rank, for one trial at a time. The first error of each source is printed to the rank's log.

    The thread shares no lock with training, so the process may fork at any time. The child has no such thread.
    """

    def __init__(
        self,
        sources: Mapping[str, MeterSource],
        *,
        period_s: float = PERIOD_S,
        most_rows: int = MAX_ROWS,
        now: Callable[[], float] = time.perf_counter,
        note: Callable[[str], None] = print,
    ) -> None:
        self._sources = sources
        self._period_s, self._most_rows = period_s, most_rows
        self._now, self._note = now, note
        self._reported: set[str] = set()
        self._rows: list[list[float]] = []
        self._began = self._cpu_s = 0.0
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Start a trial. Rows and stop event are new, because a thread that hangs keeps those of its own trial."""
        self._rows, self._began, self._stopped = [], self._now(), threading.Event()
        self._thread = threading.Thread(target=self._sample_until, args=(self._rows, self._stopped), daemon=True)
        try:
            self._thread.start()
        except RuntimeError as error:  # the user has reached the limit of threads
            self._thread = None
            self._report_once("thread", error)

    def stop(self) -> npt.NDArray[np.float64]:
        """End the trial. Return one row per sample, with the columns COLUMNS."""
        self._stopped.set()
        if self._thread is not None:
            self._thread.join(PATIENCE_S)
            if self._thread.is_alive():
                self._report_once("thread", TimeoutError(f"a reading took more than {PATIENCE_S} s"))
        return np.array(self._rows, dtype=np.float64).reshape(-1, len(COLUMNS))

    def sample(self) -> list[float]:
        row, cpu_s = [math.nan] * len(COLUMNS), time.thread_time()
        row[INDEX["at_s"]] = self._now() - self._began
        for name, source in self._sources.items():
            try:
                for column, value in source().items():
                    row[INDEX[column]] = float(value)
            except Exception as error:
                self._report_once(name, error)
        self._cpu_s += time.thread_time() - cpu_s
        row[INDEX["telemetry_cpu_s"]] = self._cpu_s
        return row

    def _sample_until(self, rows: list[list[float]], stopped: threading.Event) -> None:
        """Sample at once, then periodically, and a last time when the trial ends, even if it was very short."""
        period_s = self._period_s
        rows.append(self.sample())
        while not stopped.wait(period_s):
            rows.append(self.sample())
            if len(rows) >= self._most_rows:
                del rows[1::2]
                period_s *= 2
        rows.append(self.sample())

    def _report_once(self, name: str, error: Exception) -> None:
        if name not in self._reported:
            self._reported.add(name)
            self._note(f"telemetry: {name} unavailable: {type(error).__name__}: {error}")


MEMORY = [INDEX[name] for name in ("process_memory_bytes", "gpu_memory_bytes")]


class TurnTelemetry:
    """Telemetry of a trial that takes turns with others: one row per turn, on a clock that stops between its turns."""

    def __init__(self, telemetry: Telemetry, *, alone: bool) -> None:
        """`alone`: no other trial keeps a model in this process. Otherwise its memory is not that of one trial."""
        self._telemetry, self._alone = telemetry, alone
        self._rows: list[npt.NDArray[np.float64]] = []
        self._before = np.zeros(len(COLUMNS))
        self._totals = np.zeros(len(COUNTERS))

    def begin(self) -> None:
        """Begin a turn."""
        self._before = np.array(self._telemetry.sample())
        if not self._rows:
            self._add(self._before)

    def end(self) -> dict[str, float]:
        """End the turn. Return by how much each counter grew in it."""
        row = np.array(self._telemetry.sample())
        grown = row[COUNTERS] - self._before[COUNTERS]
        self._totals += np.nan_to_num(grown)  # a reading that failed once adds nothing
        self._add(row)
        if len(self._rows) >= MAX_ROWS:
            del self._rows[1:-1:2]
        return {COLUMNS[column]: float(value) for column, value in zip(COUNTERS, grown, strict=True)}

    def rows(self) -> npt.NDArray[np.float64]:
        """Return one row per turn, with the columns COLUMNS."""
        return np.array(self._rows, dtype=np.float64).reshape(-1, len(COLUMNS))

    def _add(self, sample: npt.NDArray[np.float64]) -> None:
        row = sample.copy()
        row[COUNTERS] = np.where(np.isnan(sample[COUNTERS]), np.nan, self._totals)
        if not self._alone:
            row[MEMORY] = np.nan
        self._rows.append(row)


def telemetry_of(crew: Crew, samples: Callable[[], int]) -> Telemetry:
    """Return the telemetry of this rank.

    Trials run on the first ranks, so the first rank of a host is the same in every trial.
    """
    local_rank = int(os.environ.get("LOCAL_RANK", crew.rank))
    own_gpu = gpu_id(crew.device)
    crew.publish(f"gpu/{crew.rank}", own_gpu)
    # Ranks of a host have consecutive numbers. If each rank asked all others, the cost would be quadratic.
    lower_ranks = range(crew.rank - local_rank, crew.rank)
    already_sampled = own_gpu in [crew.wait_for(f"gpu/{rank}") for rank in lower_ranks]
    sources: dict[str, MeterSource] = {"samples": lambda: {"samples": samples()}, **ProcessMeter().sources()}
    if local_rank == 0:
        sources |= HostMeter().sources()
    if crew.device.type == "cuda" and not already_sampled:
        try:
            sources |= GpuMeter(own_gpu).sources()
        except Exception as error:
            print(f"telemetry: gpu unavailable: {type(error).__name__}: {error}")
    return Telemetry(sources)
