"""Every strategy beside DistributedDataParallel, on two real processes: what must follow its curve does, to the digit.

One launch trains all cases (strategy_ranks.py); the tests read what it wrote.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest
import torch
from torch import nn

from tests.system.ranks import run_ranks
from tests.system.strategy_ranks import CASES
from worldsize.spec.optimizer import OptimizerSpec
from worldsize.spec.training import StrategySpec
from worldsize.worker.parallel import make_strategy
from worldsize.worker.parallel.team import Team

Seen = tuple[dict[str, npt.NDArray[np.float64]], ...]


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> Seen:
    """What each of the two ranks saw. Their warnings are errors, as in the tests."""
    folder = tmp_path_factory.mktemp("ranks")
    run_ranks("tests.system.strategy_ranks", folder)
    return tuple(dict(np.load(folder / f"rank{rank}.npz")) for rank in range(2))


def difference(seen: Seen, case: str, other: str) -> float:
    return float(np.abs(seen[0][f"{case}/losses"] - seen[0][f"{other}/losses"]).max())


@pytest.mark.parametrize("case", CASES)
def test_it_learns_and_ranks_agree_on_the_whole_model(seen: Seen, case: str) -> None:
    first, second = seen
    losses = first[f"{case}/losses"]
    assert losses[0] - losses[-1] > 0.1  # equal curves of a dead model would prove nothing
    assert np.array_equal(losses, second[f"{case}/losses"])
    assert np.array_equal(first[f"{case}/weights"], second[f"{case}/weights"])
    assert first[f"{case}/evaluated"] < losses[0] - 0.1
    for rank in seen:
        assert rank[f"{case}/untouched"]  # by the making of the whole model
        assert not rank[f"{case}/kept"]  # nothing of a trial is left in the process


def test_no_group_is_left_behind(seen: Seen) -> None:
    assert all(before == after for before, after in (rank["groups"] for rank in seen))


@pytest.mark.parametrize("case", [case for case in CASES if case.startswith(("zero", "fsdp"))])
def test_what_is_kept_apart_follows_ddp(seen: Seen, case: str) -> None:
    strategy, what = case.split()
    assert difference(seen, f"{strategy} {what}", f"ddp {what}") < 1e-4
    ours, theirs = seen[0][f"{strategy} {what}/weights"], seen[0][f"ddp {what}/weights"]
    assert np.abs(ours - theirs).max() < 1e-4  # batch norm's statistics among them: the first rank's


def test_fsdp_keeps_half_a_model_on_each_rank(seen: Seen) -> None:
    whole = len(seen[0]["ddp adam/own"])
    shares = [len(rank["fsdp adam/own"]) for rank in seen]
    assert sum(shares) == whole
    assert max(shares) < 0.51 * whole


@pytest.mark.parametrize("strategy", ["ddp", "zero", "fsdp", "local-sgd"])
def test_two_half_batches_are_one(seen: Seen, strategy: str) -> None:
    assert difference(seen, f"{strategy} accumulated", "ddp momentum") < 1e-5


def test_clipping_and_freezing_make_a_difference(seen: Seen) -> None:
    assert difference(seen, "ddp clipped", "ddp sgd") > 0.01
    assert difference(seen, "ddp unfrozen", "ddp momentum") > 0.01


@pytest.mark.parametrize(
    ("strategy", "bound"), [("fp16-compression", 1e-2), ("bf16-compression", 3e-2), ("powersgd", 5e-2)]
)
def test_compressed_gradients_come_close_to_ddp(seen: Seen, strategy: str, bound: float) -> None:
    assert 0 < difference(seen, f"{strategy} momentum", "ddp momentum") < bound


@pytest.mark.parametrize("optimizer", ["sgd", "momentum"])
def test_local_sgd_that_averages_after_every_step_is_ddp(seen: Seen, optimizer: str) -> None:
    assert difference(seen, f"local-sgd {optimizer}", f"ddp {optimizer}") < 1e-5


def test_local_sgd_that_averages_sometimes_is_not(seen: Seen) -> None:
    assert difference(seen, "local-sgd sometimes", "ddp momentum") > 1e-3
    first, second = (rank["local-sgd sometimes/own"] for rank in seen)
    assert np.array_equal(first, second)  # its last step was one that averages


def test_the_whole_model_of_local_sgd_is_the_mean_of_ranks_that_are_apart(seen: Seen) -> None:
    first, second = (rank["local-sgd batch-norm/own"].astype(np.float64) for rank in seen)
    assert np.abs(first - second).max() > 1e-3
    whole = seen[0]["local-sgd batch-norm/weights"][: len(first)]
    assert np.abs(whole - (first + second) / 2).max() < 1e-6


@pytest.mark.parametrize("name", ["ddp", "fp16-compression", "powersgd", "zero", "fsdp", "local-sgd"])
def test_one_worker_needs_no_strategy(name: str) -> None:
    module = nn.Linear(3, 2)
    team = Team(rank=0, workers=1, device=torch.device("cpu"), group=None)
    strategy = make_strategy(StrategySpec(name=name), OptimizerSpec(lr=0.1), module, team)  # type: ignore[arg-type]
    assert strategy.model is strategy.full_model() is module
    with strategy.exchange(last=False):
        strategy.model(torch.ones(1, 3)).sum().backward()
    strategy.clip(1e-3)
    assert sum(float(each.grad.square().sum()) for each in module.parameters()) == pytest.approx(1e-6, rel=1e-3)  # type: ignore[union-attr]
    strategy.after_step(1)
    strategy.rebuild_wrapper()
