"""Where a study runs: what may be asked for, what it comes to, and what is printed for whoever starts it by hand."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from tests.made import made_study, write_end
from worldsize.answer.evidence import Evidence
from worldsize.answer.results import load
from worldsize.cli.main import app
from worldsize.errors import InputError, StoreError
from worldsize.folder.launches import JobFile, launch_folders
from worldsize.folder.record import TrialRecord
from worldsize.folder.study_folder import StudyFolder
from worldsize.launch.autopsy import killed_ranks
from worldsize.launch.commands import mpi_environment, mpirun_command
from worldsize.machine import Machine
from worldsize.report.document import document
from worldsize.report.pages import tables
from worldsize.spec.file import dump_yaml
from worldsize.spec.place import SlurmSpec, nodes_for
from worldsize.study.by_hand import _commands, commands_by_hand, nodes_like
from worldsize.study.checks import JobOptions
from worldsize.study.study import Study

STUDY = """\
name: on
workload: digits
axes: {workers: [1, 2, 4], batch_per_worker: [16]}
train: {steps: 20}
repeats: 1
"""
SMALL = Machine(cores=1, gpus=0)


def test_nodes_are_as_few_as_hold_the_workers() -> None:
    slurm = SlurmSpec(nodes=2, workers_per_node=2)
    assert [nodes_for(slurm, workers) for workers in (1, 2, 4)] == [1, 1, 2]
    assert nodes_for(SlurmSpec(nodes=4, gpus_per_node=8, workers_per_node=4), 16) == 4


def test_a_cluster_is_not_this_machine() -> None:
    """4 workers fit on two nodes, whatever the login node has; GPUs are those that are asked for."""
    study = Study.from_text(STUDY + "run_on: {slurm: {nodes: 2}}", machine=SMALL)
    assert (study.sites[""].machine.cores, study.sites[""].device) == (4, "cpu")
    study = Study.from_text(STUDY + "run_on: {slurm: {nodes: 2, gpus_per_node: 2}}", machine=SMALL)
    assert (study.sites[""].machine.gpus, study.sites[""].device) == (4, "cuda")
    with pytest.raises(InputError, match="more than the 2 GPUs"):
        Study.from_text(STUDY + "run_on: {slurm: {nodes: 1, gpus_per_node: 2}}", machine=SMALL)


def test_auto_counts_are_those_of_the_nodes() -> None:
    text = STUDY.replace("workers: [1, 2, 4]", "workers: auto").replace("train: {steps: 20}\n", "")
    study = Study.from_text(text + "run_on: {slurm: {nodes: 2, workers_per_node: 4}}", machine=SMALL)
    assert study.spec.axes.workers == (1, 2, 4, 8)
    assert study.spec.adaptive
    with pytest.raises(InputError, match=r"set run_on\.slurm\.workers_per_node"):
        Study.from_text(text + "run_on: {slurm: {nodes: 2}}", machine=SMALL)


@pytest.mark.parametrize(
    ("on", "said"),
    [
        ("sluurm", "is not a known place"),
        ("{slurm: {partitoin: x}}", 'Did you mean "partition"'),
        ('{slurm: {partition: "a b"}}', "is not a valid value for sbatch"),
        ("{slurm: {time: soon}}", "write minutes, HH:MM:SS"),
        ("{slurm: {partition: 3}}", "run_on.slurm.partition=3: input should be a valid string; write text, in quotes"),
        (
            '{slurm: {sbatch_options: {mem: "a b"}}}',
            r'line 6: run_on.slurm.sbatch_options.mem="a b" is not a valid value for sbatch[^\n]*$',
        ),
        ("{slurm: {sbatch_options: {output: x}}}", "which worldsize sets"),
        ("{slurm: {sbatch_options: {clusters: other}}}", "which worldsize sets"),
        ("{slurm: {gpus_per_node: 2, workers_per_node: 4}}", "workers_per_node=4 is more than gpus_per_node=2"),
        ("[{name: plain, local: true}, mpi]", "plain and mpi are the same machine"),
        ("{t4: {slurm: {}}, v100: {slurm: {}}}", r"has no key slurm; write .* or a list for several"),
        ("{}", "has no key slurm"),
        ("[]", "is empty; give at least one value"),
    ],
)
def test_what_cannot_be_asked_for(on: str, said: str) -> None:
    with pytest.raises(InputError, match=said):
        Study.from_text(STUDY + f"run_on: {on}", machine=SMALL)


def test_counts_divide_among_their_nodes() -> None:
    with pytest.raises(InputError, match="workers=3 does not divide among the 2 nodes that it needs with 2 on each"):
        Study.from_text(STUDY + "run_on: {slurm: {nodes: 2}}", {"axes.workers": [1, 3]}, machine=SMALL)


def test_on_reads_back_as_it_was_written() -> None:
    for on in (
        "local",
        "mpi",
        "slurm",
        "{slurm: {time: 30, setup: module load x, sbatch_options: {mem: 1G, exclusive: true}}}",
    ):
        spec = Study.from_text(STUDY + f"oversubscribe: true\nrun_on: {on}", machine=SMALL).spec
        assert Study.from_text(dump_yaml(spec), machine=SMALL).spec == spec


def test_how_jobs_get_their_turn_may_change_and_where_they_run_may_not(tmp_path: Path) -> None:
    def study(slurm: str) -> Study:
        return Study.from_text(
            STUDY + f"run_on: {{slurm: {{nodes: 2, {slurm}}}}}", folder=tmp_path / "study", machine=SMALL
        )

    study("time: 5, partition: nope").prepare()
    study("time: 5").prepare()  # nothing is measured yet: what sbatch refused may be mended
    home = StudyFolder(tmp_path / "study")
    trial = next(iter(load(home.path).trials))
    home.write_record(TrialRecord(trial=trial, outcome="finished", launch="0001", started_at=0, wall_s=1))
    study("time: 50, max_jobs: 9, qos: long").prepare()
    with pytest.raises(StoreError, match=r"run_on\.slurm\.partition: not set -> other"):
        study("time: 5, partition: other").prepare()


def test_what_a_job_may_still_run_does_not_move_elsewhere(tmp_path: Path) -> None:
    """Both would write into the same trials."""
    slurm = Study.from_text(STUDY + "run_on: {slurm: {nodes: 2}}", folder=tmp_path / "study", machine=SMALL)
    (work, *_) = slurm.prepare()
    work.files.write(JobFile(name="ws-on", id="77", submitted_at=1.0))
    local = Study.from_text(STUDY, folder=tmp_path / "study", machine=Machine(cores=4, gpus=0))
    with pytest.raises(StoreError, match="job 77 might still write the same trials"):
        local.prepare()
    write_end(work.path)
    local.prepare()


def test_the_plan_shows_node_hours_and_the_script(tmp_path: Path) -> None:
    (tmp_path / "on.yaml").write_text(STUDY)
    answer = CliRunner().invoke(
        app, ["plan", str(tmp_path / "on.yaml"), "--on", "slurm", "--set", "run_on.slurm.nodes=2"]
    )
    assert answer.exit_code == 0, answer.output
    assert "node-hours" in answer.output
    assert "#SBATCH --nodes=2" in answer.output
    assert "sbatch runs/on/launches/0001-probe-w4/job.sh" in answer.output
    assert sorted(path.name for path in tmp_path.iterdir()) == ["on.yaml"]


def test_what_is_about_jobs_is_refused_without_any(tmp_path: Path) -> None:
    study = Study.from_text(STUDY + "oversubscribe: true", folder=tmp_path / "study", machine=SMALL)
    with pytest.raises(InputError, match="apply only to Slurm jobs"):
        study.run(jobs=JobOptions(detach=True))


def test_without_slurm_nothing_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "on.yaml").write_text(STUDY)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match="this machine has no sbatch; run this on a login node"):
        Study(tmp_path / "on.yaml", machine=SMALL, run_on="slurm").run()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["on.yaml"]


def test_each_host_has_its_own_line(tmp_path: Path) -> None:
    machine = nodes_like(Machine(cores=2, gpus=0), 2)
    study = Study.from_text(STUDY, folder=tmp_path / "a study", machine=machine)
    lines = commands_by_hand(study, nodes=2, hosts="10.0.0.1,10.0.0.2", port=29_400)
    commands = [line for line in lines if not line.startswith("#")]
    assert len(commands) == 7  # two hosts for the probes and for 2 and 4 workers, one host for 1
    assert "--nnodes=2 --nproc-per-node=2 " in commands[0]
    assert "--rdzv-endpoint=10.0.0.1:29400 --rdzv-conf=is_host=1 --local-addr=10.0.0.1" in commands[0]
    assert "--rdzv-endpoint=10.0.0.1:29400 --rdzv-conf=is_host=0 --local-addr=10.0.0.2" in commands[1]
    assert f"'{tmp_path}/a study'" in commands[0]
    other = Study.from_text(STUDY, folder=tmp_path / "other", machine=machine)
    for hosts in ("only-one", "a,$(touch x)", "a,-b"):
        with pytest.raises(InputError, match="is not a list of 2 hosts"):
            commands_by_hand(other, nodes=2, hosts=hosts, port=29_400)
    assert not (tmp_path / "other").exists()


def test_workers_that_are_left_divide_among_fewer_hosts(tmp_path: Path) -> None:
    overrides = {"axes.workers": [1, 3]}
    study = Study.from_text(STUDY, overrides, folder=tmp_path / "study", machine=Machine(cores=4, gpus=0))
    lines = commands_by_hand(study, nodes=3, hosts="a,b,c", port=29_400)
    assert any("--nnodes=3 --nproc-per-node=1 " in line for line in lines)
    (work, *_) = study.prepare()
    assert work.workers == 3
    used = list(_commands(study.spec, work, ["a", "b"], 29_400))
    assert [line for line in used if line.startswith("#")] == ["# on a:"]
    assert "--nproc-per-node=3 " in used[1]


def test_mpirun_and_what_it_says_of_a_killed_rank() -> None:
    assert mpirun_command(Path("/f"), "0001", 4, "python")[:4] == ["mpirun", "-np", "4", "python"]
    assert "OMPI_ALLOW_RUN_AS_ROOT" not in mpi_environment(root=False, oversubscribe=False)
    assert mpi_environment(root=True, oversubscribe=True)["OMPI_MCA_rmaps_base_oversubscribe"] == "1"
    report = "mpirun noticed that process rank 1 with PID 0 on node vm exited on signal 9 (Killed).\n"
    assert killed_ranks(report) == [(1, 9)]


def test_what_jobs_waited_is_told_apart_from_what_they_ran(tmp_path: Path) -> None:
    home = made_study(tmp_path / "made")
    for number, launch in enumerate(launch_folders(home), start=1):
        assert launch.end is not None
        told = {"job": str(number), "queued_s": 100.0 * number, "attempts": number}
        launch.write(launch.end.model_copy(update=told))
        launch.write(JobFile(name=launch.name, id=str(number), submitted_at=0.0))
    jobs = len(home.launches())
    made = Evidence(load(home.path))
    (said,) = [found["text"] for found in document(made)["words"]["findings"] if found["code"] == "queue"]
    assert said.startswith(f"{jobs} batch jobs: ")
    assert f"requeued {sum(range(jobs))} times" in said
    (sheet,) = [sheet for sheet in tables(made) if sheet.key == "jobs"]
    assert [column.key for column in sheet.quantities] == ["launch", "job", "queued_s", "wall_s", "attempts"]
    assert [row[2] for row in sheet.rows] == [100.0 * number for number in range(1, jobs + 1)]
