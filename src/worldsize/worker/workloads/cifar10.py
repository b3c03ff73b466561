"""cifar10: 50,000 + 10,000 photographs of 32x32 in ten classes, read from the official binary batches."""

from __future__ import annotations

from worldsize.data.cifar import read_cifar10
from worldsize.spec import WorkloadSpec
from worldsize.worker.workloads import Places, Workload
from worldsize.worker.workloads.classes import classification

MEAN, DEVIATION = (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)
"""Of the training pixels."""


def load(spec: WorkloadSpec, places: Places) -> Workload:
    train_images, train_labels, test_images, test_labels = read_cifar10(places.data / "cifar10")
    train, test = (train_images, train_labels), (test_images, test_labels)
    return classification(
        spec, train, test, layout="channels-first", classes=10, model="resnet18", mean=MEAN, deviation=DEVIATION
    )
