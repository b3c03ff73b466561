"""Known signals in, known integrals out."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from worldsize.analysis.estimate import Floats
from worldsize.analysis.speed.hardware import Usage, joules_per_sample, stolen, training_rows, usage


def rows(**columns: Floats | list[float]) -> tuple[tuple[str, ...], Floats]:
    return tuple(columns), np.column_stack([np.asarray(values, dtype=np.float64) for values in columns.values()])


def uneven(seconds: float, samples: int = 400, seed: int = 0) -> Floats:
    """Times as irregular as a busy machine makes them; both ends are there."""
    inside = np.sort(np.random.default_rng(seed).uniform(0, seconds, samples - 2))
    return np.concatenate([[0.0], inside, [seconds]])


def of(**columns: Floats | list[float]) -> Usage:
    return usage(*rows(**columns))


def test_the_integral_of_a_known_power_at_uneven_times() -> None:
    """P = 300 + 200 sin t over four periods: 300 J a second, whatever the times of the samples."""
    at_s = uneven(8 * np.pi)
    seen = of(at_s=at_s, samples=at_s, gpu_power_w=300 + 200 * np.sin(at_s))
    assert seen.joules_per_sample == pytest.approx(300, rel=1e-2)
    assert seen.gpu_power_w == pytest.approx(300, rel=1e-2)
    assert of(at_s=at_s, gpu_power_w=300 + 200 * np.sin(at_s)).gpu_power_w == pytest.approx(300, rel=1e-3)


def test_a_line_is_integrated_exactly_from_three_samples() -> None:
    seen = of(at_s=[0, 1, 10], samples=[0, 0.5, 1], gpu_power_w=[0, 10, 100])
    assert seen.joules_per_sample == pytest.approx(500)


def test_means_are_over_time_not_over_samples() -> None:
    """Ten samples in the first second, one nine seconds later."""
    at_s = [*np.linspace(0, 1, 10), 1.001, 10.0]
    seen = of(at_s=at_s, gpu_busy_percent=[0.0] * 10 + [100.0, 100.0])
    assert seen.gpu_busy_percent == pytest.approx(90, abs=0.1)


def test_the_counter_is_preferred_and_catches_what_samples_miss() -> None:
    """A peak between two samples is in the counter and not in the power."""
    energy = [5e6, 5e6 + 350, 5e6 + 450]
    seen = of(at_s=[0, 1, 2], samples=[0, 1, 2], gpu_power_w=[100, 100, 100], gpu_energy_j=energy)
    assert seen.joules_per_sample == 225


def test_joules_per_sample_leaves_out_what_was_not_training() -> None:
    """10 s of preparation at 50 W, 10 s of training at 400 W and 1,000 samples/s, 5 s of saving at 50 W."""
    at_s = np.arange(0, 25.5, 0.5)
    samples = 1_000 * np.clip(at_s - 10.2, 0, 10)
    energy = 50 * at_s + 350 * np.clip(at_s - 10.2, 0, 10)
    seen = of(at_s=at_s, samples=samples, gpu_energy_j=energy)
    assert seen.joules_per_sample == pytest.approx(0.4)
    assert seen.seconds == pytest.approx(9.5)


def test_a_short_trial_takes_the_intervals_it_has() -> None:
    assert training_rows(np.array([0.0, 0, 40, 90, 90])) == slice(1, 4)
    assert training_rows(np.array([0.0, 0, 0])) == slice(None)
    seen = of(at_s=[0, 1, 2], samples=[0, 50, 50], gpu_energy_j=[0, 100, 120])
    assert seen.joules_per_sample == 2


def test_counters_become_rates_and_a_restart_adds_nothing() -> None:
    seen = of(
        at_s=[0, 1, 4, 5],
        process_cpu_s=[10, 12, 18, 20],
        host_sent_bytes=[100, 200, 50, 150],
    )
    assert seen.process_cores == pytest.approx(2)
    assert seen.host_sent_bytes_per_s == pytest.approx(40)


def test_what_was_stolen_is_of_the_host_that_lost_most() -> None:
    """Of each host one rank looks; the others have no such columns."""
    some = of(at_s=[0, 2], host_cpu_s=[0, 18], host_stolen_s=[5, 7])
    more = of(at_s=[0, 2], host_cpu_s=[0, 7], host_stolen_s=[0, 3])
    found = stolen([some, of(at_s=[0, 2]), more, of(at_s=[0, 2])])
    assert found is not None
    assert (found.seconds, found.wanted_s, found.share) == pytest.approx((3, 10, 0.3))
    assert stolen([of(at_s=[0, 2])]) is stolen([of(at_s=[0, 2], host_cpu_s=[0, 0], host_stolen_s=[0, 0])]) is None


def test_throttling_is_a_share_of_the_time_by_kind() -> None:
    seen = of(at_s=[0, 1, 2, 3, 4], gpu_throttled_power=[0, 1, 1, 1, 0], gpu_throttled_thermal=[0, 0, 0, 0, 0])
    assert seen.throttled == {"power": pytest.approx(0.75), "thermal": 0}


def test_what_was_not_seen_is_none_and_gaps_are_bridged() -> None:
    nan = float("nan")
    at_s, power_w = [0.0, 1, 2, 3, 4, 5], [100, 100, nan, 100, 100, 100]
    seen = of(at_s=at_s, samples=at_s, gpu_power_w=power_w, gpu_busy_percent=[nan] * 6)
    assert seen.joules_per_sample == pytest.approx(100)
    assert seen.gpu_busy_percent is seen.gpu_memory_bytes is seen.host_cores is seen.host_sent_bytes_per_s is None
    assert of(at_s=[0, 1], process_cpu_s=[0, 1]).joules_per_sample is None
    assert seen.throttled == {}


@pytest.mark.parametrize("count", [0, 1])
def test_too_few_rows_give_no_rates(count: int) -> None:
    columns, values = rows(at_s=[0.0], process_cpu_s=[3.0], gpu_memory_bytes=[7.0], gpu_busy_percent=[60.0])
    seen = usage(columns, values[:count])
    assert seen.process_cores is seen.joules_per_sample is None
    assert seen.gpu_memory_bytes == (7 if count else None)
    assert seen.gpu_busy_percent == (60 if count else None)


def test_memory_is_a_peak() -> None:
    assert of(at_s=[0, 1, 2], gpu_memory_bytes=[10, 60, 20]).gpu_memory_bytes == 60


def test_joules_per_sample_add_up_over_gpus_or_are_not_known() -> None:
    one = two = of(at_s=[0, 1], gpu_busy_percent=[0.0] * 2)  # watched, and idle
    one = dataclasses.replace(one, joules_per_sample=0.25)
    other = dataclasses.replace(two, joules_per_sample=0.5)
    shares_its_gpu = of(at_s=[0, 1], process_cpu_s=[0, 1])
    assert joules_per_sample([one, other, shares_its_gpu]) == 0.75
    assert joules_per_sample([one, two]) is None
    assert joules_per_sample([shares_its_gpu]) is None
