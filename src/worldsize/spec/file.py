"""Read study files: YAML in, StudySpec out. A problem names its line and, for an unknown key, the most similar one.

Also list the differences between two studies, by dotted key.
"""

from __future__ import annotations

import io
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any, get_args

from pydantic import ValidationError
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

from worldsize.errors import DamagedError, InputError, Problem, did_you_mean, shorten
from worldsize.machine import read_regular
from worldsize.spec.base import Loc, describe_error
from worldsize.spec.place import OnName, OnSlurm, expand_named
from worldsize.spec.study import StudySpec

MOST_BYTES = 256_000
"""Size limit of a study file. Built-in studies have at most a few thousand bytes."""
MOST_VALUES = 20_000
"""Limit on the number of lists, mappings and values, after expanding aliases."""
LONGEST_KEY = 200
DEEPEST = 50
"""Limit on the nesting of lists and mappings."""
LARGEST_INT = 2**63 - 1
LONG_INT = re.compile(r"[-+]?[0-9_]{20,}")


def parse(text: str, label: str) -> Any:
    try:
        _check_extent(text, label)
        tree = YAML(typ="rt").load(text)
    except (YAMLError, ValueError) as error:  # for an invalid date, ruamel raises a ValueError
        mark = getattr(error, "problem_mark", None)
        where = f"{label}, line {mark.line + 1}" if mark else label
        reason = (getattr(error, "problem", None) or str(error) or type(error).__name__).splitlines()[0]
        raise InputError([Problem(f"not valid YAML: {reason[:200]}; fix the line", where)]) from error
    return tree


def _check_extent(text: str, label: str) -> None:
    """Check the size before building the tree: a few lines of aliases can expand to billions of values."""
    if (size := len(text.encode(errors="replace"))) > MOST_BYTES:
        raise InputError([Problem(too_large(size), label)])
    extent = _Extent()
    for event in YAML(typ="rt").parse(text):
        if problem := extent.problem_with(event):
            raise InputError([Problem(problem, f"{label}, line {event.start_mark.line + 1}")])


@dataclass
class _Open:
    """A list or mapping that has not ended."""

    anchor: str | None
    before: int
    """Number of values before it."""
    is_mapping: bool
    children: int = 0


class _Extent:
    """Counts the values so far, after expanding aliases."""

    def __init__(self) -> None:
        self._values = 0
        self._open: list[_Open] = []
        self._sizes: dict[str, int] = {}
        """Number of values that each anchor expands to."""

    def problem_with(self, event: Event) -> str:
        if isinstance(event, CollectionEndEvent):
            ended = self._open.pop()
            self._store_size(ended.anchor, self._values - ended.before)
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
        if isinstance(event, AliasEvent) and any(collection.anchor == anchor for collection in self._open):
            return f"the alias *{anchor} refers to a list or mapping that contains it; write the values out"
        if self._values > MOST_VALUES:
            return f"there are more than {MOST_VALUES:,} values after expanding aliases; use fewer, or search a range"
        if is_key and (starts or size > 1 or len(getattr(event, "value", "")) > LONGEST_KEY):
            return f"a key must be text of at most {LONGEST_KEY} characters, not a list or a mapping; shorten it"
        if starts:
            self._open.append(_Open(anchor, self._values - 1, isinstance(event, MappingStartEvent)))
            if len(self._open) > DEEPEST:
                return f"lists and mappings are nested more than {DEEPEST} levels deep; use fewer levels"
        elif isinstance(event, ScalarEvent):
            self._store_size(anchor, 1)
            if event.style is None and LONG_INT.fullmatch(event.value):
                return too_long_int(f"{event.value[:12]}...")
        return ""

    def _store_size(self, anchor: str | None, size: int) -> None:
        if anchor:
            self._sizes[anchor] = size


def too_large(size: int) -> str:
    return f"the study has {size:,} bytes, more than the limit of {MOST_BYTES:,}; shorten it"


def too_long_int(shown: str) -> str:
    return f"the whole number {shown} does not fit into 64 bits; use at most 18 digits"


