"""Communication: one number where there is little room, and links as they were measured."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.made import STUDY, exchanged, made_link, made_study
from worldsize.analysis.estimate import Estimate
from worldsize.answer.evidence import Evidence
from worldsize.answer.results import Results, load
from worldsize.report.blocks import Table
from worldsize.report.sections.communication import bandwidth_figure, bandwidth_sheet, exchange, links
from worldsize.report.write.tables import to_markdown


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Results:
    text = STUDY.replace("[64]", "[32, 64]")
    return load(made_study(tmp_path_factory.mktemp("study") / "made", text).path)


@pytest.fixture
def made(study: Results) -> Results:
    """A copy whose derived values a test may replace."""
    copy = replace(study)
    copy.__dict__["steps"] = [exchanged(step) for step in study.steps]
    return copy


def column(table: Table, key: str) -> list[object]:
    index = [quantity.key for quantity in table.quantities].index(key)
    return [row[index] for row in table.rows]


def test_computing_and_communication_as_probes_timed_them(made: Results) -> None:
    table = exchange(Evidence(made))
    assert table is not None
    assert len(table.rows) == len(made.steps)
    assert column(table, "busbw_bytes_per_s").count(pytest.approx(1e9)) == 2  # with 2 workers: 2 (w - 1) / w = 1
    assert column(table, "exposed_s")[0] is None
    assert "10.00" in to_markdown(table)
    assert "2.00 (1.50–2.50)" in to_markdown(table)


def test_a_terminal_shows_one_number_for_communication(made: Results) -> None:
    table = exchange(Evidence(made))
    assert table is not None
    shown = [quantity.key for quantity, kept in zip(table.quantities, table.terminal, strict=True) if kept]
    assert shown == ["workers", "batch_per_worker", "exposed_s", "exposed_share"]
    share = column(table, "exposed_share")[1]
    assert isinstance(share, Estimate)
    assert (share.value, *share.ends) == pytest.approx((0.002 / 0.012, 0.0015 / 0.012, 0.0025 / 0.012))
    per_epoch = column(table, "exposed_epoch_s")[1]
    assert isinstance(per_epoch, Estimate)
    assert per_epoch.value == pytest.approx(0.002 * made.facts.train_samples / made.steps[1].setting.global_batch)
    assert table.note.startswith("Exposed: ")
    explained = {quantity.title for quantity in table.quantities if quantity.about}
    assert explained >= {"computing", "span", "total", "minus 1 worker"}


def test_a_step_that_cannot_run_without_its_exchange_has_its_span(made: Results) -> None:
    made.__dict__["steps"] = [replace(step, exposed=None) if step.setting.workers == 4 else step for step in made.steps]
    table = exchange(Evidence(made))
    assert table is not None
    four = next(index for index, step in enumerate(made.steps) if step.setting.workers == 4)
    assert column(table, "exposed_s")[four] == made.steps[four].parts.spans["communication"]
    assert column(table, "measured_by")[:3] == [None, "probe", "span"]
    assert column(table, "computing_s")[four] is None


def test_no_probe_without_the_exchange_is_no_table(study: Results) -> None:
    assert exchange(Evidence(study)) is None
    assert study.steps[0].communication_s is None
    assert study.steps[1].communication_s == study.steps[1].parts.spans["communication"]


def test_a_link_has_the_latency_and_bandwidth_it_was_made_with(made: Results) -> None:
    made.__dict__["links"] = [("inside", made_link())]
    table, sizes = links(Evidence(made)), bandwidth_sheet(Evidence(made))
    assert table is not None
    assert sizes is not None
    for key, truth in (("latency_s", 1e-4), ("bandwidth_bytes_per_s", 1e9)):
        (cell,) = column(table, key)
        assert isinstance(cell, Estimate)
        assert cell.value == pytest.approx(truth, rel=0.01)
        assert cell.has_interval
    assert column(table, "kind") == ["inside a node"]
    assert column(sizes, "size_bytes")[-1] == column(table, "size_bytes")[0]
    assert column(sizes, "repetitions") == [42] * 9
    assert all(table.terminal[:-1])
    assert not any(sizes.terminal)


def test_a_link_without_a_law_has_its_best_bandwidth(made: Results) -> None:
    made.__dict__["links"] = [("across", replace(made_link(), misfit=1.0))]
    table, figure = links(Evidence(made)), bandwidth_figure(Evidence(made))
    assert table is not None
    assert figure is not None
    assert not {"latency_s", "bandwidth_bytes_per_s"} & {quantity.key for quantity in table.quantities}
    assert column(table, "busbw_bytes_per_s") == [pytest.approx(1e9, rel=0.01)]
    assert figure.title.endswith("GB/s")
    assert "fit" not in figure.legend


def test_bandwidth_against_size_with_its_law_and_the_gradients(made: Results) -> None:
    made.__dict__["links"] = [("inside", made_link())]
    figure = bandwidth_figure(Evidence(made))
    assert figure is not None
    assert list(figure.legend) == ["inside a node, 2 workers", "fit", "gradients of this model, 4 MB"]
    measured = figure.panels[0].marks[0]
    assert measured.hover[-1].startswith("inside a node, 2 workers\n64 MB\nbus bandwidth 0.997 GB/s\ntime ")
    assert figure.title == "Workers exchange up to 0.997 GB/s, with a latency of 100 us"


def test_no_link_is_no_table_and_no_figure(study: Results) -> None:
    evidence = Evidence(study)
    assert [make(evidence) for make in (links, bandwidth_sheet, bandwidth_figure)] == [None] * 3
