"""Two clocks: the step clock times spans within steps, on the device's own clock; phases time everything else."""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import torch

from worldsize.folder.record import SPAN_UNIT_S, SPANS

DATA, COPY, FORWARD, BACKWARD, COMMUNICATION, OPTIMIZER, REST = range(len(SPANS))
START, STEP_END = -2, -1
NANOSECONDS_PER_UNIT = round(SPAN_UNIT_S * 1e9)
LONGEST = np.iinfo(np.uint32).max


class CpuStepClock:
    """Times contiguous steps and the spans within them. Each mark reads the clock once."""

    def __init__(self, now_ns: Callable[[], int] = time.perf_counter_ns) -> None:
        self._now_ns = now_ns
        self._rows: list[list[int]] = []
        self._row = [0] * len(SPANS)
        self._last = 0
        self._ready = 0

    def start(self) -> None:
        """Start the clock: before the first step, and again after anything that is not a step."""
        self._last = self._now_ns()

    def mark(self, span: int) -> None:
        """Assign the time since the last mark to `span`."""
        now = self._now_ns()
        self._row[span] += now - self._last
        self._last = now

    def ready(self) -> None:
        """Called in backward when this rank has its last gradient. The rest of backward is waiting for other ranks."""
        self._ready = self._now_ns()

    def mark_backward(self) -> None:
        """Assign the time since the last mark to backward until `ready` was called, and to communication after it."""
        if self._ready > self._last:
            self._row[BACKWARD] += self._ready - self._last
            self._last = self._ready
            self.mark(COMMUNICATION)
        else:
            self.mark(BACKWARD)

    def end_step(self) -> None:
        """End a step and begin the next one. Time since the last mark belongs to the rest."""
        self.mark(REST)
        self._rows.append(self._row)
        self._row = [0] * len(SPANS)

    def seconds(self, first: int = 0) -> npt.NDArray[np.float64]:
        """Return the seconds of each step, from step `first` on."""
        return np.array(self._rows[first:], dtype=np.float64).reshape(-1, len(SPANS)).sum(axis=1) / 1e9

    def spans(self) -> npt.NDArray[np.uint32]:
        """Return one row per step and one column per span, in units of SPAN_UNIT_S. A row adds up to the step."""
        rows = np.array(self._rows, dtype=np.int64).reshape(-1, len(SPANS))
        units = (rows + NANOSECONDS_PER_UNIT // 2) // NANOSECONDS_PER_UNIT
        return np.minimum(units, LONGEST).astype(np.uint32)


class CudaStepClock(CpuStepClock):
    """A step clock on the GPU. Each mark records an event; events are read only when the loop stops anyway."""

    def __init__(self) -> None:
        super().__init__()
        self._marks: list[tuple[int, torch.cuda.Event]] = []
        """Events, each with the span that it ends, START or STEP_END."""
        self._spare: list[torch.cuda.Event] = []
        self._ready_event: torch.cuda.Event | None = None

    def start(self) -> None:
        self._marks.append((START, self._event()))

    def mark(self, span: int) -> None:
        self._marks.append((span, self._event()))

    def ready(self) -> None:
        self._ready_event = self._event()

    def mark_backward(self) -> None:
        if self._ready_event is not None:
            self._marks.append((BACKWARD, self._ready_event))
            self._ready_event = None
            self.mark(COMMUNICATION)
        else:
            self.mark(BACKWARD)

    def end_step(self) -> None:
        self._marks.append((STEP_END, self._event()))

    def seconds(self, first: int = 0) -> npt.NDArray[np.float64]:
        self._resolve()
        return super().seconds(first)

    def spans(self) -> npt.NDArray[np.uint32]:
        self._resolve()
        return super().spans()

    def _event(self) -> torch.cuda.Event:
        """Record an event. Events are reused because creating one costs more than recording it."""
        event = self._spare.pop() if self._spare else torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def _resolve(self) -> None:
        if not self._marks:
            return
        self._marks[-1][1].synchronize()
        previous = self._marks[0][1]
        for span, event in self._marks:
            if span != START:
                self._row[REST if span == STEP_END else span] += round(previous.elapsed_time(event) * 1e6)
            if span == STEP_END:
                self._rows.append(self._row)
                self._row = [0] * len(SPANS)
            previous = event
        self._spare += [event for _, event in self._marks[:-1]]
        # The next span begins where the last one ended, so the last event is still needed.
        self._marks = [(START, previous)]


def step_clock_for(device: torch.device) -> CpuStepClock:
    return CudaStepClock() if device.type == "cuda" else CpuStepClock()


class Phases:
    """A clock that is always in exactly one phase, so that phases add up to the elapsed time."""

    def __init__(self, first: str, *, already_s: float = 0.0, now: Callable[[], float] = time.perf_counter) -> None:
        """Start in phase `first`, of which `already_s` seconds have already passed."""
        self._now = now
        self._phase = first
        self._since = now() - already_s
        self._totals: dict[str, float] = {first: 0.0}

    def enter(self, phase: str) -> float:
        """Leave the current phase for another one. Return the seconds since the current one was entered."""
        now = self._now()
        lasted = now - self._since
        self._totals[self._phase] = self._totals.get(self._phase, 0.0) + lasted
        self._phase, self._since = phase, now
        return lasted

    def totals(self) -> dict[str, float]:
        """Return the seconds per phase so far, including the current one."""
        self.enter(self._phase)
        return dict(self._totals)