def plain_values(node: Any, label: str) -> Any:
    """Return plain Python values. A tag such as !!python/object is an error; its object is never built."""
    tag = getattr(getattr(node, "tag", None), "value", None)
    if tag is not None:
        raise InputError([Problem(f"the YAML tag {tag[:40]} is not allowed; use plain values", label)])
    if isinstance(node, Mapping):
        return {str(key): plain_values(value, _where(node, key, label)) for key, value in node.items()}
    if isinstance(node, str):
        return str(node)
    if isinstance(node, Sequence) and not isinstance(node, bytes):
        return [plain_values(value, _where(node, index, label)) for index, value in enumerate(node)]
    if node is None or isinstance(node, bool):
        return node
    if isinstance(node, int):
        if abs(node) > LARGEST_INT:
            raise InputError([Problem(too_long_int(f"{hex(node)[:14]}..."), label)])
        return int(node)
    if isinstance(node, float) and float("-inf") < node < float("inf"):
        return float(node)
    raise InputError(
        [Problem(f"{shorten(node)} is neither text, nor a finite number, nor true or false; put text in quotes", label)]
    )


def _where(node: Any, key: str | int, label: str) -> str:
    line = line_of(node, (key,))
    if line is None:
        return label if hasattr(node, "lc") else f"{label}.{key}"
    return f"{label.partition(', line ')[0]}, line {line}"


def contains(node: Any, key: str | int) -> bool:
    if isinstance(node, dict):
        return key in node
    return isinstance(node, list) and isinstance(key, int) and key < len(node)


def line_of(tree: Any, loc: Loc) -> int | None:
    """Return the line of the deepest part of `loc` that is in the file."""
    line, node = None, tree
    for part in loc:
        positions = getattr(node, "lc", None)
        if positions is None or positions.data is None or not contains(node, part):
            break
        position = positions.data.get(part)
        line = position[0] + 1 if position else line
        node = node[part]
    return line


INDEX = re.compile(r"[0-9]{1,9}")


def builtin_studies() -> dict[str, Path]:
    folder = Path(str(resources.files("worldsize.spec") / "studies"))
    return {path.stem: path for path in sorted(folder.glob("*.yaml"))}


def is_study_folder(study: str | Path) -> bool:
    """Whether this is the folder of a study, and not the name of a built-in study."""
    return str(study) not in builtin_studies() and (Path(study) / "study.yaml").is_file()


def find_study(study: str) -> Path:
    """Return the path of a study, given as a file, a study folder or the name of a built-in study."""
    builtin = builtin_studies()
    if study in builtin:
        return builtin[study]
    path = Path(study)
    if path.is_file():
        return path
    if is_study_folder(study):
        return path / "study.yaml"
    known = "neither a file, a study folder nor a built-in study"
    raise InputError(f"study {shorten(study)} is {known}. {did_you_mean(study, builtin)}")


