"""What the driver must know of a workload without training it: sizes, metric, unit, roughly what a sample costs.

Counting is cheap: a listing, a table's rows, a file's length. Nothing is decoded and torch is not imported; a workload
of the user's own is asked by a process of its own (`worldsize.worker.workloads.own`).
"""

from __future__ import annotations

import math
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from worldsize.data.sets import find_path
from worldsize.errors import DataError, did_you_mean, shorten
from worldsize.spec.base import Frozen, Label
from worldsize.spec.workload import WorkloadSpec


@dataclass(frozen=True, kw_only=True)
class Metric:
    """What is known about a metric, whichever workload measures it."""

    higher_is_better: bool
    least: float = -math.inf
    most: float = math.inf
    """No model has less or more."""
    is_counted: bool = False
    """A share of the test samples, which changes by whole samples."""


METRICS = {
    "accuracy": Metric(higher_is_better=True, least=0.0, most=1.0, is_counted=True),
    "top5": Metric(higher_is_better=True, least=0.0, most=1.0, is_counted=True),
    "r2": Metric(higher_is_better=True, most=1.0),
    "loss": Metric(higher_is_better=False),
    "mae": Metric(higher_is_better=False),
    "rmse": Metric(higher_is_better=False),
    "bits_per_byte": Metric(higher_is_better=False),
}
"""By name. A workload of the user's own may measure others."""


def metric_bounds(metric: str) -> tuple[float, float]:
    """The least and the most that a model can have; infinite where that is not known."""
    known = METRICS.get(metric)
    return (known.least, known.most) if known else (-math.inf, math.inf)


class WorkloadFacts(Frozen):
    title: str
    train_samples: int
    test_samples: int
    metric: Label
    """The metric that the answer quotes."""
    higher_is_better: bool = True
    metrics: tuple[Label, ...] = ()
    """All that are measured, the loss among them: what a target may name."""
    classifies: bool = False
    """Whether targets are classes, which labels can be smoothed for."""
    unit: Label = "samples"
    units_per_sample: int = 1
    """A sample of text is a window of tokens, and people count tokens."""
    train_flop_per_sample: float
    """Forward and backward of the built-in model; only the estimate before the first measurement uses it."""


@dataclass(frozen=True, kw_only=True)
class Entry:
    """A built-in workload: what is fixed about it, what it takes, how its samples are counted."""

    facts: WorkloadFacts
    takes: tuple[str, ...] = ()
    """Fields of WorkloadSpec that mean something to it, besides those of every workload."""
    needs: tuple[str, ...] = ()
    dataset: str | None = None
    """The data set that must be there, by the name that `worldsize data fetch` knows."""
    count: Callable[[WorkloadSpec, WorkloadFacts, Path], WorkloadFacts] | None = None


FLOP_PER_PIXEL = {"plain-cnn": 1.1e4, "cnn": 1.4e4, "mlp": 6e3, "softmax": 60, "resnet18": 3.3e6, "resnet50": 7.8e6}
"""Forward and backward of one image, over its pixels, with the stem for small images; rough, for estimates only."""


def _flop(model: str, side: int) -> float:
    return FLOP_PER_PIXEL.get(model, 3.3e6) * side * side / (15 if side > 64 else 1)


def _count_images(spec: WorkloadSpec, facts: WorkloadFacts, root: Path) -> WorkloadFacts:
    from worldsize.data.images import list_images

    folder = list_images(find_path(spec, root), test_share=spec.test_share)
    return facts.model_copy(
        update={
            "train_samples": len(folder.train),
            "test_samples": len(folder.test),
            "metrics": facts.metrics if len(folder.classes) > 5 else ("loss", "accuracy"),
            "train_flop_per_sample": _flop(spec.model or "resnet18", spec.size or 64),
        }
    )


def _count_frames(spec: WorkloadSpec, facts: WorkloadFacts, root: Path) -> WorkloadFacts:
    from worldsize.data.steering import read_rows

    rows = len(read_rows(find_path(spec, root)))
    test = min(max(round(rows * spec.test_share), 1), rows - 1)
    return facts.model_copy(update={"train_samples": rows - test, "test_samples": test})


def _count_windows(spec: WorkloadSpec, facts: WorkloadFacts, root: Path) -> WorkloadFacts:
    from worldsize.data.text import TextOptions, windows

    options = TextOptions.of(spec)
    length = find_path(spec, root).stat().st_size if spec.path else options.length
    train, test = windows(length, options.context, spec.test_share)
    counts = {"train_samples": train, "test_samples": test, "units_per_sample": options.context}
    return facts.model_copy(update=counts)


def _count_points(spec: WorkloadSpec, facts: WorkloadFacts, root: Path) -> WorkloadFacts:
    from worldsize.data.linear import LinearOptions

    del root
    options = LinearOptions.of(spec)
    return facts.model_copy(update={"train_samples": options.samples, "test_samples": options.samples})


