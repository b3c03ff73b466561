"""Real training at four batches: the two smaller ones predict the two larger ones."""

from __future__ import annotations

import pytest

import worldsize
from tests.bench.batch_model import curves, held_out, medians
from worldsize.analysis.learning.variants import Goal
from worldsize.answer.results import Results

STUDY = """\
name: batches
workload: {name: digits, model: mlp}
axes:
  workers: [1]
  global_batch: [128, 256, 512, 1024]
  optimizer:
    - {name: momentum, lr: 0.005, lr_rule: linear}
    - {name: adam, lr: 0.0005, lr_rule: sqrt}
probe: false
train: {until: {metric: accuracy, at_least: 0.95, max_epochs: 20}, base_batch: 32}
repeats: 3
seed: 10
"""
TARGETS = (0.93, 0.94, 0.95)
"""All on the way to the last one, so that the same trials tell."""


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Results:
    """24 trainings, a minute or so on one core."""
    return worldsize.Study.from_text(STUDY, folder=tmp_path_factory.mktemp("batches") / "study").run()


@pytest.mark.long
def test_two_batches_predict_two_larger_ones(results: Results) -> None:
    trained, found = curves(results), []
    for variant in {curve.variant for curve in trained}:
        of_variant = [curve for curve in trained if curve.variant == variant]
        for value in TARGETS:
            found += held_out(of_variant, Goal(value=value, at_least=True))
    assert len([case for case in found if case.error is not None]) >= 10
    ours, constant_epochs = medians(found)
    assert ours <= 0.25
    assert ours < constant_epochs


@pytest.mark.long
def test_the_study_offers_its_models(results: Results) -> None:
    linear, adam = results.batch_studies
    assert linear.lr_power == pytest.approx(1)
    assert adam.lr_power == pytest.approx(0.5)
    for study in (linear, adam):
        assert study.steps is not None
        assert [batch.global_batch for batch in study.steps.batches] == [128, 256, 512, 1024]
        assert (study.steps.basis, study.steps.law) == ("batches", "holds")
        at = study.steps.predict(2048)
        measured = study.steps.batches[-1].steps
        assert at.steps is not None
        assert measured is not None
        assert 0.4 * measured < at.steps.value < measured
