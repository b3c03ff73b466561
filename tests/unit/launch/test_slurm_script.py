"""The job script: readable, complete, and closed to every name, path and command that would be more than it is."""

from __future__ import annotations

import re
import shlex
import socket
import subprocess
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from worldsize.errors import InputError
from worldsize.launch.slurm.script import Job, job_script, warning_before_end_s
from worldsize.spec.place import SlurmSpec, limit_s

HOSTILE = st.one_of(
    st.text(max_size=40),
    st.sampled_from(
        [
            "$(touch pwned)",
            "`touch pwned`",
            "a;touch pwned",
            "a\n#SBATCH --wrap=pwned",
            "a #SBATCH --uid=0",
            "' ; touch pwned ; '",
            '" ; touch pwned ; "',
            "--wrap=pwned",
            "../../etc",
            "a b",
            "a\\",
            "\u2028#SBATCH --x",
            "a\r#SBATCH --x",
            "{study}",
            "%s%j",
            "<<EOF",
        ]
    ),
)


def job(**changes: object) -> Job:
    values: dict[str, object] = {
        "name": "ws-study-0001",
        "study": Path("/scratch/study"),
        "launch_id": "0001-probe-w4",
        "nodes": 2,
        "workers_per_node": 2,
        "threads": 1,
        "python": "/usr/bin/python3",
        "environment": (("OMP_NUM_THREADS", "1"),),
    }
    return Job(**{**values, **changes})  # type: ignore[arg-type]


def directives(script: str) -> list[str]:
    """As sbatch reads them: up to the first line that is no comment."""
    found = []
    for line in script.split("\n"):
        if line.startswith("#SBATCH"):
            found.append(line)
        elif line.strip() and not line.startswith("#"):
            break
    return found


def test_what_a_job_asks_for_stands_at_its_head() -> None:
    slurm = SlurmSpec(
        partition="gpu",
        account="proj_1",
        qos="short",
        time="00:30:00",
        gpus_per_node=2,
        cpus_per_worker=8,
        constraint="a100&nvlink",
        setup=("module load cuda/12.4",),
        sbatch_options={"mem": "64G", "exclusive": True, "nice": 10, "mail-type": "END", "overcommit": False},
    )
    script = job_script(job(), slurm)
    assert directives(script) == [
        "#SBATCH --job-name=ws-study-0001",
        "#SBATCH --partition=gpu",
        "#SBATCH --account=proj_1",
        "#SBATCH --qos=short",
        "#SBATCH --constraint=a100&nvlink",
        "#SBATCH --time=00:30:00",
        "#SBATCH --nodes=2",
        "#SBATCH --ntasks-per-node=1",
        "#SBATCH --cpus-per-task=16",
        "#SBATCH --gpus-per-node=2",
        "#SBATCH --mem=64G",
        "#SBATCH --exclusive",
        "#SBATCH --nice=10",
        "#SBATCH --mail-type=END",
        "#SBATCH --requeue",
        "#SBATCH --open-mode=append",
        "#SBATCH --output=/dev/null",
        "#SBATCH --signal=B:USR2@60",
    ]
    assert "setup 'module load cuda/12.4'" in script
    assert "--nnodes=2 --nproc-per-node=2" in script
    assert "--rdzv-backend=c10d" in script
    assert subprocess.run(["bash", "-n"], input=script, text=True, capture_output=True, check=False).stderr == ""


def test_few_workers_ask_for_few_gpus() -> None:
    for workers, asked in ((1, 1), (4, 4), (8, 4)):
        script = job_script(job(nodes=1, workers_per_node=workers), SlurmSpec(gpus_per_node=4))
        assert f"#SBATCH --gpus-per-node={asked}" in directives(script)


@given(name=HOSTILE, partition=HOSTILE, path=HOSTILE, setup=HOSTILE, key=HOSTILE, value=HOSTILE, constraint=HOSTILE)
@settings(max_examples=300, deadline=None)
def test_no_value_adds_a_directive_or_a_command(
    name: str, partition: str, path: str, setup: str, key: str, value: str, constraint: str
) -> None:
    """Each hostile value in its own place, the others plain: what is let through changes its own word and no other."""
    plain = job_script(job(), SlurmSpec())
    lines = plain.split("\n")
    for changed, slurm in (
        (job(name=name), {}),
        (job(launch_id=name), {}),
        (job(study=Path("/scratch") / path), {}),
        (job(python=f"/opt/{path}"), {}),
        (job(), {"partition": partition}),
        (job(), {"account": partition}),
        (job(), {"qos": partition}),
        (job(), {"constraint": constraint}),
        (job(), {"time": value}),
        (job(), {"setup": [setup]}),
        (job(), {"sbatch_options": {key: value}}),
        (job(), {"sbatch_options": {key: True}}),
        (job(), {"sbatch_options": {"mem": value}}),
    ):
        try:
            script = job_script(changed, SlurmSpec.model_validate(slurm))
        except (InputError, ValidationError, ValueError):
            continue
        asked = directives(script)
        assert len(asked) <= len(directives(plain)) + 1
        assert all(len(shlex.split(line, comments=False)) == 2 for line in asked), asked
        new = [line for line in script.split("\n") if line not in lines]
        assert len(new) <= (3 if "time" in slurm else 1), new  # a short limit is warned of later, in two lines
        assert len(script.split("\n")) - len(lines) in (0, 1)
        if "setup" in slurm:
            assert [shlex.split(line) for line in new] == [["setup", setup]]


