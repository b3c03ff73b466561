"""The base of everything that is asked for or recorded: immutable, strict, no unknown keys; and its short forms."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field


class Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, use_attribute_docstrings=True)


Count = Annotated[int, Field(gt=0, le=10**9)]
"""Of anything: a larger one is a slip, or asks for more than any machine has."""
Epochs = Annotated[int, Field(gt=0, le=10**6)]
FILE_NAME = r"^[A-Za-z0-9][A-Za-z0-9._+-]{0,199}$"
FileName = Annotated[str, Field(pattern=FILE_NAME)]
"""Of a file or folder inside another: nothing that leads elsewhere, hides, or needs quotes in a shell."""


Label = Annotated[str, Field(pattern=r"^[^\p{C}\p{Zl}\p{Zp}]*$", max_length=200)]
"""Of a model or a metric: shown in terminals, tables and pages."""
NonNegativeFloat = Annotated[float, Field(ge=0, allow_inf_nan=False)]


def named(value: Any) -> Any:
    """`sgd` is short for `{name: sgd}`."""
    return {"name": value} if isinstance(value, str) else value


def listed(value: Any) -> Any:
    """`4` is short for `[4]`."""
    if value is None:
        return None
    return tuple(value) if isinstance(value, list | tuple) else (value,)
