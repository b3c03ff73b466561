"""digits: 12,000 + 2,000 handwritten digits that come with the package."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from worldsize.spec import WorkloadSpec
from worldsize.worker.workloads import Places, Workload
from worldsize.worker.workloads.classes import classification

MEAN, DEVIATION = (0.1307,), (0.3081,)
"""Of MNIST's training pixels."""


def load(spec: WorkloadSpec, places: Places) -> Workload:
    del places
    with np.load(Path(__file__).with_name("digits.npz"), allow_pickle=False) as arrays:
        train = arrays["train_images"], arrays["train_labels"]
        test = arrays["test_images"], arrays["test_labels"]
    return classification(
        spec, train, test, layout="grey", classes=10, model="plain-cnn", mean=MEAN, deviation=DEVIATION
    )
