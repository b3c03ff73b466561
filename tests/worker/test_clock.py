"""Clocks that tests move by hand."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from worldsize.worker.clock import CpuLaps, Phases, laps_for


def test_laps_leave_out_what_lies_between_stretches() -> None:
    readings = iter([0, 10_000, 30_000, 1_000_000, 1_005_000])
    laps = CpuLaps(lambda: next(readings))
    laps.start()
    laps.lap()
    laps.lap()
    laps.start()
    laps.lap()
    assert laps.seconds() == pytest.approx([10e-6, 20e-6, 5e-6])
    spans = laps.spans()
    assert spans.dtype == np.uint32
    assert spans.tolist() == [[100], [200], [50]]  # tenths of a microsecond


def test_a_step_too_long_for_the_format_is_capped_not_wrapped() -> None:
    readings = iter([0, 600 * 10**9])
    laps = CpuLaps(lambda: next(readings))
    laps.start()
    laps.lap()
    assert laps.spans()[0, 0] == np.iinfo(np.uint32).max


def test_phases_add_up_to_the_time_that_passed() -> None:
    time = [0.0]
    phases = Phases("start", already_s=3.0, now=lambda: time[0])
    for phase, seconds in [("training", 2.0), ("evaluation", 5.0), ("training", 1.0), ("saving", 4.0)]:
        time[0] += seconds
        phases.enter(phase)
    time[0] += 10
    totals = phases.totals()
    assert totals == {"start": 5.0, "training": 9.0, "evaluation": 1.0, "saving": 10.0}
    assert sum(totals.values()) == 3.0 + time[0]


def test_the_cpu_is_timed_on_the_cpus_clock() -> None:
    assert type(laps_for(torch.device("cpu"))) is CpuLaps
