"""n workers with batch b follow the loss curve of one worker with batch n*b: the promise of data parallelism."""

from __future__ import annotations

import numpy as np

from tests.system.trials import CURVE_STEPS, CURVES
from worldsize.folder.study_folder import StudyFolder


def test_curves_agree_on_sub_groups_of_one_launch(trained: StudyFolder) -> None:
    losses = {workers: np.load(trained.trial(each.id) / "losses.npy") for workers, each in CURVES.items()}
    assert len(losses[1]) == CURVE_STEPS
    assert losses[1][0] - losses[1][-1] > 0.3  # it learns: equal curves of a dead model would prove nothing
    for workers in (2, 4):
        assert np.abs(losses[workers] - losses[1]).max() < 1e-4
    records = {workers: trained.record(each.id) for workers, each in CURVES.items()}
    accuracies = {record.metrics["accuracy"] for record in records.values() if record}
    assert max(accuracies) - min(accuracies) <= 0.001
    assert all(record is not None and record.epochs[0].test_samples == 2_000 for record in records.values())
