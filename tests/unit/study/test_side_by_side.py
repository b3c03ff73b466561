"""Studies that run in turn: who is next, what a stopped run continues with, what is refused."""

from __future__ import annotations

from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

from tests.made import Made, run_plan
from worldsize.errors import InputError
from worldsize.folder.study_folder import StudyFolder
from worldsize.launch.target import Progress
from worldsize.machine import Machine
from worldsize.plan.plan import Plan
from worldsize.study.side_by_side import next_turn, run_side_by_side
from worldsize.study.study import Study

STUDY = "{{name: {name}, workload: digits, axes: {{workers: [1, 2], batch_per_worker: [64]}}, {more}}}"
TRAINED = "probe: false, train: {steps: 3}, repeats: 4"
"""Launches of 1, 2, 1, 2 and 1 worker: rounds that meet at the same count share one."""


def study(folder: Path, name: str, more: str = TRAINED) -> Study:
    text = STUDY.format(name=name, more=more)
    return Study.from_text(text, folder=folder / name, machine=Machine(cores=4, gpus=0))


class StoppedError(Exception):
    pass


@pytest.fixture
def order(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the studies, in the order in which their launches run. The launches are made up."""
    order: list[str] = []

    def turns(self: Study, progress: Progress, **_: Any) -> Generator[None, None, None]:
        del progress
        if not self.folder.exists():
            self._write()
        home = StudyFolder(self.folder)
        for launch in self.plan.launches:
            if not all(home.has_record(trial) for trial in launch.trials):
                yield
                if len(order) == 3:
                    order.append("stop")
                    raise StoppedError
                order.append(self.spec.name)
                run_plan(home, Plan(launches=(launch,), trials=self.plan.trials), Made(times=lambda _: {}), self)

    monkeypatch.setattr(Study, "turns", turns)
    return order


def test_the_order_alternates_and_does_not_depend_on_what_was_before() -> None:
    done = {0: 0, 1: 0}
    order = []
    for _ in range(8):
        order.append(next_turn(done))
        done[order[-1]] += 1
    assert order == [0, 1, 1, 0, 0, 1, 1, 0]
    assert next_turn({0: 3, 1: 2}) == 1
    assert next_turn({1: 7}) == 1


def test_launches_alternate_and_a_stopped_run_continues_in_order(tmp_path: Path, order: list[str]) -> None:
    sides = [study(tmp_path, name) for name in ("one", "two")]
    with pytest.raises(StoppedError):
        run_side_by_side(sides, [Progress(), Progress()])
    assert order == ["one", "two", "two", "stop"]
    results = run_side_by_side(sides, [Progress(), Progress()])
    assert order[4:] == ["one", "one", "two", "two", "one", "one", "two"]
    assert not any(each.left() for each in results)


def test_a_longer_study_ends_alone(tmp_path: Path, order: list[str]) -> None:
    order += ["", "", "", ""]  # no stop
    longer = TRAINED.replace("repeats: 4", "repeats: 6")
    sides = [study(tmp_path, "one"), study(tmp_path, "two", longer)]
    run_side_by_side(sides, [Progress(), Progress()])
    launches = len(sides[0].plan.launches)
    assert order[4:][: 2 * launches].count("one") == launches
    assert set(order[4:][2 * launches :]) == {"two"}


def test_only_this_machine_takes_turns(tmp_path: Path) -> None:
    sides = [study(tmp_path, "one"), study(tmp_path, "two", "run_on: slurm")]
    with pytest.raises(InputError, match="two runs on Slurm, but only launches on this machine can take turns"):
        run_side_by_side(sides, [Progress(), Progress()])
    assert not list(tmp_path.iterdir())


def test_what_the_machine_lacks_is_said_before_anything_runs(tmp_path: Path) -> None:
    sides = [study(tmp_path, "one"), study(tmp_path, "two", "device: cuda")]
    with pytest.raises(InputError, match="cuda"):
        run_side_by_side(sides, [Progress(), Progress()])
    assert not list(tmp_path.iterdir())
