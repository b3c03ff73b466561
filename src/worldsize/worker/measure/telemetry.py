"""Utilization and memory of the hardware while a trial runs, sampled from a thread.

Every rank watches its own process and its own GPU, so that one that differs from the others is visible. The first rank
of a host also watches the host, and if ranks share a GPU, the first of them watches it. So nothing is read twice. A row
holds all columns, with NaN where this rank does not look or could not read.
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
    "at_s",  # since the trial began
    "samples",  # trained on so far, over all ranks
    "telemetry_cpu_s",  # cost of sampling itself
    *("process_cpu_s", "process_memory_bytes", "process_read_bytes", "process_written_bytes"),
    *("host_cpu_s", "host_stolen_s", "host_memory_bytes", "host_read_bytes", "host_written_bytes"),
    *("host_sent_bytes", "host_received_bytes", "host_loopback_bytes"),
    *("host_rdma_sent_bytes", "host_rdma_received_bytes"),
    *("gpu_busy_percent", "gpu_memory_busy_percent", "gpu_memory_bytes", "gpu_memory_total_bytes"),
    *("gpu_power_w", "gpu_energy_j", "gpu_core_mhz", "gpu_memory_mhz", "gpu_temperature_c"),
    *("gpu_throttled_power", "gpu_throttled_thermal", "gpu_throttled_other"),
)
"""CPU seconds, joules, samples and bytes read, written, sent or received are counters; the rest are current values."""
INDEX = {name: number for number, name in enumerate(COLUMNS)}

PERIOD_S = 0.5
MOST_ROWS = 7_200
"""One hour. A longer trial keeps every second row and is sampled half as often: counters lose nothing by it."""
PATIENCE_S = 2.0
"""Timeout for a reading that hangs, as NVML does if a GPU is lost; the trial then goes on without it."""


class Telemetry:
    """Telemetry of one rank, trial after trial. An error is printed once, in the rank's log, and leaves values empty.

    The thread shares no lock with training, so the process may fork while it reads: the child just lacks the thread.
    """

    def __init__(
        self,
        sources: Mapping[str, MeterSource],
        *,
        period_s: float = PERIOD_S,
        most_rows: int = MOST_ROWS,
        now: Callable[[], float] = time.perf_counter,
        note: Callable[[str], None] = print,
    ) -> None:
        self._sources = sources
        self._period_s, self._most_rows = period_s, most_rows
        self._now, self._note = now, note
        self._noted: set[str] = set()
        self._rows: list[list[float]] = []
        self._began = 0.0
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """The trial begins. Rows and the stop event are new: a thread that hangs keeps those of its own trial."""
        self._rows, self._began, self._stopped = [], self._now(), threading.Event()
        self._thread = threading.Thread(target=self._watch, args=(self._rows, self._stopped), daemon=True)
        try:
            self._thread.start()
        except RuntimeError as error:  # no more threads for this user
            self._thread = None
            self._say("thread", error)

    def stop(self) -> npt.NDArray[np.float64]:
        """The rows of the trial: one per sample, with one column per name in COLUMNS."""
        self._stopped.set()
        if self._thread is not None:
            self._thread.join(PATIENCE_S)
            if self._thread.is_alive():
                self._say("thread", TimeoutError(f"a reading took more than {PATIENCE_S} s"))
        return np.array(self._rows, dtype=np.float64).reshape(-1, len(COLUMNS))

    def sample(self) -> list[float]:
        row = [math.nan] * len(COLUMNS)
        row[INDEX["at_s"]] = self._now() - self._began
        row[INDEX["telemetry_cpu_s"]] = time.thread_time()
        for name, source in self._sources.items():
            try:
                for column, value in source().items():
                    row[INDEX[column]] = float(value)
            except Exception as error:
                self._say(name, error)
        return row

    def _watch(self, rows: list[list[float]], stopped: threading.Event) -> None:
        """Takes the first sample at once and the last when the trial is over, however short it is."""
        period_s = self._period_s
        rows.append(self.sample())
        while not stopped.wait(period_s):
            rows.append(self.sample())
            if len(rows) >= self._most_rows:
                del rows[1::2]
                period_s *= 2
        rows.append(self.sample())

    def _say(self, name: str, error: Exception) -> None:
        if name not in self._noted:
            self._noted.add(name)
            self._note(f"telemetry: no {name}: {type(error).__name__}: {error}")


def telemetry_of(crew: Crew, samples: Callable[[], int]) -> Telemetry:
    """What this rank watches. Trials run on the first ranks, so the first rank of a host is the same in every trial."""
    local_rank = int(os.environ.get("LOCAL_RANK", crew.rank))
    own_gpu = gpu_id(crew.device)
    crew.publish(f"gpu/{crew.rank}", own_gpu)
    # Ranks of one host have consecutive numbers; asking all ranks would cost the square of their number.
    lower_ranks = range(crew.rank - local_rank, crew.rank)
    watched_already = own_gpu in [crew.wait_for(f"gpu/{rank}") for rank in lower_ranks]
    sources: dict[str, MeterSource] = {"samples": lambda: {"samples": samples()}, **ProcessMeter().sources()}
    if local_rank == 0:
        sources |= HostMeter().sources()
    if crew.device.type == "cuda" and not watched_already:
        try:
            sources |= GpuMeter(own_gpu).sources()
        except Exception as error:
            print(f"telemetry: no gpu: {type(error).__name__}: {error}")
    return Telemetry(sources)
