"""Shared by all specs: frozen models, locations in a study file, and readable messages for pydantic's errors."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Annotated, Any, Self, get_args

from pydantic import (
    BaseModel,
    ConfigDict,
    Discriminator,
    Field,
    Tag,
    ValidationError,
    ValidatorFunctionWrapHandler,
    WrapValidator,
)
from pydantic_core import PydanticCustomError

from worldsize.errors import did_you_mean, shorten


class Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, use_attribute_docstrings=True)

    @classmethod
    def from_plain(cls, values: Any) -> Self:
        """Return a model from plain JSON or YAML values.

        Validate from JSON text: only there does a strict model accept lists for tuples.
        """
        return cls.model_validate_json(json.dumps(values))


WORDED = "worded"
"""The type of an error whose message starts with the key and its value."""


def or_say(rule: str) -> WrapValidator:
    """Annotate a string type: `rule`, with its remedy, replaces pydantic's message unless the value is not text."""

    def check(value: Any, validate: ValidatorFunctionWrapHandler) -> Any:
        try:
            return validate(value)
        except ValidationError as error:
            if [item["type"] for item in error.errors()] == ["string_type"]:
                raise
            raise PydanticCustomError(WORDED, "{rule}", {"rule": rule}) from error

    return WrapValidator(check)


Count = Annotated[int, Field(gt=0, le=10**9)]
"""Any count. A larger one is a typo or exceeds any machine."""
Epochs = Annotated[int, Field(gt=0, le=10**6)]
FILE_NAME = r"^[A-Za-z0-9][A-Za-z0-9._+-]{0,199}$"
FileName = Annotated[str, Field(pattern=FILE_NAME)]
"""Name of a file or folder. It cannot lead out of the parent folder, be hidden, or need quotes in a shell."""


Label = Annotated[
    str,
    Field(pattern=r"^[^\p{C}\p{Zl}\p{Zp}]*$", max_length=200),
    or_say("is not a valid name; use at most 200 printable characters on one line"),
]
"""Name of a model or a metric, shown in terminals, tables and pages."""
NonNegativeFloat = Annotated[float, Field(ge=0, allow_inf_nan=False)]


def as_name(value: Any) -> Any:
    """Expand a name: `sgd` is short for `{name: sgd}`."""
    return {"name": value} if isinstance(value, str) else value


def as_list(value: Any) -> Any:
    """Wrap a single value: `4` is short for `[4]`."""
    if value is None:
        return None
    return tuple(value) if isinstance(value, list | tuple) else (value,)


def refuse_foreign(spec: BaseModel, kind: str, name: str, owners: Mapping[str, str]) -> None:
    """Raise ValueError if a field is set that `name` does not use. `owners` maps fields to the names that use them."""
    for field, owner in owners.items():
        value = getattr(spec, field)
        if name != owner and value != type(spec).model_fields[field].default:
            shown = list(value) if isinstance(value, tuple) else value
            raise ValueError(f"{field}={shown} applies only to the {kind} {owner}, not to {name}; remove it")


def is_search(value: Any) -> bool:
    """Whether an axis is a mapping that describes a search, not a list of values."""
    return isinstance(value, dict | BaseModel)


LIST, SEARCH = Tag("<list>"), Tag("<search>")
"""The brackets let `spec/file.py` remove the tags from the location of an error."""
LIST_OR_SEARCH = Discriminator(lambda value: SEARCH.tag if is_search(value) else LIST.tag)


def as_list_unless_searched(value: Any) -> Any:
    return value if is_search(value) else as_list(value)


Loc = tuple[str | int, ...]
"""A location in the tree of a study."""


