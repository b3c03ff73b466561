"""What only the data and the metrics of its workload tell of a study that cannot be run."""

from __future__ import annotations

from collections.abc import Iterator

from worldsize.catalog import WorkloadFacts
from worldsize.grid import study_points
from worldsize.problems_target import Found
from worldsize.spec import StudySpec
from worldsize.train_spec import UntilSpec, steps_per_epoch
from worldsize.yaml_tree import Loc


def data_problems(spec: StudySpec, facts: WorkloadFacts) -> list[tuple[Loc, str]]:
    found: list[tuple[Loc, str]] = []
    largest = max(point.global_batch for point in study_points(spec))
    if largest > facts.train_samples:
        axis = "global_batch" if spec.axes.global_batch else "batch_per_worker"
        text = f"a global batch of {largest} is more than the {facts.train_samples} training samples; use smaller ones"
        found.append((("axes", axis), text))
    if spec.train is not None and spec.train.until is not None and spec.train.until.metric not in facts.metrics:
        text = (
            f"until.metric={spec.train.until.metric} is not measured by {spec.workload.name}; "
            f"use one of {', '.join(facts.metrics)}"
        )
        found.append((("train", "until", "metric"), text))
    elif spec.train is not None and spec.train.until is not None:
        found += [(("train", "until"), text) for text in _wrong_way(spec.train.until, facts)]
    found += _warm_up_too_long(spec, facts)
    if spec.train is not None and spec.train.label_smoothing and not facts.classifies:
        text = (
            f"label_smoothing={spec.train.label_smoothing:g} needs a built-in workload with classes; "
            f"{spec.workload.name} is none: leave it out, or smooth in a loss of your own"
        )
        found.append((("train", "label_smoothing"), text))
    return found


def _wrong_way(until: UntilSpec, facts: WorkloadFacts) -> Iterator[str]:
    """A target that is met before training begins, or never."""
    rises = facts.higher_is_better if until.metric == facts.metric else until.metric in ("accuracy", "top5", "r2")
    known = until.metric == facts.metric or until.metric in ("loss", "accuracy", "top5", "r2", "mae", "rmse")
    if known and rises and until.at_most is not None:
        yield f"until.at_most={until.at_most:g}: {until.metric} is the better the higher; write at_least"
    if known and not rises and until.at_least is not None:
        yield f"until.at_least={until.at_least:g}: {until.metric} is the better the lower; write at_most"
    if until.metric in ("accuracy", "top5", "r2") and (until.at_least or 0) > 1:
        yield f"until.at_least={until.at_least:g}: {until.metric} is at most 1; write 0.9 for 90 %"


def _warm_up_too_long(spec: StudySpec, facts: WorkloadFacts) -> Found:
    if spec.train is None:
        return
    for point in study_points(spec):
        own = point.optimizer.warmup_epochs
        epochs = spec.train.warmup_epochs if own is None else own
        steps = spec.train.total_steps(facts.train_samples, point.global_batch)
        rising = epochs * steps_per_epoch(facts.train_samples, point.global_batch)
        if rising > steps:
            yield (
                ("train", "warmup_epochs") if own is None else ("axes", "optimizer", point.entry, "warmup_epochs"),
                f"warmup_epochs={epochs:g} is {rising:.0f} steps at a global batch of {point.global_batch}, "
                f"and training has {steps}; use a shorter one",
            )
            return
