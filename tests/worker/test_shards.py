"""Shards: disjoint, complete, different every epoch, the same steps for any number of workers."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from worldsize.worker.parallel.shards import epoch_order, epoch_shares, evaluation_share, split_into_micro_batches

SAMPLES = st.integers(1, 400)
WORKERS = st.integers(1, 17)
BATCH = st.integers(1, 40)
EPOCH = st.integers(0, 5)
SEED = st.integers(0, 2**31 - 1)


@given(SAMPLES, WORKERS, BATCH, SEED, EPOCH)
def test_shards_are_disjoint_and_complete(samples: int, workers: int, batch: int, seed: int, epoch: int) -> None:
    ranks = [list(epoch_shares(samples, workers, rank, batch, seed, epoch)) for rank in range(workers)]
    counted = [index for shares in ranks for share in shares for index in share.indices[: share.own]]
    assert sorted(counted) == list(range(samples))


@given(SAMPLES, WORKERS, BATCH, SEED, EPOCH)
def test_every_rank_takes_part_in_every_step(samples: int, workers: int, batch: int, seed: int, epoch: int) -> None:
    ranks = [list(epoch_shares(samples, workers, rank, batch, seed, epoch)) for rank in range(workers)]
    steps = -(-samples // (workers * batch))
    assert {len(shares) for shares in ranks} == {steps}
    for step in zip(*ranks, strict=True):
        assert all(len(share.indices) >= 1 for share in step)
        assert all(share.own <= batch for share in step)
        assert sum(share.own for share in step) == step[0].total
        assert max(share.own for share in step) - min(share.own for share in step) <= 1


@given(SAMPLES, WORKERS, BATCH, SEED, EPOCH)
def test_n_workers_see_what_one_sees(samples: int, workers: int, batch: int, seed: int, epoch: int) -> None:
    together = [list(epoch_shares(samples, workers, rank, batch, seed, epoch)) for rank in range(workers)]
    alone = list(epoch_shares(samples, 1, 0, workers * batch, seed, epoch))
    for step, share in zip(zip(*together, strict=True), alone, strict=True):
        joined = np.concatenate([part.indices[: part.own] for part in step])
        assert joined.tolist() == share.indices.tolist()


@given(st.integers(20, 400), SEED, EPOCH)
def test_epochs_differ(samples: int, seed: int, epoch: int) -> None:
    assert epoch_order(samples, seed, epoch).tolist() != epoch_order(samples, seed, epoch + 1).tolist()
    assert epoch_order(samples, seed, epoch).tolist() == epoch_order(samples, seed, epoch).tolist()


@given(st.integers(0, 400), WORKERS)
def test_evaluation_counts_each_sample_once(samples: int, workers: int) -> None:
    counted = np.concatenate([evaluation_share(samples, workers, rank) for rank in range(workers)])
    assert sorted(counted) == list(range(samples))


@given(total=st.integers(1, 200), workers=st.integers(1, 5), batch=st.integers(1, 20), accumulation=st.integers(1, 4))
def test_micro_batches_cover_a_share_and_are_as_many_on_every_rank(
    total: int, workers: int, batch: int, accumulation: int
) -> None:
    shares = [list(epoch_shares(total, workers, rank, batch * accumulation, 0, 0)) for rank in range(workers)]
    for ranks in zip(*shares, strict=True):
        parts = [split_into_micro_batches(share, batch, workers) for share in ranks]
        assert len({len(each) for each in parts}) == 1
        assert len(parts[0]) <= accumulation
        for share, each in zip(ranks, parts, strict=True):
            assert sum(part.own for part in each) == share.own
            assert all(1 <= len(part.indices) <= batch for part in each)
            own = np.concatenate([part.indices[: part.own] for part in each])
            assert own.tolist() == share.indices[: share.own].tolist()
