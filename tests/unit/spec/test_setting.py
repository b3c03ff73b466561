"""Settings: which of them lie on one scaling curve, and which are compared at all."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from worldsize.answer.as_dict import flat_setting, plain_setting
from worldsize.plan.grid import study_points
from worldsize.plan.plan import make_plan
from worldsize.spec.file import StudyFile
from worldsize.spec.setting import Setting, setting_order
from worldsize.spec.training import StrategySpec

WEAK = Setting(workers=2, batch_per_worker=32, scaling="weak", strategy=StrategySpec(), precision="fp32")
STRONG = replace(WEAK, scaling="strong")


def test_a_series_keeps_the_batch_per_worker_or_the_global_batch() -> None:
    assert WEAK.series == replace(WEAK, workers=8).series
    assert STRONG.series != replace(STRONG, workers=8).series
    assert STRONG.series == replace(STRONG, workers=8, batch_per_worker=8).series
    assert (WEAK.series.batch, STRONG.series.batch) == (32, 64)


@pytest.mark.parametrize("setting", [WEAK, STRONG, replace(STRONG, accumulation=4)])
def test_another_count_stays_in_the_series(setting: Setting) -> None:
    other = setting.with_workers(4)
    assert other.workers == 4
    assert other.series == setting.series
    assert setting.with_workers(2) == setting


@pytest.mark.parametrize(
    "changes",
    [
        {"accumulation": 2},
        {"strategy": StrategySpec(name="zero")},
        {"strategy": StrategySpec(bucket_mb=1.0)},
        {"precision": "bf16"},
        {"place": "t4"},
        {"scaling": "strong"},
    ],
)
def test_what_trains_differently_is_of_another_method(changes: dict[str, Any]) -> None:
    other = replace(WEAK, **changes)
    assert other.method != WEAK.method
    assert other.series != WEAK.series
    assert flat_setting(WEAK) != flat_setting(other)


def test_parts_of_a_batch_do_not_change_what_is_learned() -> None:
    assert replace(WEAK, accumulation=4).method.undivided == WEAK.method.undivided


def test_counts_and_batches_do_not_change_the_method() -> None:
    assert replace(WEAK, workers=8, batch_per_worker=64).method == WEAK.method


def test_settings_are_sorted_by_place_and_label_before_counts() -> None:
    zero = replace(WEAK, strategy=StrategySpec(name="zero"), workers=1)
    settings = [replace(WEAK, place="b"), zero, replace(WEAK, workers=4), WEAK]
    assert sorted(settings, key=setting_order) == [WEAK, replace(WEAK, workers=4), zero, replace(WEAK, place="b")]


def test_in_json_a_setting_is_flat() -> None:
    setting = replace(WEAK, strategy=StrategySpec(name="local-sgd", every=4), accumulation=2, place="t4")
    assert plain_setting(setting) == {
        "workers": 2,
        "batch_per_worker": 32,
        "accumulation": 2,
        "scaling": "weak",
        "strategy": "local-sgd every 4",
        "precision": "fp32",
        "place": "t4",
    }
    assert flat_setting(setting) == {**plain_setting(setting), "global_batch": 128}


@pytest.mark.parametrize("batches", ["batch_per_worker: [32, 64]", "global_batch: [64, 128]"])
def test_points_and_their_trials_have_the_same_settings(batches: str) -> None:
    axes = f"{{workers: [1, 2], {batches}, accumulation: [1, 2], strategy: [ddp, zero]}}"
    spec = StudyFile(
        f"name: s\nworkload: digits\naxes: {axes}\ntrain: {{epochs: 1, base_batch: 32}}\n", "s.yaml"
    ).spec()
    points = study_points(spec)
    assert {point.setting for point in points} == {trial.setting for trial in make_plan(spec).trials.values()}
    assert all(point.setting.global_batch == point.global_batch for point in points)
