"""The search for the largest batch that fits into memory: what is asked for, and what is tried next.

What is tried next is a pure function of what was tried: batches double until one does not fit, then the gap between the
largest that fits and the smallest that does not is halved until it is 5 % of the batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Self

from pydantic import Field, model_validator

from worldsize.frozen import Count, Frozen
from worldsize.record import Try

CLOSE = 0.05
"""A gap of this share of the batch is closed enough; throughput within this share of the best is as good."""
LEAST = 2
"""Samples: batch norm cannot train on one."""


class LargestSpec(Frozen):
    """`batch_per_worker: {largest: true}`: which batches are tried is found out while they run."""

    largest: bool
    start: Annotated[int, Field(ge=LEAST)] = 32
    """Tried first, then doubled; where it does not fit, halved."""
    most: Count | None = None
    """No larger one is tried. Default: as many samples as a global batch can have."""
    stop_early: bool = True
    """Stop doubling where that no longer brings throughput: two doublings in a row that gained less than 5 %."""

    @model_validator(mode="after")
    def _meant(self) -> Self:
        if not self.largest:
            raise ValueError("largest=false asks for nothing: list the batches, like [32, 64], or write largest: true")
        return self


def next_batch(tries: Sequence[Try], spec: LargestSpec, room: int) -> int | None:
    """None: the search is over. `room` is the largest batch a worker that the data have samples for."""
    top = min(room, spec.most or room)
    fitting = [each for each in tries if each.outcome == "finished"]
    largest = max((each.batch_per_worker for each in fitting), default=LEAST - 1)
    too_large = min((each.batch_per_worker for each in tries if each.outcome == "out_of_memory"), default=None)
    if too_large is not None:
        # The largest is less than what failed by a whole sample at least: below 20 that is more than 5 %.
        return (largest + too_large) // 2 if too_large - largest > max(1.0, CLOSE * largest) else None
    if not tries:
        return min(spec.start, top)
    if largest >= top or (spec.stop_early and no_longer_rises(fitting)):
        return None
    return min(2 * largest, top)


def no_longer_rises(doubled: Sequence[Try]) -> bool:
    """Whether the last two bring less than 5 % over the best before them; one alone may be a hiccup of the machine."""
    paces = [each.samples_per_s or 0.0 for each in doubled]
    return len(paces) > 2 and max(paces[-2:]) < (1 + CLOSE) * max(paces[:-2])
