"""Optimizers for large batches, LARS and LAMB. Their steps are proportional to the weight norm of each layer.

Norms stay on the device, so that no step waits for them. Parameters may be shards (DTensor). Then each rank updates its
own shards, and the squared norms are summed over ranks in one message.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn, optim
from torch.distributed.tensor import DTensor

EPSILON = 1e-6
"""LAMB's value (You et al. 2020), not Adam's 1e-8."""


@dataclass(frozen=True, kw_only=True)
class Shards:
    """This rank's parts of the parameters, which are whole parameters unless FSDP has sharded them."""

    weights: list[Tensor]
    gradients: list[Tensor]
    states: list[dict[str, Any]]
    ranks: dist.ProcessGroup | None
    """The ranks that hold the other parts, or None."""


class Layerwise(optim.Optimizer, ABC):
    """Base class. `adapt=False` turns off the layer-wise factor of a group, as is usual for biases and norms."""

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]  # the closure is not used
        del closure
        for group in self.param_groups:
            owned = [parameter for parameter in group["params"] if parameter.grad is not None]
            if owned:
                shards = Shards(
                    weights=[_local(parameter) for parameter in owned],
                    gradients=[_local(parameter.grad) for parameter in owned],
                    states=[self.state[parameter] for parameter in owned],
                    ranks=_ranks_of(owned[0]),
                )
                self._step_group(group, shards)

    @abstractmethod
    def _step_group(self, group: dict[str, Any], shards: Shards) -> None:
        """Update the parameters of a group that have gradients."""


class Lars(Layerwise):
    """local = trust |w| / (|g| + decay |w|), v = momentum v + rate local (g + decay w), w -= v (You et al. 2017).

    local is 1 where a norm is 0.
    """

    def __init__(
        self,
        params: Any,
        *,
        lr: float,
        momentum: float = 0.9,
        weight_decay: float = 0.0,
        trust: float = 0.001,
        adapt: bool = True,
    ) -> None:
        options = {"lr": lr, "momentum": momentum, "weight_decay": weight_decay, "trust": trust, "adapt": adapt}
        super().__init__(params, options)

    def _step_group(self, group: dict[str, Any], shards: Shards) -> None:
        weights, gradients, states, ranks = shards.weights, shards.gradients, shards.states, shards.ranks
        decay = group["weight_decay"]
        updates = torch._foreach_add(gradients, weights, alpha=decay) if decay else gradients
        if group["adapt"]:
            weight_norms, gradient_norms = _norms(weights + gradients, ranks).chunk(2)
            local = group["trust"] * weight_norms / (gradient_norms + decay * weight_norms)
            updates = torch._foreach_mul(updates, _one_where_zero(local, weight_norms, gradient_norms))
        velocities = [_state_tensor(state, "velocity", weight) for state, weight in zip(states, weights, strict=True)]
        torch._foreach_mul_(velocities, group["momentum"])
        torch._foreach_add_(velocities, updates, alpha=group["lr"])
        torch._foreach_sub_(weights, velocities)


class Lamb(Layerwise):
    """u = m' / (sqrt(v') + epsilon) + decay w, w -= rate |w| / |u| u, with Adam's m' and v' (You et al. 2020).

    |w| / |u| is 1 where a norm is 0.
    """

    def __init__(
        self,
        params: Any,
        *,
        lr: float,
        betas: tuple[float, float] = (0.9, 0.999),
        weight_decay: float = 0.0,
        adapt: bool = True,
    ) -> None:
        super().__init__(params, {"lr": lr, "betas": betas, "weight_decay": weight_decay, "adapt": adapt})

    def _step_group(self, group: dict[str, Any], shards: Shards) -> None:
        weights, gradients, states, ranks = shards.weights, shards.gradients, shards.states, shards.ranks
        first, second = group["betas"]
        means = [_state_tensor(state, "mean", weight) for state, weight in zip(states, weights, strict=True)]
        squares = [_state_tensor(state, "square", weight) for state, weight in zip(states, weights, strict=True)]
        for state in states:  # counted per parameter, since one that was frozen at first has fewer steps
            state["step"] = state.get("step", 0) + 1
        torch._foreach_lerp_(means, gradients, 1 - first)
        torch._foreach_mul_(squares, second)
        torch._foreach_addcmul_(squares, gradients, gradients, 1 - second)
        roots = torch._foreach_div(squares, [1 - second ** state["step"] for state in states])
        torch._foreach_sqrt_(roots)
        torch._foreach_add_(roots, EPSILON)
        updates = torch._foreach_div(means, [1 - first ** state["step"] for state in states])
        torch._foreach_div_(updates, roots)
        if group["weight_decay"]:
            torch._foreach_add_(updates, weights, alpha=group["weight_decay"])
        if group["adapt"]:
            weight_norms, update_norms = _norms(weights + list(updates), ranks).chunk(2)
            torch._foreach_mul_(updates, _one_where_zero(weight_norms / update_norms, weight_norms, update_norms))
        torch._foreach_add_(weights, updates, alpha=-group["lr"])


def _local(tensor: Tensor) -> Tensor:
    """Return this rank's part of the tensor, in the same memory."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def _ranks_of(parameter: nn.Parameter) -> dist.ProcessGroup | None:
    """Return the ranks that hold the other shards, or None if this rank holds the whole parameter."""
    return parameter.device_mesh.get_group() if isinstance(parameter, DTensor) else None


def _norms(tensors: list[Tensor], ranks: dist.ProcessGroup | None) -> Tensor:
    """Return the norms of whole tensors. The squared norms of their shards are summed over ranks in one message."""
    norms = torch.stack(torch._foreach_norm(tensors))
    if ranks is not None:
        norms = norms.square_()
        dist.all_reduce(norms, group=ranks)
        norms = norms.sqrt_()
    return norms


def _one_where_zero(factors: Tensor, *norms: Tensor) -> list[Tensor]:
    ones = torch.ones_like(factors)
    for norm in norms:
        factors = torch.where(norm > 0, factors, ones)
    return list(factors.unbind())


def _state_tensor(state: dict[str, Any], name: str, like: Tensor) -> Tensor:
    """Return a tensor of the optimizer state. It is created with zeros at first use."""
    if name not in state:
        state[name] = torch.zeros_like(like)
    tensor: Tensor = state[name]
    return tensor
