"""Tries of a search -> its answer: the largest batch that fits, and the smallest that is about as fast as any."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from worldsize.analysis.estimate import Estimate, Interval
from worldsize.spec.setting import Setting, setting_order

NEAR_BEST = 0.95
"""Throughput of this share of the best is as good: a larger batch costs learning, and brings no more."""


@dataclass(frozen=True, kw_only=True)
class BatchTry:
    """One try of one repeat."""

    setting: Setting
    """With the batch that was tried."""
    fits: bool
    samples_per_s: float | None
    memory_bytes: float | None


@dataclass(frozen=True, kw_only=True)
class BatchRow:
    """One batch, over the repeats that tried it."""

    batch_per_worker: int
    fits: bool
    """In every one of them."""
    samples_per_s: Estimate | None
    epoch_s: Estimate | None
    """Samples of the training data / samples_per_s: training alone, at this pace."""
    memory_bytes: float | None
    """The most that a rank held."""
    tries: int


@dataclass(frozen=True, kw_only=True)
class LargestBatch:
    """What the searches of one count, accumulation, strategy and precision found."""

    setting: Setting
    """With the largest batch that fits; with the smallest that was tried, where none does."""
    rows: tuple[BatchRow, ...]
    """In the order of their batch."""
    fits: int | None
    """The largest below all that ran out of memory in any repeat."""
    too_large: int | None
    """The smallest that ran out of memory; None: none did."""
    enough: int | None
    """The smallest with 95 % of the best throughput."""
    ended: Literal["memory", "throughput", "most"]
    """What the search ended with: a batch that does not fit, throughput that no longer rises, the largest allowed."""


def largest_batches(
    tried: Iterable[BatchTry], paces: Mapping[Setting, Interval], *, train_samples: int, most: int | None
) -> list[LargestBatch]:
    """`paces`: throughput of each setting that was measured, with its interval over repeats."""
    groups: dict[Setting, list[BatchTry]] = defaultdict(list)
    for each in tried:
        groups[replace(each.setting, batch_per_worker=0)].append(each)
    return [
        _found(groups[kind], paces, train_samples, most)
        for kind in sorted(groups, key=lambda kind: (*setting_order(kind)[:4], kind.workers))
    ]


def _found(
    tried: Sequence[BatchTry], paces: Mapping[Setting, Interval], train_samples: int, most: int | None
) -> LargestBatch:
    by_batch: dict[int, list[BatchTry]] = defaultdict(list)
    for each in tried:
        by_batch[each.setting.batch_per_worker].append(each)
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


def _row(tries: Sequence[BatchTry], paces: Mapping[Setting, Interval], train_samples: int) -> BatchRow:
    setting = tries[0].setting
    fits = all(each.fits for each in tries)
    known = [each.samples_per_s for each in tries if each.samples_per_s]
    pace = None
    if fits and (interval := paces.get(setting)) is not None:
        pace = Estimate(value=interval.value, low=interval.low, high=interval.high)
    elif fits and known:  # its steps were lost with the processes, what rank 0 told is left
        pace = Estimate(value=sum(known) / len(known), low=None, high=None)
    return BatchRow(
        batch_per_worker=setting.batch_per_worker,
        fits=fits,
        samples_per_s=pace,
        epoch_s=None if pace is None else _epoch(pace, train_samples),
        memory_bytes=max((each.memory_bytes for each in tries if each.memory_bytes), default=None),
        tries=len(tries),
    )


def _epoch(pace: Estimate, samples: int) -> Estimate:
    return Estimate(
        value=samples / pace.value,
        low=samples / pace.high if pace.high else None,
        high=samples / pace.low if pace.low else None,
    )
