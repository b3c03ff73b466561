"""Study files: YAML in, StudySpec out; every problem names its line, and an unknown key its nearest neighbour."""

from __future__ import annotations

import difflib
import io
import json
from collections.abc import Callable, Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Any, get_args

from pydantic import BaseModel, ValidationError
from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError

from worldsize.errors import Problem, SpecError
from worldsize.machine import Machine
from worldsize.on_spec import OnSlurm, machine_of
from worldsize.spec import StudySpec

Loc = tuple[str | int, ...]


def builtin_studies() -> dict[str, Path]:
    folder = Path(str(resources.files("worldsize") / "studies"))
    return {path.stem: path for path in sorted(folder.glob("*.yaml"))}


def find_study(study: str) -> Path:
    """A file's path, or the name of a built-in study."""
    builtin = builtin_studies()
    if study in builtin:
        return builtin[study]
    path = Path(study)
    if path.is_file():
        return path
    near = difflib.get_close_matches(study, builtin, n=1)
    hint = f"did you mean {near[0]}?" if near else f"built-in studies: {', '.join(builtin)}"
    raise SpecError(f"study {study!r} is neither a file nor a built-in study; {hint}")


class StudyFile:
    """The text of a study with its lines, and what the command line changed in it."""

    def __init__(self, text: str, label: str) -> None:
        self.label = label
        self._tree = _parse(text, label)
        if self._tree is None:
            self._tree = {}
        self._options: dict[Loc, str] = {}

    @classmethod
    def read(cls, path: Path) -> StudyFile:
        try:
            return cls(path.read_text(encoding="utf-8"), str(path))
        except (OSError, UnicodeDecodeError) as error:
            raise SpecError(f"{path}: cannot be read ({error}); give a text file in UTF-8") from error

    def apply_small(self) -> None:
        """What the study's own `small:` says. Its folder is another one, so that both versions can stand."""
        values = self._tree.get("small") if isinstance(self._tree, dict) else None
        if not isinstance(values, dict) or not values:
            raise SpecError([Problem("has no `small:` values; leave --small out", self.label)])
        for key, value in dict(values).items():
            self._put(str(key), _plain(value, self.label), f"small: {key}")
        self._put("name", f"{self._tree.get('name')}-small", "small: name")

    def override(self, assignment: str) -> None:
        """`train.epochs=2`: sets one field, read as YAML."""
        key, equals, text = assignment.partition("=")
        option = f"--set {assignment}"
        if not equals or not key:
            raise SpecError([Problem("wants a field and a value, like --set train.epochs=2", option)])
        self._put(key, _plain(_parse(text, option), option), option)

    def move_to(self, target: str) -> None:
        """`--on slurm`: what the study says of its jobs is kept; of several targets, the one of this name."""
        on = self._tree.get("on") if isinstance(self._tree, dict) else None
        if not isinstance(on, dict) or not on:
            self._put("on", target, f"--on {target}")
        elif "slurm" not in on:
            if target not in on:
                names = ", ".join(map(str, on))
                raise SpecError([Problem(f"the study has the targets {names}; choose one of them", f"--on {target}")])
            self._put("on", on[target], f"--on {target}")
        elif target != "slurm":
            self._put("on", target, f"--on {target}")

    def resolve_auto(self, machine: Machine, samples_of: Callable[[StudySpec], int]) -> None:
        """`axes.workers: auto` -> 1, 2, 4, ... and all that fit on this machine, probed adaptively.

        As far as global batches divide among them, and are no larger than the training data.
        """
        axes = self._tree.get("axes") if isinstance(self._tree, dict) else None
        if not isinstance(axes, dict) or axes.get("workers") not in ("auto", ["auto"]):
            return
        where = self.where(("axes", "workers"))
        axes["workers"] = [1]  # whatever else is wrong is told first
        spec = self.spec()
        if len(spec.targets) > 1:
            text = f"workers: auto needs one target, and the study has {len(spec.targets)}; list the counts"
            raise SpecError([Problem(text, where)])
        (place,) = spec.targets.values()
        if isinstance(place, OnSlurm) and not (place.slurm.gpus_per_node or place.slurm.workers_per_node):
            text = (
                "workers: auto needs to know how many fit on a node; set on.slurm.workers_per_node, or list the counts"
            )
            raise SpecError([Problem(text, where)])
        machine = machine_of(place, machine, threads=spec.threads, most_workers=1)
        places = machine.places(machine.device(spec.device), spec.threads)
        counts = {1, places or 1, *(2**power for power in range(places.bit_length()) if 2**power <= places)}
        samples, axes_spec = samples_of(spec), spec.axes
        fitting = [
            count
            for count in sorted(counts)
            if all(
                batch % (count * times) == 0
                for batch in axes_spec.global_batch or ()
                for times in axes_spec.accumulation
            )
            and (axes_spec.global_batch or count * min(axes_spec.batches) * min(axes_spec.accumulation) <= samples)
        ]
        self._put("axes.workers", fitting or [1], where)
        self._put("axes.adaptive", True, where)

    def _put(self, key: str, value: Any, option: str) -> None:
        loc = tuple(int(part) if part.isdigit() else part for part in key.split("."))
        node: Any = self._tree
        for part in loc[:-1]:
            inside = node[part] if _has(node, part) else None
            if part == "workload" and isinstance(inside, str):
                node[part] = inside = {"name": inside}  # a name is short for a mapping
            if part == "on" and inside in ("local", "mpi", "slurm"):
                node[part] = inside = {}
            if inside is None and isinstance(node, dict):
                node[part] = inside = {}
            if not isinstance(inside, dict | list):
                raise SpecError([Problem(f"{key!r}: there is nothing to set inside {part!r}", option)])
            node = inside
        if not hasattr(node, "__setitem__"):
            raise SpecError([Problem("the study is no mapping of keys to values; begin it with `name:`", self.label)])
        if isinstance(node, list) and not _has(node, loc[-1]):
            raise SpecError([Problem(f"{key!r}: the list has {len(node)} entries, counted from 0", option)])
        node[loc[-1]] = value
        self._options[loc] = option

    def spec(self) -> StudySpec:
        try:
            return StudySpec.model_validate_json(json.dumps(_plain(self._tree, self.label)))
        except ValidationError as error:
            items = error.errors(include_url=False)
            # A list with a wrong item is also said to be too short: the item is what is wrong.
            inner = {item["loc"][: len(other["loc"])] for item in items for other in items if item is not other}
            told = [item for item in items if item["type"] != "too_short" or item["loc"] not in inner]
            raise SpecError(list(dict.fromkeys(map(self._problem, told)))) from error

    def where(self, loc: Loc) -> str:
        """The option or the line that the value at `loc` came from."""
        for length in range(len(loc), 0, -1):
            if loc[:length] in self._options:
                return self._options[loc[:length]]
        line = _line(self._tree, loc)
        return f"{self.label}, line {line}" if line else self.label

    def _problem(self, item: Any) -> Problem:
        loc: Loc = tuple(part for part in item["loc"] if not str(part).startswith("<"))  # tags of a union
        name = ".".join(str(part) for part in loc)
        value = _shown(item["input"])
        kind, rule = item["type"], item["msg"]
        if kind == "value_error":
            text = rule.removeprefix("Value error, ")
        elif not loc:
            text = f"a study is a mapping of keys to values, not {value}; begin with `name:`"
        elif kind == "extra_forbidden":
            keys = _keys_at(StudySpec, loc[:-1])
            near = difflib.get_close_matches(str(loc[-1]), keys, n=1, cutoff=0.5)
            hint = f"did you mean {near[0]!r}?" if near else f"the keys here are {', '.join(keys)}"
            text = f"unknown key {str(loc[-1])!r}{_inside(loc[:-1])}; {hint}"
        elif kind == "missing":
            text = f"{loc[-1]!r} is missing{_inside(loc[:-1])}; add it"
        elif kind == "too_short":
            text = f"{name}={value} is empty; give at least one value, or leave the key out if it has a default"
        elif kind == "string_pattern_mismatch" and "workload" in loc:
            text = f"{name}={value}: a workload is a built-in name in lower case, or package.module:function"
        elif kind == "string_pattern_mismatch" and loc[0] == "on" and loc[-2:] == ("slurm", "time"):
            text = f"{name}={value} is no time limit; write minutes, HH:MM:SS or D-HH:MM:SS"
        elif kind == "string_pattern_mismatch" and loc[0] == "on" and loc[-1] == "[key]":
            text = f"{value} cannot name a target; use 1 to 32 letters, digits, '.', '_' and '-'"
        elif kind == "string_pattern_mismatch" and loc[0] == "on":
            text = f"{name}={value} is not in the form that sbatch takes; use letters, digits and . _ - , : @ +"
        elif kind == "string_pattern_mismatch":
            text = (
                f"{name}={value}: a name is 1 to 64 letters, digits, '.', '_' or '-', beginning with a letter or digit"
            )
        else:
            text = f"{name}={value}: {rule[0].lower()}{rule[1:]}; {_remedy(kind, item.get('ctx', {}))}"
        return Problem(text, self.where(loc))


