"""Latency and bandwidth come back from times that were made with known ones; a link that has no such law is named."""

from __future__ import annotations

import math

import numpy as np
import pytest

from worldsize.analysis.speed.network import Link, Wire, fit_link, ring_allreduce_s

SIZES = [1024 * 4**power for power in range(9)]
LATENCY_S, BANDWIDTH = 50e-6, 1e9
WIRE = Wire(latency_s=LATENCY_S, bandwidth_bytes_per_s=BANDWIDTH)


def made(
    seed: int, *, workers: int = 4, repetitions: int = 10, noise: float = 0.1, outliers: float = 0.0
) -> dict[int, list[float]]:
    rng = np.random.default_rng(seed)
    times = {}
    for size in SIZES:
        seconds = ring_allreduce_s(size, workers, WIRE) * np.exp(rng.normal(0, noise, repetitions))
        seconds[rng.random(repetitions) < outliers] *= 20
        times[size] = seconds.tolist()
    return times


def fitted(times: dict[int, list[float]], workers: int = 4) -> Link:
    link = fit_link(workers, times)
    assert link is not None
    return link


def test_the_ring_law() -> None:
    assert ring_allreduce_s(4e6, 4, Wire(latency_s=1e-3, bandwidth_bytes_per_s=1e9)) == pytest.approx(6 * 1e-3 + 6e-3)


@pytest.mark.parametrize("workers", [2, 3, 8, 64])
def test_exact_times_give_exact_numbers(workers: int) -> None:
    link = fitted(made(0, workers=workers, noise=0.0), workers)
    assert link.latency_s.value == pytest.approx(LATENCY_S, rel=1e-6)
    assert link.bandwidth_bytes_per_s.value == pytest.approx(BANDWIDTH, rel=1e-6)
    assert link.misfit < 1e-6
    assert not link.is_poor


@pytest.mark.parametrize("outliers", [0.0, 0.15])
def test_noise_and_outliers_are_borne(outliers: float) -> None:
    for seed in range(20):
        link = fitted(made(seed, noise=0.2, outliers=outliers))
        assert link.latency_s.value == pytest.approx(LATENCY_S, rel=0.35)
        assert link.bandwidth_bytes_per_s.value == pytest.approx(BANDWIDTH, rel=0.25)
        assert not link.is_poor


@pytest.mark.parametrize("repetitions", [4, 12])
def test_intervals_cover_the_truth(repetitions: int) -> None:
    links = [fitted(made(seed, repetitions=repetitions, noise=0.15)) for seed in range(100)]
    latency = [link.latency_s.low <= LATENCY_S <= link.latency_s.high for link in links]
    bandwidth = [link.bandwidth_bytes_per_s.low <= BANDWIDTH <= link.bandwidth_bytes_per_s.high for link in links]
    assert np.mean(latency) >= 0.8
    assert np.mean(bandwidth) >= 0.8
    widths = [link.bandwidth_bytes_per_s.relative_width for link in links]
    assert np.mean(widths) < 0.3  # an interval that always holds since it is endless would prove nothing


def test_every_size_has_its_interval_and_its_number_of_repetitions() -> None:
    for size in fitted(made(0, repetitions=9, noise=0.2)).sizes:
        low, high = size.seconds.ends
        assert low <= size.seconds.value <= high
        assert low < high
        assert size.repetitions == 9


def test_a_size_that_is_treated_differently_does_not_bend_the_law() -> None:
    times = made(1, noise=0.02)
    times[SIZES[4]] = [seconds / 3 for seconds in times[SIZES[4]]]
    link = fitted(times)
    assert link.bandwidth_bytes_per_s.value == pytest.approx(BANDWIDTH, rel=0.1)
    assert link.is_poor  # and is said


def test_a_link_that_slows_down_with_size_is_poor() -> None:
    times = {size: [1e-4 * (size / 1024) ** 0.5 * factor for factor in (0.99, 1.0, 1.01)] for size in SIZES}
    assert fitted(times).is_poor


def test_noise_alone_is_no_misfit() -> None:
    links = [fitted(made(seed, repetitions=5, noise=0.4)) for seed in range(30)]
    assert sum(link.is_poor for link in links) <= 5


def test_sizes_too_small_to_show_the_bandwidth() -> None:
    link = fitted({1024: [3e-4, 3.1e-4, 3.2e-4], 4096: [2.8e-4, 2.9e-4, 3e-4]}, workers=2)
    assert link.latency_s.value == pytest.approx(1.5e-4, rel=0.1)
    assert math.isinf(link.bandwidth_bytes_per_s.value)
    assert math.isinf(link.bandwidth_bytes_per_s.high)
    assert link.is_poor


def test_one_size_tells_nothing_apart() -> None:
    assert fit_link(2, {1024: [1e-4] * 5}) is None


def test_speeds_are_those_of_nccl_tests() -> None:
    link = fitted({1_000: [1e-3], 8_000_000: [2e-3, 4e-3, 3e-3]}, workers=4)
    largest = link.sizes[-1]
    assert (largest.size_bytes, largest.seconds.value) == (8_000_000, 3e-3)
    assert largest.algbw_bytes_per_s == pytest.approx(8e6 / 3e-3)
    assert largest.busbw_bytes_per_s == pytest.approx(8e6 / 3e-3 * 1.5)


def test_the_same_times_give_the_same_interval() -> None:
    assert fit_link(4, made(2)) == fit_link(4, made(2))
