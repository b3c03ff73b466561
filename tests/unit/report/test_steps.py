"""Where the time goes: parts of a step, one step across ranks, launches and jobs."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.made import STUDY, Made, exchanged, made_study, write_end, write_study
from worldsize.answer.evidence import Evidence
from worldsize.answer.results import Results, load
from worldsize.report.figures.model import Bars
from worldsize.report.sections.steps import jobs, queue_words, step_parts, steps, timeline, wall_time
from worldsize.report.write.tables import to_markdown
from worldsize.spec.study import TrialSpec


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Results:
    return load(made_study(tmp_path_factory.mktemp("study") / "made").path)


def test_the_parts_of_a_step_add_up_to_it(made: Results) -> None:
    table = steps(Evidence(made))
    assert table is not None
    keys = [quantity.key for quantity in table.quantities]
    assert keys[:3] == ["workers", "batch_per_worker", "step_s"]
    assert keys[-1] == "repeats"
    for row in table.rows:
        step, *parts = (cell.value for cell in row if not isinstance(cell, int | float | str | None))
        assert sum(parts) == pytest.approx(step)
    assert all(row[-1] == 2 for row in table.rows)


def test_a_terminal_shows_the_parts_that_matter_and_one_number_for_communication(made: Results) -> None:
    def shown(evidence: Evidence) -> set[str]:
        table = steps(evidence)
        assert table is not None
        return {quantity.key for quantity, kept in zip(table.quantities, table.terminal, strict=True) if kept}

    evidence = Evidence(made)
    assert shown(evidence) >= {"forward_s", "backward_s", "communication_s"}
    made.__dict__["steps"], before = [exchanged(step) for step in made.steps], made.steps
    assert "communication_s" not in shown(evidence)
    made.__dict__["steps"] = before


def test_a_span_that_takes_no_time_has_no_room_in_a_terminal(tmp_path: Path) -> None:
    def times(_: TrialSpec) -> dict[str, float]:
        return {"forward": 0.005, "backward": 0.005, "copy": 0.00001}

    table = steps(Evidence(write_study(tmp_path / "made", STUDY, Made(times=times))))
    assert table is not None
    terminal = {quantity.key: kept for quantity, kept in zip(table.quantities, table.terminal, strict=True)}
    assert (terminal["forward_s"], terminal["copy_s"], terminal["optimizer_s"]) == (True, False, False)


def test_the_figure_of_parts_has_the_numbers_of_the_table(made: Results) -> None:
    evidence = Evidence(made)
    figure, table = step_parts(evidence), steps(evidence)
    assert figure is not None
    assert table is not None
    (panel,) = figure.panels
    assert [mark.name for mark in panel.marks][:2] == ["waiting for data", "copy to device"]
    keys = [quantity.key for quantity in table.quantities]
    backward = next(mark for mark in panel.marks if mark.name == "backward")
    assert isinstance(backward, Bars)
    cells = [row[keys.index("backward_s")] for row in table.rows]
    assert backward.values == tuple(pytest.approx(cell.value * 1e3) for cell in cells)  # type: ignore[union-attr]
    assert backward.hover[0].startswith("1 worker\nbackward ")
    assert " ms (" in backward.hover[0]
    assert figure.title.endswith("goes to communication and waiting for the slowest worker")


def test_ranks_end_the_exchange_together(made: Results) -> None:
    evidence = Evidence(made)
    step, figure = evidence.one_step, timeline(evidence)
    assert step is not None
    assert figure is not None
    assert (step.setting.workers, len(step.of_ranks)) == (4, 4)
    upto = step.spans.index("communication") + 1
    ends = [begin + sum(seconds[:upto]) for begin, seconds in zip(step.begin_s, step.of_ranks, strict=True)]
    assert ends == pytest.approx([ends[0]] * 4)
    assert step.trial in figure.note
    assert figure.title.startswith("One step on 4 workers: ")


def test_wall_time_by_phase(made: Results) -> None:
    figure = wall_time(Evidence(made))
    assert figure is not None
    training = figure.panels[0].marks[0]
    assert isinstance(training, Bars)
    launches = Evidence(made).launches
    assert sum(training.values) == pytest.approx(sum(launch.phases_s["training"] for launch in launches))
    assert "Training steps took" in figure.title


def test_jobs_and_their_time_in_the_queue(tmp_path: Path) -> None:
    home = made_study(tmp_path / "made")
    evidence = Evidence(load(home.path))
    assert jobs(evidence) is None
    assert list(queue_words(evidence)) == []
    path = home.launches()[0]
    write_end(path, wall_s=65.0, job="4711", queued_s=95.0, attempts=2, reason="time limit")
    evidence = Evidence(load(home.path))
    table = jobs(evidence)
    assert table is not None
    keys = [quantity.key for quantity in table.quantities]
    assert keys == ["launch", "job", "queued_s", "wall_s", "attempts", "reason"]
    assert table.rows == ((path.name, "4711", 95.0, 65.0, 2, "time limit"),)
    assert "1 min 35 s" in to_markdown(table)
    (words,) = queue_words(evidence)
    assert words.startswith("1 batch job: 1 min 35 s in the queue, 1 min 05 s running; requeued 1 time")
