"""Hardware use: what was measured reaches the page, and devices over time."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from tests.made import STUDY, Made, made_study, write_study
from worldsize.analysis.estimate import Estimate
from worldsize.answer.evidence import Evidence
from worldsize.answer.results import Results, load
from worldsize.report.blocks import Table
from worldsize.report.pages import tables
from worldsize.report.sections.hardware import devices, hardware_table

GPU = {"gpu_busy_percent": 71.0, "gpu_power_w": 250.0, "gpu_memory_bytes": 6e9, "gpu_throttled_thermal": 0.25}
SHORT = STUDY.replace("train: {epochs: 30}", "train: {epochs: 2}").replace("[1, 2, 4]", "[1, 2]")


def study(folder: Path, telemetry: Mapping[str, float]) -> Evidence:
    made = Made(times=lambda _: {"forward": 0.005, "backward": 0.005}, telemetry=telemetry)
    return Evidence(write_study(folder, SHORT, made))


@pytest.fixture(scope="module")
def on_cpu(tmp_path_factory: pytest.TempPathFactory) -> Results:
    return load(made_study(tmp_path_factory.mktemp("study") / "made").path)


def keys(table: Table | None) -> list[str]:
    assert table is not None
    return [quantity.key for quantity in table.quantities]


def test_hardware_is_on_the_page_with_what_was_measured(on_cpu: Results) -> None:
    evidence = Evidence(on_cpu)
    table = next(table for table in tables(evidence) if table.key == "hardware")
    assert keys(table) == ["workers", "batch_per_worker", "process_cores", "process_memory_bytes", "repeats"]
    assert [row[0] for row in table.rows] == [1, 2, 4]
    for row in table.rows:
        assert row[2] == pytest.approx(0.8 * row[0])  # type: ignore[operator]
        assert row[3] == 4e8
    assert "Cores used: CPU cores, summed over all worker processes." in table.note


def test_gpus_their_power_and_what_throttled_them(tmp_path: Path) -> None:
    table = hardware_table(study(tmp_path / "gpu", GPU | {"samples": 100.0}))
    assert table is not None
    rows = [dict(zip(keys(table), row, strict=True)) for row in table.rows]
    assert [row["gpu_busy_percent"] for row in rows] == pytest.approx([71.0, 71.0])
    assert [row["gpu_power_w"] for row in rows] == pytest.approx([250.0, 500.0])
    assert [row["gpu_memory_bytes"] for row in rows] == [6e9, 6e9]
    assert [row["throttled_share"] for row in rows] == pytest.approx([0.25, 0.25])


def test_what_is_too_little_to_matter_has_no_room_in_a_terminal(tmp_path: Path) -> None:
    def shown(stolen_s: float) -> bool:
        watched = {"process_cpu_s": 0.9, "host_cpu_s": 1.0, "host_stolen_s": stolen_s}
        table = hardware_table(study(tmp_path / f"{stolen_s}", watched))
        assert table is not None
        return table.terminal[keys(table).index("stolen_share")]

    assert [shown(0.001), shown(0.1)] == [False, True]
    untouched = hardware_table(study(tmp_path / "none", {"process_cpu_s": 0.9, "host_cpu_s": 1.0, "host_stolen_s": 0}))
    assert "stolen_share" not in keys(untouched)


def test_utilization_of_the_model_stands_beside_its_setting(on_cpu: Results) -> None:
    results = replace(on_cpu)
    results.__dict__["mfus"] = {results.rows[1].setting: Estimate(value=0.4, low=0.35, high=0.45)}
    table = hardware_table(Evidence(results))
    assert table is not None
    cells = [row[keys(table).index("mfu")] for row in table.rows]
    assert cells == [None, Estimate(value=0.4, low=0.35, high=0.45), None]


def test_a_study_that_nobody_watched_has_no_hardware(tmp_path: Path) -> None:
    evidence = study(tmp_path / "blind", {})
    assert hardware_table(evidence) is None
    assert devices(evidence) is None


def test_devices_over_time(on_cpu: Results, tmp_path: Path) -> None:
    evidence = Evidence(on_cpu)
    figure, telemetry = devices(evidence), evidence.telemetry
    assert figure is not None
    assert telemetry is not None
    assert (telemetry.of, len(telemetry.devices)) == ("process", 4)
    assert figure.title == "A worker used 80 % of a CPU core on average; the largest used 0.400 GB of memory"
    assert [panel.y.title for panel in figure.panels] == ["CPU of a worker, % of a core", "memory of a worker, GB"]
    line = figure.panels[0].marks[0]
    assert line.y[0] is None  # a rate needs two samples
    assert line.hover[:2] == ("", "rank 0, 0.513 s\nCPU of a worker 80.0 % of a core")
    on_gpu = devices(study(tmp_path / "gpu", GPU))
    assert on_gpu is not None
    assert on_gpu.title == "Average GPU utilization was 71 %; the fullest GPU used 6.00 GB of memory"
    assert on_gpu.panels[0].y.most == 100
