"""The interface between the loop and a strategy, and the strategy of a single worker, which does nothing."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

from torch import nn, optim

from worldsize.worker.parallel.team import Team


class Strategy:
    """A single worker: its step is an ordinary step without any wrapper."""

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
        """Wraps forward and backward of one micro-batch: only the last one of a step exchanges gradients."""
        del last
        return nullcontext()

    def clip(self, norm: float) -> None:
        """Scales the gradient of the full model, not only of this rank's shard, down to `norm`."""
        nn.utils.clip_grad_norm_(self.module.parameters(), norm)

    def on_last_gradient(self, callback: Callable[[], None]) -> None:
        """Calls `callback` in each backward when this rank has its last gradient, before it waits for other ranks.

        A strategy that does not exchange gradients during backward never calls it.
        """

    @property
    def can_skip_exchange(self) -> bool:
        """Whether a step can leave out the exchange and do the same work otherwise: the difference is its cost."""
        return False

    def watch_exchange(self) -> None:
        """Makes torch time the exchanges of every step instead of every hundredth, if it can."""

    def exchange_facts(self) -> dict[str, float]:
        """Bytes of gradients exchanged per step, and torch's timings of it: total, and overlapped with backward."""
        return {}

    def after_step(self, step: int) -> bool:
        """Called when `step` steps are done. Returns whether something was exchanged."""
        del step
        return False

    def full_model(self) -> nn.Module:
        """The model that the ranks agree on, to evaluate and to save. All ranks call this together."""
        return self.module

    def rebuild_wrapper(self) -> None:
        """Called after parameters were unfrozen: from now on their gradients must be exchanged."""
