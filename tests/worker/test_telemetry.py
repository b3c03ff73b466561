"""The thread beside training: what it sees, what it survives, and that it ends. A made-up NVML, a real psutil."""

from __future__ import annotations

import hashlib
import math
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from worldsize.analysis.speed.hardware import usage
from worldsize.folder.record import TrialRecord
from worldsize.folder.study_folder import StudyFolder, save_array
from worldsize.worker.measure import telemetry as telemetry_module
from worldsize.worker.measure.meters import GpuMeter, HostMeter, MeterSource, ProcessMeter, gpu_id, throttled
from worldsize.worker.measure.telemetry import COLUMNS, INDEX, Telemetry, TurnTelemetry, telemetry_of


def wait_for(what: Callable[[], bool], seconds: float = 10.0) -> None:
    deadline = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < deadline
        time.sleep(0.002)


def test_a_row_is_dated_from_the_trials_start_and_holds_every_column() -> None:
    clock = [100.0]
    beside = Telemetry({"samples": lambda: {"samples": 7}}, now=lambda: clock[0], period_s=60)
    beside.start()
    clock[0] = 103.5
    row = beside.sample()
    beside.stop()
    assert len(row) == len(COLUMNS) == len(set(COLUMNS))
    assert (row[INDEX["at_s"]], row[INDEX["samples"]]) == (3.5, 7)
    assert math.isnan(row[INDEX["gpu_power_w"]])


def test_the_first_and_the_last_sample_are_taken_however_short_the_trial() -> None:
    counted = iter(range(10))
    beside = Telemetry({"samples": lambda: {"samples": next(counted)}}, period_s=60)
    for first in (0, 2):
        beside.start()
        rows = beside.stop()
        assert rows[:, INDEX["samples"]].tolist() == [first, first + 1]
        assert rows.dtype == np.float64


def test_a_source_that_raises_costs_its_own_column_and_is_named_once() -> None:
    said: list[str] = []
    calls = [0]

    def broken() -> dict[str, float]:
        calls[0] += 1
        raise OSError("the sensor is gone")

    sources: dict[str, MeterSource] = {"gpu power": broken, "samples": lambda: {"samples": calls[0]}}
    beside = Telemetry(sources, period_s=0.001, note=said.append)
    beside.start()
    wait_for(lambda: calls[0] > 20)
    rows = beside.stop()
    assert len(rows) > 20
    assert np.isnan(rows[:, INDEX["gpu_power_w"]]).all()
    assert rows[:, INDEX["samples"]].tolist() == list(range(1, len(rows) + 1))
    assert said == ["telemetry: gpu power unavailable: OSError: the sensor is gone"]


def test_a_source_that_fails_at_times_is_asked_again() -> None:
    answers = iter([{"no such column": 1.0}, {"gpu_power_w": 300.0}])

    def power() -> dict[str, float]:
        return next(answers)

    beside = Telemetry({"gpu power": power}, period_s=60, note=lambda _: None)
    beside.start()
    assert beside.stop()[:, INDEX["gpu_power_w"]].tolist() == [pytest.approx(math.nan, nan_ok=True), 300.0]


def test_it_stops_at_once_and_leaves_no_thread() -> None:
    before = threading.active_count()
    beside = Telemetry({**ProcessMeter().sources(), **HostMeter().sources()}, period_s=30)
    beside.start()
    time.sleep(0.05)
    began = time.perf_counter()
    rows = beside.stop()
    assert time.perf_counter() - began < 10  # it does not wait for its period
    assert len(rows) == 2
    assert threading.active_count() == before