def _remedy(kind: str, limits: Mapping[str, Any]) -> str:
    """What to write instead, by the kind of pydantic's error."""
    bounds = {"gt": "above", "ge": "of at least", "lt": "below", "le": "of at most"}
    for key, words in bounds.items():
        if key in limits:
            return f"use a value {words} {limits[key]}"
    return {
        "int_type": "write a whole number, like 4",
        "int_from_float": "write a whole number, like 4",
        "float_type": "write a number, like 0.05",
        "bool_type": "write true or false",
        "literal_error": "choose one of these",
        "model_type": "write a mapping, like {key: value}",
        "tuple_type": "write a list, like [1, 2]",
    }.get(kind, "see the example in the README")


def _parse(text: str, label: str) -> Any:
    try:
        tree = YAML(typ="rt").load(text)
    except (YAMLError, ValueError) as error:  # ruamel lets a date that is none through as a ValueError
        mark = getattr(error, "problem_mark", None)
        where = f"{label}, line {mark.line + 1}" if mark else label
        reason = (getattr(error, "problem", None) or str(error)).splitlines()[0]
        raise SpecError([Problem(f"not valid YAML: {reason}; mend the line", where)]) from error
    return tree


def _plain(node: Any, label: str) -> Any:
    """Plain values only: a tag such as !!python/object is refused, never built."""
    line = getattr(getattr(node, "lc", None), "line", None)
    where = label if line is None else f"{label.partition(', line ')[0]}, line {line + 1}"
    tag = getattr(getattr(node, "tag", None), "value", None)
    if tag is not None:
        raise SpecError([Problem(f"the YAML tag {tag} is not allowed; write plain values", where)])
    if isinstance(node, Mapping):
        return {str(key): _plain(value, where) for key, value in node.items()}
    if isinstance(node, str):
        return str(node)
    if isinstance(node, Sequence):
        return [_plain(value, where) for value in node]
    if node is None or isinstance(node, bool):
        return node
    if isinstance(node, int):
        return int(node)
    if isinstance(node, float) and float("-inf") < node < float("inf"):
        return float(node)
    raise SpecError([Problem(f"{_shown(node)} is neither text, nor a finite number, nor true or false", where)])


