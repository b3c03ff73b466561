"""What a study is made from: a file, a name, a dict, a spec; and what is changed in it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from worldsize.errors import InputError
from worldsize.machine import Machine
from worldsize.study.study import Study

HERE = Machine(cores=4, gpus=0)
VALUES: dict[str, Any] = {
    "name": "mine",
    "workload": "digits",
    "axes": {"workers": (1, 2), "batch_per_worker": [100]},
    "train": {"epochs": 3},
    "small": {"train.epochs": 1},
}
TEXT = """\
name: mine
workload: digits
axes: {workers: [1, 2], batch_per_worker: [100]}
train: {epochs: 3}
small: {train.epochs: 1}
"""


def test_every_source_makes_the_same_study(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text(TEXT)
    wanted = Study.from_text(TEXT, machine=HERE)
    for source in (tmp_path / "mine.yaml", str(tmp_path / "mine.yaml"), VALUES, wanted.spec):
        study = Study(source, machine=HERE)
        assert study.spec == wanted.spec
        assert study.plan == wanted.plan
        assert study.folder == Path("runs/mine")
    assert Study("quickstart", machine=HERE).spec.name == "quickstart"


def test_options_change_the_study_and_not_its_source(tmp_path: Path) -> None:
    overrides = {"repeats": 2, "axes.workers": [1], "workload": {"name": "digits"}}
    text = Study.from_text(TEXT, overrides, small=True, run_on="mpi", folder=tmp_path, data=tmp_path, machine=HERE)
    values = Study(VALUES, overrides, small=True, run_on="mpi", folder=str(tmp_path), data=str(tmp_path), machine=HERE)
    assert text.spec == values.spec
    assert (values.spec.name, values.spec.repeats, values.spec.run_on) == ("mine-small", 2, "mpi")
    assert values.spec.train is not None
    assert values.spec.train.epochs == 1
    assert values.folder == values.data == tmp_path
    assert VALUES["axes"]["workers"] == (1, 2)
    assert VALUES["train"] == {"epochs": 3}


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"axes": {"wrokers": [1]}}, 'axes.wrokers: unknown key "wrokers" in "axes". Did you mean "workers"?'),
        ({"train": {"epochs": -1}}, "train.epochs=-1: input should be greater than 0"),
        ({"train": {"epochs": float("inf")}}, "train.epochs: Infinity is neither text, nor a finite number"),
        ({"train": {"epochs": object}}, "train.epochs: "),
        ({"axes": {"workers": [1, 8], "batch_per_worker": [1]}}, "axes.workers.1: workers=8 is more than"),
        ({"workload": {}}, 'workload.name: "name" is missing in "workload"'),
    ],
)
def test_a_dict_has_no_lines_and_its_problems_name_the_key(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError) as refused:
        Study({**VALUES, **changes}, machine=HERE).run()
    assert any(line.startswith(said) for line in str(refused.value).splitlines()), str(refused.value)
    assert ", line" not in str(refused.value)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"overrides": {"train.epochs": -1}}, 'overrides["train.epochs"]: train.epochs=-1'),
        ({"overrides": {"train.epoch": 1}}, 'overrides["train.epoch"]: unknown key "epoch"'),
        ({"overrides": {"train": {"epochs": object}}}, 'overrides["train"].epochs: '),
        ({"overrides": {"name.first": 1}}, "overrides[\"name.first\"]: cannot set 'name.first': 'name' is neither"),
        ({"run_on": "moon"}, "run_on='moon': "),
    ],
)
def test_a_wrong_option_is_named(options: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError) as refused:
        Study(VALUES, machine=HERE, **options)
    assert str(refused.value).startswith(said)
    with pytest.raises(InputError) as refused:
        Study.from_text(TEXT, machine=HERE, **options)
    assert str(refused.value).startswith(said)


def test_a_study_without_a_small_version() -> None:
    with pytest.raises(InputError, match="remove small=True"):
        Study({key: value for key, value in VALUES.items() if key != "small"}, small=True, machine=HERE)
