"""What a projection takes from a study's own probes."""

from __future__ import annotations

import pytest

from worldsize.analysis.estimate import Estimate
from worldsize.analysis.speed.network import Link
from worldsize.answer.from_records import _probed


def link(workers: int, latency_s: float) -> Link:
    latency, bandwidth = Estimate(value=latency_s), Estimate(value=1e9)
    return Link(workers=workers, latency_s=latency, bandwidth_bytes_per_s=bandwidth, sizes=(), misfit=0.0)


def test_a_link_probed_with_a_core_for_every_thread_is_preferred() -> None:
    links = [("inside", link(workers, workers * 1e-5)) for workers in (2, 8, 16, 4)]
    found = _probed(links, 16, 16)
    assert found is not None
    assert found.inside is not None
    assert found.inside.latency_s == pytest.approx(8e-5)
    on_gpus = _probed(links, 16, None)
    assert on_gpus is not None
    assert on_gpus.inside is not None
    assert on_gpus.inside.latency_s == pytest.approx(16e-5)


def test_a_link_probed_in_a_crowd_alone_is_taken_for_faster_than_it_read() -> None:
    """Two threads a core: what the crowd costs is in the model of the step, and not twice."""
    found = _probed([("inside", link(16, 2e-4)), ("across", link(2, 1e-3))], 16, 16)
    assert found is not None
    assert found.inside is not None
    assert found.inside.latency_s == pytest.approx(1e-4)
    assert found.inside.bandwidth_bytes_per_s == pytest.approx(2e9)
    assert found.across is not None
    assert found.across.latency_s == pytest.approx(1e-3)
    assert _probed([], 16, 16) is None


def test_between_nodes_the_most_count_and_nobody_crowds() -> None:
    """One rank a node: 20 nodes of 16 cores are no crowd."""
    found = _probed([("across", link(20, 2e-3)), ("across", link(2, 1e-3))], 16, 16)
    assert found is not None
    assert found.across is not None
    assert found.across.latency_s == pytest.approx(2e-3)
