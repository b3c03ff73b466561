"""Study files: what is read, and what is said when something is wrong."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.made import study_set
from worldsize.errors import InputError
from worldsize.machine import Machine
from worldsize.spec.base import RENAMED_KEYS
from worldsize.spec.file import StudyFile, builtin_studies, dump_yaml, find_study
from worldsize.spec.study import StudySpec
from worldsize.study.study import Study

GOOD = """\
name: small
workload: digits
axes:
  workers: [1, 2]
  batch_per_worker: [32]
train:
  epochs: 2
"""
MACHINE = Machine(cores=4, gpus=0)


def study(text: str, *options: str, machine: Machine = MACHINE) -> Study:
    return study_set(text, *options, machine=machine)


def problem(text: str, *options: str, machine: Machine = MACHINE) -> str:
    """What would keep the study from running: its own problems, or what the machine lacks."""
    with pytest.raises(InputError) as caught:
        study(text, *options, machine=machine).run()
    return str(caught.value)


def test_defaults_are_filled_in() -> None:
    spec = study(GOOD).spec
    assert spec.probe is not None
    assert spec.probe.tolerance == 0.02
    assert (spec.repeats, spec.threads_per_worker, spec.run_on) == (3, 1, "local")
    assert spec.axes.optimizer[0].name == "sgd"


@pytest.mark.parametrize(
    ("optimizer", "said"),
    [
        ("{name: [sgd, adam]}", "axes.optimizer.0.name="),
        ("{name: sgd, lr: {search: [0.1, 1]}, tpe: 20}", 'unknown key "tpe" in "axes.optimizer.0"; TPE search'),
        ("{name: sgd, lr: {search: [0.1, 1]}, tpe: 20}", "Remove the key to try an even grid"),
        ("{name: momentum, momentum: {search: [0.5, 1.5]}}", "momentum must be below 1"),
        ("{name: sgd, lr: {search: [0.1, 0.1001], points: 9}}", "too narrow for 9 points"),
    ],
)
def test_optimisers_that_cannot_be_are_told_why(optimizer: str, said: str) -> None:
    assert said in problem(GOOD, f"axes.optimizer=[{optimizer}]")


def test_short_forms() -> None:
    spec = study(GOOD, "axes.workers=2", "axes.optimizer=[adam, {name: sgd, lr: 0.1}]", "probe=false").spec
    assert spec.axes.workers == (2,)
    assert [optimizer.lr for optimizer in spec.axes.optimizer] == [(0.001,), (0.1,)]
    assert spec.probe is None


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (("workers: [1, 2]", "wokers: [1, 2]"), 'line 4: unknown key "wokers" in "axes". Did you mean "workers"?'),
        (("epochs: 2", "epoch: 2"), 'line 7: unknown key "epoch" in "train". Did you mean "epochs"?'),
        (("epochs: 2", "epochs: -2"), "line 7: train.epochs=-2: input should be greater than 0; use a value above 0"),
        (
            ("epochs: 2", "epochs: 2\n  steps: 9"),
            "line 6: train needs one of epochs, steps and until, and epochs and steps are given",
        ),
        (
            ("epochs: 2", "warmup_epochs: 1"),
            "and none of them is given; give one of them",
        ),
        (("epochs: 2", "epochs: two"), 'line 7: train.epochs="two": input should be a valid integer; write a whole'),
        (("[32]", "[]"), "line 5: axes.batch_per_worker=[] is empty; give at least one value"),
        (("[32]", "[32, 32]"), "line 5: axes.batch_per_worker lists 32 twice"),
        (("[32]", "[true]"), "line 5: axes.batch_per_worker.0=true"),
        (("[32]", "[32.5]"), "line 5: axes.batch_per_worker.0=32.5"),
        (("[32]", "[32]\n  global_batch: [64]"), "either batch_per_worker (weak scaling) or global_batch (strong"),
        (
            ("batch_per_worker: [32]", "global_batch: [64, 33]"),
            "global_batch=33 does not divide evenly among workers=2; use",
        ),
        (("workers: [1, 2]", "workers: [1, 8]"), "line 4: workers=8 is more than the 4 cores of this machine"),
        (("workers: [1, 2]", "workers: [0]"), "line 4: axes.workers.0=0: input should be greater than 0"),
        (("digits", "digit"), 'line 2: unknown workload "digit". Did you mean "digits"?'),
        (("name: small", "name: ../up"), 'line 1: name="../up" is not a valid name; use 1 to 64 letters'),
        (("name: small", "name: 3"), "line 1: name=3: input should be a valid string; write text, in quotes"),
        (("digits", "CIFAR10"), 'workload.name="CIFAR10" is not a workload; write a built-in name in lower case'),
        (("[32]", "[12001]"), "line 5: a global batch of 24002 is more than the 12000 training samples; use a smaller"),
        (("name: small", "name: 2024-13-45"), "not valid YAML"),
        (("digits", "{name: mnist, freeze: backbone}"), "freeze keeps weights that were never trained"),
        (("train:", "device: cuda\ntrain:"), "device=cuda, but this machine has no GPU; use `device: cpu`"),
        (("train:", "skip: [{workers: 3}]\ntrain:"), "this `skip` entry matches no point"),
        (("train:", "skip: [{workers: 1}, {workers: 2}]\ntrain:"), "`skip` removes every point"),
        (("train:\n  epochs: 2\n", "probe: false\n"), "nothing to run"),
        (("name: small\n", ""), '"name" is missing; add it'),
        (("name: small", "name: small\nname: big"), "line 2: not valid YAML: found duplicate key"),
        (("[32]", "[32"), "not valid YAML"),
        (("name: small", "name: !!python/object/apply:os.system ['true']"), "line 1: the YAML tag"),
        (("epochs: 2", "epochs: 2\n  lr_rule: cubic"), "train.lr_rule=\"cubic\": input should be 'auto', 'none'"),
        (("epochs: 2", "epochs: 2\naxes: {}"), "duplicate key"),
        (
            ("epochs: 2", "epochs: 2\n  schedule: {name: cosine, at: [0.5]}"),
            "at=[0.5] applies only to the schedule step, not to cosine; remove it",
        ),
        (
            ("[32]", "[32]\n  strategy: {name: ddp, every: 4}"),
            "every=4 applies only to the strategy local-sgd, not to ddp; remove it",
        ),
        (
            ("[32]", "[32]\n  optimizer: {name: adam, trust_coefficient: 0.1}"),
            "trust_coefficient=0.1 applies only to the optimizer lars, not to adam; remove it",
        ),
    ],
)
def test_every_mistake_names_line_value_rule_and_remedy(change: tuple[str, str], said: str) -> None:
    assert change[0] in GOOD
    assert said in problem(GOOD.replace(*change))


OLD_KEYS = {
    "on=local": "run_on",
    "threads=2": "threads_per_worker",
    "interconnect_s=1": "interconnect_probe_s",
    "workload={name: image-folder, path: x, size: 32}": "image_size",
    "workload={name: image-folder, path: x, test_share: 0.1}": "test_fraction",
    "workload={name: gpt, options: {context: 8}}": "data_options",
    "axes.optimizer=[{name: sgd, rate: 0.1}]": "lr",
    "axes.optimizer=[{name: sgd, rate_rule: none}]": "lr_rule",
    "axes.optimizer=[{name: lars, trust: 0.1}]": "trust_coefficient",
    "axes.optimizer=[{lr: {search: [0.1, 1], edge: 0.1}}]": "divergence_within",
    "axes.optimizer=[{lr: {search: [0.1, 1], stop_hopeless: false}}]": "prune",
    "axes.batch_per_worker={largest: true, start: 8}": "first",
    "axes.batch_per_worker={largest: true, most: 8}": "max",
    "axes.start=[scratch]": "weights",
    "axes.adaptive=true": "adaptive, at the top of the study",
    "skip=[{start: scratch}]": "weights",
    "skip=[{on: t4}]": "place",
    "probe.precision=0.1": "tolerance",
    "train.rate_rule=none": "lr_rule",
    "train.save=weights": "save_weights",
    "train.noise_scale=true": "measure_noise_scale",
    "train.plateau={epochs: 3}": "patience",
    "train.plateau={gain: 0.1}": "min_gain",
    "run_on={slurm: {cpus_per_task: 2}}": "cpus_per_worker",
    "run_on={slurm: {extra: {mem: 1G}}}": "sbatch_options",
}


@pytest.mark.parametrize(("option", "new"), OLD_KEYS.items())
def test_an_old_key_is_refused_with_its_new_name(option: str, new: str) -> None:
    said = problem(GOOD, option)
    assert said.startswith(f"--set {option}: unknown key ")
    assert said.endswith(f"; it is now called {new}")


@pytest.mark.parametrize("option", ["train.rate=0.1", "workload.threads=2", "axes.options=1", "extra=1", "size=32"])
def test_a_key_that_never_was_there_is_not_called_renamed(option: str) -> None:
    assert "now called" not in problem(GOOD, option)


def test_every_old_key_is_tried() -> None:
    assert set(OLD_KEYS.values()) == set(RENAMED_KEYS.values())


def test_two_mistakes_are_both_told() -> None:
    said = problem(GOOD.replace("epochs: 2", "epochs: 0").replace("[32]", "[-1]"))
    assert "train.epochs=0" in said
    assert "axes.batch_per_worker.0=-1" in said


@pytest.mark.parametrize(
    ("option", "said"),
    [
        ("train.epochs=0", "--set train.epochs=0: train.epochs=0"),
        ("axes.workers=[1,9]", "--set axes.workers=[1,9]: workers=9 is more than the 4 cores"),
        ("train.epohcs=1", 'Did you mean "epochs"?'),
        ("name.first=1", "'name' is neither a mapping nor a list"),
        ("axes.workers.7=1", "the list has 2 entries"),
        ("nothing", "expected a key and a value"),
        ("axes.optimizer=[{name: adam, momentum: 0.9}]", "momentum=0.9 does not apply to adam"),
        ("train.warmup_epochs=.inf", "nor a finite number"),
    ],
)
def test_options_are_named_in_errors(option: str, said: str) -> None:
    assert said in problem(GOOD, option)


def test_options_can_switch_off_and_turn_weak_into_strong() -> None:
    assert study(GOOD, "probe=null").spec.probe is None
    strong = study(GOOD, "axes.batch_per_worker=null", "axes.global_batch=[64]")
    assert strong.spec.axes.scaling == "strong"
    assert study(GOOD, "workload.model=softmax").spec.workload.model == "softmax"
    assert "start it with `name:`" in problem("just words", "a=1")


def test_oversubscribe_lets_workers_share() -> None:
    assert study(GOOD, "axes.workers=[8]", "oversubscribe=true").plan.launches[0].workers == 8


def test_threads_count_against_cores() -> None:
    assert "workers=2 of 3 threads is more than the 4 cores" in problem(GOOD, "threads_per_worker=3")


def test_gpus_are_counted_where_there_are_some() -> None:
    machine = Machine(cores=64, gpus=2)
    assert study(GOOD, machine=machine).sites[""].device == "cuda"
    assert "workers=4 is more than the 2 GPUs of this machine" in problem(GOOD, "axes.workers=[4]", machine=machine)


def test_indivisible_batches_can_be_skipped() -> None:
    text = GOOD.replace("batch_per_worker: [32]", "global_batch: [33]") + "skip: [{workers: 2, global_batch: 33}]\n"
    trials = study(text).plan.trials.values()
    assert {(trial.workers, trial.batch_per_worker) for trial in trials} == {(1, 33)}


def test_a_study_reads_back_as_it_was_written() -> None:
    for path in builtin_studies().values():
        spec = StudyFile.read(path).spec()
        assert StudyFile(dump_yaml(spec), "copy").spec() == spec


def test_unknown_study_names_the_nearest() -> None:
    with pytest.raises(InputError, match='Did you mean "quickstart"'):
        find_study("quikstart")


def test_a_binary_file_is_no_study(tmp_path: Path) -> None:
    (tmp_path / "study.yaml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(InputError, match="cannot be read"):
        StudyFile.read(tmp_path / "study.yaml")


@given(st.text(max_size=80))
def test_no_text_breaks_the_reader(text: str) -> None:
    try:
        spec = StudyFile(text, "any").spec()
    except InputError:
        return
    assert isinstance(spec, StudySpec)
