"""Defaults that are filled in once: worker counts, the base batch, workers per node. And the places of a study."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.made import Made, study_set, write_study
from worldsize.answer.results import load
from worldsize.data.catalog import facts_of
from worldsize.errors import InputError, StoreError
from worldsize.machine import Machine
from worldsize.plan.grid import resolve, sites
from worldsize.plan.plan import make_plan
from worldsize.spec.file import StudyFile, dump_yaml
from worldsize.spec.place import OnSlurm
from worldsize.spec.study import StudySpec
from worldsize.spec.workload import WorkloadSpec
from worldsize.study.study import Study

HERE = Machine(cores=8, gpus=0)
FACTS = facts_of(WorkloadSpec(name="digits"), Path())
STUDY = """\
name: complete
workload: digits
axes: {workers: [1, 2, 4], batch_per_worker: [16, 32]}
train: {epochs: 1}
"""
AUTO = STUDY.replace("[1, 2, 4]", "auto")
STRONG = STUDY.replace("batch_per_worker: [16, 32]", "global_batch: [64, 256]")
PLACES = f"""{STUDY}\
run_on: [{{name: t4, slurm: {{nodes: 2}}}}, {{name: v100, slurm: {{gpus_per_node: 8}}}}, {{name: cpu, local: true}}]
"""


def read(text: str) -> StudySpec:
    return StudyFile(text, "study").spec()


def resolved(text: str, machine: Machine = HERE) -> StudySpec:
    return resolve(read(text), machine, FACTS)


def base_batch(text: str) -> int | None:
    train = resolved(text).train
    return train.base_batch if train else None


def per_node(text: str) -> dict[str, int | None]:
    places = resolved(text).places
    return {on: place.slurm.workers_per_node for on, place in places.items() if isinstance(place, OnSlurm)}


@pytest.mark.parametrize(
    ("machine", "text", "counts"),
    [
        (HERE, AUTO, (1, 2, 4, 8)),
        (HERE, AUTO.replace("auto", "[auto]"), (1, 2, 4, 8)),
        (Machine(cores=6, gpus=0), AUTO, (1, 2, 4, 6)),
        (Machine(cores=64, gpus=2), AUTO, (1, 2)),
        (HERE, AUTO + "threads_per_worker: 4\n", (1, 2)),
        (HERE, AUTO + "run_on: {slurm: {nodes: 2, gpus_per_node: 3}}\n", (1, 2, 4, 6)),
        (HERE, AUTO + "run_on: {slurm: {nodes: 4, workers_per_node: 1}}\n", (1, 2, 4)),
        (HERE, STRONG.replace("[1, 2, 4]", "auto").replace("[64, 256]", "[36]"), (1, 2, 4)),
        (HERE, AUTO.replace("[16, 32]", "[4000, 16000]"), (1, 2)),
        (HERE, AUTO.replace("[16, 32]", "{largest: true, first: 8000}"), (1,)),
    ],
)
def test_auto_is_every_doubling_that_fits(machine: Machine, text: str, counts: tuple[int, ...]) -> None:
    spec = resolved(text, machine)
    assert (spec.axes.workers, spec.adaptive) == (counts, True)


def test_auto_is_kept_until_it_is_resolved() -> None:
    spec = read(AUTO)
    assert read(dump_yaml(spec)) == spec
    assert Study(spec, machine=HERE).spec.axes.workers == (1, 2, 4, 8)


def test_the_reader_only_says_that_auto_was_written() -> None:
    spec = read(AUTO)
    assert spec.axes.is_auto
    assert not spec.adaptive
    assert not spec.is_resolved
    with pytest.raises(AssertionError, match="resolve the study first"):
        make_plan(spec)
    with pytest.raises(InputError, match="is empty; give at least one value"):
        read(STUDY.replace("[1, 2, 4]", "[]"))
    with pytest.raises(InputError, match=r'line 3: axes\.workers\.1="auto": input should be a valid integer'):
        read(STUDY.replace("[1, 2, 4]", "[1, auto]"))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (PLACES.replace("[1, 2, 4]", "auto"), "study, line 3: workers: auto needs one place, and the study has 3"),
        (AUTO + "run_on: {slurm: {nodes: 2}}\n", r"study, line 3: workers: auto needs the number of workers per node"),
        (
            AUTO.replace("[16, 32]", "[8000]"),
            "study, line 3: workers: auto finds no count above 1: batch_per_worker for 2 workers",
        ),
        (
            AUTO.replace("train: {epochs: 1}\n", "run_on: {slurm: {nodes: 3, workers_per_node: 3}}\n"),
            "study, line 3: workers=8 does not divide among the 3 nodes",
        ),
        (AUTO + "skip: [{workers: 3}]\n", "study, line 5: this `skip` entry matches no point"),
        (AUTO.replace("digits", "digit"), "study, line 2: unknown workload"),
    ],
)
def test_what_is_wrong_with_auto_names_its_line(text: str, said: str) -> None:
    with pytest.raises(InputError, match=said):
        Study.from_text(text, machine=HERE)
    with pytest.raises(InputError, match=r"--set axes\.workers=auto: workers: auto finds no count above 1"):
        study_set(STUDY.replace("[16, 32]", "[8000]"), "axes.workers=auto", machine=HERE)


def test_counts_that_auto_adds_are_counted_too() -> None:
    text = AUTO.replace("[16, 32]", str(list(range(1, 201)))) + "repeats: 200\n"
    assert read(text).too_many_trials() == ""
    with pytest.raises(InputError, match="the study has 320,000 trials"):
        Study.from_text(text, machine=HERE)


@pytest.mark.parametrize(
    ("text", "batch"),
    [
        (STUDY, 16),
        (STUDY.replace("{epochs: 1}", "{epochs: 1, base_batch: 100}"), 100),
        (STUDY.replace("train: {epochs: 1}\n", ""), None),
        (STRONG, 64),
        (STUDY.replace("[1, 2, 4]", "[2, 4]").replace("32]", "32], accumulation: [2, 4]"), 64),
        (STUDY + "skip: [{workers: 1}, {workers: 2, batch_per_worker: 16}]\n", 64),
        (STUDY + "skip: [{batch_per_worker: 16}, {batch_per_worker: 32}]\n", None),
        (PLACES + "skip: [{place: t4, workers: 1}]\n", 16),
        (PLACES + "skip: [{workers: 1}]\n", 32),
    ],
)
def test_the_base_batch_is_the_smallest_that_runs(text: str, batch: int | None) -> None:
    assert base_batch(text) == batch


def test_rates_of_a_place_are_those_of_the_whole_study() -> None:
    spec = resolved(PLACES + "skip: [{place: t4, workers: 1}]\n")
    places = sites(spec, HERE)
    assert {on: site.spec.train and site.spec.train.base_batch for on, site in places.items()} == dict.fromkeys(
        ("t4", "v100", "cpu"), 16
    )
    together = {
        (trial.place, trial.workers, trial.batch_per_worker): trial.peak_lr
        for trial in make_plan(spec).trials.values()
        if trial.kind == "train"
    }
    for on, site in places.items():
        alone = {
            (on, trial.workers, trial.batch_per_worker): trial.peak_lr
            for trial in make_plan(site.spec).trials.values()
            if trial.kind == "train"
        }
        assert alone == {key: rate for key, rate in together.items() if key[0] == on}


@pytest.mark.parametrize(
    ("text", "workers"),
    [
        (STUDY, {}),
        (STUDY + "run_on: slurm\n", {"": 4}),
        (STUDY + "run_on: {slurm: {nodes: 2}}\n", {"": 2}),
        (STUDY + "run_on: {slurm: {nodes: 3}}\n", {"": 2}),
        (STUDY + "run_on: {slurm: {nodes: 2, gpus_per_node: 8}}\n", {"": 8}),
        (STUDY + "run_on: {slurm: {nodes: 2, gpus_per_node: 8, workers_per_node: 4}}\n", {"": 4}),
        (
            STUDY + "run_on: {slurm: {nodes: 2}}\npretrain: {workload: digits, workers: 8, batch_per_worker: 8, "
            "optimizer: sgd, epochs: 1}\n",
            {"": 4},
        ),
        (PLACES, {"t4": 2, "v100": 8}),
        (PLACES + "skip: [{place: t4, workers: 4}]\n", {"t4": 1, "v100": 8}),
    ],
)
def test_workers_per_node_follow_from_the_largest_count(text: str, workers: dict[str, int]) -> None:
    assert per_node(text) == workers


def test_places_are_found_once() -> None:
    places = sites(resolved(PLACES), HERE)
    assert {on: (site.machine, site.device) for on, site in places.items()} == {
        "t4": (Machine(cores=4, gpus=0), "cpu"),
        "v100": (Machine(cores=8, gpus=8), "cuda"),
        "cpu": (HERE, "cpu"),
    }


@pytest.mark.parametrize("text", [STUDY, AUTO, STRONG, PLACES, STUDY + "run_on: {slurm: {nodes: 2}}\n"])
def test_what_is_complete_stays_as_it_is(text: str) -> None:
    spec = resolved(text)
    assert spec.is_resolved
    assert resolve(spec, Machine(cores=2, gpus=0), FACTS) == spec
    assert read(dump_yaml(spec)) == spec


def test_the_stored_study_is_complete(tmp_path: Path) -> None:
    text = STUDY + "run_on: {slurm: {nodes: 2}}\n"
    results = write_study(tmp_path / "study", text, Made(times=lambda _: {"forward": 0.01}), HERE)
    stored = (tmp_path / "study/study.yaml").read_text()
    assert "base_batch: 16" in stored
    assert "workers_per_node: 2" in stored
    assert StudyFile(stored, "stored").spec() == results.spec == Study.from_text(text, machine=HERE).spec


def test_a_study_with_auto_continues_on_a_machine_of_the_same_size(tmp_path: Path) -> None:
    text = AUTO.replace("train: {epochs: 1}\n", "")
    write_study(tmp_path / "study", text, Made(times=lambda _: {"forward": 0.01}), HERE)
    with Study.from_text(text, machine=HERE, folder=tmp_path / "study")._opened() as plan:
        assert plan.trials
    with (
        pytest.raises(StoreError, match=r"axes\.workers: \[1, 2, 4, 8\] -> \[1, 2, 4\]"),
        Study.from_text(text, machine=Machine(cores=4, gpus=0), folder=tmp_path / "study")._opened(),
    ):
        pass


def test_a_stored_study_that_is_not_complete_is_refused(tmp_path: Path) -> None:
    write_study(tmp_path / "study", STUDY, Made(times=lambda _: {"forward": 0.01}), HERE)
    path = tmp_path / "study/study.yaml"
    path.write_text(path.read_text().replace("base_batch: 16", "base_batch:"))
    with pytest.raises(StoreError, match="lacks defaults that this version fills in"):
        load(tmp_path / "study")
