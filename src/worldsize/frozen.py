"""The base of everything that is asked for or recorded: immutable, strict, no unknown keys; and its short forms."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field


class Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, use_attribute_docstrings=True)


NonNegativeFloat = Annotated[float, Field(ge=0, allow_inf_nan=False)]


def named(value: Any) -> Any:
    """`sgd` is short for `{name: sgd}`."""
    return {"name": value} if isinstance(value, str) else value


def listed(value: Any) -> Any:
    """`4` is short for `[4]`."""
    if value is None:
        return None
    return tuple(value) if isinstance(value, list | tuple) else (value,)
