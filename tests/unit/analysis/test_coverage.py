"""Printed intervals contain the truth as often as they claim: a small share of `make bench-coverage`."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import numpy as np
import pytest

from tests.bench import coverage
from tests.bench.coverage import Case, Kind, Noise, Studies, grid, projected_studies, scaling_study
from worldsize.analysis.estimate import Estimate


@pytest.mark.parametrize("kind", ["independent", "two levels"])
def test_gains_of_the_next_count_cover_the_truth(kind: Kind) -> None:
    """Without the noise that other counts show, 80 % on two levels: a count that is almost always slow shows none."""
    studies = Studies(cases=partial(scaling_study, measure=grid, repeats=5), number=60)
    cases = coverage.simulate(studies, kind)["gain of the next count"]
    assert np.mean([case.inside for case in cases]) >= 0.85


def test_projections_of_studies_cover_a_new_run() -> None:
    """The average of step model and bare law, with the margin of a bare series, covers 65 %."""
    cases = coverage.simulate(Studies(cases=projected_studies, number=100), "independent")["projected study"]
    assert np.mean([case.inside for case in cases]) >= 0.75


def test_the_bench_tells_which_interval_is_too_narrow() -> None:
    def cases(noise: Noise) -> Iterator[Case]:
        narrow = noise.kind == "drift" and noise.rng.random() < 0.3
        yield Case(name="wide", estimate=Estimate(value=1.0, low=0.5, high=1.5), truth=1.0)
        yield Case(name="narrow", estimate=Estimate(value=1.0, low=0.5, high=0.9 if narrow else 1.5), truth=1.0)

    told = dict(coverage.rows(Studies(cases=cases, number=100), 1.0))
    assert list(told.values()) == [[], ["drift"]]
