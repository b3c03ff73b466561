"""The noise scale of quadratics whose gradient and noise are known."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest

from worldsize.analysis.learning.noise_scale import NoiseScale, noise_scale, noise_series, squared_norms

Floats = npt.NDArray[np.float64]

HESSIAN = np.diag(np.geomspace(0.1, 2.0, 12))
SPREAD = np.geomspace(1.0, 0.2, 12)
"""Of the samples: the loss of sample x at weights w is (w - x)' H (w - x) / 2, so its gradient is H (w - x)."""
VARIANCE = float(np.square(HESSIAN @ SPREAD).sum())
BATCH = 8


def square_norms(rng: np.random.Generator, weights: Floats, parts: int) -> tuple[Floats, Floats]:
    """At each of the weights (steps x dimensions), from gradients of single samples."""
    samples = rng.normal(size=(len(weights), parts, BATCH, len(SPREAD))) * SPREAD
    of_parts = (weights[:, None, None] - samples).mean(axis=2) @ HESSIAN
    return np.square(of_parts).sum(axis=2), np.square(of_parts.mean(axis=1)).sum(axis=1)


def still(scale: float, steps: int) -> Floats:
    """The same weights at every step, where the noise scale is `scale` samples."""
    direction = np.ones(len(SPREAD))
    length = np.sqrt(VARIANCE / scale / np.square(HESSIAN @ direction).sum())
    return np.tile(length * direction, (steps, 1))


def measured(seed: int, scale: float, parts: int, steps: int) -> NoiseScale:
    return noise_scale(*square_norms(np.random.default_rng(seed), still(scale, steps), parts), BATCH)


@pytest.mark.parametrize("parts", [2, 4, 8])
@pytest.mark.parametrize("truth", [5.0, 20.0])
def test_a_known_noise_scale_is_found(parts: int, truth: float) -> None:
    found = [measured(seed, truth, parts, 2_000) for seed in range(10)]
    assert all(each.value == pytest.approx(truth, rel=0.10) for each in found)
    assert np.mean([each.variance for each in found]) == pytest.approx(VARIANCE, rel=0.01)
    assert (found[0].steps, found[0].small_batch, found[0].big_batch) == (2_000, BATCH, parts * BATCH)


def test_intervals_cover_the_truth_as_often_as_they_say() -> None:
    found = [measured(seed, 20.0, 2, 300) for seed in range(200)]
    assert all(each.low is not None and each.high is not None for each in found)
    covered = np.mean([each.low < 20.0 < each.high for each in found])  # type: ignore[operator]
    assert 0.84 <= covered <= 0.96


def test_pure_noise_has_no_noise_scale() -> None:
    """The gradient is 0: whatever a ratio says is chance."""
    rng = np.random.default_rng(0)
    found = [noise_scale(*square_norms(rng, np.zeros((200, len(SPREAD))), 4), BATCH) for _ in range(100)]
    assert sum(each.value is not None for each in found) <= 3
    assert any(each.low is not None and each.value is None for each in found)


def test_a_weak_gradient_gives_a_bound_that_holds() -> None:
    found = [measured(seed, 2_000.0, 2, 100) for seed in range(100)]
    bounds = [each.low for each in found if each.value is None and each.low is not None]
    assert len(bounds) > 30
    assert np.mean([low < 2_000.0 for low in bounds]) > 0.9
    assert np.median(bounds) > 50


def test_few_steps_say_nothing() -> None:
    found = measured(0, 5.0, 8, 9)
    assert (found.value, found.low, found.high, found.steps) == (None, None, None, 9)
    assert noise_scale(np.zeros((0, 2)), np.zeros(0), BATCH).value is None


def test_equal_gradients_have_no_noise() -> None:
    found = noise_scale(np.full((50, 4), 3.0), np.full(50, 3.0), BATCH)
    assert (found.value, found.low, found.high) == (0.0, 0.0, 0.0)
    assert found.gradient_sq == pytest.approx(3.0)


def test_it_is_small_at_the_start_rises_and_flattens() -> None:
    """SGD from far away: the gradient shrinks until its own noise keeps it from shrinking further."""
    rng = np.random.default_rng(1)
    weights = np.empty((4_000, len(SPREAD)))
    weights[0] = 20.0
    for step in range(1, len(weights)):
        noise = HESSIAN @ (rng.normal(size=len(SPREAD)) * SPREAD / np.sqrt(BATCH))
        weights[step] = weights[step - 1] - 0.05 * (HESSIAN @ weights[step - 1] + noise)
    small, big = square_norms(rng, weights, 4)
    series = noise_series(small, big, BATCH, memory_steps=200)
    assert series[0] < 0.01
    assert series[100] < 0.1 * series[600] < 0.1 * np.median(series[2_500:])
    assert np.median(series[2_500:3_250]) == pytest.approx(np.median(series[3_250:]), rel=0.3)
    for window in (slice(0, 200), slice(500, 1_000)):
        exact = VARIANCE / np.square(weights[window] @ HESSIAN).sum(axis=1).mean()
        assert noise_scale(small[window], big[window], BATCH).value == pytest.approx(exact, rel=0.15)


def test_the_series_does_not_say_what_it_cannot_know() -> None:
    small, big = np.full((3, 2), 4.0), np.array([1.9, 1.9, 4.0])  # G2 is below 0, then above
    assert np.isnan(noise_series(small, big, BATCH, memory_steps=1)).tolist() == [True, True, False]


def test_ranks_are_put_side_by_side_and_unknown_steps_left_out() -> None:
    nan, inf = np.nan, np.inf
    first = np.array([[1, 5], [nan, nan], [3, 6], [4, inf], [7, 8]], dtype=np.float32)
    second = np.array([[2, 5], [nan, nan], [inf, 6], [4, inf], [9, 8]], dtype=np.float32)
    small, big = squared_norms([first, second])
    assert small.tolist() == [[1, 2], [7, 9]]
    assert big.tolist() == [5, 8]
    alone = np.array([[1, 2, 3, 2]], dtype=np.float32)  # three micro-batches of one worker
    small, big = squared_norms([alone])
    assert small.tolist() == [[1, 2, 3]]
    assert big.tolist() == [2]


def test_one_part_is_no_comparison() -> None:
    with pytest.raises(ValueError, match="at least two parts"):
        noise_scale(np.ones((20, 1)), np.ones(20), BATCH)
