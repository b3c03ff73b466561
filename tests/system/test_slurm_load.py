"""What the driver itself costs while many jobs run: little CPU, and few questions to Slurm."""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.system.slurm import cluster, left_behind
from worldsize.study.study import Study

STUDY = """\
name: many
workload: linear
axes: {workers: [1, 2], batch_per_worker: [8, 16, 24, 32, 64]}
probe: {repeats: 2, max_seconds: 0.1}
train: {steps: 2}
repeats: 18
interconnect_probe_s: 0
run_on: {slurm: {time: 10, max_jobs: 3}}
"""
DRIVER = """\
import json, sys, time
from worldsize.study.study import Study
began = time.monotonic()
results = Study(sys.argv[1], folder=sys.argv[2]).run()
told = {"cpu_s": time.process_time(), "wall_s": time.monotonic() - began, "records": len(results.records)}
print(json.dumps(told))
"""
COUNTED = '#!/bin/bash\ndate +%s.%N >>{asked}\nexec /usr/bin/squeue "$@"\n'


@pytest.mark.long
def test_200_trials_in_21_launches_cost_the_driver_little(tmp_path: Path) -> None:
    study, tools, asked_at = tmp_path / "many.yaml", tmp_path / "tools", tmp_path / "asked"
    study.write_text(STUDY)
    tools.mkdir()
    (tools / "squeue").write_text(COUNTED.format(asked=asked_at))
    (tools / "squeue").chmod(0o755)
    plan = Study(study).plan
    assert (len(plan.trials), len(plan.launches)) == (200, 21)
    with cluster(tmp_path / "slurm") as slurm:
        done = subprocess.run(
            [sys.executable, "-c", DRIVER, str(study), str(tmp_path / "study")],
            env={**slurm.environment, "PATH": f"{tools}:{slurm.environment['PATH']}"},
            capture_output=True,
            text=True,
            timeout=900,
            check=False,
        )
        jobs = slurm.jobs()
    assert left_behind(slurm) == []
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    asked = [float(line) for line in asked_at.read_text().splitlines()]
    gaps = [later - earlier for earlier, later in itertools.pairwise(asked)]
    print(told, f"{len(asked)} questions, the shortest pause {min(gaps):.1f} s")
    assert told["records"] == 200
    assert len(jobs) == 21  # none was submitted twice
    assert len(asked) <= told["wall_s"] / 5 + 1
    assert min(gaps) > 4.5  # they are noted by a process that had to start first
    assert told["cpu_s"] < 0.05 * told["wall_s"], told  # its imports are in it
