"""The arrows of docs/design.md, read from the imports themselves."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[2] / "src" / "worldsize"
MODULES = sorted(SOURCE.rglob("*.py"))

ALLOWED = {
    "worker": {
        "worker",
        "data",
        "spec",
        "augment_spec",
        "largest",
        "optimizer_spec",
        "train_spec",
        "record",
        "store",
        "errors",
        "tether",
        "",
    },
    "launch": {
        *("launch", "data", "spec", "on_spec", "plan", "record", "store", "errors", "machine", "lock", "tether"),
    },
    "data": {"data", "spec", "frozen", "store", "errors"},
    "analysis": {"analysis"},
    "export": {"export", "analysis", "errors", "inputs", "record", "results", "spec", "store", ""},
    "report": {
        "report",
        "analysis",
        "catalog",
        "comparison",
        "data",
        "errors",
        "estimate",
        "grid",
        "inputs",
        "launch",
        "machine",
        "optimizer_spec",
        "plan",
        "prediction",
        "record",
        "results",
        "spec",
        "store",
        "study",
        "tablefile",
        "tableprojection",
        "train_spec",
        "",
    },
}
"""Which rooms and modules a room may import; '' is the package itself, for its version."""


def imports(path: Path) -> set[str]:
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            module = node.module or ""
            found |= {f"{module}.{alias.name}" if module == "worldsize" else module for alias in node.names}
    return found


def room(path: Path) -> str:
    inside = path.relative_to(SOURCE)
    return inside.parts[0] if len(inside.parts) > 1 else ""


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_only_the_worker_imports_torch(path: Path) -> None:
    torch = {name for name in imports(path) if name.split(".")[0] in ("torch", "torchvision")}
    assert room(path) == "worker" or not torch


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_rooms_import_only_what_they_may(path: Path) -> None:
    allowed = ALLOWED.get(room(path))
    if allowed is None:  # the driver's own modules, above the rooms
        allowed = {*ALLOWED, *(module.stem for module in SOURCE.glob("*.py")), ""} - {"worker"}
    ours = {name.removeprefix("worldsize").strip(".") for name in imports(path) if name.split(".")[0] == "worldsize"}
    reached = {"" if name.startswith("__") else name.split(".")[0] for name in ours}
    assert reached <= allowed


def test_analysis_is_pure() -> None:
    outside = {name.split(".")[0] for path in (SOURCE / "analysis").glob("*.py") for name in imports(path)} - {
        "worldsize",
        "__future__",
    }
    standard = {"types", "collections", "dataclasses", "functools", "itertools", "math", "typing"}
    assert outside <= {*standard, "numpy", "scipy"}


@pytest.mark.parametrize("command", ["import worldsize.cli", "import worldsize; worldsize.Study; worldsize.load"])
def test_the_driver_never_loads_torch(command: str) -> None:
    check = f"{command}; import sys; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", check], check=False).returncode == 0


def test_help_loads_nothing_heavy() -> None:
    check = (
        "import sys; sys.argv = ['worldsize', '--help']\n"
        "from worldsize.cli import main\n"
        "try: main()\n"
        "except SystemExit: pass\n"
        "heavy = {'torch', 'numpy', 'scipy', 'pydantic', 'plotly', 'matplotlib'} & set(sys.modules)\n"
        "sys.exit(str(heavy) if heavy else 0)"
    )
    answer = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True, check=False)
    assert answer.returncode == 0, answer.stderr
    assert "run" in answer.stdout
