"""A driver killed while it makes its folder: the same command goes on, wherever the kill fell."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from worldsize.errors import StoreError
from worldsize.folder.study_folder import StudyFolder
from worldsize.machine import Machine
from worldsize.study.checks import require_same_study
from worldsize.study.study import Study

STUDY = "{name: s, workload: digits, axes: {workers: [1, 2], batch_per_worker: [100]}, repeats: 2}"
KILLS = """\
import os, shutil, sys
from pathlib import Path
from tests.unit.study.test_first_writes import STUDY
from worldsize.machine import Machine
from worldsize.answer.results import load
from worldsize.study.study import Study

folder = Path(sys.argv[1])
study = Study.from_text(STUDY, folder=folder, machine=Machine(cores=2, gpus=0))

def start():
    with study._opened():
        pass

def die_before(wanted):
    seen = 0
    def hook(event, arguments):
        nonlocal seen
        if event.startswith(("open", "os.", "fcntl.")):
            seen += 1
            if seen == wanted:
                os._exit(9)
    sys.addaudithook(hook)

for wanted in range(1, 1000):
    child = os.fork()
    if child == 0:
        die_before(wanted)
        start()
        os._exit(0)
    killed = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 9
    start()
    left = sorted(path.name for path in folder.iterdir())
    assert left == [".lock.guard", "plan.json", "study.yaml"], (wanted, left)
    assert load(folder).plan == study.plan
    shutil.rmtree(folder)
    if not killed:
        print(wanted - 1, "kills")
        break
"""


def test_killed_before_any_operation_on_a_file(tmp_path: Path) -> None:
    """One process forks a driver for every operation and kills it there; a kill runs no `finally`."""
    ended = subprocess.run(
        [sys.executable, "-c", KILLS, tmp_path / "study"], capture_output=True, text=True, timeout=120
    )
    assert ended.returncode == 0, ended.stderr
    assert int(ended.stdout.split()[0]) >= 20


@pytest.mark.parametrize("name", ["notes.txt", ".study.yaml.swp", ".plan.json.tmp.mine", ".mine.tmp", "trials"])
def test_a_folder_with_anything_else_is_refused(tmp_path: Path, name: str) -> None:
    study = Study.from_text(STUDY, machine=Machine(cores=2, gpus=0))
    (tmp_path / "plan.json").touch()
    (tmp_path / name).touch()
    with pytest.raises(StoreError, match="exists and is not a study folder"):
        require_same_study(study.spec, study.plan, StudyFolder(tmp_path))
