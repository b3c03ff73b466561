"""What tells variants apart: two optimisers that differ in anything have two labels."""

from __future__ import annotations

import hashlib
import itertools
from pathlib import Path

import numpy as np
import pytest

from worldsize.answer.from_records import usable_trials, usages
from worldsize.data.catalog import facts_of
from worldsize.folder.record import ArrayFile, TrialRecord, Try
from worldsize.folder.study_folder import StudyFolder
from worldsize.spec.optimizer import OptimizerSpec
from worldsize.spec.study import LargestSpec, TrialSpec
from worldsize.spec.training import StrategySpec, TrainSpec
from worldsize.spec.workload import WorkloadSpec


def trial(optimizer: OptimizerSpec) -> TrialSpec:
    return TrialSpec(
        id="t",
        kind="train",
        workload=WorkloadSpec(name="digits"),
        workers=1,
        batch_per_worker=8,
        scaling="weak",
        optimizer=optimizer,
        strategy=StrategySpec(),
        precision="fp32",
        peak_lr=optimizer.lr,
        repeat=0,
        seed=0,
        threads_per_worker=1,
        train=TrainSpec(epochs=1),
    )


OPTIMIZERS = [
    OptimizerSpec(name="lars", lr=1.0),
    OptimizerSpec(name="lars", lr=1.0, trust_coefficient=0.5),
    OptimizerSpec(name="sgd", lr=0.1),
    OptimizerSpec(name="sgd", lr=0.10000001),
    OptimizerSpec(name="sgd", lr=0.1, momentum=0.9),
    OptimizerSpec(name="nesterov", lr=0.1),
    OptimizerSpec(name="sgd", lr=0.1, warmup_epochs=0.0),
    OptimizerSpec(name="sgd", lr=0.1, warmup_epochs=2.0),
    OptimizerSpec(name="sgd", lr=0.1, lr_rule="auto"),
    OptimizerSpec(name="sgd", lr=0.1, lr_rule="none"),
    OptimizerSpec(name="sgd", lr=0.1, weight_decay=1e-4),
]


def test_no_two_optimisers_look_alike() -> None:
    for one, other in itertools.combinations(OPTIMIZERS, 2):
        assert trial(one).variant != trial(other).variant


def test_those_that_differ_in_the_rate_alone_are_kin() -> None:
    one = trial(OptimizerSpec(name="momentum", lr=0.05, lr_rule="linear"))
    assert one.variant == "momentum 0.9 rate 0.05, linear rule"
    from_scratch = one.model_copy(update={"start": "scratch"})
    assert from_scratch.family_label == "momentum 0.9, linear rule, from scratch"
    assert from_scratch.variant == "momentum 0.9 rate 0.05, linear rule, from scratch"
    assert one.model_copy(update={"start": "pretrained"}).family_label == "momentum 0.9, linear rule, pretrained"


@pytest.mark.parametrize(("classes", "top5"), [(4, False), (6, True)])
def test_five_classes_have_no_top_five(tmp_path, classes: int, top5: bool) -> None:  # type: ignore[no-untyped-def]
    for part, name in itertools.product(("train", "test"), range(classes)):
        folder = tmp_path / part / f"class{name}"
        folder.mkdir(parents=True)
        (folder / "a.png").write_bytes(b"")
    facts = facts_of(WorkloadSpec(name="image-folder", path=str(tmp_path)), tmp_path)
    assert ("top5" in facts.metrics) is top5


def test_a_batch_of_a_search_has_the_telemetry_of_its_own_time(tmp_path: Path) -> None:
    folder = StudyFolder(tmp_path)
    columns = ("at_s", "samples", "gpu_busy_percent")
    busy = [0, 10, 10, 10, 10, 80, 80, 80, 80, 99]
    rows = np.array([[at, 100 * at, value] for at, value in enumerate(busy)], dtype=np.float64)
    path = folder.trial("t") / "telemetry-rank00.npy"
    path.parent.mkdir(parents=True)
    np.save(path, rows)
    file = ArrayFile(rank=0, name=path.name, sha256=hashlib.sha256(path.read_bytes()).hexdigest())
    tries = [
        Try(batch_per_worker=8, outcome="finished", timed_from=1000.9, timed_until=1004.1),
        Try(batch_per_worker=16, outcome="finished", timed_from=1004.9, timed_until=1008.1),
        Try(batch_per_worker=32, outcome="finished", timed_from=1008.9, timed_until=1009.1),
        Try(batch_per_worker=64, outcome="out_of_memory"),
    ]
    record = TrialRecord(
        trial="t",
        outcome="finished",
        launch="l",
        started_at=1000.0,
        wall_s=10.0,
        tries=tuple(tries),
        telemetry=(file,),
        telemetry_columns=columns,
    )
    search = trial(OPTIMIZERS[0]).model_copy(update={"kind": "probe", "largest": LargestSpec(largest=True)})
    found = {each.batch_per_worker: usages(folder, [(each, own)]) for each, own in usable_trials(search, record)}
    assert [[rank.gpu_busy_percent for rank in ranks] for ranks in found[8]] == [[10.0]]
    assert [[rank.gpu_busy_percent for rank in ranks] for ranks in found[16]] == [[80.0]]
    assert found[32] == []  # one reading is no time
    assert 64 not in found
    # The whole search, as a comparison of machines looks at it, has all of it.
    ((whole,),) = usages(folder, [(search, record)])
    assert whole.gpu_busy_percent is not None
    assert 10 < whole.gpu_busy_percent < 80
