"""Clocks that tests move by hand."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from worldsize.worker.measure.step_clock import (
    COPY,
    DATA,
    FORWARD,
    OPTIMIZER,
    REST,
    CpuStepClock,
    Phases,
    step_clock_for,
)


def test_laps_leave_out_what_lies_between_stretches() -> None:
    readings = iter([0, 10_000, 30_000, 1_000_000, 1_005_000])
    clock = CpuStepClock(lambda: next(readings))
    clock.start()
    clock.end_step()
    clock.end_step()
    clock.start()
    clock.end_step()
    assert clock.seconds() == pytest.approx([10e-6, 20e-6, 5e-6])
    spans = clock.spans()
    assert spans.dtype == np.uint32
    assert spans[:, REST].tolist() == [100, 200, 50]  # tenths of a microsecond


def test_spans_add_up_to_the_step() -> None:
    readings = iter([0, 1_000, 3_000, 7_000, 8_000, 15_000, 21_000, 28_000])
    clock = CpuStepClock(lambda: next(readings))
    clock.start()
    clock.mark(DATA)
    clock.mark(COPY)
    clock.mark(FORWARD)
    clock.ready()
    clock.mark_backward()
    clock.mark(OPTIMIZER)
    clock.end_step()
    assert clock.spans().tolist() == [[10, 20, 40, 10, 70, 60, 70]]
    assert clock.seconds() == pytest.approx([28e-6])


def test_without_word_of_the_last_gradient_all_of_backward_is_backward() -> None:
    """A `ready` of an earlier step is not one of this step."""
    readings = iter([0, 5_000, 9_000, 10_000, 12_000, 20_000, 30_000])
    clock = CpuStepClock(lambda: next(readings))
    clock.start()
    clock.ready()
    clock.mark_backward()
    clock.end_step()
    clock.mark(FORWARD)
    clock.mark_backward()
    clock.end_step()
    assert clock.spans()[1].tolist() == [0, 0, 20, 80, 0, 0, 100]


def test_a_hundred_thousand_steps_of_sixteen_ranks_stay_small() -> None:
    row = CpuStepClock(iter(range(0, 10**9, 1000)).__next__)
    row.start()
    row.end_step()
    assert row.spans().nbytes * 100_000 * 16 < 50e6


def test_a_step_too_long_for_the_format_is_capped_not_wrapped() -> None:
    readings = iter([0, 600 * 10**9])
    clock = CpuStepClock(lambda: next(readings))
    clock.start()
    clock.end_step()
    assert clock.spans()[0, REST] == np.iinfo(np.uint32).max


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
    assert type(step_clock_for(torch.device("cpu"))) is CpuStepClock
