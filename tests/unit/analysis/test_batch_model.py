"""Steps to a target against batch: a known law in, the same law and honest intervals out."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from worldsize.analysis.estimate import Estimate
from worldsize.analysis.learning.noise_scale import NoiseScale
from worldsize.analysis.learning.steps_to_target import (
    BatchModel,
    StepsPrediction,
    TargetRun,
    by_batch,
    fit_batches,
    target_run,
)
from worldsize.analysis.learning.variants import Goal, TrainingRun
from worldsize.spec.setting import Setting
from worldsize.spec.training import StrategySpec

LEAST = 100.0
"""S_min."""


def steps(batch: int, critical: float, power: float = 1.0) -> float:
    return LEAST * (1 + (critical / batch) ** power)


def runs(
    batches: Sequence[int], critical: float, *, noise: float = 0.0, repeats: int = 3, seed: int = 0, power: float = 1.0
) -> list[TargetRun]:
    rng = np.random.default_rng(seed)
    return [
        TargetRun(
            global_batch=batch, steps=steps(batch, critical, power) * math.exp(noise * rng.normal()), ran_steps=1e6
        )
        for batch in batches
        for _ in range(repeats)
    ]


def missed(batch: int, ran: float = 1_000.0, *, diverged: bool = False) -> TargetRun:
    return TargetRun(global_batch=batch, steps=None, ran_steps=ran, diverged=diverged)


def fitted(given: Sequence[TargetRun], **more: Any) -> BatchModel:
    model = fit_batches(given, **more)
    assert model is not None
    return model


def known(prediction: StepsPrediction) -> Estimate:
    assert prediction.steps is not None, prediction
    return prediction.steps


def noise_scale(value: float | None, low: float | None = None) -> NoiseScale:
    return NoiseScale(
        value=value, low=low, high=None, steps=100, gradient_sq=1.0, variance=1.0, small_batch=8, big_batch=16
    )


@pytest.mark.parametrize("critical", [50.0, 200.0, 800.0])
def test_a_law_without_noise_is_found(critical: float) -> None:
    model = fitted(runs((32, 64, 128, 256), critical))
    assert model.critical_batch.value == pytest.approx(critical, rel=0.15)
    assert model.least_steps.value == pytest.approx(LEAST, rel=0.15)
    assert known(model.predict(1024)).value == pytest.approx(steps(1024, critical), rel=0.06)
    assert (model.basis, model.law, model.fails_from) == ("batches", "holds", None)


def test_a_law_with_noise_is_found_within_it() -> None:
    found = [fitted(runs((16, 64, 256, 1024), 200.0, noise=0.1, seed=seed)) for seed in range(100)]
    for quantity, truth in (("critical_batch", 200.0), ("least_steps", LEAST)):
        ends = [getattr(model, quantity) for model in found]
        assert np.median([abs(end.value / truth - 1) for end in ends]) < 0.12
        assert 0.70 <= np.mean([end.low <= truth <= end.high for end in ends]) <= 0.92


@pytest.mark.parametrize(
    ("batches", "repeats", "noise", "error"),
    [((32, 64, 128, 256), 3, 0.1, 0.15), ((32, 64, 128, 256), 1, 0.1, 0.25), ((32, 128), 3, 0.15, 0.25)],
)
def test_held_out_batches_lie_in_their_intervals_as_often_as_these_say(
    batches: tuple[int, ...], repeats: int, noise: float, error: float
) -> None:
    rng = np.random.default_rng(5)
    covered, errors = [], []
    for seed in range(100):
        critical = math.exp(rng.uniform(math.log(16), math.log(4096)))
        model = fitted(runs(batches, critical, noise=noise, repeats=repeats, seed=seed))
        for batch in (2 * batches[-1], 4 * batches[-1]):
            if model.predict(batch).steps is None:
                continue
            found = known(model.predict(batch))
            covered.append(found.low <= steps(batch, critical) * math.exp(noise * rng.normal()) <= found.high)
            errors.append(abs(found.value / steps(batch, critical) - 1))
    assert len(covered) > 190
    assert 0.70 <= np.mean(covered) <= 0.92
    assert np.median(errors) < error


def test_rates_that_grow_as_the_square_root_save_fewer_steps() -> None:
    model = fitted(runs((32, 64, 128, 256), 2_000.0, power=0.5), power=0.5)
    assert known(model.predict(1024)).value == pytest.approx(steps(1024, 2_000.0, 0.5), rel=0.06)


def test_one_batch_says_only_what_steps_lie_between() -> None:
    model = fitted(runs((64,), 100.0, noise=0.05))
    at, found = model.batches[0].steps, known(model.predict(256))
    assert model.basis == "one-batch"
    assert at is not None
    assert found.low < 0.30 * at  # examples stay constant: a quarter
    assert found.high > 0.85 * at  # steps do


def test_one_batch_and_the_noise_scale_say_more() -> None:
    alone = known(fitted(runs((64,), 400.0, noise=0.05)).predict(512))
    model = fitted(runs((64,), 400.0, noise=0.05), noise=noise_scale(200.0))
    found = known(model.predict(512))
    assert model.basis == "noise-scale"
    assert found.value == pytest.approx(steps(512, 400.0), rel=0.15)
    assert found.high / found.low < 0.7 * alone.high / alone.low


def test_a_bound_of_the_noise_scale_is_a_bound() -> None:
    model = fitted(runs((64,), 400.0, noise=0.05), noise=noise_scale(None, low=2_000.0))
    assert model.basis == "noise-scale"
    assert model.critical_batch.low > 1_000
    assert known(model.predict(128)).value == pytest.approx(steps(64, 400.0) / 2, rel=0.1)
    for nothing in (noise_scale(None), noise_scale(0.0, low=0.0)):
        assert fitted(runs((64,), 400.0), noise=nothing).basis == "one-batch"


def test_many_batches_outweigh_the_noise_scale() -> None:
    given = runs((16, 64, 256, 1024), 200.0, noise=0.03)
    assert fitted(given, noise=noise_scale(5_000.0)).critical_batch.value == pytest.approx(200, rel=0.25)


def test_a_batch_that_misses_the_target_is_evidence() -> None:
    """Where examples stay constant 512 would take 80 steps; after 300 the target was not met."""
    rng = np.random.default_rng(0)
    few = [
        TargetRun(global_batch=batch, steps=320 * 128 / batch * math.exp(0.1 * rng.normal()), ran_steps=1e6)
        for batch in (64, 128)
        for _ in range(3)
    ]
    without, model = fitted(few), fitted([*few, *[missed(512, 300.0)] * 3])
    assert model.fails_from == 512
    assert model.critical_batch.value < 0.5 * without.critical_batch.value
    assert known(model.predict(256)).value > 1.1 * known(without.predict(256)).value
    for batch in (512, 1024):
        assert (model.predict(batch).steps, model.predict(batch).unknown) == (None, "not-reached-there")


def test_what_diverged_says_where_but_not_how_many_steps() -> None:
    given = runs((64, 128), 200.0, noise=0.05)
    model = fitted([*given, *[missed(512, 300.0, diverged=True)] * 2])
    assert (model.fails_from, model.batches[-1].diverged) == (512, 2)
    assert model.critical_batch == fitted(given).critical_batch


def test_one_miss_in_three_is_no_end_and_small_batches_that_miss_are_none() -> None:
    few = runs((64, 128, 256), 200.0, noise=0.05)[:-1]
    model = fitted([missed(16), *few, missed(256)])
    assert model.fails_from is None
    assert known(model.predict(512)).value == pytest.approx(steps(512, 200.0), rel=0.3)


def test_steps_that_rise_contradict_the_law_and_are_not_extended() -> None:
    given = runs((32, 64, 128), 1_000.0, noise=0.05)
    late = [TargetRun(global_batch=256, steps=2_000.0 + number, ran_steps=1e6) for number in range(3)]
    model = fitted([*given, *late])
    assert model.law == "steps-rise"
    assert model.predict(512).unknown == "steps-rise"
    inside = known(model.predict(128))
    assert inside.high / inside.low > 1.5  # the misfit is seen in the intervals


def test_steps_that_fall_faster_than_the_batch_grows_are_said_so() -> None:
    given = [TargetRun(global_batch=b, steps=1e5 / b**1.5 + k, ran_steps=1e6) for b in (16, 32, 64) for k in range(3)]
    model = fitted(given)
    assert model.law == "examples-fall"
    assert known(model.predict(128)).value < 1e5 / 64**1.5


def test_too_far_is_not_known() -> None:
    model = fitted(runs((32, 64), 200.0))
    assert model.predict(64 * 16).unknown is None
    assert model.predict(64 * 17).unknown == "too-far"
    assert model.predict(1).unknown == "too-far"


def test_intervals_widen_with_the_distance_and_the_doubt() -> None:
    model = fitted(runs((32, 64, 128), 200.0, noise=0.05))
    widths = [end.high / end.low for end in (known(model.predict(batch)) for batch in (128, 512, 2048))]
    assert widths == sorted(widths)
    vague = [
        TargetRun(global_batch=run.global_batch, steps=run.steps, doubt=0.3, ran_steps=run.ran_steps)
        for run in runs((32, 64, 128), 200.0, noise=0.05)
    ]
    found = known(fitted(vague).predict(512))
    assert found.high / found.low > 1.3 * widths[1]


def test_nothing_reached_is_no_model() -> None:
    assert fit_batches([]) is None
    assert fit_batches([missed(64), missed(128, diverged=True)]) is None


def curve(metric: Sequence[float], per_epoch: int = 100, **given: Any) -> TrainingRun:
    epochs = np.arange(1.0, len(metric) + 1)
    values: dict[str, Any] = {
        "setting": Setting(workers=2, batch_per_worker=16, scaling="weak", strategy=StrategySpec(), precision="fp32"),
        "variant": "sgd",
        "family": "sgd",
        "variant_without_lr": "sgd",
        "lr": 0.1,
        "scaled": 1.0,
        "repeat": 0,
        "outcome": "finished",
        "steps": per_epoch * epochs,
        "samples": epochs,
        "seconds": epochs,
        "metric": np.array(metric),
        "train_metric": np.array([]),
        "final": metric[-1] if len(metric) else None,
    }
    return TrainingRun(**{**values, **given})


def test_the_target_is_found_between_evaluations() -> None:
    run = target_run(curve([0.5, 0.8, 0.9]), Goal(value=0.85, at_least=True))
    assert run.steps == pytest.approx(math.sqrt(200 * 300))
    assert (run.global_batch, run.ran_steps) == (32, 300)
    assert 0.04 < run.doubt < 0.08
    falling = target_run(curve([1.0, 0.5], goal=np.array([4.0, 2.0])), Goal(value=2.0, at_least=False))
    assert falling.steps == pytest.approx(200)


def test_a_target_met_at_once_is_known_badly_and_one_never_met_not_at_all() -> None:
    first = target_run(curve([0.9, 0.95]), Goal(value=0.85, at_least=True))
    assert first.steps == 50
    assert first.doubt > 0.5
    never = target_run(curve([0.1, 0.2]), Goal(value=0.85, at_least=True))
    assert (never.steps, never.ran_steps, never.diverged) == (None, 200, False)
    lost = target_run(curve([], outcome="diverged"), Goal(value=0.85, at_least=True))
    assert (lost.steps, lost.ran_steps, lost.diverged) == (None, 0, True)
    unknown_before = target_run(curve([math.nan, 0.9]), Goal(value=0.85, at_least=True))
    assert unknown_before.steps == pytest.approx(math.sqrt(100 * 200))


@pytest.mark.parametrize("epochs", [3, 10])
def test_interpolating_between_evaluations_is_nearer_than_they_are(epochs: int) -> None:
    """Accuracy 1 - 0.5 / (1 + s / 300): the step of the target is known exactly."""
    errors, doubts = [], []
    for value in np.linspace(0.6, 0.9, 40):
        truth = 300 * (0.5 / (1 - value) - 1)
        per_epoch = max(int(truth / (epochs - 0.5)), 1)
        metric = [1 - 0.5 / (1 + s / 300) for s in per_epoch * np.arange(1, 2 * epochs)]
        run = target_run(curve(metric, per_epoch), Goal(value=float(value), at_least=True))
        assert run.steps is not None
        errors.append(abs(math.log(run.steps / truth)))
        doubts.append(run.doubt)
    assert max(errors) < 2 * max(doubts)


def test_runs_of_one_batch_are_one_geometric_mean() -> None:
    (found,) = by_batch([*(TargetRun(global_batch=8, steps=s, doubt=0.1, ran_steps=99) for s in (50, 200)), missed(8)])
    assert found.steps == pytest.approx(100)
    assert (found.runs, found.reached, found.fails, found.doubt) == (3, 2, False, pytest.approx(0.1))


@pytest.mark.parametrize("batches", [2, 3, 6])
@pytest.mark.parametrize("off", [0.0, 0.05])
def test_steps_that_stay_the_same_are_rarely_said_to_rise(batches: int, off: float) -> None:
    """The largest batch is compared with the best of the others, which noise alone makes good."""

    def share_of_alarms(rise: float) -> float:
        alarms = 0
        for seed in range(200):
            rng = np.random.default_rng(seed)
            steps: dict[int, list[float]] = {}
            for number in range(batches):
                shift = off * rng.normal() + (rise if number == batches - 1 else 0.0)
                steps[32 * 2**number] = [1000 * math.exp(shift + 0.08 * rng.normal()) for _ in range(3)]
            made = [
                TargetRun(global_batch=batch, steps=value, ran_steps=value)
                for batch, values in steps.items()
                for value in values
            ]
            model = fit_batches(made)
            assert model is not None
            alarms += model.law == "steps-rise"
        return alarms / 200

    assert share_of_alarms(0.0) <= 0.06
    assert share_of_alarms(0.5) >= 0.95
