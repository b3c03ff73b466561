"""What a study asks: the axes along which it has several values."""

from __future__ import annotations

from typing import Literal

from worldsize.spec.study import StudySpec

Facet = Literal["workers", "largest-batch", "batch", "strategy", "precision", "optimizer", "weights"]


def facets(spec: StudySpec) -> tuple[Facet, ...]:
    """The first one is the main question; none for a study of a single point."""
    axes = spec.axes
    optimizers = sum(entry.size for entry in axes.optimizer)
    several: dict[Facet, bool] = {
        "workers": axes.is_auto or len(axes.workers) > 1,
        "largest-batch": axes.largest is not None,
        "batch": axes.largest is None and len(axes.batches) > 1,
        "strategy": len(axes.strategy) > 1,
        "precision": len(axes.precision) > 1,
        "optimizer": optimizers > 1 and spec.train is not None,
        "weights": len(axes.weights or ()) > 1,
    }
    return tuple(facet for facet, varies in several.items() if varies)