@given(path=HOSTILE)
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_hostile_folder_is_a_word_to_the_shell(tmp_path: Path, path: str) -> None:
    """The script really runs, with an srun that does nothing: no file appears but its own."""
    if "/" in path or "\0" in path or path in ("", ".", ".."):
        return
    study = tmp_path / path
    try:
        script = job_script(job(study=study, python=f"/opt/{path}"), SlurmSpec())
    except InputError:
        return
    work = tmp_path / "work"
    for folder in (work, study / "launches" / "0001-probe-w4"):
        folder.mkdir(parents=True, exist_ok=True)
    environment = with_srun(tmp_path, "exit 0")
    before = {entry.name for entry in tmp_path.iterdir()}
    done = subprocess.run(
        ["bash", "-c", script], cwd=work, env=environment, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    made = {entry.relative_to(study).as_posix() for entry in study.rglob("*") if entry.is_file()}
    launch = "launches/0001-probe-w4"
    assert made == {f"{launch}/job.log", f"{launch}/job-events.jsonl", f"{launch}/torchrun.log"}
    assert {entry.name for entry in tmp_path.iterdir()} == before
    assert not list(work.iterdir())


def test_a_port_that_somebody_listens_at_is_left_to_them(tmp_path: Path) -> None:
    launch = tmp_path / "launches" / "0001-probe-w4"
    launch.mkdir(parents=True)
    script = job_script(job(study=tmp_path), SlurmSpec())
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen()
        taken = listening.getsockname()[1]
        # Job 0's port is the first of the range: the one that is taken is made to be it.
        script = script.replace("port=$((10000 + ", f"port=$(({taken} + ")
        environment = with_srun(tmp_path, 'echo "$@"') | {"SLURM_JOB_ID": "0"}
        subprocess.run(["bash", "-c", script], env=environment, check=True)
    (port,) = re.findall(r"--rdzv-endpoint=\S+:(\d+)", (launch / "torchrun.log").read_text())
    assert int(port) > taken


def with_srun(folder: Path, does: str) -> dict[str, str]:
    """The environment of a job, with an srun of our own."""
    tools = folder / "tools"
    tools.mkdir(exist_ok=True)
    (tools / "srun").write_text(f"#!/bin/bash\n{does}\n")
    (tools / "srun").chmod(0o755)
    return {
        "PATH": f"{tools}:/usr/bin:/bin",
        "SLURM_JOB_ID": "7",
        "SLURM_JOB_NODELIST": "n1",
        "SLURM_JOB_NUM_NODES": "1",
    }


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("5", 300), ("5:30", 330), ("01:30:00", 5400), ("1-0", 86_400), ("2-12:30", 217_800), ("1-01:01:01", 90_061)],
)
def test_time_limits_as_sbatch_reads_them(text: str, seconds: int) -> None:
    assert limit_s(text) == seconds
    assert SlurmSpec(time=text).time_s == seconds


def test_a_short_job_is_warned_late() -> None:
    assert warning_before_end_s(3600) == 60
    assert warning_before_end_s(60) == 15


def test_what_worldsize_sets_itself_cannot_be_set_again() -> None:
    assert SlurmSpec(
        sbatch_options={"exclusive": True, "mem": "1G", "nodelist": "n1", "exclude": "n2", "time-min": "5"}
    ).sbatch_options
    for key in ("output", "wrap", "job-name", "array", "job-na", "outp", "w", "no-req"):  # sbatch takes short forms
        with pytest.raises(ValidationError, match="which worldsize sets"):
            SlurmSpec(sbatch_options={key: "x"})


def test_setup_may_use_variables_that_are_not_set(tmp_path: Path) -> None:
    """As hooks of environments and module files do."""
    launch = tmp_path / "launches" / "0001"
    launch.mkdir(parents=True)
    slurm = SlurmSpec(setup=('mine="$NOBODY_SETS_THIS"', "echo came to it"))
    script = job_script(job(study=tmp_path, launch_id="0001"), slurm)
    environment = with_srun(tmp_path, "echo it runs")
    subprocess.run(["bash"], input=script, env=environment, text=True, capture_output=True, check=True)
    assert "came to it" in (launch / "job.log").read_text()
    assert "it runs" in (launch / "torchrun.log").read_text()
