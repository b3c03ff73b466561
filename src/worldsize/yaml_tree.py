"""YAML as a tree that knows its lines; plain values only."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError
from ruamel.yaml.events import (
    AliasEvent,
    CollectionEndEvent,
    CollectionStartEvent,
    Event,
    MappingStartEvent,
    NodeEvent,
    ScalarEvent,
)

from worldsize.errors import Problem, SpecError

Loc = tuple[str | int, ...]
"""A place in the tree."""
MOST_BYTES = 256_000
"""Of a study file. The built-in ones have a few thousand."""
MOST_VALUES = 20_000
"""Lists, mappings and what is in them, with every alias counted as all that it stands for."""
LONGEST_KEY = 200
DEEPEST = 50
"""Lists and mappings inside one another."""
LARGEST_INT = 2**63 - 1
LONG_INT = re.compile(r"[-+]?[0-9_]{20,}")


def parse(text: str, label: str) -> Any:
    try:
        _check_extent(text, label)
        tree = YAML(typ="rt").load(text)
    except (YAMLError, ValueError) as error:  # ruamel lets a date that is none through as a ValueError
        mark = getattr(error, "problem_mark", None)
        where = f"{label}, line {mark.line + 1}" if mark else label
        reason = (getattr(error, "problem", None) or str(error) or type(error).__name__).splitlines()[0]
        raise SpecError([Problem(f"not valid YAML: {reason[:200]}; mend the line", where)]) from error
    return tree


def _check_extent(text: str, label: str) -> None:
    """Before anything is built of it: a few lines of aliases can stand for billions of values."""
    if (size := len(text.encode(errors="replace"))) > MOST_BYTES:
        raise SpecError([Problem(too_large(size), label)])
    extent = _Extent()
    for event in YAML(typ="rt").parse(text):
        if problem := extent.problem_with(event):
            raise SpecError([Problem(problem, f"{label}, line {event.start_mark.line + 1}")])


@dataclass
class _Open:
    """A list or mapping that has not ended."""

    anchor: str | None
    before: int
    """Values before it."""
    is_mapping: bool
    children: int = 0


class _Extent:
    """How many values there are so far, aliases written out."""

    def __init__(self) -> None:
        self._values = 0
        self._open: list[_Open] = []
        self._sizes: dict[str, int] = {}
        """Values that an anchor stands for."""

    def problem_with(self, event: Event) -> str:
        if isinstance(event, CollectionEndEvent):
            ended = self._open.pop()
            self._name(ended.anchor, self._values - ended.before)
        elif isinstance(event, NodeEvent):
            return self._new_value(event)
        return ""

    def _new_value(self, event: NodeEvent) -> str:
        is_key = False
        if self._open:
            is_key = self._open[-1].is_mapping and self._open[-1].children % 2 == 0
            self._open[-1].children += 1
        starts, anchor = isinstance(event, CollectionStartEvent), event.anchor
        size = self._sizes.get(anchor, 1) if isinstance(event, AliasEvent) else 1
        self._values += size
        if isinstance(event, AliasEvent) and any(each.anchor == anchor for each in self._open):
            return f"the alias *{anchor} stands inside what it stands for; write the values out"
        if self._values > MOST_VALUES:
            return f"there are more than {MOST_VALUES:,} values, aliases written out; use fewer, or a range to search"
        if is_key and (starts or size > 1 or len(getattr(event, "value", "")) > LONGEST_KEY):
            return f"a key is one word of at most {LONGEST_KEY} characters, no list and no mapping; write it so"
        if starts:
            self._open.append(_Open(anchor, self._values - 1, isinstance(event, MappingStartEvent)))
            if len(self._open) > DEEPEST:
                return f"lists and mappings are nested more than {DEEPEST} deep; write it flatter"
        elif isinstance(event, ScalarEvent):
            self._name(anchor, 1)
            if event.style is None and LONG_INT.fullmatch(event.value):
                return too_long_int(f"{event.value[:12]}...")
        return ""

    def _name(self, anchor: str | None, size: int) -> None:
        if anchor:
            self._sizes[anchor] = size


def too_large(size: int) -> str:
    return f"a study of {size:,} bytes is more than the {MOST_BYTES:,} that one may have; shorten it"


def too_long_int(shown: str) -> str:
    return f"the whole number {shown} does not fit into 64 bits; use one of at most 18 digits"


def plain(node: Any, label: str) -> Any:
    """Plain values only: a tag such as !!python/object is refused, never built."""
    tag = getattr(getattr(node, "tag", None), "value", None)
    if tag is not None:
        raise SpecError([Problem(f"the YAML tag {tag[:40]} is not allowed; write plain values", label)])
    if isinstance(node, Mapping):
        return {str(key): plain(value, _where(node, key, label)) for key, value in node.items()}
    if isinstance(node, str):
        return str(node)
    if isinstance(node, Sequence) and not isinstance(node, bytes):
        return [plain(value, _where(node, place, label)) for place, value in enumerate(node)]
    if node is None or isinstance(node, bool):
        return node
    if isinstance(node, int):
        if abs(node) > LARGEST_INT:
            raise SpecError([Problem(too_long_int(f"{hex(node)[:14]}..."), label)])
        return int(node)
    if isinstance(node, float) and float("-inf") < node < float("inf"):
        return float(node)
    raise SpecError([Problem(f"{shown(node)} is neither text, nor a finite number, nor true or false", label)])


def _where(node: Any, part: str | int, label: str) -> str:
    line = line_of(node, (part,))
    return label if line is None else f"{label.partition(', line ')[0]}, line {line}"


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
