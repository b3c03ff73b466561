"""The samples that each rank trains on and evaluates: disjoint, complete and reshuffled every epoch.

An epoch is one seeded permutation of all samples, cut into global batches. Rank r takes the r-th share of each. So n
workers with batch b see exactly the same samples in each step as one worker with batch n*b.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

Indices = npt.NDArray[np.int64]


@dataclass(frozen=True, kw_only=True)
class Share:
    """One rank's share of one global batch."""

    indices: Indices
    own: int
    """Number of samples that count. If it is 0, the rank borrows one sample, with weight 0."""
    total: int
    """Number of samples in the global batch, over all ranks."""


def epoch_order(samples: int, seed: int, epoch: int) -> Indices:
    return np.random.default_rng([seed, epoch]).permutation(samples).astype(np.int64)


def epoch_shares(
    samples: int, workers: int, rank: int, batch_per_worker: int, seed: int, epoch: int
) -> Iterator[Share]:
    """Yield this rank's share of each global batch of an epoch."""
    order = epoch_order(samples, seed, epoch)
    for start in range(0, samples, workers * batch_per_worker):
        batch = order[start : start + workers * batch_per_worker]
        # A partial batch is divided evenly, so that no rank does all of its work while the others wait.
        low, high = len(batch) * rank // workers, len(batch) * (rank + 1) // workers
        if low == high:
            yield Share(indices=batch[:1], own=0, total=len(batch))
        else:
            yield Share(indices=batch[low:high], own=high - low, total=len(batch))


def split_into_micro_batches(share: Share, batch: int, workers: int) -> list[Share]:
    """Split a share into micro-batches of at most `batch` samples.

    All ranks get the same number of micro-batches, even if their shares differ: some strategies exchange data in each.
    """
    largest = -(-share.total // workers)
    if largest <= batch:
        return [share]
    pieces = np.array_split(share.indices[: share.own], -(-largest // batch))
    return [replace(share, indices=piece if len(piece) else share.indices[:1], own=len(piece)) for piece in pieces]


def evaluation_share(samples: int, workers: int, rank: int) -> Indices:
    """Return the positions of this rank's samples. Over all ranks, each sample occurs once."""
    return np.arange(samples * rank // workers, samples * (rank + 1) // workers, dtype=np.int64)
