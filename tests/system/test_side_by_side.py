"""`worldsize compare --runs` with real launches: two studies in turn, on the same cores."""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import worldsize
from worldsize.folder.launches import LaunchFolder

STUDY = """\
name: {name}
workload: digits
axes: {{workers: [1], batch_per_worker: [{batch}]}}
probe: {{max_seconds: 0.2}}
train: {{steps: 5}}
repeats: 1
interconnect_probe_s: 0
"""
"""Two launches: one that probes, one that trains."""


def compare(home: Path, *options: str) -> tuple[int, Any]:
    files = []
    for name in ("one", "two"):
        files.append(home / f"{name}.yaml")
        files[-1].write_text(STUDY.format(name=name, batch=32), encoding="utf-8")
    command = [sys.executable, "-m", "worldsize.cli.main", "compare", "--runs", *map(str, files)]
    command += ["--dir", str(home / "both"), "--fail-on", "slower", "--json", *options]
    ended = subprocess.run(command, capture_output=True, text=True, check=False, timeout=180)
    assert ended.stdout, ended.stderr
    return ended.returncode, json.loads(ended.stdout)


def launches(folder: Path) -> list[tuple[float, float, str]]:
    """When each launch of a study began and ended."""
    ends = [LaunchFolder(path).end for path in sorted((folder / "launches").iterdir())]
    return [(end.started_at, end.started_at + end.wall_s, folder.name) for end in ends if end is not None]


def test_launches_of_two_studies_alternate_and_are_compared(tmp_path: Path) -> None:
    code, found = compare(tmp_path)
    assert code == 0
    assert [study["folder"] for study in found["studies"]] == [str(tmp_path / "both" / f) for f in ("A-one", "B-two")]
    assert found["gate"]["verdict"] == "cannot_tell"  # a single run of each
    (again,) = found["gate"]["next"]
    assert again.endswith(f"--set probe.repeats=5 --dir {tmp_path}/both/5-repeats")
    assert found["gap_s"] is None
    ran = sorted(launches(tmp_path / "both" / "A-one") + launches(tmp_path / "both" / "B-two"))
    assert [name for *_, name in ran] == ["A-one", "B-two", "B-two", "A-one"]
    assert all(before[1] <= after[0] for before, after in itertools.pairwise(ran))
    records = worldsize.load(tmp_path / "both" / "A-one").records
    assert compare(tmp_path)[0] == 0
    assert worldsize.load(tmp_path / "both" / "A-one").records == records