class StudyFile:
    """A study as it was written, with line numbers and the changes by options and overrides."""

    def __init__(self, text: str, label: str) -> None:
        self.label = label
        self._tree = parse(text, label)
        if self._tree is None:
            self._tree = {}
        self._options: dict[Loc, str] = {}
        self._has_lines = True
        self.may_leave_out_counts = False
        """Whether worker counts that do not fit may be left out: in a built-in study, unless an option sets them."""

    @classmethod
    def from_values(cls, values: Mapping[str, Any]) -> StudyFile:
        """Return a study from plain Python values. They have no lines, so problems name the dotted key."""
        file = cls("", "study")
        file._has_lines = False
        file._tree = {str(key): plain_values(value, str(key)) for key, value in values.items()}
        return file

    @classmethod
    def read(cls, path: Path) -> StudyFile:
        try:
            content = read_regular(path, most=MOST_BYTES, follow=True)
            file = cls(content.decode(), str(path))
        except DamagedError as error:
            raise InputError(str(error)) from error
        except (OSError, UnicodeDecodeError) as error:
            raise InputError(f"{path}: cannot be read ({error}); use a readable UTF-8 text file") from error
        file.may_leave_out_counts = path in builtin_studies().values()
        return file

    def apply_small(self, option: str = "--small") -> None:
        """Apply the study's `small:` values, and rename the study so that the small version gets its own folder."""
        values = self._tree.get("small") if isinstance(self._tree, dict) else None
        if not isinstance(values, dict) or not values:
            raise InputError([Problem(f"the study has no `small:` values; remove {option}", self.label)])
        for key, value in dict(values).items():
            self._put(str(key), plain_values(value, self.label), f"small: {key}")
        self._put("name", f"{self._tree.get('name')}-small", "small: name")

    def override(self, key: str, value: Any, option: str = "") -> None:
        """Set the field with this dotted key to a plain value. Problems with it name the option."""
        option = option or f"overrides[{shorten(key)}]"
        if key == "axes" or key.startswith("axes.workers"):
            self.may_leave_out_counts = False
        self._put(key, plain_values(value, option), option)

    def override_text(self, assignment: str) -> None:
        """Apply an option like `--set train.epochs=2`. The value is YAML."""
        key, equals, text = assignment.partition("=")
        option = f"--set {assignment if len(assignment) <= 80 else assignment[:77] + '...'}"
        if not equals or not key:
            raise InputError([Problem("expected a key and a value, like --set train.epochs=2", option)])
        self.override(key, parse(text, option), option)

    def move_to(self, place: str, option: str) -> None:
        """Run the study on local, slurm or mpi, or at one of its named places. Its Slurm job settings stay."""
        run_on = self._tree.get("run_on") if isinstance(self._tree, dict) else None
        if isinstance(run_on, list):
            places = {entry["name"]: entry for entry in map(expand_named, run_on) if _has_name(entry)}
            if place not in places:
                raise InputError([Problem(f"the study has the places {', '.join(places)}; choose one", option)])
            chosen = {key: value for key, value in places[place].items() if key != "name"}
            kind = next((kind for kind in get_args(OnName) if chosen.get(kind)), None)
            self._put("run_on", kind or chosen, option)
            self._skip_only_at(place)
        elif place != "slurm" or not isinstance(run_on, dict) or "slurm" not in run_on:
            self._put("run_on", place, option)

    def _skip_only_at(self, place: str) -> None:
        """Remove `skip` entries for other places, and drop the place from those for this one."""
        skip = self._tree.get("skip")
        for entry in list(skip) if isinstance(skip, list) else ():
            if isinstance(entry, dict) and "place" in entry and entry.pop("place") != place:
                skip.remove(entry)

    def _put(self, key: str, value: Any, option: str) -> None:
        if len(key) > LONGEST_KEY:
            raise InputError(
                [
                    Problem(
                        f"the key has {len(key)} characters, more than the limit of {LONGEST_KEY}; shorten it", option
                    )
                ]
            )
        # Whatever does not match INDEX is a name: no list has 10^9 entries, and int() accepts non-ASCII digits.
        loc = tuple(int(part) if INDEX.fullmatch(part) else part for part in key.split("."))
        node: Any = self._tree
        if loc[0] == "run_on" and len(loc) > 1 and contains(node, "run_on") and isinstance(node["run_on"], list):
            loc = ("run_on", _index_of(node["run_on"], loc[1]), *loc[2:])
        for part in loc[:-1]:
            inside = node[part] if contains(node, part) else None
            if part == "workload" and isinstance(inside, str):
                node[part] = inside = {"name": inside}  # a name is short for a mapping
            if part == "run_on" and inside in ("local", "mpi", "slurm"):
                node[part] = inside = {}
            if inside is None and isinstance(node, dict):
                node[part] = inside = {}
            if not isinstance(inside, dict | list):
                raise InputError(
                    [
                        Problem(
                            f"cannot set {key!r}: {part!r} is neither a mapping nor a list; set {part!r} itself", option
                        )
                    ]
                )
            node = inside
        if not hasattr(node, "__setitem__"):
            raise InputError(
                [Problem("the study is not a mapping of keys to values; start it with `name:`", self.label)]
            )
        if isinstance(node, list) and not contains(node, loc[-1]):
            raise InputError(
                [Problem(f"cannot set {key!r}: the list has {len(node)} entries, numbered from 0", option)]
            )
        node[loc[-1]] = value
        self._options[loc] = option

    def spec(self) -> StudySpec:
        try:
            spec = StudySpec.from_plain(plain_values(self._tree, self.label))
            # The stored study, with defaults filled in, must be readable. As YAML, it is less than twice as long.
            if (size := len(spec.model_dump_json())) > MOST_BYTES // 2:
                raise InputError([Problem(f"with its defaults filled in, {too_large(2 * size)}", self.label)])
            return spec
        except ValidationError as error:
            items = error.errors(include_url=False)
            # Pydantic also reports a list with a wrong item as too short. Report only the item.
            inner = {item["loc"][: len(other["loc"])] for item in items for other in items if item is not other}
            reported = [item for item in items if item["type"] != "too_short" or item["loc"] not in inner]
            # Parts in brackets are tags of a union.
            locs = [tuple(part for part in item["loc"] if not str(part).startswith("<")) for item in reported]
            problems = [
                self.problem(describe_error(item, loc, StudySpec), loc)
                for item, loc in zip(reported, locs, strict=True)
            ]
            raise InputError(list(dict.fromkeys(problems))) from error

    def where(self, loc: Loc) -> str:
        """Return the option or the line that the value at `loc` came from."""
        for length in range(len(loc), 0, -1):
            if loc[:length] in self._options:
                return self._options[loc[:length]]
        if not self._has_lines:
            return ".".join(map(str, loc)) or self.label
        line = line_of(self._tree, loc)
        return f"{self.label}, line {line}" if line else self.label

    def problem(self, text: str, loc: Loc) -> Problem:
        """Return a problem with the value at `loc`. Its location is left out if the text already starts with it."""
        where = self.where(loc)
        return Problem(text) if text.startswith(f"{where}=") else Problem(text, where)


