"""A bare table of throughput against workers: what a projection starts from when nothing else was measured."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from worldsize.analysis.stats import Floats

MOST_LOG_RATIO = 50.0
"""Rates further apart than exp(50) are no measurement; cut, so that no sum of them overflows."""


@dataclass(frozen=True, kw_only=True)
class TableSeries:
    """Rates at some worker counts, all else alike: one batch a worker (weak) or one global batch (strong).

    In both modes the laws work on the time a worker spends on one sample, n / rate: flat where scaling is perfect.
    """

    workers: tuple[int, ...]
    """Ascending, each once."""
    rates: tuple[tuple[float, ...], ...]
    """Samples a second of every repeat at each count, ascending. Any unit that grows with speed will do."""
    workers_per_node: int | None = None
    name: str = ""
    stack: str = ""
    """Hardware and software it ran on; series of one stack leave a node at about the same price. '': not known."""

    @property
    def counts(self) -> Floats:
        return np.array(self.workers, dtype=np.float64)

    @property
    def log_rates(self) -> Floats:
        """Median over the repeats of each count, in logarithms: one bad repeat of three is outvoted."""
        return np.array([float(np.median(np.log(repeats))) for repeats in self.rates])

    @property
    def samples_per_s(self) -> Floats:
        return np.asarray(np.exp(self.log_rates))

    @property
    def largest(self) -> int:
        return self.workers[-1]

    def smaller(self) -> TableSeries:
        """The series without its largest count."""
        return TableSeries(
            workers=self.workers[:-1],
            rates=self.rates[:-1],
            workers_per_node=self.workers_per_node,
            name=self.name,
            stack=self.stack,
        )


def table_series(
    points: Iterable[tuple[int, float]], *, workers_per_node: int | None = None, name: str = "", stack: str = ""
) -> TableSeries:
    """(workers, rate) in any order; a count that comes twice was repeated. Values are positive and finite."""
    by_count: dict[int, list[float]] = defaultdict(list)
    for workers, rate in points:
        by_count[workers].append(rate)
    workers_found = tuple(sorted(by_count))
    return TableSeries(
        workers=workers_found,
        rates=tuple(tuple(sorted(by_count[count])) for count in workers_found),
        workers_per_node=workers_per_node,
        name=name,
        stack=stack,
    )


def relative_step(series: TableSeries) -> Floats:
    """Time of a worker a sample, n / rate, over that at the largest count."""
    logs = np.log(series.counts) - series.log_rates
    return np.asarray(np.exp(np.clip(logs - logs[-1], -MOST_LOG_RATIO, MOST_LOG_RATIO)))