def _has(node: Any, part: str | int) -> bool:
    if isinstance(node, dict):
        return part in node
    return isinstance(node, list) and isinstance(part, int) and part < len(node)


def _line(tree: Any, loc: Loc) -> int | None:
    """The line of the deepest part of `loc` that stands in the file."""
    line, node = None, tree
    for part in loc:
        positions = getattr(node, "lc", None)
        if positions is None or positions.data is None or not _has(node, part):
            break
        position = positions.data.get(part)
        line = position[0] + 1 if position else line
        node = node[part]
    return line


def _keys_at(model: type[BaseModel], loc: Loc) -> list[str]:
    """The keys allowed at `loc`, read from the models themselves."""
    found: type[BaseModel] = model
    for part in loc:
        if isinstance(part, str) and part in found.model_fields:
            found = _model_in(found.model_fields[part].annotation) or found
    return list(found.model_fields)


def _model_in(annotation: Any) -> type[BaseModel] | None:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next((found for arg in get_args(annotation) if (found := _model_in(arg))), None)


def _inside(loc: Loc) -> str:
    return f" in {'.'.join(str(part) for part in loc)!r}" if loc else ""


def _shown(value: Any) -> str:
    text = json.dumps(value, default=str)
    return text if len(text) <= 60 else text[:57] + "..."


def dump_yaml(spec: StudySpec) -> str:
    """The study with its defaults filled in, as a file that reads back to the same study."""
    stream = io.StringIO()
    stream.write("# The study as it is run, defaults filled in.\n")
    yaml = YAML(typ="rt")
    yaml.default_flow_style = None
    yaml.dump(spec.model_dump(mode="json"), stream)
    return stream.getvalue()