REMOVED_KEYS = {
    "tpe": "TPE search is no longer available. Remove the key to try an even grid over the range, or write "
    "`lr: {search: [0.001, 1.0], divergence_within: 0.05}` to find the learning rate above which training diverges",
}
"""Removed keys, and what to use instead."""
RENAMED_KEYS = {
    "on": "run_on",
    "rate": "lr",
    "rate_rule": "lr_rule",
    "trust": "trust_coefficient",
    "edge": "divergence_within",
    "stop_hopeless": "prune",
    "most": "max",
    "gain": "min_gain",
    "cpus_per_task": "cpus_per_worker",
    "extra": "sbatch_options",
    "threads": "threads_per_worker",
    "interconnect_s": "interconnect_probe_s",
    "size": "image_size",
    "test_share": "test_fraction",
    "options": "data_options",
    "save": "save_weights",
    "noise_scale": "measure_noise_scale",
    "probe.precision": "tolerance",
    "axes.start": "weights",
    "skip.start": "weights",
    "batch_per_worker.start": "first",
    "plateau.epochs": "patience",
    "skip.on": "place",
    "axes.adaptive": "adaptive, at the top of the study",
}
"""Old keys and their new names. An old key includes its parent if the key had several meanings."""


def describe_error(item: Any, loc: Loc, model: type[BaseModel]) -> str:
    """Describe a pydantic error at `loc` of the model: value, rule and remedy."""
    name = ".".join(str(part) for part in loc)
    value = shorten(item["input"])
    kind, rule = item["type"], str(item["msg"])
    if kind == "value_error":
        text = rule.removeprefix("Value error, ")
    elif not loc:
        text = f"a study is a mapping of keys to values, not {value}; start it with `name:`"
    elif kind == "extra_forbidden" and loc[-1] in REMOVED_KEYS:
        text = f"unknown key {shorten(loc[-1])}{_inside(loc[:-1])}; {REMOVED_KEYS[str(loc[-1])]}"
    elif kind == "extra_forbidden":
        keys = _keys_at(model, loc[:-1])
        key = str(loc[-1])
        parents = [part for part in loc[:-1] if isinstance(part, str)]
        inside = ".".join([*parents[-1:], key])
        renamed = RENAMED_KEYS.get(inside) or RENAMED_KEYS.get(key)
        is_known = renamed in keys or (bool(parents) and inside in RENAMED_KEYS)
        hint = f"; it is now called {renamed}" if is_known else f". {did_you_mean(key, keys, cutoff=0.5)}"
        text = f"unknown key {shorten(key)}{_inside(loc[:-1])}{hint}"
    elif kind == "missing":
        text = f"{shorten(loc[-1])} is missing{_inside(loc[:-1])}; add it"
    elif kind == "too_short":
        text = f"{name}={value} is empty; give at least one value, or leave the key out if it has a default"
    elif kind == WORDED:
        text = f"{value} {rule}" if loc[-1] == "[key]" else f"{name}={value} {rule}"
    else:
        text = f"{name}={value}: {rule[0].lower()}{rule[1:]}; {_remedy(kind, item.get('ctx', {}))}"
    return text


def _remedy(kind: str, limits: Mapping[str, Any]) -> str:
    """Return what to write instead, by the kind of pydantic error."""
    bounds = {"gt": "above", "ge": "of at least", "lt": "below", "le": "of at most"}
    for key, words in bounds.items():
        if key in limits:
            return f"use a value {words} {limits[key]}"
    return {
        "int_type": "write a whole number, like 4",
        "int_from_float": "write a whole number, like 4",
        "float_type": "write a number, like 0.05",
        "bool_type": "write true or false",
        "string_type": 'write text, in quotes where it looks like a number: "4"',
        "literal_error": "choose one of these",
        "model_type": "write a mapping, like {key: value}",
        "tuple_type": "write a list, like [1, 2]",
    }.get(kind, "see the example in the README")


def _keys_at(model: type[BaseModel], loc: Loc) -> list[str]:
    """Return the keys that the model allows at `loc`."""
    current: type[BaseModel] = model
    for part in loc:
        if isinstance(part, str) and part in current.model_fields:
            current = _model_in(current.model_fields[part].annotation) or current
    return list(current.model_fields)


def _model_in(annotation: Any) -> type[BaseModel] | None:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next((inner for arg in get_args(annotation) if (inner := _model_in(arg))), None)


def _inside(loc: Loc) -> str:
    return f" in {shorten('.'.join(str(part) for part in loc))}" if loc else ""
