"""Where a step goes: known spans in, known shares out."""

from __future__ import annotations

import numpy as np
import pytest

from worldsize.analysis.speed.breakdown import Traffic, breakdown, exposed, straggler
from worldsize.folder.record import SPANS


def spans(steps: int, compute_s: list[float], transfer_s: float, *, seed: int = 0, noise: float = 0.01) -> np.ndarray:
    """Ranks that compute for different times and leave the exchange together."""
    rng = np.random.default_rng(seed)
    ranks = len(compute_s)
    found = np.zeros((steps, ranks, len(SPANS)))
    backward = np.array(compute_s) * np.exp(rng.normal(0, noise, (steps, ranks)))
    found[:, :, SPANS.index("data")] = 0.002
    found[:, :, SPANS.index("backward")] = backward
    found[:, :, SPANS.index("communication")] = backward.max(axis=1, keepdims=True) - backward + transfer_s
    found[:, :, SPANS.index("optimizer")] = 0.001
    return found


def test_spans_add_up_and_waiting_is_told_from_transfer() -> None:
    found = breakdown(SPANS, {0: spans(200, [0.010, 0.015], 0.004), 1: spans(200, [0.010, 0.015], 0.004, seed=1)})
    assert sum(estimate.value for estimate in found.spans.values()) == pytest.approx(found.step_s.value)
    assert found.spans["communication"].value == pytest.approx(0.004, rel=0.05)
    assert found.of_ranks[0]["waiting"] == pytest.approx(0.005, rel=0.05)
    assert found.of_ranks[1]["waiting"] == pytest.approx(0, abs=1e-4)
    assert found.spans["data"].value == pytest.approx(0.002)
    slow = straggler(found)
    assert slow is not None
    assert slow[0] == 1
    assert slow[1] == pytest.approx(0.005, rel=0.05)


def test_equal_ranks_have_no_straggler() -> None:
    assert straggler(breakdown(SPANS, {0: spans(200, [0.010, 0.0102, 0.01], 0.004)})) is None
    assert straggler(breakdown(SPANS, {0: spans(200, [0.010], 0.0)})) is None


def test_no_interval_of_a_time_reaches_below_nothing() -> None:
    """Two repeats that differ by far, as a machine with other work gives them."""
    found = breakdown(SPANS, {0: spans(100, [0.010, 0.012], 0.001), 1: spans(100, [0.030, 0.036], 0.004)})
    for estimate in [found.step_s, *found.spans.values()]:
        assert estimate.low is not None
        assert estimate.high is not None
        assert 0 <= estimate.low <= estimate.value <= estimate.high
    assert sum(estimate.value for estimate in found.spans.values()) == pytest.approx(found.step_s.value)


def test_hiccups_are_no_span() -> None:
    rough = spans(200, [0.010, 0.010], 0.004)
    rough[::50, :, SPANS.index("rest")] = 1.0
    assert breakdown(SPANS, {0: rough}).spans["rest"].value == 0


def test_old_records_know_the_step_alone() -> None:
    found = breakdown(("step",), {0: np.full((50, 2, 1), 0.01)})
    assert (found.step_s.value, list(found.spans)) == (pytest.approx(0.01), ["step"])


def test_exposed_communication_is_the_difference_of_two_steps() -> None:
    kinds = np.repeat([1, 0, 0, 1, 1, 0, 0, 1], 5)
    held = 0
    for seed in range(40):
        rng = np.random.default_rng(seed)
        repeats = [(0.010 + 0.003 * kinds)[:, None] + rng.normal(0, 2e-4, (40, 1)) for _ in range(3)]
        found = exposed(repeats, [kinds] * 3)
        assert found is not None
        assert found.seconds.value == pytest.approx(0.003, rel=0.1)
        low, high = found.seconds.ends
        held += low < 0.003 < high
    assert held >= 32  # of 40, for a 90 % interval


@pytest.mark.parametrize("between_s", [0.0, 2e-4, 5e-4])
def test_exposed_communication_covers_how_repeats_differ(between_s: float) -> None:
    kinds = np.repeat([1, 0, 0, 1, 1, 0, 0, 1], 5)
    covered = []
    for seed in range(200):
        rng = np.random.default_rng(seed)
        costs = 0.002 + rng.normal(0, between_s, 3)
        repeats = [(0.010 + cost * kinds)[:, None] + rng.normal(0, 2e-4, (40, 1)) for cost in costs]
        found = exposed(repeats, [kinds] * 3)
        assert found is not None
        low, high = found.seconds.ends
        covered.append(low <= 0.002 <= high)
    assert np.mean(covered) >= 0.85


def test_exposed_communication_of_one_run_has_no_interval() -> None:
    found = exposed([np.full((8, 2), 0.01) + np.repeat([1, 0], 4)[:, None] * 0.003], [np.repeat([1, 0], 4)])
    assert found is not None
    assert found.seconds.value == pytest.approx(0.003)
    assert not found.seconds.has_interval


def test_no_blocks_no_figure() -> None:
    assert exposed([], []) is None
    assert exposed([np.ones((4, 2))], [np.ones(4)]) is None


def test_bandwidth_as_nccl_tests_defines_it() -> None:
    traffic = Traffic(bytes=4e6, seconds=0.002, workers=4)
    assert traffic.algbw == pytest.approx(2e9)
    assert traffic.busbw == pytest.approx(3e9)


def test_no_span_reaches_below_nothing() -> None:
    """Repeats of 0.01, 0.02 and 0.6 ms, and of 0: a symmetric interval around their mean would."""
    for rests in ((1e-5, 2e-5, 6e-4), (0.0, 2e-5, 6e-4)):
        repeats = {number: np.full((20, 1, 2), [0.01, rest]) for number, rest in enumerate(rests)}
        found = breakdown(("forward", "rest"), repeats).spans["rest"]
        assert found.low is not None
        assert found.high is not None
        assert 0 <= found.low < found.value < found.high
