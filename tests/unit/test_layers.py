"""The order of the rooms, read from the imports themselves: a room imports only itself and the rooms before it."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[2] / "src" / "worldsize"
PATHS = sorted(SOURCE.rglob("*.py"))

ROOMS = (
    "spec",
    "folder",
    "data",
    "plan",
    "launch",
    "worker",
    "analysis",
    "answer",
    "study",
    "report",
    "exports",
    "cli",
)
"""In the order in which a study passes through them."""
EVERYWHERE = {"errors", "machine"}
"""Modules of the root that every room may import. The package itself holds the version."""
ONLY = {"worker": {"spec", "folder", "data"}, "analysis": {"spec.setting"}}
"""Rooms that may import less than all that comes before them."""
APART = ({"launch", "worker"},)
"""Rooms that never import each other."""
MOST_MODULES = 12
"""In one folder, without its __init__."""


def name_of(path: Path) -> str:
    """`spec/file.py` -> `spec.file`, `worker/models/__init__.py` -> `worker.models`, the package itself -> ``."""
    parts = path.relative_to(SOURCE).with_suffix("").parts
    return ".".join(part for part in parts if part != "__init__")


MODULES = {name_of(path): path for path in PATHS}


@dataclass(frozen=True)
class Import:
    """One import of one module of the package."""

    of: str
    module: str
    at_runtime: bool
    """Not for type checking only."""
    at_once: bool
    """Not inside a function."""


def resolved(module: str, name: str) -> str | None:
    """The module of the package that `from module import name` loads; None for other packages."""
    if module.split(".")[0] != "worldsize":
        return None
    inside = module.removeprefix("worldsize").lstrip(".")
    longer = f"{inside}.{name}".lstrip(".")
    found = longer if name and longer in MODULES else inside
    assert found in MODULES, f"{module} is not a module of the package"
    return found


def imports(path: Path) -> list[Import]:
    found: list[Import] = []
    of = name_of(path)

    def walk(node: ast.AST, *, at_runtime: bool, at_once: bool) -> None:
        for child in ast.iter_child_nodes(node):
            here, inside = at_runtime, at_once
            if isinstance(child, ast.If) and isinstance(child.test, ast.Name) and child.test.id == "TYPE_CHECKING":
                here = False
            if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
                inside = False
            if isinstance(child, ast.ImportFrom):
                assert child.level == 0, f"{path}: relative import"
                names = [resolved(child.module or "", alias.name) for alias in child.names]
                found.extend(Import(of, name, here, inside) for name in names if name is not None)
            elif isinstance(child, ast.Import):
                names = [resolved(alias.name, "") for alias in child.names]
                found.extend(Import(of, name, here, inside) for name in names if name is not None)
            walk(child, at_runtime=here, at_once=inside)

    walk(ast.parse(path.read_text(encoding="utf-8")), at_runtime=True, at_once=True)
    return found


IMPORTS = [each for path in PATHS for each in imports(path)]


def room_of(module: str) -> str:
    return module.split(".")[0]


def within(module: str, allowed: set[str]) -> bool:
    return any(module == each or module.startswith(f"{each}.") for each in allowed)


def upward(each: Import) -> bool:
    """Whether an import breaks the order, wherever it stands: at the top, in a function, for type checking only."""
    if each.of == "" or each.module in {"", *EVERYWHERE}:  # for the version; of the package itself, see below
        return False
    of, to = room_of(each.of), room_of(each.module)
    if of in EVERYWHERE:
        return to not in EVERYWHERE
    if of == to:
        return False
    if {of, to} in APART:
        return True
    if of in ONLY:
        return not within(each.module, ONLY[of])
    return ROOMS.index(to) > ROOMS.index(of)


def test_every_module_is_in_a_room() -> None:
    rooms = {room_of(module) for module in MODULES}
    assert rooms == {"", *EVERYWHERE, *ROOMS}
    assert {path.name for path in SOURCE.glob("*.py")} == {"__init__.py", *(f"{name}.py" for name in EVERYWHERE)}


def test_rooms_import_only_rooms_before_them() -> None:
    assert not [f"{each.of} imports {each.module}" for each in IMPORTS if upward(each)]


def test_a_room_is_small() -> None:
    folders = {path.parent for path in PATHS}
    sizes = {str(each.relative_to(SOURCE)): len([*each.glob("*.py")]) - 1 for each in folders}
    assert {folder: size for folder, size in sizes.items() if size > MOST_MODULES} == {}


def test_the_package_itself_loads_nothing_at_once() -> None:
    """A worker imports it too, and needs none of its public names."""
    assert not [each.module for each in IMPORTS if each.of == "" and each.at_runtime and each.at_once]


def cycles(edges: Mapping[str, set[str]]) -> Iterator[list[str]]:
    """Each module that reaches itself, with the way it takes."""
    for start in edges:
        ways = [[start]]
        seen: set[str] = set()
        while ways:
            way = ways.pop(0)
            for to in edges.get(way[-1], ()):
                if to == start:
                    yield [*way, to]
                    ways.clear()
                    break
                if to not in seen:
                    seen.add(to)
                    ways.append([*way, to])


def test_no_module_imports_itself_in_a_circle() -> None:
    edges: dict[str, set[str]] = {}
    for each in IMPORTS:
        # For type checking only, a module may name what comes later in its room. The package loads its names lazily.
        if each.of and each.module and each.at_runtime:
            edges.setdefault(each.of, set()).add(each.module)
    assert not [" -> ".join(way) for way in cycles(edges)]


@pytest.mark.parametrize("path", PATHS, ids=lambda path: str(path.relative_to(SOURCE)))
def test_only_the_worker_imports_torch(path: Path) -> None:
    names = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            names.add(node.module or "")
    torch = {name for name in names if name.split(".")[0] in ("torch", "torchvision")}
    assert room_of(name_of(path)) == "worker" or not torch


def test_analysis_is_pure() -> None:
    outside = set()
    for path in (SOURCE / "analysis").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                outside |= {alias.name.split(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom):
                outside.add((node.module or "").split(".")[0])
    standard = {"types", "collections", "dataclasses", "functools", "itertools", "math", "typing"}
    assert outside - {"worldsize", "__future__"} <= {*standard, "numpy", "scipy"}


@pytest.mark.parametrize("command", ["import worldsize.cli.main", "import worldsize; worldsize.Study; worldsize.load"])
def test_the_driver_never_loads_torch(command: str) -> None:
    check = f"{command}; import sys; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", check], check=False).returncode == 0


def test_help_loads_nothing_heavy() -> None:
    check = (
        "import sys; sys.argv = ['worldsize', '--help']\n"
        "from worldsize.cli.main import main\n"
        "try: main()\n"
        "except SystemExit: pass\n"
        "heavy = {'torch', 'numpy', 'scipy', 'pydantic', 'plotly', 'matplotlib'} & set(sys.modules)\n"
        "sys.exit(str(heavy) if heavy else 0)"
    )
    answer = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True, check=False)
    assert answer.returncode == 0, answer.stderr
    assert "run" in answer.stdout
