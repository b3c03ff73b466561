"""The examples of docs/python.md, run as they stand, in the order of the page."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import worldsize
from tests.golden import QUICKSTART

GUIDE = Path(__file__).parents[2] / "docs" / "python.md"
EXAMPLES = re.findall(r"```python\n(.*?)```", GUIDE.read_text(encoding="utf-8"), re.DOTALL)


def run(examples: list[str], folder: Path) -> str:
    program = "\n".join(examples)
    environment = {**os.environ, "PYTHONWARNINGS": "error"}
    ended = subprocess.run(
        [sys.executable, "-c", program], cwd=folder, capture_output=True, text=True, timeout=300, env=environment
    )
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


def test_examples_that_read_a_study(tmp_path: Path) -> None:
    shutil.copytree(QUICKSTART, tmp_path / "runs" / "quickstart")
    said = run([example for example in EXAMPLES if ".run(" not in example], tmp_path)
    assert "8 workers: " in said
    assert "projected" in said
    assert 'Did you mean "workers"?' in said
    assert 'overrides["train.epochs"]: train.epochs=-1' in said
    assert (tmp_path / "reports/quickstart/index.html").is_file()
    assert (tmp_path / "exports/quickstart/parquet/trials.parquet").is_file()


@pytest.mark.long
def test_all_examples(tmp_path: Path) -> None:
    assert " trials, about " in run(EXAMPLES, tmp_path)


def test_the_public_names_are_there_and_each_is_in_the_guide() -> None:
    guide = GUIDE.read_text(encoding="utf-8")
    assert dir(worldsize) == sorted(worldsize.__all__)
    for name in worldsize.__all__:
        assert getattr(worldsize, name) is not None
        assert name in guide or name == "__version__", name
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = worldsize.nothing
