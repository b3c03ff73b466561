"""Facts about a workload that the driver needs before training: sizes, metric, unit, rough cost per sample.

Counting only lists files, reads the rows of a table or the length of a file. It decodes nothing and does not import
torch. A user's own workload is queried in a separate process (`worldsize.worker.workloads.own`).
"""

from __future__ import annotations

import math
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from worldsize.data.sets import find_path
from worldsize.errors import DataError, did_you_mean, shorten
from worldsize.spec.base import Frozen, Label
from worldsize.spec.workload import WorkloadSpec


@dataclass(frozen=True, kw_only=True)
class Metric:
    """Properties of a metric that hold for any workload."""

    higher_is_better: bool
    least: float = -math.inf
    most: float = math.inf
    """Bounds of the metric."""
    is_counted: bool = False
    """Whether the metric is a share of the test samples, which changes in steps of one sample."""


METRICS = {
    "accuracy": Metric(higher_is_better=True, least=0.0, most=1.0, is_counted=True),
    "top5": Metric(higher_is_better=True, least=0.0, most=1.0, is_counted=True),
    "r2": Metric(higher_is_better=True, most=1.0),
    "loss": Metric(higher_is_better=False),
    "mae": Metric(higher_is_better=False),
    "rmse": Metric(higher_is_better=False),
    "bits_per_byte": Metric(higher_is_better=False),
}
"""Metrics by name. A user's own workload may measure others."""


def metric_bounds(metric: str) -> tuple[float, float]:
    """Return the lower and upper bound of a metric; infinite if unknown."""
    properties = METRICS.get(metric)
    return (properties.least, properties.most) if properties else (-math.inf, math.inf)


class WorkloadFacts(Frozen):
    title: str
    train_samples: int
    test_samples: int
    metric: Label
    """The metric quoted in the answer."""
    higher_is_better: bool = True
    metrics: tuple[Label, ...] = ()
    """All measured metrics, including the loss. A target can name any of them."""
    classifies: bool = False
    """Whether targets are classes, so that label smoothing applies."""
    unit: Label = "samples"
    units_per_sample: int = 1
    """For text, a sample is a window of tokens, and throughput is counted in tokens."""
    train_flop_per_sample: float
    """FLOP of the forward and backward pass of the built-in model. Used only for estimates before any measurement."""


class Counts(NamedTuple):
    """Facts that depend on the data of a workload."""

    train: int
    test: int
    units_per_sample: int = 1
    without: tuple[Label, ...] = ()
    """Metrics that do not apply to this data."""


@dataclass(frozen=True, kw_only=True)
class Entry:
    """A built-in workload: its fixed facts, the fields it accepts, and how to count its samples."""

    data: str
    """Description of its data."""
    model: str = ""
    """Description of its default model."""
    metric: Label = "accuracy"
    metrics: tuple[Label, ...] = ("loss", "accuracy", "top5")
    classifies: bool = True
    unit: Label = "samples"
    flop: float
    """FLOP of the forward and backward pass of one sample, with the default model."""
    side: int | None = None
    """Side length of its images in pixels, to estimate the cost of another model. None: no estimate."""
    takes: tuple[str, ...] = ()
    """Fields of WorkloadSpec that it accepts, besides those of every workload."""
    needs: tuple[str, ...] = ()
    dataset: str | None = None
    """The data set it needs, by its name in `worldsize data fetch`."""
    count: Callable[[WorkloadSpec, Path], Counts]


FLOP_PER_PIXEL = {"plain-cnn": 1.1e4, "cnn": 1.4e4, "mlp": 6e3, "softmax": 60, "resnet18": 3.3e6, "resnet50": 7.8e6}
"""Rough FLOP of the forward and backward pass per pixel, with the stem for small images. For estimates only."""


def _flop(model: str, side: int) -> float:
    return FLOP_PER_PIXEL.get(model, 3.3e6) * side * side / (15 if side > 64 else 1)


def _count_images(spec: WorkloadSpec, root: Path) -> Counts:
    from worldsize.data.images import list_images

    folder = list_images(find_path(spec, root), test_fraction=spec.test_fraction)
    without = ("top5",) if len(folder.classes) <= 5 else ()
    return Counts(len(folder.train), len(folder.test), without=without)


def _count_frames(spec: WorkloadSpec, root: Path) -> Counts:
    from worldsize.data.steering import read_rows

    rows = len(read_rows(find_path(spec, root)))
    test = min(max(round(rows * spec.test_fraction), 1), rows - 1)
    return Counts(rows - test, test)


def _count_windows(spec: WorkloadSpec, root: Path) -> Counts:
    from worldsize.data.text import TextOptions, windows

    options = TextOptions.of(spec)
    length = find_path(spec, root).stat().st_size if spec.path else options.length
    return Counts(*windows(length, options.context, spec.test_fraction), units_per_sample=options.context)


def _count_points(spec: WorkloadSpec, _root: Path) -> Counts:
    from worldsize.data.linear import LinearOptions

    samples = LinearOptions.of(spec).samples
    return Counts(samples, samples)


