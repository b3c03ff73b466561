"""Evaluates a search for the largest batch: the largest that fits, and the smallest that is about as fast as any."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from worldsize.analysis.estimate import Estimate
from worldsize.spec.setting import Setting, setting_order

NEAR_BEST = 0.95
"""Share of the best throughput that is sufficient. A larger batch would be hardly faster, and may hurt learning."""


@dataclass(frozen=True, kw_only=True)
class BatchTry:
    """One batch that was tried in one repeat."""

    setting: Setting
    """The setting, with the batch that was tried."""
    fits: bool
    samples_per_s: float | None
    memory_bytes: float | None


@dataclass(frozen=True, kw_only=True)
class BatchRow:
    """One batch, combined over the repeats that tried it."""

    batch_per_worker: int
    fits: bool
    """Whether it fit into memory in every repeat."""
    samples_per_s: Estimate | None
    epoch_s: Estimate | None
    """Training time of an epoch: training samples / samples_per_s."""
    memory_bytes: float | None
    """Peak memory: the maximum over ranks and repeats."""
    tries: int


@dataclass(frozen=True, kw_only=True)
class LargestBatch:
    """The result of the searches at one worker count, accumulation, strategy and precision."""

    setting: Setting
    """The setting, with the largest batch that fits, or the smallest that was tried if none fits."""
    rows: tuple[BatchRow, ...]
    """The batches that were tried, in ascending order."""
    fits: int | None
    """The largest batch below `too_large` that fits. None if no batch fits."""
    too_large: int | None
    """The smallest batch that ran out of memory in any repeat. None if none did."""
    enough: int | None
    """The smallest batch with at least 95 % of the best throughput. None if no throughput is known."""
    ended: Literal["memory", "throughput", "most"]
    """Why the search ended: a batch did not fit, throughput stopped rising, or the largest allowed batch was tried."""


def largest_batches(
    tried: Iterable[BatchTry], paces: Mapping[Setting, Estimate], *, train_samples: int, most: int | None
) -> list[LargestBatch]:
    """Return one result per search.

    `paces`: throughput of each measured setting, with its interval over repeats. `most`: the largest batch allowed.
    """
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
    # If the processes died, their step times are lost, and only the report of rank 0 is left.
    if pace is None and fits and known:
        pace = Estimate(value=sum(known) / len(known))
    return BatchRow(
        batch_per_worker=setting.batch_per_worker,
        fits=fits,
        samples_per_s=pace,
        epoch_s=None if pace is None else pace.time_for(train_samples),
        memory_bytes=max((attempt.memory_bytes for attempt in tries if attempt.memory_bytes), default=None),
        tries=len(tries),
    )