def _classes(title: str, train: int, test: int, flop: float) -> WorkloadFacts:
    return WorkloadFacts(
        title=title,
        train_samples=train,
        test_samples=test,
        metric="accuracy",
        metrics=("loss", "accuracy", "top5"),
        classifies=True,
        train_flop_per_sample=flop,
    )


WORKLOADS: dict[str, Entry] = {
    "digits": Entry(
        facts=_classes("14,000 of MNIST's digits, inside the package; small CNN", 12_000, 2_000, 8.3e6),
        takes=("augment",),
    ),
    "mnist": Entry(
        facts=_classes("handwritten digits, 28x28, 10 classes; small CNN", 60_000, 10_000, 8.3e6),
        takes=("augment",),
        dataset="mnist",
    ),
    "fashion-mnist": Entry(
        facts=_classes("articles of clothing, 28x28, 10 classes; small CNN", 60_000, 10_000, 8.3e6),
        takes=("augment",),
        dataset="fashion-mnist",
    ),
    "cifar10": Entry(
        facts=_classes("photographs, 32x32, 10 classes; ResNet-18", 50_000, 10_000, 3.3e9),
        takes=("augment",),
        dataset="cifar10",
    ),
    "image-folder": Entry(
        facts=_classes("any folder of images, one folder a class; ResNet-18", 0, 0, 1e10),
        takes=("path", "size", "test_share", "augment"),
        needs=("path",),
        count=_count_images,
    ),
    "steering": Entry(
        facts=WorkloadFacts(
            title="camera frames and steering angles, split by time; a CNN regressor",
            train_samples=0,
            test_samples=0,
            metric="r2",
            metrics=("loss", "mae", "rmse", "r2"),
            train_flop_per_sample=8e7,
        ),
        takes=("path", "size", "test_share", "augment"),
        needs=("path",),
        count=_count_frames,
    ),
    "gpt": Entry(
        facts=WorkloadFacts(
            title="bytes of a text, or of a Markov source of known entropy; decoder-only transformer",
            train_samples=0,
            test_samples=0,
            metric="bits_per_byte",
            metrics=("loss", "bits_per_byte"),
            classifies=True,
            higher_is_better=METRICS["bits_per_byte"].higher_is_better,
            unit="tokens",
            train_flop_per_sample=1e9,
        ),
        takes=("path", "test_share", "options"),
        count=_count_windows,
    ),
    "linear": Entry(
        facts=WorkloadFacts(
            title="linear regression whose largest stable rate is known",
            train_samples=0,
            test_samples=0,
            metric="loss",
            metrics=("loss",),
            higher_is_better=METRICS["loss"].higher_is_better,
            train_flop_per_sample=200,
        ),
        takes=("options",),
        count=_count_points,
    ),
}


OWN = Entry(
    facts=WorkloadFacts(title="", train_samples=0, test_samples=0, metric="", train_flop_per_sample=0),
    takes=("augment", "options"),
)
"""The user's function, which says the rest itself."""


def unfit(workload: WorkloadSpec) -> str | None:
    """What is wrong with this workload as described; None if nothing is."""
    entry = OWN if workload.own else WORKLOADS.get(workload.name)
    if entry is None:
        return f"unknown workload {shorten(workload.name)}. {did_you_mean(workload.name, WORKLOADS)}"
    for field in ("path", "size", "test_share", "augment", "options", "model", "model_options"):
        default = WorkloadSpec.model_fields[field].get_default(call_default_factory=True)
        value = getattr(workload, field)
        if value != default and field not in entry.takes and (workload.own or not field.startswith("model")):
            return f"{field}={value!r} means nothing to the workload {workload.name}; leave it out"
        if value is None and field in entry.needs:
            return f"the workload {workload.name} needs `{field}`: where its data are"
    return None


def facts_of(workload: WorkloadSpec, root: Path) -> WorkloadFacts:
    """Raises DataError when data that must be counted are not there."""
    if workload.own:
        return _ask(workload)
    entry = WORKLOADS[workload.name]
    facts = entry.facts
    if workload.model is not None:
        data, _, _ = facts.title.rpartition("; ")
        facts = facts.model_copy(update={"title": f"{data or facts.title}; {workload.model}"})
    if entry.count:
        return entry.count(workload, facts, root)
    if workload.model is None:
        return facts
    side = 32 if workload.name == "cifar10" else 28
    return facts.model_copy(update={"train_flop_per_sample": _flop(workload.model, side)})


def _ask(workload: WorkloadSpec) -> WorkloadFacts:
    """The user's function is called where torch may be imported, not here."""
    command = [sys.executable, "-m", "worldsize.worker.workloads.own", workload.model_dump_json()]
    answer = subprocess.run(command, capture_output=True, text=True, check=False)
    if answer.returncode != 0:
        lines = (answer.stderr or answer.stdout).strip().splitlines() or ["no message"]
        raise DataError(f"the workload {workload.name} could not be made: {lines[-1]}")
    try:
        return WorkloadFacts.model_validate_json(answer.stdout.splitlines()[-1])
    except (ValueError, IndexError) as error:
        raise DataError(f"the workload {workload.name} does not describe itself as it should: {error}") from error
