"""The knee, the budget, the deadline and the limit, on tables made for it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from worldsize.analysis.estimate import Estimate
from worldsize.analysis.projection.choice import Option, choose, choose_knee, limit, marginal, pareto
from worldsize.analysis.projection.step_model import Parts
from worldsize.answer.predict.table_projection import Projection, choose_in_series


def around(value: float, width: float = 0.1) -> Estimate:
    return Estimate(value=value, low=value * (1 - width / 2), high=value * (1 + width / 2))


def option(workers: int, step_s: float, *, measured: bool = True, width: float = 0.1, **more: object) -> Option:
    """Weak scaling, batch 10 a worker, 10,000 samples."""
    steps = 1000 / workers
    fields: dict[str, object] = {
        "parts": Parts(load_s=0.0, compute_s=step_s, exposed_s=0.0),
        "steps": around(steps, 0.0),
        "overhead_s": 0.0,
        "wall_s": around(steps * step_s, width),
        "price": 2.0,
    }
    return Option(
        workers=workers,
        nodes=1,
        batch_per_worker=10,
        accumulation=1,
        measured=measured,
        samples_per_s=around(workers * 10 / step_s, width),
        step_s=around(step_s, width),
        epoch_s=around(steps * step_s, width),
        steps_per_epoch=steps,
        **{**fields, **more},  # type: ignore[arg-type]
    )


LINE = [option(1, 1.0), option(2, 1.1), option(4, 1.3), option(8, 2.2), option(16, 4.6)]


def test_the_knee_is_where_doubling_no_longer_pays() -> None:
    assert [round(marginal(LINE[i], LINE[i + 1]), 2) for i in range(4)] == [0.9, 0.82, 0.31, -0.09]
    assert choose_knee(LINE).knee.workers == 4
    assert choose_knee(LINE, margin=0.2).knee.workers == 8
    assert choose_knee(LINE[:1]).knee.workers == 1


def test_budget_and_deadline() -> None:
    # 2.0 a worker-hour: worker-seconds are 1000, 1100, 1300, 2200, 4600.
    found = choose(LINE, budget=1250 * 2 / 3600, deadline_s=600)
    assert found.fastest_in_budget is not None
    assert found.fastest_in_budget.workers == 2
    assert found.cheapest_in_time is not None
    assert found.cheapest_in_time.workers == 2
    nothing = choose(LINE, budget=0.01, deadline_s=1)
    assert nothing.fastest_in_budget is None
    assert nothing.cheapest_in_time is None


def test_pareto_leaves_out_what_is_beaten_in_both() -> None:
    assert pareto(LINE) == (1, 2, 4, 8)


def test_counts_whose_target_is_out_of_reach_are_not_chosen() -> None:
    lost = [LINE[0], LINE[1], *(replace(each, wall_s=None, steps=None) for each in LINE[2:])]
    found = choose(lost)
    assert found.knee.workers == 2
    assert found.pareto == (1, 2)


def test_a_wide_projection_is_no_advice() -> None:
    line = [option(1, 1.0), option(2, 1.05), option(4, 1.1, measured=False, width=0.8)]
    found = choose(line)
    assert found.knee.workers == 2
    assert found.unsure is not None
    assert found.unsure.workers == 4
    assert choose([*line[:2], option(4, 1.1, measured=False, width=0.2)]).knee.workers == 4


def test_a_vague_count_that_is_as_fast_is_not_passed_for_more_workers() -> None:
    line = [option(1, 1.0), option(2, 1.05), option(4, 1.15, measured=False, width=0.8), option(8, 2.4, measured=False)]
    found = choose(line)
    assert found.knee.workers == 2
    assert found.unsure is not None
    assert found.unsure.workers == 4


def test_without_a_count_known_well_it_is_a_guess() -> None:
    found = choose([option(4, 1.1, measured=False, width=0.8), option(8, 1.2, measured=False, width=0.9)])
    assert not found.sure
    assert found.knee.workers == 4
    assert choose(LINE).sure


def test_a_wide_projection_between_measured_counts_does_not_end_the_climb() -> None:
    line = [option(1, 1.0), option(2, 1.05), option(3, 1.1, measured=False, width=0.8), option(8, 1.3)]
    found = choose(line)
    assert found.knee.workers == 8
    assert found.unsure is None


@pytest.mark.parametrize(
    ("code", "changes"),
    [
        ("limit-communication", {"parts": Parts(load_s=0.0, compute_s=1.0, exposed_s=0.6)}),
        ("limit-compute", {"parts": Parts(load_s=0.0, compute_s=1.5, exposed_s=0.1)}),
        ("limit-data", {"parts": Parts(load_s=0.5, compute_s=1.0, exposed_s=0.1)}),
        ("limit-learning", {"steps": around(450.0)}),
        ("limit-above-the-step", {"overhead_s": 300.0}),
        ("nothing-limits", {}),
    ],
)
def test_the_limit_is_the_largest_loss(code: str, changes: dict[str, object]) -> None:
    found = limit(option(2, 1.0), option(4, 1.0, **changes))
    assert found is not None
    assert found.code == code


def test_losses_of_a_step_and_outside_of_steps_are_told_of_one_time() -> None:
    """A step that takes 40 % longer, where starting and evaluating take 300 s, and all steps 100 s."""
    before = option(2, 0.2, overhead_s=300.0, wall_s=around(400.0))
    parts = Parts(load_s=0.0, compute_s=0.2, exposed_s=0.08)
    after = option(4, 0.28, overhead_s=250.0, wall_s=around(320.0), parts=parts)
    found = limit(before, after)
    assert found is not None
    assert found.code == "limit-above-the-step"
    assert found.numbers["percent"] == pytest.approx(100 * (1 - 200 / 300))  # 100 s more than half of 300 s, on 200 s
    without = limit(replace(before, wall_s=None), replace(after, wall_s=None))
    assert without is not None
    assert without.code == "limit-communication"


def test_a_deadline_is_for_the_whole_training() -> None:
    of_an_epoch = [replace(each, wall_s=None, steps=None) for each in LINE]
    assert choose(of_an_epoch, deadline_s=1e6).cheapest_in_time is None
    assert choose(LINE, deadline_s=1e6).cheapest_in_time is not None


def test_where_nothing_learned_more_workers_that_nobody_trained_are_no_way_out() -> None:
    failed = [replace(each, learns=False, wall_s=None) for each in LINE[:2]]
    untrained = replace(LINE[2], wall_s=None, measured=False)
    found = choose([*failed, untrained])
    assert (found.knee.workers, found.sure) == (1, False)
    trained = replace(untrained, metric_measured=True, metric=around(0.9))
    assert choose([*failed, trained]).knee.workers == 4


def test_too_few_updates_an_epoch() -> None:
    found = limit(option(100, 1.0), option(400, 1.0))
    assert found is not None
    assert found.code == "limit-data-set-too-small"
    assert found.numbers["steps_per_epoch"] == 2.5


def as_in_a_table(line: Option) -> Projection:
    return Projection(
        workers=line.workers,
        samples_per_s=line.samples_per_s,
        expected=line.samples_per_s,
        unit="samples_per_s",
        measured=line.measured,
        notes=(),
    )


def test_a_table_chooses_as_a_study_does() -> None:
    rng = np.random.default_rng(0)
    chosen = set()
    for _ in range(300):
        steps = np.exp(rng.normal(0, 0.4, 5).cumsum() / 2)
        widths = rng.choice([0.1, 0.3, 0.9], 5)
        line = [
            option(2**power, float(step), measured=power < 2, width=float(width), wall_s=None)
            for power, (step, width) in enumerate(zip(steps, widths, strict=True))
        ]
        of_study, of_table = choose(line), choose_in_series([as_in_a_table(each) for each in line])
        for count in ("knee", "following", "unsure"):
            one, other = getattr(of_study, count), getattr(of_table, count)
            assert (one and one.workers) == (other and other.workers)
        assert of_study.sure == of_table.sure
        chosen.add((of_study.knee.workers, of_study.unsure is None))
    assert len(chosen) > 4
