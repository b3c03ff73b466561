"""The result of a batch search: the largest batch that fits, and the smallest that is about as fast as any."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from worldsize.analysis.estimate import Estimate
from worldsize.spec.setting import Setting, setting_order

NEAR_BEST = 0.95
"""A throughput of this share of the best is good enough: a larger batch would hurt learning without being faster."""


@dataclass(frozen=True, kw_only=True)
class BatchTry:
    """One try of one repeat."""

    setting: Setting
    """Includes the batch that was tried."""
    fits: bool
    samples_per_s: float | None
    memory_bytes: float | None


@dataclass(frozen=True, kw_only=True)
class BatchRow:
    """One batch, over the repeats that tried it."""

    batch_per_worker: int
    fits: bool
    """Whether it fits in every repeat."""
    samples_per_s: Estimate | None
    epoch_s: Estimate | None
    """Training samples / samples_per_s: time of an epoch, training only."""
    memory_bytes: float | None
    """Peak over ranks."""
    tries: int


@dataclass(frozen=True, kw_only=True)
class LargestBatch:
    """What the searches for one worker count, accumulation, strategy and precision found."""

    setting: Setting
    """Includes the largest batch that fits, or the smallest that was tried if none fits."""
    rows: tuple[BatchRow, ...]
    """In the order of their batch."""
    fits: int | None
    """The largest batch below all that ran out of memory in any repeat."""
    too_large: int | None
    """The smallest batch that ran out of memory; None: none did."""
    enough: int | None
    """The smallest batch with 95 % of the best throughput."""
    ended: Literal["memory", "throughput", "most"]
    """Why the search ended: a batch does not fit, throughput no longer rises, or the largest allowed was reached."""


def largest_batches(
    tried: Iterable[BatchTry], paces: Mapping[Setting, Estimate], *, train_samples: int, most: int | None
) -> list[LargestBatch]:
    """One result per search. `paces`: throughput of each measured setting, with its interval over repeats."""
    groups: dict[Setting, list[BatchTry]] = defaultdict(list)
    for attempt in tried:
        groups[replace(attempt.setting, batch_per_worker=0)].append(attempt)
    return [
        _largest_batch(groups[kind], paces, train_samples, most)
        for kind in sorted(groups, key=lambda kind: (*setting_order(kind)[:4], kind.workers))
    ]


def _largest_batch(
    tried: Sequence[BatchTry], paces: Mapping[Setting, Estimate], train_samples: int, most: int | None
) -> LargestBatch:
    by_batch: dict[int, list[BatchTry]] = defaultdict(list)
    for attempt in tried:
        by_batch[attempt.setting.batch_per_worker].append(attempt)
    rows = tuple(_row(by_batch[batch], paces, train_samples) for batch in sorted(by_batch))
    too_large = next((row.batch_per_worker for row in rows if not row.fits), None)
    fitting = [row for row in rows if row.fits and (too_large is None or row.batch_per_worker < too_large)]
    best = max((row.samples_per_s.value for row in fitting if row.samples_per_s), default=0.0)
    fast = [row for row in fitting if row.samples_per_s and row.samples_per_s.value >= NEAR_BEST * best]
    setting = tried[0].setting
    room = train_samples // (setting.workers * setting.accumulation)
    largest = fitting[-1].batch_per_worker if fitting else None
    ended: Literal["memory", "throughput", "most"] = "memory"
    if too_large is None:
        ended = "most" if largest is not None and largest >= min(room, most or room) else "throughput"
    return LargestBatch(
        setting=replace(setting, batch_per_worker=largest or rows[0].batch_per_worker),
        rows=rows,
        fits=largest,
        too_large=too_large,
        enough=fast[0].batch_per_worker if fast else None,
        ended=ended,
    )


def _row(tries: Sequence[BatchTry], paces: Mapping[Setting, Estimate], train_samples: int) -> BatchRow:
    setting = tries[0].setting
    fits = all(attempt.fits for attempt in tries)
    known = [attempt.samples_per_s for attempt in tries if attempt.samples_per_s]
    pace = paces.get(setting) if fits else None
    if pace is None and fits and known:  # the steps were lost with the processes; what rank 0 reported is left
        pace = Estimate(value=sum(known) / len(known))
    return BatchRow(
        batch_per_worker=setting.batch_per_worker,
        fits=fits,
        samples_per_s=pace,
        epoch_s=None if pace is None else pace.into(train_samples),
        memory_bytes=max((attempt.memory_bytes for attempt in tries if attempt.memory_bytes), default=None),
        tries=len(tries),
    )
