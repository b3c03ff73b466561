"""The commands in the README and the guides, run as they stand.

A ```console block shows commands (`$ ...`) with their output, which depends only on files: tests compare it.
A ```shell block shows commands without output, because what they measure differs from run to run.
`python -m tests.guides` updates the output in all ```console blocks; read the diff before you commit it.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.golden import QUICKSTART
from tests.made import Made, write_study
from worldsize.machine import Machine

ROOT = Path(__file__).parents[1]
README = ROOT / "README.md"
GUIDES = [README, *sorted((ROOT / "docs").glob("*.md"))]
CONSOLE = re.compile(r"(?<=^```console\n).*?(?=^```$)", re.DOTALL | re.MULTILINE)
SHELL = re.compile(r"(?<=^```shell\n).*?(?=^```$)", re.DOTALL | re.MULTILINE)
FILES = re.compile(
    r"^```(?:yaml\nname: (?P<study>\S+)|python\n# (?P<module>\w+\.py)).*?(?=^```$)", re.DOTALL | re.MULTILINE
)
TERMINAL = {"FORCE_COLOR": "1", "TERM": "dumb", "COLUMNS": "80", "CUDA_VISIBLE_DEVICES": ""}
"""A terminal of 80 columns, without styles."""

MACHINE = Machine(cores=4, gpus=0)
COMPARED = """\
name: compared
workload: digits
axes: {workers: [2, 4], batch_per_worker: [64]}
"""


def prepare(page: Path, folder: Path) -> None:
    """Write the files that the commands of a page refer to: example data, and two simulated studies to compare."""
    shutil.copytree(QUICKSTART, folder / "runs" / "quickstart")
    shutil.copytree(ROOT / "docs" / "examples", folder / "docs" / "examples")
    for name, exchange_s in (("before", 4e-3), ("after", 2e-3)):
        times = {"forward": 4e-3, "backward": 8e-3, "communication": exchange_s}
        write_study(folder / "runs" / name, COMPARED, Made(times=lambda _, times=times: times, noise=0.02), MACHINE)
    (folder / ".venv").symlink_to(sys.prefix)
    for block in FILES.finditer(page.read_text(encoding="utf-8")):
        name = block["module"] or f"{block['study']}.yaml"
        (folder / name).write_text(block[0].partition("\n")[2], encoding="utf-8")


def run(script: str, folder: Path) -> str:
    """Return what a shell script prints, without spaces at the ends of lines."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    ended = subprocess.run(
        ["bash", "-euc", script],
        cwd=folder,
        env={**os.environ, **TERMINAL, "PATH": path},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    printed = "".join(f"{line.rstrip()}\n" for line in ended.stdout.splitlines())
    assert ended.returncode == 0, f"{script}\n{printed}"
    return printed


def with_output(page: Path, folder: Path) -> str:
    """Return the text of a page with the output that its ```console blocks have now."""

    def block_now(block: re.Match[str]) -> str:
        commands = re.findall(r"^\$ (.*)$", block[0], re.MULTILINE)
        return "\n".join(f"$ {command}\n{run(command, folder)}" for command in commands)

    return CONSOLE.sub(block_now, page.read_text(encoding="utf-8"))


def pages_with_output() -> list[Path]:
    return [page for page in GUIDES if CONSOLE.search(page.read_text(encoding="utf-8"))]


if __name__ == "__main__":
    for guide in pages_with_output():
        with tempfile.TemporaryDirectory() as scratch:
            prepare(guide, Path(scratch))
            guide.write_text(with_output(guide, Path(scratch)), encoding="utf-8")
        print(guide.relative_to(ROOT))