def test_a_reading_that_hangs_does_not_hold_up_training(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(telemetry_module, "PATIENCE_S", 0.05)
    free, calls, said = threading.Event(), [0], list[str]()

    def hangs_the_second_time() -> dict[str, float]:
        calls[0] += 1
        if calls[0] == 2:
            free.wait()
        return {"samples": calls[0]}

    beside = Telemetry({"samples": hangs_the_second_time}, period_s=0.001, note=said.append)
    beside.start()
    wait_for(lambda: calls[0] == 2)
    assert beside.stop()[:, INDEX["samples"]].tolist() == [1]
    assert said == ["telemetry: thread unavailable: TimeoutError: a reading took more than 0.05 s"]
    hung = beside._thread
    monkeypatch.setattr(telemetry_module, "PATIENCE_S", 10)
    beside.start()  # the next trial, beside the thread that hangs
    samples = beside.stop()[:, INDEX["samples"]].tolist()
    assert samples == list(range(3, 3 + len(samples)))
    assert len(samples) >= 2
    free.set()
    assert hung is not None
    hung.join(5)
    assert not hung.is_alive()


def test_no_thread_to_be_had_is_said_and_survived(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    said: list[str] = []
    beside = Telemetry({}, note=said.append)
    beside.start()
    assert beside.stop().shape == (0, len(COLUMNS))
    assert said == ["telemetry: thread unavailable: RuntimeError: can't start new thread"]


def test_a_long_trial_is_thinned_and_keeps_both_ends() -> None:
    counted = [0]

    def count() -> dict[str, float]:
        counted[0] += 1
        return {"samples": counted[0]}

    beside = Telemetry({"samples": count}, period_s=0.0005, most_rows=8)
    beside.start()
    wait_for(lambda: counted[0] > 30)
    samples = beside.stop()[:, INDEX["samples"]]
    assert len(samples) <= 8 < samples[-1] == counted[0]
    assert samples[0] == 1
    assert (np.diff(samples) > 0).all()


def test_a_trial_that_takes_turns_counts_only_its_own_turns() -> None:
    clock, now = [0.0], {"samples": 0.0, "process_cpu_s": 50.0, "process_memory_bytes": 1e9}
    telemetry = Telemetry({"all": lambda: dict(now)}, now=lambda: clock[0])
    ours, theirs = TurnTelemetry(telemetry, alone=False), TurnTelemetry(telemetry, alone=True)
    for turn in range(3):
        for trial, seconds, cpu_s in ((ours, 0.1, 0.05), (theirs, 0.4, 0.4)):
            trial.begin()
            clock[0] += seconds
            now["process_cpu_s"] += cpu_s
            if turn == 1 and trial is ours:
                now["samples"] = float("nan")  # one reading fails
            grown = trial.end()
            now["samples"] = 10.0 * (turn + 1)
            assert grown["process_cpu_s"] == pytest.approx(cpu_s)
        clock[0] += 5.0  # waiting
    rows = ours.rows()
    assert rows[:, INDEX["at_s"]] == pytest.approx([0.0, 0.1, 0.2, 0.3])
    assert rows[:, INDEX["process_cpu_s"]] == pytest.approx([0.0, 0.05, 0.10, 0.15])
    assert usage(COLUMNS, rows).process_cores == pytest.approx(0.5)
    assert usage(COLUMNS, theirs.rows()).process_cores == pytest.approx(1.0)
    assert np.isnan(rows[:, INDEX["samples"]]).tolist() == [False, False, True, False]
    # Several trials keep their models in the process, so its memory is that of none of them.
    assert usage(COLUMNS, rows).process_memory_bytes is None
    assert usage(COLUMNS, theirs.rows()).process_memory_bytes == 1e9


def burn(seconds: float) -> float:
    """Cores that the machine gave to it."""
    wall, cpu = time.perf_counter(), time.process_time()
    while time.perf_counter() - wall < seconds:
        hashlib.sha256(bytes(100_000))
    return (time.process_time() - cpu) / (time.perf_counter() - wall)


def test_a_busy_process_is_seen_to_be_busy() -> None:
    for _ in range(3):
        beside = Telemetry({**ProcessMeter().sources(), **HostMeter().sources()}, period_s=0.05)
        beside.start()
        given = burn(1.0)
        rows = beside.stop()
        seen = usage(COLUMNS, rows[:-1])  # the last one came after the burning
        assert seen.process_cores == pytest.approx(given, rel=0.2)
        assert len(rows) >= 5
        assert (seen.host_cores or 0) > 0.9 * given  # whatever others leave of the machine
    column = {name: rows[:, COLUMNS.index(name)] for name in ("at_s", "host_memory_bytes", "telemetry_cpu_s")}
    assert 1e7 < (seen.process_memory_bytes or 0) < column["host_memory_bytes"].max() + 1e9
    # At ten times the usual rate.
    assert 0 < np.ptp(column["telemetry_cpu_s"]) / np.ptp(column["at_s"]) < 0.1


def test_idle_is_seen_to_be_idle() -> None:
    beside = Telemetry(ProcessMeter().sources(), period_s=0.05)
    beside.start()
    time.sleep(0.5)
    assert usage(COLUMNS, beside.stop()).process_cores == pytest.approx(0, abs=0.2)


def test_a_record_vouches_for_its_telemetry(tmp_path: Path) -> None:
    folder = StudyFolder(tmp_path)
    folder.trial("t").mkdir(parents=True)
    path = folder.trial("t") / "telemetry-rank00.npy"
    rows = np.array([[0.0, math.nan], [0.5, 7.0]])
    file = save_array(path, 0, rows)
    record = TrialRecord(
        trial="t",
        outcome="finished",
        launch="l",
        started_at=0,
        wall_s=1,
        telemetry=(file,),
        telemetry_columns=("at_s", "samples"),
    )
    folder.write_record(record)
    assert folder.record("t") == record
    assert np.array_equal(np.load(path, allow_pickle=False), rows, equal_nan=True)
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(ValueError, match=r"telemetry-rank00\.npy does not match"):
        folder.record("t")


def test_rdma_counts_words_over_all_ports_and_only_where_it_is(tmp_path: Path) -> None:
    for port, words in (("mlx5_0/ports/1", 100), ("mlx5_1/ports/1", 20)):
        counters = tmp_path / "class/infiniband" / port / "counters"
        counters.mkdir(parents=True)
        (counters / "port_xmit_data").write_text(f"{words}\n")
        (counters / "port_rcv_data").write_text("3\n")
    meter = HostMeter(tmp_path)
    assert meter.sources()["host rdma"]() == {"host_rdma_sent_bytes": 480, "host_rdma_received_bytes": 24}
    assert "host rdma" not in HostMeter(tmp_path / "nothing").sources()


def test_bonds_partitions_and_loopback_do_not_count_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for real in ("block/sda", "class/net/eth0", "class/net/eth1"):
        (tmp_path / real / "device").mkdir(parents=True)
    disk = SimpleNamespace(read_bytes=5, write_bytes=7)
    card = SimpleNamespace(bytes_sent=10, bytes_recv=20)
    monkeypatch.setattr("psutil.disk_io_counters", lambda **_: {"sda": disk, "sda1": disk, "dm-0": disk})
    monkeypatch.setattr("psutil.net_io_counters", lambda **_: dict.fromkeys(("lo", "eth0", "eth1", "bond0"), card))
    meter = HostMeter(tmp_path)
    assert meter.disk() == {"host_read_bytes": 5, "host_written_bytes": 7}
    assert meter.network() == {"host_sent_bytes": 20, "host_received_bytes": 40, "host_loopback_bytes": 10}
    in_a_container = HostMeter(tmp_path / "nothing")
    assert "host disk" not in in_a_container.sources()
    assert in_a_container.network()["host_sent_bytes"] == 30


class NvmlError(Exception):
    pass


class FunctionNotFoundError(NvmlError):
    pass


class FakeNvml:
    """The part of pynvml that is used, with two GPUs; `unsupported` functions raise as NVML does."""

    NVMLError, NVMLError_FunctionNotFound = NvmlError, FunctionNotFoundError
    NVML_CLOCK_SM, NVML_CLOCK_MEM, NVML_TEMPERATURE_GPU = 1, 2, 0

    def __init__(self, *unsupported: str, devices: tuple[str, ...] = ("GPU-aaaa", "GPU-bbbb")) -> None:
        self.devices = devices
        self._answers: dict[str, Any] = {
            "nvmlInit": lambda: None,
            "nvmlDeviceGetHandleByUUID": self._by_uuid,
            "nvmlDeviceGetUtilizationRates": lambda handle: SimpleNamespace(gpu=90 + handle, memory=40),
            "nvmlDeviceGetMemoryInfo": lambda _: SimpleNamespace(used=60e9, total=150e9),
            "nvmlDeviceGetPowerUsage": lambda _: 612_500,
            "nvmlDeviceGetTotalEnergyConsumption": lambda _: 9_876_543_210,
            "nvmlDeviceGetClockInfo": lambda _, kind: {1: 1_980, 2: 3_201}[kind],
            "nvmlDeviceGetTemperature": lambda *_: 67,
            "nvmlDeviceGetCurrentClocksEventReasons": lambda _: 0x04,
            "nvmlDeviceGetCurrentClocksThrottleReasons": lambda _: 0x48,
        }
        for name in unsupported:
            self._answers[name] = self._refuse

    def __getattr__(self, name: str) -> Any:
        return self._answers[name]

    def _by_uuid(self, uuid: str) -> int:
        if uuid not in self.devices:
            raise NvmlError("Not Found")
        return self.devices.index(uuid)

    def _refuse(self, *_: Any) -> Any:
        raise FunctionNotFoundError("Not Supported")


def gpu_row(nvml: FakeNvml, uuid: str = "bbbb") -> tuple[dict[str, float], list[str]]:
    said: list[str] = []
    beside = Telemetry(GpuMeter(uuid, nvml).sources(), note=said.append)
    row = dict(zip(COLUMNS, beside.sample(), strict=True))
    return {name: value for name, value in row.items() if name.startswith("gpu_") and not math.isnan(value)}, said


def test_a_gpu_is_found_by_its_uuid_and_read_in_our_units() -> None:
    seen, said = gpu_row(FakeNvml())
    assert seen == {
        "gpu_busy_percent": 91,  # of the second GPU
        "gpu_memory_busy_percent": 40,
        "gpu_memory_bytes": 60e9,
        "gpu_memory_total_bytes": 150e9,
        "gpu_power_w": 612.5,
        "gpu_energy_j": 9_876_543.21,
        "gpu_core_mhz": 1_980,
        "gpu_memory_mhz": 3_201,
        "gpu_temperature_c": 67,
        "gpu_throttled_power": 1,
        "gpu_throttled_thermal": 0,
        "gpu_throttled_other": 0,
    }
    assert seen.keys() == {name for name in COLUMNS if name.startswith("gpu_")}
    assert said == []


def test_a_slice_of_a_gpu_is_found_too_and_a_stranger_is_not() -> None:
    assert gpu_row(FakeNvml(devices=("GPU-aaaa", "MIG-bbbb")))[0]["gpu_busy_percent"] == 91
    with pytest.raises(NvmlError, match="Not Found"):
        GpuMeter("cccc", FakeNvml())


def test_fields_that_a_gpu_does_not_offer_stay_empty_and_are_named() -> None:
    seen, said = gpu_row(FakeNvml("nvmlDeviceGetTotalEnergyConsumption", "nvmlDeviceGetUtilizationRates"))
    assert seen.keys().isdisjoint({"gpu_energy_j", "gpu_busy_percent", "gpu_memory_busy_percent"})
    assert seen["gpu_power_w"] == 612.5
    assert [line.partition(":")[2] for line in said] == [
        " gpu utilization unavailable: FunctionNotFoundError: Not Supported",
        " gpu energy unavailable: FunctionNotFoundError: Not Supported",
    ]


def test_an_older_driver_knows_throttling_by_its_old_name() -> None:
    seen, said = gpu_row(FakeNvml("nvmlDeviceGetCurrentClocksEventReasons"))
    assert (seen["gpu_throttled_thermal"], seen["gpu_throttled_other"], said) == (1, 0, [])


@pytest.mark.parametrize(
    ("reasons", "power", "thermal", "other"),
    [
        (0x00, 0, 0, 0),
        (0x01 | 0x02 | 0x100, 0, 0, 0),  # idle, or clocks that somebody set
        (0x04, 1, 0, 0),
        (0x80 | 0x08, 1, 0, 0),
        (0x20, 0, 1, 0),
        (0x40 | 0x08 | 0x04, 1, 1, 0),
        (0x08, 0, 0, 1),
        (0x10, 0, 0, 1),
        (0x400, 0, 0, 1),
    ],
)
def test_reasons_are_told_apart(reasons: int, power: int, thermal: int, other: int) -> None:
    assert list(throttled(reasons).values()) == [power, thermal, other]


class FakeCrew:
    """Ranks of one launch that share what they tell."""

    def __init__(self, rank: int, device: str, told: dict[str, str]) -> None:
        self.rank, self.device, self._told = rank, torch.device(device), told

    def publish(self, key: str, value: str) -> None:
        self._told[key] = value

    def wait_for(self, key: str) -> str:
        return self._told[key]


def watchers(monkeypatch: pytest.MonkeyPatch, gpus: list[str], per_host: int) -> list[tuple[bool, bool]]:
    """(watches the host, watches a GPU), rank by rank."""
    monkeypatch.setattr(telemetry_module, "GpuMeter", lambda uuid: GpuMeter(uuid, FakeNvml()))
    told: dict[str, str] = {}
    found = []
    for rank, uuid in enumerate(gpus):
        monkeypatch.setenv("LOCAL_RANK", str(rank % per_host))
        monkeypatch.setattr(telemetry_module, "gpu_id", lambda _, uuid=uuid: uuid)
        crew: Any = FakeCrew(rank, "cuda" if uuid else "cpu", told)
        row = dict(zip(COLUMNS, telemetry_of(crew, lambda: 5).sample(), strict=True))
        assert row["samples"] == 5
        assert row["process_cpu_s"] > 0
        found.append((not math.isnan(row["host_cpu_s"]), not math.isnan(row["gpu_power_w"])))
    return found


def test_nothing_is_watched_twice_and_every_gpu_is_watched(monkeypatch: pytest.MonkeyPatch) -> None:
    two_hosts = ["aaaa", "bbbb"] * 2  # the same made-up names on the other host
    assert watchers(monkeypatch, two_hosts, per_host=2) == [(True, True), (False, True)] * 2
    shared = ["aaaa", "bbbb", "aaaa", "bbbb"]
    assert watchers(monkeypatch, shared, per_host=4) == [(True, True), (False, True), (False, False), (False, False)]
    assert watchers(monkeypatch, ["", ""], per_host=2) == [(True, False), (False, False)]


def test_without_a_driver_the_rest_is_still_watched(monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    monkeypatch.setattr(telemetry_module, "GpuMeter", lambda uuid: GpuMeter(uuid, FakeNvml("nvmlInit")))
    monkeypatch.setattr(telemetry_module, "gpu_id", lambda _: "aaaa")
    monkeypatch.setenv("LOCAL_RANK", "0")
    crew: Any = FakeCrew(0, "cuda", {})
    row = dict(zip(COLUMNS, telemetry_of(crew, lambda: 0).sample(), strict=True))
    assert math.isnan(row["gpu_power_w"])
    assert row["host_cpu_s"] > 0
    assert capsys.readouterr().out == "telemetry: gpu unavailable: FunctionNotFoundError: Not Supported\n"


def test_a_cpu_has_no_gpu() -> None:
    assert gpu_id(torch.device("cpu")) == ""
