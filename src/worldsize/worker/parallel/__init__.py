"""Strategies: what the ranks of a trial exchange and when, and which part of the model's state each rank keeps.

`make_strategy` wraps a bare model for the loop. The result has the model to call, its optimizer, and methods that
exchange data between ranks. With every strategy, averaged gradients are those of the mean loss over ranks.
"""

from __future__ import annotations

import copy

from torch import nn

from worldsize.spec.optimizer import OptimizerSpec
from worldsize.spec.training import StrategySpec
from worldsize.worker.optimizers import make_optimizer
from worldsize.worker.parallel.gradient_noise import NoiseMeter
from worldsize.worker.parallel.partitioned import LocalSgd, Sharded, broadcast_weights, shard
from worldsize.worker.parallel.replicated import Replicated, zero_optimizer
from worldsize.worker.parallel.strategy import Strategy
from worldsize.worker.parallel.team import Team


def make_strategy(
    spec: StrategySpec, optimizer: OptimizerSpec, module: nn.Module, team: Team, noise: NoiseMeter | None = None
) -> Strategy:
    """Return the strategy for the bare model of a trial. Every rank of the team must call this."""
    noise = noise or NoiseMeter()
    if team.workers == 1:
        return Strategy(module, make_optimizer(optimizer, module, device=team.device), team)
    # Copy the model first: synchronized batch norm refers to the process group, which cannot be copied.
    plain = copy.deepcopy(module).cpu() if spec.name in ("fsdp", "local-sgd") else module
    if spec.sync_batch_norm:
        module = nn.SyncBatchNorm.convert_sync_batchnorm(module, team.group)
    match spec.name:
        case "fsdp":
            shard(module, team)
            return Sharded(plain, module, make_optimizer(optimizer, module, device=team.device), team)
        case "local-sgd":
            broadcast_weights(module, team)
            return LocalSgd(spec.every, plain, module, make_optimizer(optimizer, module, device=team.device), team)
        case "zero":
            return Replicated(spec, module, zero_optimizer(optimizer, module, team), team, noise)
        case _:
            return Replicated(spec, module, make_optimizer(optimizer, module, device=team.device), team, noise)
