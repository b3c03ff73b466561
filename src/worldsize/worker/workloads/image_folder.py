"""image-folder: any tree of images, one folder a class; decoded once, then read from memory-mapped pixels."""

from __future__ import annotations

from worldsize.data.folders import find_path
from worldsize.data.images import load_images
from worldsize.spec import WorkloadSpec
from worldsize.worker.workloads import Places, Workload
from worldsize.worker.workloads.classes import classification, pixel_statistics
from worldsize.worker.workloads.decoding import report

SIZE = 64


def load(spec: WorkloadSpec, places: Places) -> Workload:
    images = load_images(
        find_path(spec, places.data), spec.size or SIZE, places.cache, test_share=spec.test_share, on_progress=report
    )
    for name, reason in images.skipped:
        print(f"skipped {name!r}: {reason}")
    mean, deviation = pixel_statistics(images.train)
    return classification(
        spec,
        (images.train, images.train_labels),
        (images.test, images.test_labels),
        layout="channels-last",
        classes=len(images.classes),
        model="resnet18",
        mean=mean,
        deviation=deviation,
    )
