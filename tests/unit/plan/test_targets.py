"""Hardware of several kinds in one study: planned together, run beside one another, never held against one another."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tests.made import Made, run_plan, study_set, write_launch, write_study
from worldsize.answer.evidence import Evidence
from worldsize.answer.results import Results, load
from worldsize.cli.main import app
from worldsize.errors import InputError
from worldsize.folder.launches import InterconnectFile, LaunchFolder, LinkSweep, LinkTimes
from worldsize.folder.study_folder import StudyFolder
from worldsize.launch.target import Progress
from worldsize.machine import Machine
from worldsize.plan.plan import Plan
from worldsize.report.document import document
from worldsize.report.pages import tables
from worldsize.report.write.publish import publish
from worldsize.spec.file import dump_yaml
from worldsize.spec.place import OnSlurm
from worldsize.spec.study import TrialSpec
from worldsize.study.checks import JobOptions
from worldsize.study.study import Study

STUDY = """\
name: kinds
workload: digits
axes: {workers: [1, 2, 4], batch_per_worker: [16]}
train: {epochs: 2}
repeats: 2
skip: [{place: v100, workers: 1}]
run_on:
- {name: t4, slurm: {partition: t4, nodes: 2, workers_per_node: 2, max_jobs: 1}}
- {name: v100, slurm: {partition: v100, workers_per_node: 4, max_jobs: 2}}
"""
SMALL = Machine(cores=1, gpus=0)


def times(trial: TrialSpec) -> dict[str, float]:
    """A V100 is 5 times a T4, whose two nodes are joined by a slow link."""
    if trial.place == "v100":
        return {"forward": 2e-3, "communication": 1e-4 if trial.workers > 1 else 0.0}
    return {"forward": 1e-2, "communication": {1: 0.0, 2: 1e-3, 4: 1e-2}[trial.workers]}


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Results:
    folder = tmp_path_factory.mktemp("targets") / "study"
    return write_study(folder, STUDY, Made(times=times), SMALL)


def study(text: str = STUDY, *options: str, folder: Path | None = None) -> Study:
    return study_set(text, *options, folder=folder, machine=SMALL)


def test_every_target_has_its_own_launches() -> None:
    made = study()
    found = [launch.id(number) for number, launch in enumerate(made.plan.launches, start=1)]
    assert found[:4] == ["0001-probe-w4-t4", "0002-probe-w4-t4", "0003-probe-w4-v100", "0004-probe-w4-v100"]
    assert [launch.workers for launch in made.plan.launches if launch.place == "v100"] == [4, 4, 2, 4, 2]
    for launch in made.plan.launches:
        assert {made.plan.trials[trial_id].place for trial_id in launch.trials} == {launch.place}
        assert all(trial_id.endswith(f"-{launch.place}") for trial_id in launch.trials)
    assert study(dump_yaml(made.spec)).spec == made.spec


def test_one_that_can_run_fewer_is_told_how_to_leave_counts_out() -> None:
    with pytest.raises(InputError) as error:
        study(STUDY.replace("workers_per_node: 4", "gpus_per_node: 2").replace("workers: 1}", "workers: 2}"))
    assert "on v100: workers=4 is more than the 2 GPUs" in str(error.value)
    assert "skip: [{place: v100, workers: 4}]" in str(error.value)
    assert "t4" not in str(error.value)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (("place: v100, workers: 1", "place: v200, workers: 1"), "matches no point"),
        (("{place: v100, workers: 1}", "{place: v100}"), "leaves nothing to run on v100"),
        (("name: t4,", "name: 'a b',"), "is not a valid name for a place"),
        (("name: t4,", "name: ../up,"), "is not a valid name for a place"),
        (("name: t4,", "name: v100,"), "run_on has two places with the name v100"),
        (("name: t4, ", ""), '"name" is missing in "run_on.0"'),
        (("{partition: t4,", "{partitoin: t4,"), 'Did you mean "partition"'),
        (("name: t4, slurm:", "name: t4, slrum:"), 'Did you mean "slurm"'),
        (("name: t4, slurm:", "name: t4, local: true, slurm:"), "the place t4 needs one of"),
        (("workers: [1, 2, 4]", "workers: auto"), "needs one place"),
        (("max_jobs: 1}}", "max_jobs: 1}, time: 5}"), 'unknown key "time" in "run_on.0"'),
    ],
)
def test_what_targets_cannot_be(change: tuple[str, str], said: str) -> None:
    assert change[0] in STUDY
    with pytest.raises(InputError, match=said):
        study(STUDY.replace(*change))


def test_one_of_them_can_be_chosen(tmp_path: Path) -> None:
    (tmp_path / "kinds.yaml").write_text(STUDY.replace("skip: [{place: v100, workers: 1}]\n", ""))
    chosen = Study(tmp_path / "kinds.yaml", machine=SMALL, run_on="v100")
    assert {trial.place for trial in chosen.plan.trials.values()} == {""}
    assert chosen.spec.slurm is not None
    assert chosen.spec.slurm.partition == "v100"
    with pytest.raises(InputError, match="has the places t4, v100; choose one"):
        Study(tmp_path / "kinds.yaml", machine=SMALL, run_on="slurm")


@pytest.mark.parametrize("entry", ["t4", "{name: t4, slurm: }", "{name: t4, slurm: {}}"])
def test_a_chosen_place_with_nothing_said_about_its_jobs_still_has_jobs(entry: str) -> None:
    entry = entry.replace("t4", "slurm") if entry == "t4" else entry
    text = STUDY.partition("skip:")[0] + f"run_on: [{entry}, local]\n"
    chosen = Study.from_text(text, run_on="slurm" if entry == "slurm" else "t4", machine=SMALL)
    assert chosen.spec.slurm is not None
    assert Study.from_text(text, run_on="local", machine=Machine(cores=4, gpus=0)).spec.run_on == "local"


def test_skip_follows_the_chosen_place() -> None:
    (first, *_) = Study.from_text(STUDY, run_on="v100", machine=SMALL).spec.skip
    assert (first.workers, first.place) == (1, None)
    assert Study.from_text(STUDY, run_on="t4", machine=SMALL).spec.skip == ()


@pytest.mark.parametrize("entry", ["{slurm: {}}", "{name: [a], slurm: {}}", "3"])
def test_a_place_without_a_name_is_refused_when_another_is_chosen(entry: str) -> None:
    with pytest.raises(InputError, match="has the places v100; choose one"):
        Study.from_text(
            STUDY.partition("run_on:")[0] + f"run_on: [{entry}, {{name: v100, slurm: {{}}}}]\n", run_on="t4"
        )


def test_one_place_can_be_changed_by_its_name() -> None:
    changed = study(STUDY, "run_on.v100.slurm.time=30", "run_on.0.slurm.time=20")
    assert [place.slurm.time for place in changed.spec.places.values() if isinstance(place, OnSlurm)] == ["20", "30"]
    with pytest.raises(InputError, match="'a100' is neither a mapping nor a list"):
        study(STUDY, "run_on.a100.slurm.time=30")


def test_detach_leaves_nothing_to_this_machine(tmp_path: Path) -> None:
    text = STUDY.replace("slurm: {partition: v100, workers_per_node: 4, max_jobs: 2}", "local: true")
    mixed = study(text, "oversubscribe=true", folder=tmp_path / "study")
    assert {on for on, site in mixed.sites.items() if site.spec.slurm} == {"t4"}
    with pytest.raises(InputError, match="v100 runs on this machine"):
        mixed.run(jobs=JobOptions(detach=True))
    assert not (tmp_path / "study").exists()


def test_speedups_are_of_one_kind_of_hardware(results: Results) -> None:
    told = {(row["place"], row["workers"]): row for row in results.table()}
    assert len(told) == 5
    assert told["t4", 1]["speedup"]["value"] == told["v100", 2]["speedup"]["value"] == 1
    assert told["v100", 4]["baseline_workers"] == 2
    assert told["v100", 4]["speedup"]["value"] == pytest.approx(2.0, rel=0.05)
    assert told["t4", 2]["speedup"]["value"] == pytest.approx(2 / 1.1, rel=0.05)
    assert told["t4", 4]["speedup"]["value"] == pytest.approx(2.0, rel=0.05)


def test_each_has_an_answer_and_a_projection_of_its_own(results: Results) -> None:
    rows = {on: each.answer.row for on, each in results.by_place.items()}
    assert {on: row and row.setting.workers for on, row in rows.items()} == {"t4": 2, "v100": 4}
    assert results.answer.row == rows["v100"]
    done = CliRunner().invoke(app, ["predict", str(results.folder.path), "--json"])
    assert done.exit_code == 0, done.output
    told = {prediction["place"]: prediction for prediction in json.loads(done.output)}
    assert [option["workers"] for option in told["t4"]["options"]] == [1, 2, 4, 8, 16, 32]
    assert [option["workers"] for option in told["v100"]["options"]] == [2, 4, 8, 16, 32]
    slow, fast = (told[on]["options"][-1]["samples_per_s"]["value"] for on in ("t4", "v100"))
    assert fast > 3 * slow
    shown = CliRunner().invoke(app, ["predict", str(results.folder.path)]).output
    assert shown.index("On t4") < shown.index("On v100")


def test_adaptive_probes_follow_each_target_alone(tmp_path: Path) -> None:
    text = STUDY.replace("train: {epochs: 2}\n", "adaptive: true\n")
    made, home = study(text, folder=tmp_path / "adaptive"), StudyFolder(tmp_path / "adaptive")
    made._write()
    plan: Plan | None = made.plan
    assert {trial.workers for trial in made.plan.trials.values() if trial.place == "v100"} == {2, 4}
    while plan is not None:
        run_plan(home, plan, Made(times=times), made)
        plan = made._search_on(plan, Progress())
    rows = {on: each.answer.row for on, each in load(home.path).by_place.items()}
    assert {on: row and row.setting.workers for on, row in rows.items()} == {"t4": 2, "v100": 4}
    with pytest.raises(InputError, match="this one has 2 places"):
        study(text, "train={epochs: 1}")


def test_links_are_those_of_their_target(results: Results) -> None:
    for number, (on, factor) in enumerate((("t4", 1.0), ("v100", 10.0)), start=1):
        path = results.folder.launch(f"{number:04d}-probe-w4-{on}")
        sizes = [2**power for power in range(10, 24)]
        times = [
            LinkTimes(kind="inside", host="n", workers=2, size_bytes=size, seconds=((1e-5 + size / 1e8) / factor,) * 5)
            for size in sizes
        ]
        write_launch(path, workers=4, place=on)
        sweep = LinkSweep(budget_s=1.0, took_s=1.0, times=tuple(times))
        LaunchFolder(path).write(InterconnectFile(hosts=("n",) * 4, sweep=sweep))
    found = {on: each.links[0][1].bandwidth_bytes_per_s.value for on, each in results.by_place.items()}
    assert found["v100"] == pytest.approx(10 * found["t4"], rel=0.05)


def test_plan_status_and_report_show_them_apart(results: Results, tmp_path: Path) -> None:
    (tmp_path / "kinds.yaml").write_text(STUDY)
    shown = CliRunner().invoke(app, ["plan", str(tmp_path / "kinds.yaml")]).output
    assert "on t4 in partition t4: about" in shown
    assert "on v100 in partition v100: about" in shown
    assert shown.count("#SBATCH --partition=t4") == shown.count("#SBATCH --partition=v100") == 1
    status = CliRunner().invoke(app, ["status", str(results.folder.path)]).output
    assert "On t4: Use 2 workers" in status
    assert "On v100: Use 4 workers" in status
    made = document(results)
    assert list(dict.fromkeys(words.split(":")[0] for words in made["words"]["answer"])) == ["On v100", "On t4"]
    assert "partition: v100" in made["recommended_study"]
    assert "t4" not in made["recommended_study"]
    assert "base_batch: 16" in made["recommended_study"]  # of the whole study: the rate is what it was
    (table,) = [table for table in tables(Evidence(results)) if table.key == "scaling"]
    page = publish(results, tmp_path / "report", printed=False).page.read_text(encoding="utf-8")
    assert "on v100" in page
    place = [quantity.key for quantity in table.quantities].index("place")
    assert [row[place] for row in table.rows] == ["t4", "t4", "t4", "v100", "v100"]
