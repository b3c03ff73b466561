"""What lies above the step, by worker count."""

from __future__ import annotations

import math

import numpy as np
import pytest

from worldsize.analysis.projection.overhead import Overhead, fit_overhead


def above(workers: int) -> Overhead:
    return Overhead(
        workers=workers,
        workers_on_node=workers,
        start_s=4.0 + 0.5 * workers,
        preparation_s=2.0,
        evaluation_s=8 / workers,
        saving_s=0,
    )


def test_what_shrinks_and_what_grows() -> None:
    model = fit_overhead([above(workers) for workers in (1, 2, 4) for _ in range(3)])
    assert model is not None
    assert model.at(2, 2, 0).value == pytest.approx(7.0, rel=0.05)
    # Evaluations are shared out, starts add up: towards the laws, pulled a little towards staying as they are.
    assert 0 < model.at(8, 8, 10).value - model.at(8, 8, 0).value < 25
    assert model.at(8, 8, 0).value > model.at(4, 4, 0).value
    assert model.at(64, 8, 0).value == pytest.approx(model.at(8, 8, 0).value, rel=0.05)


def test_one_count_stays_as_it_is() -> None:
    model = fit_overhead([above(2)])
    assert model is not None
    assert model.at(16, 16, 0).value == pytest.approx(7.0, rel=0.3)


def test_nothing_trained() -> None:
    assert fit_overhead([]) is None


def test_the_interval_widens_away_from_what_was_trained() -> None:
    model = fit_overhead([above(workers) for workers in (1, 2, 4)])
    assert model is not None
    widths = [model.at(workers, min(workers, 8), 5).relative_width for workers in (4, 8, 64)]
    assert 0.1 < widths[0] < widths[1] < widths[2]


@pytest.mark.parametrize(("counts", "runs"), [((1, 2, 4), 1), ((1, 2, 4), 3), ((1, 2), 1), ((2,), 3)])
@pytest.mark.parametrize("vary", [0.1, 0.2])
def test_the_interval_covers_the_next_run_of_a_trained_count(counts: tuple[int, ...], runs: int, vary: float) -> None:
    rng = np.random.default_rng(7)

    def run(workers: int) -> Overhead:
        start, preparation, evaluation, saving = np.exp(vary * rng.normal(size=4))
        return Overhead(
            workers=workers,
            workers_on_node=workers,
            start_s=(4 + 0.3 * workers) * start,
            preparation_s=(2 + 0.1 * workers) * preparation,
            evaluation_s=(0.2 + 1.5 / workers) * evaluation,
            saving_s=0.3 * saving,
        )

    covered = []
    for _ in range(300):
        model = fit_overhead([run(workers) for workers in counts for _ in range(runs)])
        assert model is not None
        for workers in counts:
            new, interval = run(workers), model.at(workers, workers, 1)
            seconds = math.fsum((new.start_s, new.preparation_s, new.evaluation_s, new.saving_s))
            covered.append(interval.low <= seconds <= interval.high)
    assert np.mean(covered) >= 0.75
