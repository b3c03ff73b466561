"""One of two ranks: train a small CNN once per case, in the order of CASES, and write the results.

RANK=0 WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT=PORT python -m tests.system.strategy_ranks FOLDER
"""

from __future__ import annotations

import gc
import os
import sys
import weakref
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.tensor import DTensor
from torch.nn import functional as F

from worldsize.spec.optimizer import OptimizerSpec
from worldsize.spec.training import StrategySpec
from worldsize.worker import models, workloads
from worldsize.worker.parallel import make_strategy
from worldsize.worker.parallel.team import Crew, Team

STEPS, BATCH = 20, 16
"""Steps per case, and the batch per rank."""
CLASSES = 11
"""One more than the data has, because sizes that do not divide evenly among ranks must work too."""
RATES = {"sgd": 0.1, "momentum": 0.01, "adam": 0.002, "lars": 3.0}
UNFREEZE_STEP = 6


@dataclass(frozen=True, kw_only=True)
class Case:
    strategy: str = "ddp"
    optimizer: str = "momentum"
    options: dict[str, object] = field(default_factory=dict)
    """Options of the strategy."""
    accumulation: int = 1
    clip_norm: float | None = None
    frozen: bool = False
    """Whether the backbone is frozen until UNFREEZE_STEP."""
    model: str = "plain-cnn"
    whole_world: bool = False
    """Use the default process group instead of a sub-group with the same ranks."""


def _cases() -> dict[str, Case]:
    cases: dict[str, Case] = {}
    for strategy in ("ddp", "zero", "fsdp"):
        for optimizer in RATES:
            cases[f"{strategy} {optimizer}"] = Case(strategy=strategy, optimizer=optimizer)
        cases[f"{strategy} accumulated"] = Case(strategy=strategy, accumulation=2, whole_world=True)
        cases[f"{strategy} clipped"] = Case(strategy=strategy, optimizer="sgd", clip_norm=0.5)
        cases[f"{strategy} unfrozen"] = Case(strategy=strategy, frozen=True)
        cases[f"{strategy} tied"] = Case(strategy=strategy, optimizer="adam", model="tied")
        if strategy != "zero":  # zero wraps models like ddp
            cases[f"{strategy} batch-norm"] = Case(strategy=strategy, model="cnn")
    for strategy in ("fp16-compression", "bf16-compression"):
        cases[f"{strategy} momentum"] = Case(strategy=strategy)
    # Wide models have gradients in several buckets, whose exchanges must not be mixed up.
    cases["ddp wide"], cases["powersgd wide"] = (
        Case(strategy=strategy, model="wide", options=options)
        for strategy, options in (("ddp", {}), ("powersgd", {"rank": 4, "start_step": 2}))
    )
    cases["powersgd momentum"] = Case(strategy="powersgd", options={"rank": 4, "start_step": 2})
    always = {"every": 1}
    for optimizer in ("sgd", "momentum"):
        cases[f"local-sgd {optimizer}"] = Case(strategy="local-sgd", optimizer=optimizer, options=always)
    cases["local-sgd accumulated"] = Case(strategy="local-sgd", options=always, accumulation=2, whole_world=True)
    cases["local-sgd sometimes"] = Case(strategy="local-sgd", options={"every": 4})
    # The number of steps is no multiple of seven, so the ranks end with different weights.
    cases["local-sgd batch-norm"] = Case(strategy="local-sgd", options={"every": 7}, model="cnn")
    return cases


CASES = _cases()


def build(name: str) -> nn.Module:
    if name == "wide":
        return nn.Sequential(
            *(nn.Flatten(), nn.Linear(784, 700), nn.ReLU(), nn.Linear(700, 700), nn.ReLU()),
            *(nn.Linear(700, 700), nn.ReLU(), nn.Linear(700, CLASSES)),
        )
    if name != "tied":
        options = {"dropout": 0.0} if name == "cnn" else {}
        return models.build(name, classes=CLASSES, channels=1, size=28, **options)
    # The PReLU has a single parameter, so the shard of the second rank is empty.
    first, second = nn.Linear(64, 64), nn.Linear(64, 64)
    second.weight = first.weight
    return nn.Sequential(
        nn.Flatten(), nn.Linear(784, 64), nn.PReLU(), first, nn.ReLU(), second, nn.ReLU(), nn.Linear(64, CLASSES)
    )


