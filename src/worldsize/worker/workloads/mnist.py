"""mnist and fashion-mnist: 60,000 + 10,000 grey images of 28x28 in ten classes, read from the official files."""

from __future__ import annotations

from worldsize.data.idx import read_mnist
from worldsize.spec import WorkloadSpec
from worldsize.worker.workloads import Places, Workload
from worldsize.worker.workloads.classes import classification

STATISTICS = {"mnist": ((0.1307,), (0.3081,)), "fashion-mnist": ((0.2860,), (0.3530,))}
"""Mean and deviation of the training pixels."""


def load(spec: WorkloadSpec, places: Places) -> Workload:
    train_images, train_labels, test_images, test_labels = read_mnist(places.data / spec.name)
    mean, deviation = STATISTICS[spec.name]
    train, test = (train_images, train_labels), (test_images, test_labels)
    return classification(spec, train, test, layout="grey", classes=10, model="cnn", mean=mean, deviation=deviation)
