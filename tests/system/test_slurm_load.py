"""What the driver itself costs while many jobs run: little CPU, and few questions to Slurm."""

from __future__ import annotations

import itertools
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from worldsize.study import Study

FAKE = Path(__file__).parent / "fake_slurm"
STUDY = """\
name: many
workload: digits
axes: {workers: [1, 2], batch_per_worker: [8, 16, 24, 32, 64]}
probe: false
train: {steps: 20}
repeats: 20
on: {slurm: {time: 5, max_jobs: 6}}
"""
DRIVER = """\
import json, sys, time
from worldsize.study import Study
began = time.monotonic()
results = Study.from_file(sys.argv[1]).run(sys.argv[2])
told = {"cpu_s": time.process_time(), "wall_s": time.monotonic() - began, "records": len(results.records)}
print(json.dumps(told))
"""


@pytest.mark.long
def test_200_trials_in_20_launches_cost_the_driver_little(tmp_path: Path) -> None:
    study, cluster, tools = tmp_path / "many.yaml", tmp_path / "cluster", tmp_path / "tools"
    shutil.copytree(FAKE, tools)
    for tool in ("sbatch", "squeue", "srun"):
        (tools / tool).chmod(0o755)
    study.write_text(STUDY)
    cluster.mkdir()
    plan = Study.from_file(study).plan()
    assert (len(plan.trials), len(plan.launches)) == (200, 21)
    environment = {
        **os.environ,
        "PATH": f"{tools}:{os.environ['PATH']}",
        "FAKE_SLURM": str(cluster),
        "FAKE_PYTHON": sys.executable,
    }
    done = subprocess.run(
        [sys.executable, "-c", DRIVER, str(study), str(tmp_path / "study")],
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert told["records"] == 200
    asked = [float(line) for line in (cluster / "asked").read_text().splitlines()]
    gaps = [later - earlier for earlier, later in itertools.pairwise(asked)]
    print(told, len(asked), min(gaps))
    assert len(list(cluster.glob("job-*"))) == 21  # none was submitted twice
    assert min(gaps) > 4.5  # they are noted by a process that had to start first
    assert told["cpu_s"] < 0.05 * told["wall_s"], told  # its imports are in it
