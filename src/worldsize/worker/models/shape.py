"""The shape of the data for which a model is built, and checks that all builders use."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor, nn

from worldsize.errors import InputError


@dataclass(frozen=True, kw_only=True)
class Shape:
    """The shape of one sample (channels x height x width) and of the output for it.

    A vector of f features has f channels of size 1. A text of t tokens has one channel of size t.
    """

    classes: int
    """Number of outputs: one per class, or 1 for a regression."""
    channels: int
    height: int
    width: int

    @property
    def features(self) -> int:
        return self.channels * self.height * self.width


class Headed(nn.Module):
    """A model with a trunk that computes features and a separate head that can be replaced."""

    def __init__(self, trunk: nn.Module, head: nn.Linear) -> None:
        super().__init__()
        self.trunk = trunk
        self.head = head

    def forward(self, inputs: Tensor) -> Tensor:
        return self.head(self.trunk(inputs))


class Regressor(Headed):
    """A model with one output per sample. The output is a vector, because N x 1 outputs minus N targets give N x N."""

    def forward(self, inputs: Tensor) -> Tensor:
        return super().forward(inputs).squeeze(1)


def check_positive(name: str, value: object) -> int:
    """Return the value if it is a positive integer. True and 3.0 are not."""
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise InputError(f"{name}={value!r} is not a positive integer; use 1, 2, 3, ...")
    return value


def check_all_positive(name: str, values: object) -> tuple[int, ...]:
    if isinstance(values, str) or not isinstance(values, Sequence):
        raise InputError(f"{name}={values!r} is not a list of positive integers; use, for example, [256, 128]")
    return tuple(check_positive(f"{name}[{index}]", value) for index, value in enumerate(values))


def check_fraction(name: str, value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1:
        raise InputError(f"{name}={value!r} is not in the range 0 <= {name} < 1; use, for example, 0.1")
    return float(value)


def check_one_output(model: str, shape: Shape) -> None:
    if shape.classes != 1:
        raise InputError(
            f"classes={shape.classes}: {model} has one output, for regression; use classes=1, or a classifier"
        )
