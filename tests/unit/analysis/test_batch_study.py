"""Trends against batch, and which trials make a model together."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from worldsize.analysis.estimate import Estimate
from worldsize.analysis.learning.larger_batches import (
    BatchStudy,
    Trend,
    TrendPoint,
    batch_studies,
    fit_trend,
    known_noise,
    lr_power,
)
from worldsize.analysis.learning.noise_scale import NoiseScale
from worldsize.analysis.learning.variants import Goal, TrainingRun
from worldsize.spec.setting import Setting
from worldsize.spec.training import StrategySpec


def points(values: dict[int, float], error: float | None) -> list[TrendPoint]:
    return [TrendPoint(global_batch=batch, value=value, error=error) for batch, value in values.items()]


def trend(values: dict[int, float], error: float | None = None, freedom: float = 0, **given: Any) -> Trend:
    found = fit_trend(points(values, error), freedom=freedom, **given)
    assert found is not None
    return found


def known(found: Trend, batch: int) -> Estimate:
    value = found.predict(batch).value
    assert value is not None
    return value


def test_a_line_is_found_and_extended() -> None:
    found = trend({64: 10.0, 128: 13.0, 512: 19.0}, error=0.5, freedom=6)
    assert found.per_doubling.value == pytest.approx(3)
    assert known(found, 1024).value == pytest.approx(22)
    assert known(found, 2048).value == pytest.approx(25)
    assert (found.predict(2049).value, found.predict(2049).unknown) == (None, "too-far")
    assert found.predict(15).unknown == "too-far"


def test_epochs_until_stable_read_by_eye_from_a_published_study() -> None:
    """15, 19, 20 and 25 epochs at batches of 64, 128, 128 and 256: it drew +5 a doubling, and 30 at 512."""
    by_eye = [*points({64: 15.0, 128: 19.0, 256: 25.0}, 1.0), *points({128: 20.0}, 1.0)]
    found = fit_trend(by_eye, freedom=0, lowest=1.0)
    assert found is not None
    assert found.per_doubling.value == pytest.approx(5, abs=0.2)
    assert found.per_doubling.high - found.per_doubling.low > 2
    assert known(found, 512).value == pytest.approx(29.75, abs=0.5)
    assert known(found, 512).low < 27 < 33 < known(found, 512).high


@pytest.mark.parametrize(("batches", "repeats"), [((64, 128), 3), ((64, 128, 256), 3), ((32, 64, 128, 256), 1)])
def test_intervals_cover_what_the_same_measurement_finds(batches: tuple[int, ...], repeats: int) -> None:
    covered, slopes = [], []
    for seed in range(300):
        rng = np.random.default_rng(seed)
        runs = {b: 0.9 - 0.01 * math.log2(b) + 0.004 * rng.normal(size=repeats) for b in batches}
        freedom = len(batches) * (repeats - 1)
        squares = sum(float(np.var(values)) * repeats for values in runs.values())
        error = math.sqrt(squares / freedom / repeats) if freedom else None
        found = trend({b: float(values.mean()) for b, values in runs.items()}, error, freedom)
        batch = 2 * batches[-1]
        value, new = known(found, batch), 0.9 - 0.01 * math.log2(batch) + 0.004 * rng.normal(size=repeats).mean()
        covered.append(value.low <= new <= value.high)
        slopes.append(found.per_doubling.low <= -0.01 <= found.per_doubling.high)
    assert 0.72 <= np.mean(covered) <= 0.92
    assert 0.72 <= np.mean(slopes) <= 0.92


@pytest.mark.parametrize("off", [1, 4])
def test_intervals_cover_batches_that_lie_off_the_line(off: float) -> None:
    """Where residuals give the scale, there are as many degrees of freedom as residuals, and not more."""
    covered, slopes, batches, repeats = [], [], (64, 128, 256), 3
    for seed in range(600):
        rng = np.random.default_rng(seed)
        lines = {b: 0.9 - 0.01 * math.log2(b) + 0.004 * off * rng.normal() for b in (*batches, 512)}
        runs = {b: lines[b] + 0.004 * rng.normal(size=repeats) for b in batches}
        freedom = len(batches) * (repeats - 1)
        error = math.sqrt(sum(float(np.var(values)) for values in runs.values()) / freedom)
        found = trend({b: float(values.mean()) for b, values in runs.items()}, error, freedom)
        value, new = known(found, 512), lines[512] + 0.004 * rng.normal(size=repeats).mean()
        covered.append(value.low <= new <= value.high)
        slopes.append(found.per_doubling.low <= -0.01 <= found.per_doubling.high)
    assert 0.75 <= np.mean(covered) <= 0.86
    assert 0.75 <= np.mean(slopes) <= 0.86


def test_two_batches_that_ran_once_do_not_say() -> None:
    curves = [trained(batch, [0.5, *[0.9 + 0.001 * (epoch % 2) for epoch in range(30)]]) for batch in (64, 128)]
    (study,) = batch_studies(curves, target=None)
    assert study.epochs_stable is None


def test_a_bend_widens_the_interval() -> None:
    line = trend({32: 1.0, 64: 2.0, 128: 3.0, 256: 4.0}, error=0.1, freedom=8)
    bent = trend({32: 1.0, 64: 1.0, 128: 1.0, 256: 4.0}, error=0.1, freedom=8)
    assert known(bent, 512).high - known(bent, 512).low > 3 * (known(line, 512).high - known(line, 512).low)


def test_data_that_do_not_say() -> None:
    assert fit_trend([], freedom=0) is None
    assert fit_trend(points({64: 0.9}, 0.01), freedom=2) is None
    assert fit_trend(points({64: 0.9, 128: 0.8}, None), freedom=0) is None  # any line fits two single runs
    assert trend({64: 0.9, 128: 0.8, 256: 0.72}).freedom == 1


def test_bounds_hold() -> None:
    found = trend({64: 0.97, 128: 0.99}, error=0.01, freedom=4, highest=1.0)
    assert (known(found, 512).value, known(found, 512).high) == (1.0, 1.0)
    assert known(found, 512).ends[0] < 1.0


DDP = StrategySpec()


def setting(batch: int, workers: int = 2, strategy: StrategySpec = DDP) -> Setting:
    return Setting(
        workers=workers, batch_per_worker=batch // workers, scaling="weak", strategy=strategy, precision="fp32"
    )


def trained(batch: int, metric: Sequence[float], **given: Any) -> TrainingRun:
    epochs = np.arange(1.0, len(metric) + 1)
    values: dict[str, Any] = {
        "setting": setting(batch),
        "variant": "momentum 0.9",
        "family": "momentum",
        "variant_without_lr": "momentum",
        "lr": 0.1,
        "scaled": batch / 32,
        "repeat": 0,
        "outcome": "finished",
        "steps": epochs * 3_200 / batch,
        "samples": epochs * 3_200,
        "seconds": epochs,
        "metric": np.array(metric),
        "train_metric": np.array([]),
        "final": metric[-1] if len(metric) else None,
    }
    return TrainingRun(**{**values, **given})


def one(curves: Sequence[TrainingRun], **given: Any) -> BatchStudy:
    (found,) = batch_studies(curves, **{"target": None, **given})
    return found


def slow(batch: int, repeat: int, metric: float = 0.5, **given: Any) -> TrainingRun:
    """Stable after 4 epochs at a batch of 32, 3 more for each doubling, with the noise of its seed."""
    epochs, noise = np.arange(1.0, 41.0), np.random.default_rng([batch, repeat]).normal(size=40)
    last = 4 + 3 * math.log2(batch / 32)
    values = metric * np.minimum(epochs / last, 1.0) + 0.002 * noise
    return trained(batch, list(values), repeat=repeat, **given)


def test_epochs_until_stable_against_batch() -> None:
    found = one([slow(batch, repeat) for batch in (32, 64, 128, 256) for repeat in range(3)])
    assert found.steps is None
    assert found.epochs_stable is not None
    assert found.epochs_stable.per_doubling.low < 3 < found.epochs_stable.per_doubling.high
    assert known(found.epochs_stable, 1024).value == pytest.approx(19, abs=2)


def test_batches_that_never_settle_or_diverge_end_what_is_known() -> None:
    curves = [slow(batch, repeat) for batch in (32, 64, 128) for repeat in range(3)]
    rising = [trained(256, list(np.linspace(0, 1, 40) + 0.001 * repeat), repeat=repeat) for repeat in range(3)]
    lost = [trained(512, [0.1], repeat=repeat, outcome="diverged", final=None) for repeat in range(3)]
    found = one([*curves, *rising, *lost])
    assert found.epochs_stable is not None
    assert found.metric is not None
    assert found.epochs_stable.predict(256).unknown == "failed-there"
    assert found.metric.fails_from == 512
    assert found.metric.predict(512).unknown == "failed-there"


def test_the_metric_at_a_larger_batch() -> None:
    rng = np.random.default_rng(0)
    curves = [
        trained(batch, [0.5, 0.95 - 0.01 * math.log2(batch / 32) + 0.001 * rng.normal()], repeat=repeat)
        for batch in (32, 64, 128)
        for repeat in range(3)
    ]
    found = one(curves, max_metric=1.0)
    assert found.metric is not None
    assert known(found.metric, 512).value == pytest.approx(0.91, abs=0.003)
    assert found.epochs_stable is None  # two epochs
    assert one(curves[:3]).metric is None
    assert one(curves, target=Goal(value=0.9, at_least=True)).metric is None


def test_the_rule_is_read_from_the_rates() -> None:
    assert lr_power([trained(batch, [0.5]) for batch in (32, 64, 256)]) == pytest.approx(1)
    root = [trained(batch, [0.5], scaled=math.sqrt(batch / 32)) for batch in (32, 128)]
    assert lr_power(root) == pytest.approx(0.5)
    assert lr_power(root[:1]) is None


def to_target(batch: int, epochs: float, **given: Any) -> TrainingRun:
    """Crosses 0.9 after so many epochs."""
    return trained(batch, list(0.9 * np.arange(1, math.ceil(epochs) + 1) / epochs), **given)


TARGET = Goal(value=0.9, at_least=True)


@pytest.mark.parametrize(
    ("family", "scaled", "power"),
    [("momentum", 0.5, 0.5), ("momentum", 1.0, 1.0), ("momentum", 0.0, 1.0), ("adam", 0.5, 1.0)],
)
def test_the_law_follows_the_rule_of_the_rate(family: str, scaled: float, power: float) -> None:
    curves = [to_target(b, 5.5, family=family, scaled=(b / 32) ** scaled) for b in (32, 64)]
    found = one(curves, target=TARGET)
    assert found.lr_power == pytest.approx(scaled)
    assert found.steps is not None
    assert found.steps.power == pytest.approx(power)


def noise(value: float | None, low: float | None = None) -> NoiseScale:
    return NoiseScale(
        value=value, low=low, high=None, steps=99, gradient_sq=1.0, variance=1.0, small_batch=8, big_batch=16
    )


def test_the_noise_scale_of_the_same_variant_counts_unless_rates_stay() -> None:
    scales = [(setting(32), "momentum 0.9", noise(300.0)), (setting(32), "other", noise(9.0))]
    found = one([to_target(32, 5.5)], target=TARGET, noise_scales=scales)
    assert found.steps is not None
    assert found.steps.basis == "noise-scale"
    unscaled = [to_target(batch, 5.5, scaled=1.0) for batch in (32, 64)]
    with_noise, without = (one(unscaled, target=TARGET, noise_scales=given) for given in (scales, []))
    assert with_noise.steps == without.steps


def test_the_largest_batch_knows_the_noise_best() -> None:
    scales = [(setting(32), noise(300.0)), (setting(128), noise(500.0)), (setting(256), noise(None, low=100.0))]
    assert known_noise(scales) == noise(500.0)
    assert known_noise([(setting(32), noise(None, low=5.0)), (setting(64), noise(None, low=9.0))]) == noise(None, 9.0)
    assert known_noise([(setting(32), noise(None))]) is None


def test_workers_do_not_tell_trials_apart_but_strategies_do() -> None:
    curves = [
        to_target(64, 5.5, setting=setting(64, workers=1)),
        to_target(64, 5.5, setting=setting(64, workers=4), repeat=1),
        to_target(64, 5.5, setting=setting(64, strategy=StrategySpec(name="zero"))),
    ]
    found = batch_studies(curves, target=TARGET)
    assert [(study.method.strategy.label, study.steps.batches[0].runs) for study in found if study.steps] == [
        ("ddp", 2),
        ("zero", 1),
    ]
