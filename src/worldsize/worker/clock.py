"""Two clocks: laps (one a step, on the device's own clock) and phases (where the wall time above the step went)."""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import torch

from worldsize.record import SPAN_UNIT_S

NANOSECONDS_A_UNIT = round(SPAN_UNIT_S * 1e9)
LONGEST = np.iinfo(np.uint32).max


class CpuLaps:
    """Times contiguous steps: one reading of the clock a step."""

    def __init__(self, now_ns: Callable[[], int] = time.perf_counter_ns) -> None:
        self._now_ns = now_ns
        self._laps: list[int] = []
        self._last = 0

    def start(self) -> None:
        """Before the first step, and again after anything that is not a step."""
        self._last = self._now_ns()

    def lap(self) -> None:
        """A step ends here and the next begins."""
        now = self._now_ns()
        self._laps.append(now - self._last)
        self._last = now

    def seconds(self) -> npt.NDArray[np.float64]:
        return np.array(self._laps, dtype=np.float64) / 1e9

    def spans(self) -> npt.NDArray[np.uint32]:
        """One row a step; the only column is the whole step."""
        units = (np.array(self._laps, dtype=np.int64) + NANOSECONDS_A_UNIT // 2) // NANOSECONDS_A_UNIT
        return np.minimum(units, LONGEST).astype(np.uint32)[:, None]


class CudaLaps(CpuLaps):
    """The same on the GPU's clock: an event a step, read out only where the loop stops anyway, so no step waits."""

    def __init__(self) -> None:
        super().__init__()
        self._events: list[tuple[torch.cuda.Event, torch.cuda.Event]] = []
        self._last_event: torch.cuda.Event | None = None

    def start(self) -> None:
        self._last_event = self._record()

    def lap(self) -> None:
        now = self._record()
        assert self._last_event is not None
        self._events.append((self._last_event, now))
        self._last_event = now

    def seconds(self) -> npt.NDArray[np.float64]:
        self._resolve()
        return super().seconds()

    def spans(self) -> npt.NDArray[np.uint32]:
        self._resolve()
        return super().spans()

    def _record(self) -> torch.cuda.Event:
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def _resolve(self) -> None:
        if self._events:
            self._events[-1][1].synchronize()
        self._laps += [round(start.elapsed_time(end) * 1e6) for start, end in self._events]
        self._events.clear()


def laps_for(device: torch.device) -> CpuLaps:
    return CudaLaps() if device.type == "cuda" else CpuLaps()


class Phases:
    """Always in exactly one phase, so that the phases add up to the time that passed."""

    def __init__(self, first: str, *, already_s: float = 0.0, now: Callable[[], float] = time.perf_counter) -> None:
        """`already_s` of the first phase had passed before this clock could be made."""
        self._now = now
        self._phase = first
        self._since = now() - already_s
        self._totals: dict[str, float] = {first: 0.0}

    def enter(self, phase: str) -> float:
        """Leaves the current phase; returns how long this stay in it was."""
        now = self._now()
        stay = now - self._since
        self._totals[self._phase] = self._totals.get(self._phase, 0.0) + stay
        self._phase, self._since = phase, now
        return stay

    def totals(self) -> dict[str, float]:
        """So far, the current phase included."""
        self.enter(self._phase)
        return dict(self._totals)
