"""YAML as a tree that knows its lines; plain values only."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError

from worldsize.errors import Problem, SpecError

Loc = tuple[str | int, ...]
"""A place in the tree."""


def parse(text: str, label: str) -> Any:
    try:
        tree = YAML(typ="rt").load(text)
    except (YAMLError, ValueError) as error:  # ruamel lets a date that is none through as a ValueError
        mark = getattr(error, "problem_mark", None)
        where = f"{label}, line {mark.line + 1}" if mark else label
        reason = (getattr(error, "problem", None) or str(error)).splitlines()[0]
        raise SpecError([Problem(f"not valid YAML: {reason}; mend the line", where)]) from error
    return tree


def plain(node: Any, label: str) -> Any:
    """Plain values only: a tag such as !!python/object is refused, never built."""
    line = getattr(getattr(node, "lc", None), "line", None)
    where = label if line is None else f"{label.partition(', line ')[0]}, line {line + 1}"
    tag = getattr(getattr(node, "tag", None), "value", None)
    if tag is not None:
        raise SpecError([Problem(f"the YAML tag {tag} is not allowed; write plain values", where)])
    if isinstance(node, Mapping):
        return {str(key): plain(value, where) for key, value in node.items()}
    if isinstance(node, str):
        return str(node)
    if isinstance(node, Sequence):
        return [plain(value, where) for value in node]
    if node is None or isinstance(node, bool):
        return node
    if isinstance(node, int):
        return int(node)
    if isinstance(node, float) and float("-inf") < node < float("inf"):
        return float(node)
    raise SpecError([Problem(f"{shown(node)} is neither text, nor a finite number, nor true or false", where)])


def has(node: Any, part: str | int) -> bool:
    if isinstance(node, dict):
        return part in node
    return isinstance(node, list) and isinstance(part, int) and part < len(node)


def line_of(tree: Any, loc: Loc) -> int | None:
    """The line of the deepest part of `loc` that stands in the file."""
    line, node = None, tree
    for part in loc:
        positions = getattr(node, "lc", None)
        if positions is None or positions.data is None or not has(node, part):
            break
        position = positions.data.get(part)
        line = position[0] + 1 if position else line
        node = node[part]
    return line


def shown(value: Any) -> str:
    text = json.dumps(value, default=str)
    return text if len(text) <= 60 else text[:57] + "..."
