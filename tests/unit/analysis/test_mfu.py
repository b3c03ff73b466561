"""Utilization from a known throughput."""

from __future__ import annotations

import pytest

from worldsize.analysis.estimate import Estimate
from worldsize.analysis.speed.hardware import mfu


def test_it_is_the_share_of_the_peak_of_all_workers() -> None:
    found = mfu(Estimate(value=128.0, low=120.0, high=140.0), flop_per_sample=1e9, workers=4, peak_flop_s=1e11)
    assert (found.value, found.low, found.high) == pytest.approx((0.32, 0.30, 0.35))