def _images(data: str, model: str, flop: float, side: int, counts: Counts, dataset: str | None = None) -> Entry:
    """Return an entry for images of ten classes with known counts."""
    return Entry(
        data=data, model=model, flop=flop, side=side, takes=("augment",), dataset=dataset, count=lambda *_: counts
    )


MNIST_COUNTS = Counts(60_000, 10_000)
WORKLOADS: dict[str, Entry] = {
    "digits": _images("14,000 of MNIST's digits, inside the package", "small CNN", 8.3e6, 28, Counts(12_000, 2_000)),
    "mnist": _images("handwritten digits, 28x28, 10 classes", "small CNN", 8.3e6, 28, MNIST_COUNTS, "mnist"),
    "fashion-mnist": _images(
        "articles of clothing, 28x28, 10 classes", "small CNN", 8.3e6, 28, MNIST_COUNTS, "fashion-mnist"
    ),
    "cifar10": _images("photographs, 32x32, 10 classes", "ResNet-18", 3.3e9, 32, Counts(50_000, 10_000), "cifar10"),
    "image-folder": Entry(
        data="any folder of images, one folder per class",
        model="ResNet-18",
        flop=_flop("resnet18", 64),
        side=64,
        takes=("path", "image_size", "test_fraction", "augment"),
        needs=("path",),
        count=_count_images,
    ),
    "steering": Entry(
        data="camera frames and steering angles, split by time",
        model="a CNN regressor",
        metric="r2",
        metrics=("loss", "mae", "rmse", "r2"),
        classifies=False,
        flop=8e7,
        takes=("path", "image_size", "test_fraction", "augment"),
        needs=("path",),
        count=_count_frames,
    ),
    "gpt": Entry(
        data="bytes of a text, or of a Markov source of known entropy",
        model="decoder-only transformer",
        metric="bits_per_byte",
        metrics=("loss", "bits_per_byte"),
        unit="tokens",
        flop=1e9,
        takes=("path", "test_fraction", "data_options"),
        count=_count_windows,
    ),
    "linear": Entry(
        data="linear regression whose largest stable rate is known",
        metric="loss",
        metrics=("loss",),
        classifies=False,
        flop=200,
        takes=("data_options",),
        count=_count_points,
    ),
}
OWN_TAKES = ("augment", "data_options")
"""Fields that a user's own function accepts; it decides the rest itself."""


def workload_problem(workload: WorkloadSpec) -> str | None:
    """Return what is wrong with the description of a workload, or None."""
    entry = WORKLOADS.get(workload.name)
    if entry is None and not workload.own:
        return f"unknown workload {shorten(workload.name)}. {did_you_mean(workload.name, WORKLOADS)}"
    takes, needs = (entry.takes, entry.needs) if entry else (OWN_TAKES, ())
    for field in ("path", "image_size", "test_fraction", "augment", "data_options", "model", "model_options"):
        default = WorkloadSpec.model_fields[field].get_default(call_default_factory=True)
        value = getattr(workload, field)
        if value != default and field not in takes and (workload.own or not field.startswith("model")):
            return f"{field}={value!r} does not apply to the workload {workload.name}; remove it"
        if value is None and field in needs:
            return f"the workload {workload.name} needs `{field}`, the location of its data"
    return None


def facts_of(workload: WorkloadSpec, root: Path) -> WorkloadFacts:
    """Return the facts of a workload. Raises DataError if data that must be counted is missing."""
    if workload.own:
        return _query(workload, root)
    entry = WORKLOADS[workload.name]
    counts = entry.count(workload, root)
    flop = entry.flop
    if entry.side is not None and (workload.model or workload.image_size):
        flop = _flop(workload.model or "resnet18", workload.image_size or entry.side)
    return WorkloadFacts(
        title="; ".join(filter(None, (entry.data, workload.model or entry.model))),
        train_samples=counts.train,
        test_samples=counts.test,
        metric=entry.metric,
        higher_is_better=METRICS[entry.metric].higher_is_better,
        metrics=tuple(metric for metric in entry.metrics if metric not in counts.without),
        classifies=entry.classifies,
        unit=entry.unit,
        units_per_sample=counts.units_per_sample,
        train_flop_per_sample=flop,
    )


def _query(workload: WorkloadSpec, root: Path) -> WorkloadFacts:
    """Call the user's function in another process, because it might import torch."""
    command = [sys.executable, "-m", "worldsize.worker.workloads.own", workload.model_dump_json(), str(root)]
    process = subprocess.run(command, capture_output=True, text=True, check=False)
    if process.returncode != 0:
        lines = (process.stderr or process.stdout).strip().splitlines() or ["no message"]
        raise DataError(f"the workload {workload.name} could not be created: {lines[-1]}")
    try:
        return WorkloadFacts.model_validate_json(process.stdout.splitlines()[-1])
    except (ValueError, IndexError) as error:
        raise DataError(f"the workload {workload.name} returned an invalid description: {error}") from error
