"""What the driver must know of a workload without loading it: its sizes, its metric, roughly what a sample costs."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class WorkloadFacts:
    title: str
    train_samples: int
    test_samples: int
    metric: str
    """The metric that the answer quotes."""
    train_flop_per_sample: float
    """Forward and backward of the built-in model; only the estimate before the first measurement uses it."""


WORKLOADS: dict[str, WorkloadFacts] = {
    "digits": WorkloadFacts(
        title="handwritten digits, 28x28: 14,000 of MNIST's, inside the package; small CNN",
        train_samples=12_000,
        test_samples=2_000,
        metric="accuracy",
        train_flop_per_sample=8.3e6,
    ),
}
