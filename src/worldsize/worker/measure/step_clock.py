"""Two clocks: the step clock (spans within each step, on the device's own clock) and phases (time above the step)."""

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
    """Times contiguous steps and the spans within them: one reading of the clock per mark."""

    def __init__(self, now_ns: Callable[[], int] = time.perf_counter_ns) -> None:
        self._now_ns = now_ns
        self._rows: list[list[int]] = []
        self._row = [0] * len(SPANS)
        self._last = 0
        self._ready = 0

    def start(self) -> None:
        """Before the first step, and again after anything that is not a step."""
        self._last = self._now_ns()

    def mark(self, span: int) -> None:
        """The time since the last mark belongs to `span`."""
        now = self._now_ns()
        self._row[span] += now - self._last
        self._last = now

    def ready(self) -> None:
        """Called inside backward: this rank has its last gradient. Whatever follows is waiting for others."""
        self._ready = self._now_ns()

    def mark_backward(self) -> None:
        """The time since the last mark was backward until `ready`, and communication after it."""
        if self._ready > self._last:
            self._row[BACKWARD] += self._ready - self._last
            self._last = self._ready
            self.mark(COMMUNICATION)
        else:
            self.mark(BACKWARD)

    def end_step(self) -> None:
        """Ends a step and begins the next one; time that was not marked is the rest."""
        self.mark(REST)
        self._rows.append(self._row)
        self._row = [0] * len(SPANS)

    def seconds(self) -> npt.NDArray[np.float64]:
        """Seconds of each step."""
        return np.array(self._rows, dtype=np.float64).reshape(-1, len(SPANS)).sum(axis=1) / 1e9

    def spans(self) -> npt.NDArray[np.uint32]:
        """One row per step, one column per span; a row adds up to the step."""
        rows = np.array(self._rows, dtype=np.int64).reshape(-1, len(SPANS))
        units = (rows + NANOSECONDS_PER_UNIT // 2) // NANOSECONDS_PER_UNIT
        return np.minimum(units, LONGEST).astype(np.uint32)


class CudaStepClock(CpuStepClock):
    """The same on the GPU's clock: one event per mark, read only where the loop stops anyway, so no step waits."""

    def __init__(self) -> None:
        super().__init__()
        self._marks: list[tuple[int, torch.cuda.Event]] = []
        """The span that ended with the event; STEP_END and START beside the spans."""
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

    def seconds(self) -> npt.NDArray[np.float64]:
        self._resolve()
        return super().seconds()

    def spans(self) -> npt.NDArray[np.uint32]:
        self._resolve()
        return super().spans()

    def _event(self) -> torch.cuda.Event:
        """Events are reused: creating one costs more than recording it."""
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
        # The next span begins where the last one ended.
        self._marks = [(START, previous)]


def step_clock_for(device: torch.device) -> CpuStepClock:
    return CudaStepClock() if device.type == "cuda" else CpuStepClock()


class Phases:
    """Always in exactly one phase, so the phases add up to the elapsed time."""

    def __init__(self, first: str, *, already_s: float = 0.0, now: Callable[[], float] = time.perf_counter) -> None:
        """`already_s`: seconds of the first phase that had passed before this clock was made."""
        self._now = now
        self._phase = first
        self._since = now() - already_s
        self._totals: dict[str, float] = {first: 0.0}

    def enter(self, phase: str) -> float:
        """Leaves the current phase; returns how long it lasted since it was entered."""
        now = self._now()
        lasted = now - self._since
        self._totals[self._phase] = self._totals.get(self._phase, 0.0) + lasted
        self._phase, self._since = phase, now
        return lasted

    def totals(self) -> dict[str, float]:
        """Seconds per phase so far, including the current one."""
        self.enter(self._phase)
        return dict(self._totals)
