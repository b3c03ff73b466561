"""Optimizers of a study: one with fixed values (OptimizerSpec), or one with several values to try (OptimizerAxis)."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field, PositiveFloat, model_validator

from worldsize.spec.base import (
    LIST,
    LIST_OR_SEARCH,
    SEARCH,
    Frozen,
    NonNegativeFloat,
    as_list,
    as_list_unless_searched,
    refuse_foreign,
)

Momentum = Annotated[float, Field(ge=0, lt=1)]

OptimizerName = Literal["sgd", "momentum", "nesterov", "adam", "adamw", "adadelta", "lars", "lamb"]
LrRule = Literal["auto", "none", "linear", "sqrt"]

USUAL_LR: dict[str, float] = {
    "sgd": 0.05,
    "momentum": 0.05,
    "nesterov": 0.05,
    "adam": 0.001,
    "adamw": 0.001,
    "adadelta": 1.0,
    "lars": 2.0,
    "lamb": 0.01,
}
USUAL_MOMENTUM = {"sgd": 0.0, "momentum": 0.9, "nesterov": 0.9, "lars": 0.9}
"""Default momentum of the optimizers that have one."""
FIELDS = ("lr", "momentum", "weight_decay", "lr_rule", "warmup_epochs")
"""Fields of an optimizer that can have several values."""
MOST_SETTINGS = 10_000
"""Limit on the combinations of values of one optimizer."""
SGD_KINDS = ("sgd", "momentum", "nesterov", "lars")


def with_usual_values(values: Any) -> Any:
    if not isinstance(values, dict) or not isinstance(name := values.get("name", "sgd"), str):
        return values  # another check reports what is wrong with it
    return {"lr": USUAL_LR.get(name, 0.05), "momentum": USUAL_MOMENTUM.get(name, 0.0), **values}


class OptimizerSpec(Frozen):
    """One optimizer with fixed values, as used by a trial."""

    name: OptimizerName = "sgd"
    lr: PositiveFloat
    """Learning rate for the global batch `train.base_batch`. `lr_rule` scales it to the global batch of the trial."""
    momentum: Momentum
    weight_decay: NonNegativeFloat = 0.0
    """Weight decay of weights only, not of biases and the parameters of norm layers."""
    trust_coefficient: PositiveFloat = 0.001
    """lars: the fraction of a layer's norm that one update can change at learning rate 1."""
    lr_rule: LrRule | None = None
    """How the learning rate scales with the global batch. Default: `train.lr_rule`."""
    warmup_epochs: NonNegativeFloat | None = None
    """Number of warm-up epochs. Default: `train.warmup_epochs`."""

    @model_validator(mode="before")
    @classmethod
    def _usual_values(cls, values: Any) -> Any:
        return with_usual_values(values)

    @model_validator(mode="after")
    def _values_apply(self) -> Self:
        if self.momentum and self.name not in USUAL_MOMENTUM:
            raise ValueError(f"momentum={self.momentum} does not apply to {self.name}; remove it")
        if self.name in ("momentum", "nesterov") and not self.momentum:
            raise ValueError(f"{self.name} with momentum=0 is plain sgd; write `name: sgd`")
        refuse_foreign(self, "optimizer", self.name, {"trust_coefficient": "lars"})
        return self

    @property
    def family(self) -> str:
        """The name in comparisons: sgd with momentum counts as momentum."""
        return "momentum" if self.name == "sgd" and self.momentum else self.name

    def own_values(self) -> Iterator[str]:
        """Yield every value that differs from its default, so that different optimizers never have the same label."""
        if self.trust_coefficient != OptimizerSpec.model_fields["trust_coefficient"].default:
            yield f"trust {self.trust_coefficient:.9g}"
        if self.weight_decay:
            yield f"decay {self.weight_decay:.9g}"
        if self.lr_rule is not None:
            yield "unscaled" if self.lr_rule == "none" else f"{self.lr_rule} rule"
        if self.warmup_epochs is not None:
            yield f"warm-up {self.warmup_epochs:.9g}" if self.warmup_epochs else "no warm-up"


