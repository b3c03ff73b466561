"""The quickstart as a newcomer runs it, and what it leaves behind."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import worldsize
from tests.system.conftest import processes_of, records, run_quickstart

QUICKER = ("--set", "probe.repeats=2", "--set", "probe.max_seconds=0.3", "--set", "interconnect_probe_s=1")
"""16 s of probes fewer; the same launches, trials and files."""


@pytest.fixture(scope="module")
def quickstart(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    folder = tmp_path_factory.mktemp("runs") / "quickstart"
    return folder, run_quickstart(folder, *QUICKER)


def test_the_answer_names_workers_speedup_and_accuracy(quickstart: tuple[Path, dict[str, Any]]) -> None:
    assert_it_answers(quickstart[1])


@pytest.mark.long
def test_the_answer_as_a_newcomer_gets_it(whole_quickstart: tuple[Path, dict[str, Any]]) -> None:
    folder, found = whole_quickstart
    assert_it_answers(found)
    assert len(worldsize.load(folder).records) == 14  # 6 probes on 1 and on 2 workers, and training on each


def assert_it_answers(found: dict[str, Any]) -> None:
    setting = found["answer"]["setting"]
    assert setting["workers"] in (1, 2)
    value, low, high = (setting["speedup"][end] for end in ("value", "low", "high"))
    if setting["workers"] == 1:
        assert (value, low, high) == (1, None, None)
    else:
        assert low <= value <= high
    assert [row["workers"] for row in found["table"]] == [1, 2]
    assert all(row["metric"]["value"] > 0.95 for row in found["table"])
    assert set(found["trials"].values()) == {"finished"}


def test_running_again_shows_the_answer_and_runs_nothing(quickstart: tuple[Path, dict[str, Any]]) -> None:
    folder, found = quickstart
    before = records(folder)
    assert run_quickstart(folder, *QUICKER) == found
    assert records(folder) == before
    assert processes_of(folder) == []


def test_every_step_of_every_rank_is_kept_raw(quickstart: tuple[Path, dict[str, Any]]) -> None:
    results = worldsize.load(quickstart[0])
    for trial_id, record in results.records.items():
        trial = results.trials[trial_id]
        assert [file.rank for file in record.spans] == list(range(trial.workers))
        for file in record.spans:
            spans = np.load(results.folder.trial(trial_id) / file.name, allow_pickle=False)
            assert spans.dtype == np.uint32
            if trial.train:
                assert len(spans) == sum(epoch.steps for epoch in record.epochs)


def test_the_phases_of_a_launch_add_up_to_its_wall_time(quickstart: tuple[Path, dict[str, Any]]) -> None:
    """Rank 0 times the phases, the driver times the launch: two clocks that must agree."""
    results = worldsize.load(quickstart[0])
    for launch in results.folder.launches():
        end = json.loads((launch / "end.json").read_text())
        assert sum(end["phases_s"].values()) == pytest.approx(end["wall_s"], rel=0.02, abs=0.3)
        assert {"process start", "preparation", "training", "saving", "process end"} <= end["phases_s"].keys()
        here = [record for record in results.records.values() if record.launch == launch.name]
        inside = sum(record.wall_s for record in here)
        outside = sum(end["phases_s"].get(name, 0.0) for name in ("process start", "interconnect", "process end"))
        assert inside + outside == pytest.approx(end["wall_s"], rel=0.03, abs=0.5)


def test_the_environment_is_recorded(quickstart: tuple[Path, dict[str, Any]]) -> None:
    for record in worldsize.load(quickstart[0]).records.values():
        facts = record.environment
        assert {"cpu", "cores", "torch", "python", "worldsize", "commit", "hosts", "backend"} <= facts.keys()
        assert facts["threads"] == 1


def test_a_changed_study_is_refused_with_the_difference(quickstart: tuple[Path, dict[str, Any]]) -> None:
    command = [sys.executable, "-m", "worldsize.cli.main", "run", "--dir", str(quickstart[0]), *QUICKER]
    command += ["--set", "train.epochs=3"]
    answer = subprocess.run(command, capture_output=True, text=True, check=False)
    assert answer.returncode == 2
    assert "train.epochs: 2 -> 3" in answer.stderr


def test_a_damaged_record_is_run_again_and_named(quickstart: tuple[Path, dict[str, Any]]) -> None:
    folder, _ = quickstart
    path = next(folder.glob("trials/0003-*")) / "record.json"
    path.write_text(path.read_text().replace('"outcome": "finished"', '"outcome": "diverged"'))
    before = records(folder)
    assert worldsize.load(folder).damaged == (path.parent.name,)
    command = [sys.executable, "-m", "worldsize.cli.main", "run", "--dir", str(folder), *QUICKER]
    answer = subprocess.run(command, capture_output=True, text=True, check=False)
    assert answer.returncode == 0, answer.stderr
    assert f"{path.parent.name}: its record is damaged" in answer.stdout
    after = records(folder)
    assert {trial for trial in after if after[trial] != before[trial]} == {path.parent.name}
