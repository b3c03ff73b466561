"""The figures of docs/projection.md follow from the example tables beside it."""

from __future__ import annotations

from pathlib import Path

import pytest

from worldsize.analysis.projection.classical_laws import fit_amdahl, fit_gustafson, karp_flatts
from worldsize.answer.predict.table import MeasurementTable, read_table
from worldsize.answer.predict.table_projection import project_table

DOCS = Path(__file__).parents[3] / "docs"
PRINTED = {
    ("batch 32", 2): 1.18,
    ("batch 128", 2): 1.42,
    ("batch 512", 2): 1.45,
    ("batch 32", 4): 1.41,
    ("batch 128", 4): 1.55,
    ("batch 512", 4): 1.56,
}
"""Speedups as the report gives them."""


@pytest.fixture(scope="module")
def text() -> str:
    """Without its line breaks inside paragraphs, so that a figure is found wherever the line ends."""
    return " ".join((DOCS / "projection.md").read_text(encoding="utf-8").split())


def example(name: str) -> MeasurementTable:
    return read_table(DOCS / "examples" / name)


def test_mnist_speedups_follow_from_the_times(text: str) -> None:
    table = example("mnist-horovod.csv")
    given = table.series[0]
    rates = given.series.samples_per_s.tolist()
    serial = karp_flatts(given.series.workers, rates)
    for workers, rate in zip(given.series.workers, rates, strict=True):
        speedup, share = rate / rates[0], f"{serial[workers]:.2f} " if workers in serial else ""
        line = f"| {workers} | {given.value(workers, rate):.1f} s | {speedup:.2f} | {100 * speedup / workers:.0f} % | "
        assert f"{line}{share}|" in text
    assert f"From 2 to 4 workers it becomes {rates[2] / rates[1]:.2f} times as fast" in text
    fits = [fit(given.series.workers, rates, given.mode) for fit in (fit_amdahl, fit_gustafson)]
    amdahl, gustafson = (f"{100 * fit.rms_relative_residual:.0f} %" for fit in fits)
    assert f"Amdahl's law leaves a residual of {amdahl}, Gustafson's {gustafson}." in text
    one = project_table(table, [8])[0]
    low, high = one.expected.ends
    assert f"The projection to 8 workers is {one.expected.value:.0f} s ({low:.0f} to {high:.0f})" in text
    assert one.notes == ("beyond one node, where nothing was measured",)


def test_cifar10_speedups_follow_from_the_times_and_the_printed_ones_do_not(text: str) -> None:
    table = example("cifar10-dataparallel.csv")
    for given in table.series:
        name, rates = given.series.name, given.series.samples_per_s.tolist()
        serial = karp_flatts(given.series.workers, rates)
        for workers, rate in list(zip(given.series.workers, rates, strict=True))[1:]:
            speedup, printed = rate / rates[0], PRINTED[name, workers]
            assert printed < speedup - 0.04
            line = f"| {name} | {workers} | {given.value(workers, rate):.2f} s | {printed} | {speedup:.2f} "
            assert line + f"| {100 * speedup / workers:.0f} % | {serial[workers]:.2f} |" in text
    found = [
        f"{one.expected.value:.1f} ({one.expected.low:.1f} to {one.expected.high:.1f})"
        for one in project_table(table, [8])
    ]
    assert f"{found[0]}, {found[1]} and {found[2]}" in text
    for given, one in list(zip(table.series, project_table(table, [8]), strict=True))[1:]:
        last = given.value(4, float(given.series.samples_per_s[-1]))
        assert last - one.expected.value < 0.5 * (last / 2)  # perfect scaling would save a half
        assert one.notes == ("leveling off",)
