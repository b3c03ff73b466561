"""The questions of a study: the axes on which it has several values."""

from __future__ import annotations

from typing import Literal

from worldsize.spec.study import StudySpec

Facet = Literal["workers", "largest-batch", "batch", "strategy", "precision", "optimizer", "weights"]


def facets(spec: StudySpec) -> tuple[Facet, ...]:
    """Return the axes with several values, the main question first. Empty for a study of a single point."""
    axes = spec.axes
    optimizers = sum(entry.size for entry in axes.optimizer)
    varies: dict[Facet, bool] = {
        "workers": axes.is_auto or len(axes.workers) > 1,
        "largest-batch": axes.largest is not None,
        "batch": axes.largest is None and len(axes.batches) > 1,
        "strategy": len(axes.strategy) > 1,
        "precision": len(axes.precision) > 1,
        "optimizer": optimizers > 1 and spec.train is not None,
        "weights": len(axes.weights or ()) > 1,
    }
    return tuple(facet for facet, has_several in varies.items() if has_several)
