"""The README and the guides show commands that run, and output that worldsize prints."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.guides import README, ROOT, SHELL, pages_with_output, prepare, run, with_output

QUICKER = {
    "worldsize run optimizers-linear": "--small",
    "worldsize run mine.yaml": "--set repeats=1 --set probe.max_seconds=0.2 --set interconnect_probe_s=0",
}
"""The same launches and files with fewer and shorter trials."""


@pytest.mark.parametrize("page", pages_with_output(), ids=lambda page: page.stem)
def test_commands_print_what_a_guide_shows(page: Path, tmp_path: Path) -> None:
    prepare(page, tmp_path)
    assert with_output(page, tmp_path) == page.read_text(encoding="utf-8"), "if this is meant: python -m tests.guides"


def commands() -> list[str]:
    """All commands of the README's ```shell blocks, without comments."""
    text = "".join(SHELL.findall(README.read_text(encoding="utf-8")))
    return [line.partition(" #")[0].strip() for line in text.splitlines() if line.strip()]


def test_the_readme_has_commands() -> None:
    assert {"make run", "make test", *QUICKER} <= set(commands())


@pytest.mark.parametrize("command", [command for command in commands() if command.startswith("make ")])
def test_targets_of_make_exist(command: str) -> None:
    """`make run` is `worldsize run`, which test_quickstart.py runs; `make test` is what runs this test."""
    recipe = subprocess.run([*command.split(), "--dry-run"], cwd=ROOT, capture_output=True, text=True, check=True)
    assert {"make run": "bin/worldsize run", "make test": "bin/python -m pytest"}[command] in recipe.stdout


def test_commands_of_the_readme(tmp_path: Path) -> None:
    run_readme(tmp_path, QUICKER)


@pytest.mark.long
def test_commands_of_the_readme_as_they_stand(tmp_path: Path) -> None:
    run_readme(tmp_path, {})


def run_readme(folder: Path, options: dict[str, str]) -> None:
    prepare(README, folder)
    said = run(
        "\n".join(f"{command} {options.get(command, '')}" for command in commands() if not command.startswith("make ")),
        folder,
    )
    assert "mine" in said
    assert (folder / "runs/mine/report/index.html").is_file()
    assert (folder / "runs/mine/report/tables/scaling.tex").is_file()
