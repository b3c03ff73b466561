"""The gradient noise scale of real training: from two processes, from micro-batches of one, and from single samples.

One launch runs all trials (trials.py); the tests read what they stored.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
import torch

from tests.system.trials import COMMON, NOISE, NOISE_BATCH, NOISE_STEPS
from worldsize.analysis.learning.noise_scale import NoiseScale, noise_scale, squared_norms
from worldsize.folder.study_folder import StudyFolder
from worldsize.spec.workload import WorkloadSpec
from worldsize.worker import workloads
from worldsize.worker.parallel.shards import epoch_order
from worldsize.worker.workloads.base import batch


def rows(trained: StudyFolder, name: str) -> list[npt.NDArray[np.float32]]:
    record = trained.record(NOISE[name].id)
    assert record is not None
    assert [file.name for file in record.noise] == [f"noise-rank{rank:02d}.npy" for rank in range(len(record.noise))]
    return [np.load(trained.trial(record.trial) / file.name, allow_pickle=False) for file in record.noise]


def measured(trained: StudyFolder, name: str) -> NoiseScale:
    small, big = squared_norms(rows(trained, name))
    return noise_scale(small, big, NOISE_BATCH / small.shape[1])


def test_two_workers_see_what_two_micro_batches_do(trained: StudyFolder) -> None:
    of_workers, alone = squared_norms(rows(trained, "workers")), squared_norms(rows(trained, "halves"))
    assert of_workers[0].shape == (NOISE_STEPS, 2)
    for ours, theirs in zip(of_workers, alone, strict=True):
        assert ours == pytest.approx(theirs, rel=1e-4)


def test_every_way_to_measure_agrees_with_single_samples(trained: StudyFolder) -> None:
    gradient_sq, variance = of_single_samples()
    for name in ("workers", "halves", "eighths"):
        found = measured(trained, name)
        assert found.variance == pytest.approx(variance, rel=0.1)
        assert found.value == pytest.approx(variance / gradient_sq, rel=0.25)
        assert found.low < variance / gradient_sq < found.high  # type: ignore[operator]


def of_single_samples() -> tuple[float, float]:
    """|mean gradient|^2 and tr(covariance), without bias, at the weights of the trials that stay as they are: of all
    their samples, and of every fifth of them."""
    workload = workloads.load(WorkloadSpec(name="digits"), workloads.DataFolders(data=Path(), cache=Path()))
    torch.manual_seed(COMMON["seed"])
    model = workload.build_model()
    count = NOISE_STEPS * NOISE_BATCH
    images, labels = batch(
        workload.train,
        torch.from_numpy(epoch_order(len(workload.train), COMMON["seed"], 0)[:count]),
        torch.device("cpu"),
    )
    images = workload.prepare(images)

    def square_norm(here: slice) -> float:
        loss = workload.loss(model(images[here]), labels[here]).mean()
        return sum(float(gradient.square().sum()) for gradient in torch.autograd.grad(loss, list(model.parameters())))

    of_all = square_norm(slice(None))
    of_one = float(np.mean([square_norm(slice(place, place + 1)) for place in range(0, count, 5)]))
    variance = (of_one - of_all) * count / (count - 1)
    return of_all - variance / count, variance


def test_measuring_changes_nothing(trained: StudyFolder) -> None:
    on, off = (np.load(trained.trial(NOISE[name].id) / "losses.npy") for name in ("on", "off"))
    assert len(on) == 14
    assert on[0] - on[-1] > 0.1  # equal curves of a dead model would prove nothing
    assert np.abs(on - off).max() < 1e-5


def test_partial_batches_are_left_out(trained: StudyFolder) -> None:
    of_each = rows(trained, "on")
    assert [array.shape for array in of_each] == [(14, 2)] * 2
    assert all(array.dtype == np.float32 for array in of_each)
    for array in of_each:
        assert np.isnan(array).any(axis=1).tolist() == [False] * 13 + [True]
    # The mean of two is no longer than they are on average; both ranks hold the same one.
    small, big = squared_norms(of_each)
    assert np.array_equal(of_each[0][:13, 1], of_each[1][:13, 1])
    assert (small.mean(axis=1) > big).all()
    assert (big > 0.5 * small.mean(axis=1)).all()  # what is left of the noise of 450 samples


def test_nothing_is_stored_where_nothing_is_measured(trained: StudyFolder) -> None:
    assert rows(trained, "off") == []
