"""Fits with coefficients that are not negative, by themselves and in every model that uses them."""

from __future__ import annotations

import numpy as np
import pytest

from worldsize.analysis.estimate import fit_nonnegative
from worldsize.analysis.projection.bare import NOTE_NOT_CONVERGED, project_series
from worldsize.analysis.projection.classical_laws import fit_amdahl, fit_gustafson, fit_usl
from worldsize.analysis.projection.overhead import Overhead, fit_overhead
from worldsize.analysis.projection.series_law import table_series
from worldsize.analysis.projection.step_model import Node, StepTiming, fit_throughput

COUNTS = np.array([1.0, 2, 4, 8])
TERMS = np.stack([np.ones(4), COUNTS, 1e6 * COUNTS**2], axis=1)
SERIES = [(1, 100.0), (2, 196.0), (4, 384.0), (8, 750.0)]


def test_a_known_law_is_found_whatever_the_size_of_its_terms() -> None:
    fit = fit_nonnegative(TERMS, TERMS @ [3.0, 2.0, 1e-7], weights=1 / COUNTS)
    assert fit.converged
    assert fit.coefficients == pytest.approx([3.0, 2.0, 1e-7])


def test_no_coefficient_is_negative_and_what_rounding_leaves_is_none() -> None:
    falling = fit_nonnegative(TERMS, 10 - COUNTS, weights=np.ones(4))
    assert falling.coefficients.tolist()[1:] == [0.0, 0.0]
    assert falling.coefficients[0] == pytest.approx(np.mean(10 - COUNTS))
    assert fit_nonnegative(TERMS * [1, 0, 1], TERMS @ [0, 2.0, 0], weights=np.ones(4)).coefficients[1] == 0


def test_the_pull_decides_what_the_values_leave_open() -> None:
    towards, pull = np.array([0.0, 5.0]), np.array([0.0, 0.1])
    both = fit_nonnegative(np.ones((3, 2)), np.full(3, 7.0), weights=np.ones(3), pull=pull, towards=towards)
    assert both.coefficients == pytest.approx([2.0, 5.0])
    against = fit_nonnegative(np.eye(2), np.array([1.0, 1.0]), weights=np.ones(2), pull=10 * pull, towards=towards)
    assert against.coefficients == pytest.approx([1.0, (1 + 5) / 2])


def timing(workers: int, batch: int) -> StepTiming:
    local_s = 2e-3 + 1e-4 * batch * (1 + 0.02 * (workers - 1))
    exchange_s = 1e-3 * (1 - 1 / workers)
    return StepTiming(workers=workers, batch_per_worker=batch, step_s=local_s + exchange_s, local_s=local_s)


def test_a_solver_that_gives_up_leaves_every_model_usable(monkeypatch: pytest.MonkeyPatch) -> None:
    timings = [timing(workers, batch) for workers in (1, 2, 4) for batch in (16, 32)]
    trained = [
        Overhead(
            workers=n, workers_on_node=n, start_s=2.0, preparation_s=1.0 + 0.1 * n, evaluation_s=1 / n, saving_s=0.0
        )
        for n in (1, 2, 4)
    ]
    calls = 0

    def gives_up(*_: object) -> None:
        nonlocal calls
        calls += 1
        raise RuntimeError("Maximum number of iterations reached.")

    monkeypatch.setattr("worldsize.analysis.estimate.nnls", gives_up)
    step_s = fit_throughput(timings, Node(workers_per_node=8)).parts(8, 32).step_s
    assert step_s == pytest.approx(timing(8, 32).step_s, rel=0.1)
    assert calls > 1
    overhead = fit_overhead(trained)
    assert overhead is not None
    assert overhead.at(4, 4, evaluations=2).value == pytest.approx(3.9, rel=0.1)
    (projected,) = project_series(table_series(SERIES), [16])
    assert NOTE_NOT_CONVERGED in projected.notes
    assert projected.samples_per_s.value == pytest.approx(1500, rel=0.1)
    for fit in (fit_amdahl, fit_gustafson, fit_usl):
        law = fit(*zip(*SERIES, strict=True))
        assert not law.converged
        assert law.throughput(8) == pytest.approx(750, rel=0.1)