def train(case: Case, team: Team, images: torch.Tensor, labels: torch.Tensor) -> dict[str, object]:
    torch.manual_seed(0)
    module = build(case.model)
    models.freeze(module, "backbone" if case.frozen else None)
    rate = RATES[case.optimizer]
    # A wrong learning rate: only the one that is set before each step, on every rank, may count.
    optimizer = OptimizerSpec(name=case.optimizer, lr=10 * rate, weight_decay=1e-3)  # type: ignore[arg-type]
    strategy = make_strategy(StrategySpec(name=case.strategy, **case.options), optimizer, module, team)  # type: ignore[arg-type]
    losses = []
    for step in range(STEPS):
        if case.frozen and step == UNFREEZE_STEP:
            models.unfreeze(strategy.module)
            strategy.rebuild_wrapper()
        for group in strategy.optimizer.param_groups:
            group["lr"] = rate
        first = (step * team.workers + team.rank) * BATCH
        pooled = torch.zeros(())
        for part, rows in enumerate(torch.arange(first, first + BATCH).chunk(case.accumulation), start=1):
            with strategy.exchange(last=part == case.accumulation):
                loss = F.cross_entropy(strategy.model(images[rows]), labels[rows]) / case.accumulation
                loss.backward()
            pooled += loss.detach()
        if case.clip_norm is not None:
            strategy.clip(case.clip_norm)
        strategy.optimizer.step()
        strategy.optimizer.zero_grad()
        strategy.after_step(step + 1)
        losses.append(float(team.sum(pooled)) / team.workers)
    before = _own(strategy.module)
    whole = strategy.full_model()
    weights = torch.cat([tensor.detach().double().reshape(-1) for tensor in (*whole.parameters(), *whole.buffers())])
    whole.eval()
    with torch.no_grad():
        answer = F.cross_entropy(whole(images[:200]), labels[:200])
    return {
        "losses": np.array(losses),
        "weights": weights.numpy(),
        "untouched": np.array(torch.equal(before, _own(strategy.module))),
        "own": before.numpy(),
        "evaluated": answer.numpy(),
        "gone": weakref.ref(strategy.model),  # must be dead after this function returns and garbage is collected
    }


def _own(module: nn.Module) -> torch.Tensor:
    """Return the parameters of this rank, or its shards of them."""
    with torch.no_grad():
        tensors = [tensor.to_local() if isinstance(tensor, DTensor) else tensor for tensor in module.parameters()]
        return torch.cat([tensor.reshape(-1) for tensor in tensors])


def main() -> None:
    torch.set_num_threads(1)
    crew = Crew("cpu", "gloo", [2])
    world = crew.team(2)
    assert world is not None
    sub_group = Team(rank=crew.rank, workers=2, device=crew.device, group=dist.new_group([0, 1]))
    with np.load(Path(workloads.__file__).with_name("digits.npz"), allow_pickle=False) as arrays:
        count = STEPS * 2 * BATCH
        images = torch.from_numpy(arrays["train_images"][:count]).float().reshape(count, 1, 28, 28)
        images = (images / 255 - 0.1307) / 0.3081
        labels = torch.from_numpy(arrays["train_labels"][:count]).long()
    groups = len(dist.distributed_c10d._world.pg_map)
    arrays_out: dict[str, object] = {}
    for name, case in CASES.items():
        gc.freeze()  # so that collection looks only at the objects of this case, not at all of torch
        results = train(case, world if case.whole_world else sub_group, images, labels)
        gc.collect()
        results["kept"] = np.array(results.pop("gone")() is not None)  # type: ignore[operator]
        arrays_out |= {f"{name}/{key}": value for key, value in results.items()}
    arrays_out["groups"] = np.array([groups, len(dist.distributed_c10d._world.pg_map)])
    np.savez(Path(sys.argv[1]) / f"rank{crew.rank}.npz", **arrays_out)  # type: ignore[arg-type]
    crew.leave()
    sys.stdout.flush()
    os._exit(0)  # gloo's destructors sometimes abort


if __name__ == "__main__":
    main()
