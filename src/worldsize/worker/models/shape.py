"""The shape of data for which a model is built, and checks that builders share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor, nn

from worldsize.errors import InputError


@dataclass(frozen=True, kw_only=True)
class Shape:
    """The shape of one sample (channels x height x width) and of the output for it.

    A vector of f features is f channels of size 1; a text of t tokens is one channel of size t.
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
    """A trunk that computes features and a separate head, which can be replaced."""

    def __init__(self, trunk: nn.Module, head: nn.Linear) -> None:
        super().__init__()
        self.trunk = trunk
        self.head = head

    def forward(self, inputs: Tensor) -> Tensor:
        return self.head(self.trunk(inputs))


class Regressor(Headed):
    """One value per sample, as a vector: an N x 1 output minus N targets would silently become an N x N difference."""

    def forward(self, inputs: Tensor) -> Tensor:
        return super().forward(inputs).squeeze(1)


def whole(name: str, value: object, least: int = 1) -> int:
    """A whole number of at least `least`; True and 3.0 do not count as one."""
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise InputError(f"{name}={value!r} is not a whole number of at least {least}; give one")
    return value


def wholes(name: str, values: object) -> tuple[int, ...]:
    if isinstance(values, str) or not isinstance(values, Sequence):
        raise InputError(f"{name}={values!r} is not a list of whole numbers; write it as [256, 128]")
    return tuple(whole(f"{name}[{index}]", value) for index, value in enumerate(values))


def fraction(name: str, value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1:
        raise InputError(f"{name}={value!r} is not in 0 <= {name} < 1; give a fraction such as 0.1")
    return float(value)


def one_output(model: str, shape: Shape) -> None:
    if shape.classes != 1:
        raise InputError(
            f"classes={shape.classes}: {model} is a regressor with one output; use classes=1, or a classifier"
        )
