"""Every built-in study, in its small version, to the end, on real data."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import worldsize
from worldsize.spec.file import builtin_studies


def run(study: str, folder: Path, data: Path, *options: str, cwd: Path | None = None) -> dict[str, Any]:
    command = [sys.executable, "-m", "worldsize.cli.main", "run", study, "--json", "--dir", str(folder), *options]
    environment = {**os.environ, "WORLDSIZE_DATA": str(data), "WORLDSIZE_CACHE": str(folder.parent / "cache")}
    answer = subprocess.run(command, capture_output=True, text=True, check=False, env=environment, cwd=cwd)
    assert answer.returncode == 0, answer.stderr
    found: dict[str, Any] = json.loads(answer.stdout)
    return found


@pytest.mark.long
@pytest.mark.parametrize("study", builtin_studies())
def test_a_built_in_study_runs_small_to_the_end(study: str, tmp_path: Path, whole_data_folder: Path) -> None:
    found = run(study, tmp_path / "study", whole_data_folder, "--small", "--set", "oversubscribe=true")
    assert set(found["trials"].values()) <= {"finished", "diverged", "stopped"}
    assert found["table"]
    results = worldsize.load(tmp_path / "study")
    if results.spec.train is not None:
        trained = [
            record
            for name, record in results.records.items()
            if results.trials[name].kind != "probe" and record.outcome == "finished"
        ]
        assert trained
        assert all(record.epochs and record.epochs[-1].test and record.epochs[-1].train for record in trained)


@pytest.mark.long
def test_the_optimisers_of_a_linear_regression_are_told_apart(tmp_path: Path) -> None:
    run("optimizers-linear", tmp_path / "study", tmp_path)
    results = worldsize.load(tmp_path / "study")
    (contest,) = results.variant_rankings
    edge = results.edges[contest.setting, "sgd", "sgd"]
    theory = 2 / results.records[next(iter(results.records))].known["largest_eigenvalue"]
    assert edge.estimate == pytest.approx(theory, rel=0.1)
    assert edge.stable_lr < theory < edge.diverged
    assert_momentum_is_faster(results, rates=(0.1, 0.3162))
    assert [best.family for best in contest.best_variants] == [
        "momentum",
        "sgd",
        "adam",
    ]  # as measured; all runs are the same


@pytest.mark.long
def test_momentum_is_faster_on_real_digits(tmp_path: Path, data_folder: Path) -> None:
    run("optimizers-mnist", tmp_path / "study", data_folder, "--small")
    results = worldsize.load(tmp_path / "study")
    assert_momentum_is_faster(results, rates=(0.05,))
    assert {best.family for best in results.variant_rankings[0].best_variants} == {"sgd", "momentum", "adam"}


def assert_momentum_is_faster(results: worldsize.Results, rates: tuple[float, ...]) -> None:
    """Than plain descent at the same rate, to the same target."""
    (contest,) = results.variant_rankings
    for rate in rates:
        steps = {}
        for variant in contest.variants:
            if variant.lr == rate and variant.target and variant.target.steps:
                steps[variant.family] = min(variant.target.steps.value, steps.get(variant.family, float("inf")))
        assert steps["momentum"] < steps["sgd"]


OWN = """\
import torch
from torch import nn
from torch.nn.functional import cross_entropy


def task(samples=1000):
    inputs = torch.randn(samples, 20, generator=torch.Generator().manual_seed(0))
    labels = (inputs.sum(1) > 0).long()
    return {
        "model": lambda: nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 2)),
        "train": (inputs[200:], labels[200:]),
        "test": (inputs[:200], labels[:200]),
        "loss": lambda outputs, labels: cross_entropy(outputs, labels, reduction="none"),
        "metrics": {"accuracy": lambda outputs, labels: (outputs.argmax(1) == labels).float()},
    }
"""
OWN_STUDY = """\
name: own
workload: {name: "mine:task", data_options: {samples: 3000}}
axes: {workers: [2], batch_per_worker: [25]}
probe: false
train: {epochs: 5, save_weights: true}
repeats: 1
interconnect_probe_s: 0
oversubscribe: true
"""


def test_a_workload_from_outside_the_package(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(OWN)
    (tmp_path / "own.yaml").write_text(OWN_STUDY)
    found = run("own.yaml", tmp_path / "study", tmp_path, cwd=tmp_path)
    assert set(found["trials"].values()) == {"finished"}
    assert found["metric"] == "accuracy"
    assert all(row["metric"]["value"] > 0.9 for row in found["table"])
    results = worldsize.load(tmp_path / "study")
    assert (results.facts.train_samples, results.facts.test_samples) == (2_800, 200)
    assert all(record.weights for name, record in results.records.items() if results.trials[name].train)


def test_a_model_that_does_not_exist_ends_the_run_with_one_message(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "worldsize.cli.main", "run", "quickstart", "--dir", str(tmp_path / "study")]
    changes = ("workload.model=resnet81", "axes.workers=[1]", "oversubscribe=true")
    options = [word for change in changes for word in ("--set", change)]
    answer = subprocess.run([*command, *options], capture_output=True, text=True, check=False)
    assert answer.returncode == 2
    assert 'unknown model "resnet81". Did you mean "resnet18"?' in answer.stderr
    assert "Traceback" not in answer.stderr
    assert not list(tmp_path.glob("study/trials/*/record.json"))