def _has_name(entry: Any) -> bool:
    return isinstance(entry, dict) and isinstance(entry.get("name"), str)


def _index_of(places: list[Any], name: str | int) -> str | int:
    """Return the index of the place with this name, and expand its short form in the list; else return the name."""
    for index, entry in enumerate(map(expand_named, places)):
        if _has_name(entry) and entry["name"] == name:
            places[index] = entry
            return index
    return name


def dump_yaml(spec: StudySpec) -> str:
    """Return the study as YAML with all defaults filled in. Reading it gives the same study."""
    stream = io.StringIO()
    stream.write("# The study as run, with all defaults filled in.\n")
    yaml = YAML(typ="rt")
    yaml.default_flow_style = None
    yaml.dump(spec.model_dump(mode="json"), stream)
    return stream.getvalue()


MAY_CHANGE = {"time", "max_jobs", "account", "qos", "setup", "sbatch_options"}
"""Keys of `run_on.slurm` that can change between runs: how jobs are scheduled, not what they run on."""


def changes_between(stored: StudySpec, requested: StudySpec) -> list[str]:
    """Return one line per changed value, like `train.epochs: 2 -> 3`."""
    return differences(_fixed_values(stored), _fixed_values(requested))


def differences(old: Any, new: Any, path: str = "") -> list[str]:
    if isinstance(old, dict) and isinstance(new, dict):
        return [
            line
            for key in dict.fromkeys([*old, *new])
            for line in differences(old.get(key), new.get(key), f"{path}.{key}" if path else key)
        ]
    return [] if old == new else [f"{path}: {_shown(old)} -> {_shown(new)}"]


def _fixed_values(spec: StudySpec) -> dict[str, Any]:
    """Return the values that must not change when a study continues."""
    dumped = spec.model_dump(mode="json")
    places = {
        name: place.model_dump(mode="json", exclude={"slurm": MAY_CHANGE}) if isinstance(place, OnSlurm) else place
        for name, place in spec.places.items()
    }
    dumped["run_on"] = places if isinstance(spec.run_on, tuple) else places[""]
    return dumped


def _shown(value: Any) -> str:
    return "not set" if value is None else str(value)
