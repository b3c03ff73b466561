"""Laws recovered from seeded data that follow them, and what a fit says when it cannot be trusted."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from worldsize.analysis.projection.classical_laws import (
    LawFit,
    fit_amdahl,
    fit_gustafson,
    fit_usl,
    karp_flatt,
    karp_flatts,
)

COUNTS = [1, 2, 4, 8, 16, 32]
HELD_OUT = 64
NOISE = 0.01


def amdahl(n: float) -> float:
    return 100 / (0.05 + 0.95 / n)


def gustafson(n: float) -> float:
    return 100 * (n - 0.2 * (n - 1))


def usl(n: float) -> float:
    return 100 * n / (1 + 0.03 * (n - 1) + 0.0005 * n * (n - 1))


CASES: list[tuple[Callable[..., LawFit], Callable[[float], float], dict[str, float]]] = [
    (fit_amdahl, amdahl, {"serial_fraction": 0.05, "rate_1": 100}),
    (fit_gustafson, gustafson, {"serial_fraction": 0.2, "rate_1": 100}),
    (fit_usl, usl, {"contention": 0.03, "coherence": 0.0005, "rate_1": 100, "peak_workers": 44.0}),
]


@pytest.mark.parametrize(("fit", "law", "parameters"), CASES, ids=lambda value: getattr(value, "__name__", ""))
def test_exact_data_gives_exact_parameters(
    fit: Callable[..., LawFit], law: Callable[[float], float], parameters: dict[str, float]
) -> None:
    found = fit(COUNTS, [law(n) for n in COUNTS])
    assert found.converged
    assert found.rms_relative_residual < 1e-6
    assert found.parameters == pytest.approx(parameters, rel=2e-3)
    assert found.throughput(HELD_OUT) == pytest.approx(law(HELD_OUT), rel=1e-6)


@pytest.mark.parametrize(("fit", "law", "parameters"), CASES, ids=lambda value: getattr(value, "__name__", ""))
def test_noisy_data_gives_parameters_and_held_out_counts_within_the_noise(
    fit: Callable[..., LawFit], law: Callable[[float], float], parameters: dict[str, float]
) -> None:
    """Medians over 40 draws are near the truth; a single held-out count is within a few times the noise."""
    rng = np.random.default_rng(5)
    draws = [fit(COUNTS, [law(n) * np.exp(NOISE * rng.normal()) for n in COUNTS]) for _ in range(40)]
    assert all(found.converged for found in draws)
    for name, value in parameters.items():
        middle = np.median([found.parameters[name] for found in draws if name in found.parameters])
        assert middle == pytest.approx(value, rel=0.1), name
    misses = [abs(found.throughput(HELD_OUT) / law(HELD_OUT) - 1) for found in draws]
    assert np.median(misses) < 3 * NOISE
    assert max(misses) < 12 * NOISE
    assert np.median([found.rms_relative_residual for found in draws]) < 1.5 * NOISE


@pytest.mark.parametrize(("fit", "needs"), [(fit_amdahl, 2), (fit_gustafson, 2), (fit_usl, 3)])
def test_fewer_counts_than_parameters_is_said(fit: Callable[..., LawFit], needs: int) -> None:
    counts = COUNTS[: needs - 1]
    assert not fit(counts, [100.0 * n for n in counts]).converged
    assert not fit(counts * 3, [100.0 * n for n in counts * 3]).converged  # repeats are no further counts
    assert fit(COUNTS[:needs], [90.0 * n for n in COUNTS[:needs]]).converged


def test_each_law_says_for_which_mode_it_was_made() -> None:
    rates = [amdahl(n) for n in COUNTS]
    assert fit_amdahl(COUNTS, rates, "strong").fits_mode
    assert not fit_amdahl(COUNTS, rates, "weak").fits_mode
    assert fit_gustafson(COUNTS, rates, "weak").fits_mode
    assert not fit_gustafson(COUNTS, rates, "strong").fits_mode
    assert fit_usl(COUNTS, rates, "weak").mode == "weak"


def test_karp_flatt_is_flat_for_amdahl_and_rises_for_communication() -> None:
    flat = [karp_flatt(amdahl(n) / amdahl(1), n) for n in COUNTS[1:]]
    assert flat == pytest.approx([0.05] * len(flat))
    rising = [karp_flatt(usl(n) / usl(1), n) for n in COUNTS[1:]]
    assert rising == sorted(rising)
    assert rising[-1] > rising[0]
    assert karp_flatt(2.1, 2) < 0  # superlinear


def test_a_serial_share_needs_one_worker() -> None:
    assert karp_flatts([8, 2, 4], [700.0, 200.0, 380.0]) == {}
    assert karp_flatts([4, 1, 2], [250.0, 100.0, 160.0]) == pytest.approx({2: 0.25, 4: 0.2})


@pytest.mark.parametrize("rates", [[1.0], [1.0, 0.0], [1.0, float("nan")]])
def test_nonsense_is_refused(rates: list[float]) -> None:
    with pytest.raises(ValueError, match="positive, finite"):
        fit_amdahl([1, 2], rates)
