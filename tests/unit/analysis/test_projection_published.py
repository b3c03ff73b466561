"""The targets for bare tables hold on published series, and the laws beside them err as they were found to."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.bench import projection as bench
from worldsize.answer.predict.table import MeasurementTable, read_table

COUNTS = {"A": 237, "B": 100}
DOC = Path(__file__).parents[3] / "docs" / "projection.md"


@pytest.fixture(scope="module")
def table(published_series: Path) -> MeasurementTable:
    return read_table(published_series)


def test_the_figures_of_the_documentation_are_these(table: MeasurementTable) -> None:
    """docs/projection.md, to the last digit it gives: whoever moves a constant writes down what that did."""
    text = " ".join(DOC.read_text(encoding="utf-8").split())
    figures, covers, widths = [], [], []
    for protocol in ("A", "B"):
        found = bench.cases(table, protocol)
        projected = [bench.ours(case) for case in found]
        errors = 100 * bench.errors_of([one.samples_per_s.value for one in projected], found)
        figures += [f"{np.median(errors):.1f}", f"{np.quantile(errors, 0.9):.1f}"]
        covers.append(100 * bench.coverage(found, projected))
        widths.append(100 * np.median([one.samples_per_s.relative_width for one in projected]))
    assert f"| worldsize | {' | '.join(figures)} |" in text
    told = f"covers {covers[0]:.0f} % in A (median width {widths[0]:.0f} % of the value) and {covers[1]:.0f} % in B"
    assert f"{told} ({widths[1]:.0f} %)" in text


ON_CORES = ("gbmperf", "lgb736", "skl1", "lightgbm", "kmeans", "easylambda", "rf_mpi", "cp_iris")
"""Series of other sources that are no networks."""


def test_the_figures_of_other_sources_are_these() -> None:
    text = " ".join(DOC.read_text(encoding="utf-8").split())
    other = read_table(DOC.parent / "benchmarks" / "other-series.csv")
    assert len(other.series) == 78
    for name, on_cores in (("networks", False), ("other work on cores", True)):
        figures = []
        for protocol in ("A", "B"):
            found = [each for each in bench.cases(other, protocol) if each.fitted.name.startswith(ON_CORES) == on_cores]
            projected = [bench.ours(case) for case in found]
            errors = 100 * bench.errors_of([one.samples_per_s.value for one in projected], found)
            covered = f"{100 * bench.coverage(found, projected):.0f} %"
            figures += [f"{np.median(errors):.1f}", f"{np.quantile(errors, 0.9):.1f}", covered]
        assert f"| {name}: worldsize | {' | '.join(figures)} |" in text


@pytest.mark.parametrize("protocol", ["A", "B"])
def test_targets_hold_on_published_series(table: MeasurementTable, protocol: str) -> None:
    found = bench.cases(table, protocol)
    assert len(found) == COUNTS[protocol]
    assert len({case.source for case in bench.cases(table, "A")}) == 6
    projected = [bench.ours(case) for case in found]
    errors = bench.errors_of([one.samples_per_s.value for one in projected], found)
    assert bench.misses(protocol, errors, bench.coverage(found, projected)) == []


@pytest.mark.long
def test_targets_hold_with_what_was_chosen_here_chosen_without_the_source_scored(table: MeasurementTable) -> None:
    text = " ".join(DOC.read_text(encoding="utf-8").split())
    among = {protocol: bench.cases(table, protocol) for protocol in COUNTS}
    figures = []
    for protocol, (errors, covered) in bench.left_out(table, among).items():
        assert bench.misses(protocol, errors, float(np.mean(covered))) == []
        figures += [f"{100 * np.median(errors):.1f}", f"{100 * np.quantile(errors, 0.9):.1f}"]
    assert f"| worldsize, constants chosen without the tested source | {' | '.join(figures)} |" in text


def test_a_noisy_cluster_is_covered_as_documented(capsys: pytest.CaptureFixture[str]) -> None:
    text = " ".join(DOC.read_text(encoding="utf-8").split())
    assert bench.noisy() == []
    covered = [line.split()[1] for line in capsys.readouterr().out.splitlines() if line.startswith("  all")]
    assert f"it covers {covered[0]} % in A and {covered[1]} % in B" in text


def test_what_leaving_a_node_costs_is_the_mean_over_sources(table: MeasurementTable) -> None:
    assert round(bench.usual_crossing(table), 2) == bench.DEFAULT.crossing_usual


@pytest.mark.parametrize(
    ("law", "protocol", "median", "far"),
    [("linear (last efficiency)", "A", 3.0, 17.4), ("a + b log2 n", "A", 3.6, 15.7), ("a + b log2 n", "B", 5.2, 39.3)],
)
def test_the_other_laws_err_as_known(
    table: MeasurementTable, law: str, protocol: str, median: float, far: float
) -> None:
    found = bench.cases(table, protocol)
    errors = 100 * bench.errors_of([bench.OTHERS[law](case.fitted, case.workers) for case in found], found)
    assert np.median(errors) == pytest.approx(median, abs=0.1)
    assert np.quantile(errors, 0.9) == pytest.approx(far, abs=0.1)
