"""The interface between the loop and a strategy, which is also the strategy of a single worker."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

from torch import nn, optim

from worldsize.worker.parallel.team import Team


class Strategy:
    """The strategy of a single worker: an ordinary step without any wrapper. The base class of all others."""

    model: nn.Module
    """The (wrapped) model that the loop calls."""

    def __init__(self, module: nn.Module, optimizer: optim.Optimizer, team: Team) -> None:
        self.model = self.module = module
        self.optimizer = optimizer
        self.team = team

    @property
    def warmup_steps(self) -> int:
        """Number of first steps that differ from the later ones."""
        return 5

    def exchange(self, *, last: bool) -> AbstractContextManager[None]:
        """Return a context for forward and backward of a micro-batch. Only the last of a step exchanges gradients."""
        del last
        return nullcontext()

    def clip(self, norm: float) -> None:
        """Scale the gradient of the full model, not only of this rank's shard, down to `norm`."""
        nn.utils.clip_grad_norm_(self.module.parameters(), norm)

    def on_last_gradient(self, callback: Callable[[], None]) -> None:
        """Set the callback for the moment in backward when this rank has its last gradient, before it waits for others.

        A strategy that does not exchange gradients during backward never calls it.
        """

    @property
    def can_skip_exchange(self) -> bool:
        """Whether a step can skip the exchange and do the same work otherwise, so that the difference is its cost."""
        return False

    def watch_exchange(self) -> None:
        """Make torch time the exchanges of every step instead of every hundredth, if possible."""

    def exchange_facts(self) -> dict[str, float]:
        """Return the bytes of gradients per step, and torch's timings of the exchange: total and overlapped."""
        return {}

    def after_step(self, step: int) -> bool:
        """Called when `step` steps are done. Return whether something was exchanged."""
        del step
        return False

    def full_model(self) -> nn.Module:
        """Return the model that the ranks agree on, to evaluate or save it. All ranks must call this together."""
        return self.module

    def rebuild_wrapper(self) -> None:
        """Called after parameters were unfrozen, because their gradients must be exchanged from then on."""
