"""linear: a linear regression with known Hessian, so that the largest stable learning rate is known too."""

from __future__ import annotations

import torch

from worldsize.data.linear import LinearOptions
from worldsize.spec.workload import WorkloadSpec
from worldsize.worker import models
from worldsize.worker.workloads import DataFolders
from worldsize.worker.workloads.base import Split, Workload

TEST_STREAM = 1
"""Random stream of the test data. The training data use stream 0."""


def load(spec: WorkloadSpec, folders: DataFolders) -> Workload:
    del folders
    options = LinearOptions.of(spec)
    train, test = (options.draw(stream) for stream in (0, TEST_STREAM))
    largest = train.largest_eigenvalue
    return Workload(
        train=Split(inputs=torch.from_numpy(train.inputs), targets=torch.from_numpy(train.targets)),
        test=Split(inputs=torch.from_numpy(test.inputs), targets=torch.from_numpy(test.targets)),
        build_model=lambda: models.build(
            spec.model or "linear", classes=1, channels=options.features, size=1, **spec.model_options
        ),
        prepare=lambda inputs: inputs[:, :, None, None],
        loss=lambda outputs, targets: (outputs - targets).square() / 2,
        theory={"largest_eigenvalue": largest, "largest_stable_rate": 2 / largest},
    )