class Search(Frozen):
    """`{search: [1e-4, 1.0], points: 9}`: values from the first to the last, evenly spaced on a log scale."""

    search: Annotated[tuple[PositiveFloat, PositiveFloat], BeforeValidator(as_list)]
    points: Annotated[int, Field(ge=2, le=1000)] = 9
    prune: bool = True
    """Stop a trial early if its metric is worse than the median of trials that have run as long."""
    divergence_within: Annotated[float, Field(ge=0.001, le=1)] | None = None
    """lr only: also find the learning rate above which training diverges, to within this fraction of its value."""

    @model_validator(mode="after")
    def _from_low_to_high(self) -> Self:
        low, high = self.search
        if low >= high:
            raise ValueError(f"search=[{low:g}, {high:g}] does not rise; write the lower value first")
        return self

    def values(self) -> tuple[float, ...]:
        """Return the values to try. Both ends are exact; values in between are rounded."""
        low, high = (math.log(end) for end in self.search)
        inner = [math.exp(low + (high - low) * step / (self.points - 1)) for step in range(1, self.points - 1)]
        return (self.search[0], *map(readable, inner), self.search[1])


def readable(value: float) -> float:
    """Round to four digits."""
    return float(f"{value:.4g}")


Searched = Annotated[Search, SEARCH]
LrAxis = Annotated[
    Annotated[tuple[PositiveFloat, ...], Field(min_length=1), LIST] | Searched,
    LIST_OR_SEARCH,
    BeforeValidator(as_list_unless_searched),
]
MomentumAxis = Annotated[
    Annotated[tuple[Momentum, ...], Field(min_length=1), LIST] | Searched,
    LIST_OR_SEARCH,
    BeforeValidator(as_list_unless_searched),
]
WeightDecayAxis = Annotated[
    Annotated[tuple[NonNegativeFloat, ...], Field(min_length=1), LIST] | Searched,
    LIST_OR_SEARCH,
    BeforeValidator(as_list_unless_searched),
]


class OptimizerAxis(Frozen):
    """An optimizer and the values to try. Each value can be a list or a search; all combinations are run."""

    name: OptimizerName = "sgd"
    lr: LrAxis
    """Learning rates. Default: `USUAL_LR`."""
    momentum: MomentumAxis
    """Momentum values. Default: `USUAL_MOMENTUM`."""
    weight_decay: WeightDecayAxis = (0.0,)
    trust_coefficient: PositiveFloat = 0.001
    lr_rule: Annotated[tuple[LrRule, ...] | None, BeforeValidator(as_list)] = None
    warmup_epochs: Annotated[tuple[NonNegativeFloat, ...] | None, BeforeValidator(as_list)] = None

    @model_validator(mode="before")
    @classmethod
    def _usual_values(cls, values: Any) -> Any:
        return with_usual_values(values)

    @model_validator(mode="after")
    def _every_setting_is_possible(self) -> Self:
        for field, search in self.searched().items():
            if field != "lr" and search.divergence_within is not None:
                raise ValueError(f"{field}.divergence_within={search.divergence_within} applies only to lr; remove it")
            if field == "momentum" and search.search[1] >= 1:
                raise ValueError(f"momentum.search ends at {search.search[1]:g}; momentum must be below 1")
            if len(set(search.values())) < search.points:
                raise ValueError(
                    f"{field}.search is too narrow for {search.points} points; widen it or use fewer points"
                )
        if self.size > MOST_SETTINGS:
            raise ValueError(
                f"{self.name} has {self.size:,} combinations of values, above the limit of {MOST_SETTINGS:,}; use fewer"
            )
        for _ in self.settings():  # creating a combination checks it
            pass
        return self

    @property
    def size(self) -> int:
        """Number of combinations."""
        values = (getattr(self, field) for field in FIELDS)
        return math.prod(axis.points if isinstance(axis, Search) else len(axis or (None,)) for axis in values)

    def searched(self) -> dict[str, Search]:
        """Return the fields that are searches."""
        fields = {"lr": self.lr, "momentum": self.momentum, "weight_decay": self.weight_decay}
        return {name: value for name, value in fields.items() if isinstance(value, Search)}

    @property
    def prunes(self) -> bool:
        """Whether trials are pruned. A search for divergence never prunes: slow divergence takes time to show."""
        searches = self.searched().values()
        return any(search.prune for search in searches) and all(search.divergence_within is None for search in searches)

    def settings(self) -> Iterator[OptimizerSpec]:
        """Yield all combinations, in the order written."""
        axes: dict[str, tuple[Any, ...]] = {}
        for field in FIELDS:
            values = getattr(self, field)
            if isinstance(values, Search):
                axes[field] = values.values()
            elif values is not None:
                axes[field] = values
        for combination in itertools.product(*axes.values()):
            values = dict(zip(axes, combination, strict=True))
            yield OptimizerSpec(name=self.name, trust_coefficient=self.trust_coefficient, **values)
