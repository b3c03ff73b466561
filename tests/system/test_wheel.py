"""What people install: the wheel, in an environment with nothing else in it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.long
def test_the_wheel_runs_the_quickstart_in_a_clean_environment(tmp_path: Path) -> None:
    run([sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "-w", tmp_path, ROOT])
    (wheel,) = tmp_path.glob("worldsize-*.whl")
    run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "env"])
    python = tmp_path / "env" / "bin" / "python"
    install = ["install", "--quiet", "-c", ROOT / "constraints.txt", wheel]
    run([sys.executable, "-m", "pip", "--python", python, *install])
    # Nothing of the checkout may be seen: neither its folder nor its environment.
    outside = {
        name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "WORLDSIZE", "VIRTUAL"))
    }
    program = tmp_path / "env" / "bin" / "worldsize"
    said = run([program, "run", "quickstart", "--small", "--set", "oversubscribe=true"], cwd=tmp_path, env=outside)
    assert "workers" in said
    assert (tmp_path / "runs" / "quickstart-small" / "report" / "index.html").is_file()
    listed = run([program, "studies"], cwd=tmp_path, env=outside)
    assert "quickstart" in listed


def run(command: list[str | Path], **more: object) -> str:
    ended = subprocess.run(command, capture_output=True, text=True, timeout=600, **more)  # type: ignore[call-overload]
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return str(ended.stdout)
