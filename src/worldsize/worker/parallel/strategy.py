"""What the loop asks of a strategy, and the strategy of one worker, who needs none."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

from torch import nn, optim

from worldsize.worker.parallel.team import Team


class Strategy:
    """One worker needs nothing: its step is the step that people would run alone."""

    model: nn.Module
    """What the loop calls."""

    def __init__(self, module: nn.Module, optimizer: optim.Optimizer, team: Team) -> None:
        self.model = self.module = module
        self.optimizer = optimizer
        self.team = team

    @property
    def warmup_steps(self) -> int:
        """The first steps, which are not like the others."""
        return 5

    def exchange(self, *, last: bool) -> AbstractContextManager[None]:
        """Around forward and backward of one micro-batch: gradients are exchanged with the last one of a step only."""
        del last
        return nullcontext()

    def clip(self, norm: float) -> None:
        """The gradient of the whole model, not of this rank's part, is scaled down to `norm`."""
        nn.utils.clip_grad_norm_(self.module.parameters(), norm)

    def when_ready(self, tell: Callable[[], None]) -> None:
        """Has `tell` called in each backward when the last gradient of this rank is there, before it waits for others.

        A strategy that exchanges in no such place never calls it.
        """

    @property
    def can_train_alone(self) -> bool:
        """Whether a step without any exchange is the same work: what the difference of the two measures."""
        return False

    def watch_exchange(self) -> None:
        """From here on torch, where it can, times the exchanges of every step, not of every hundredth."""

    def exchange_facts(self) -> dict[str, float]:
        """Bytes of gradients that a step exchanges, and what torch timed of it: total and overlapped with backward."""
        return {}

    def after_step(self, step: int) -> bool:
        """`step` steps have been made. Whether something was exchanged."""
        del step
        return False

    def whole(self) -> nn.Module:
        """The model that the ranks agree on, to evaluate and to save. All of them ask for it together."""
        return self.module

    def rewrap(self) -> None:
        """After parameters were unfrozen: their gradients must be exchanged from now on."""
