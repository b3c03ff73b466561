"""Tables of measurements: what is read from them, and what is said about those that cannot be read."""

from __future__ import annotations

import csv
import math
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import worldsize
from worldsize.answer.predict.table import MeasurementTable, parse_table, read_table, table_of
from worldsize.answer.predict.table_projection import project_table
from worldsize.cli.main import app
from worldsize.errors import InputError

PLAIN = "workers,samples_per_s\n1,100\n2,196\n4,382\n"


def rates(table: MeasurementTable, index: int = 0) -> dict[int, tuple[float, ...]]:
    series = table.series[index].series
    return dict(zip(series.workers, series.throughputs, strict=True))


@pytest.mark.parametrize(
    "text",
    [
        PLAIN,
        "\ufeff" + PLAIN,
        PLAIN.replace("\n", "\r\n"),
        PLAIN.replace("\n", "\r"),
        PLAIN.replace("\n", "\n\n"),
        "\n ,\n" + PLAIN + ",\n",
        '"workers","samples_per_s"\n"1","100"\n"2","196"\n"4","382"\n',
        " Workers , SAMPLES_PER_S \n 1 , 100 \n 2.0 , 1.96e2\n4,382.0",
        "samples_per_s,workers\n382,4\n196,2\n100,1\n",
    ],
)
def test_the_same_table_however_it_is_written(text: str, tmp_path: Path) -> None:
    path = tmp_path / "table.csv"
    path.write_bytes(text.encode())
    table = read_table(path)
    assert rates(table) == {1: (100.0,), 2: (196.0,), 4: (382.0,)}
    assert table.series[0].unit == "samples_per_s"


def test_many_series_repeats_and_what_describes_them() -> None:
    text = """series_id,workers,tokens_per_s,repeat,workers_per_node,mode,hardware,framework
a,2,210,0,8,weak,"4 nodes, V100",jax
b,1,55,,8,strong,,
a,2,190,1,8,weak,"4 nodes, V100",jax
a,1,100,0,8,weak,"4 nodes, V100",jax
"""
    table = parse_table(text, "t.csv")
    assert [given.series.name for given in table.series] == ["a", "b"]
    assert rates(table) == {1: (100.0,), 2: (190.0, 210.0)}
    first = table.series[0]
    assert (first.mode, first.series.workers_per_node, first.series.stack) == ("weak", 8, "4 nodes, V100 / jax")
    assert table.series[1].series.stack == ""


def test_value_and_unit_beside_it() -> None:
    text = "workers,value,unit,batch_per_worker\n1,100,samples_per_s,varies\n2,190,samples_per_s,\n"
    assert rates(parse_table(text, "t.csv")) == {1: (100.0,), 2: (190.0,)}


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        ({"step_s": 0.5, "mode": "weak"}, 4 / 0.5),
        ({"step_s": 0.5, "mode": "weak", "batch_per_worker": 32}, 4 * 32 / 0.5),
        ({"step_s": 0.5, "mode": "strong"}, 1 / 0.5),
        ({"step_s": 0.5, "mode": "strong", "batch_per_worker": 32}, 4 * 32 / 0.5),
        ({"epoch_s": 20}, 1 / 20),
        ({"train_s": 20, "mode": "weak", "batch_per_worker": 32}, 1 / 20),
    ],
)
def test_times_become_rates_and_return_as_times(row: dict[str, object], expected: float) -> None:
    given = table_of([{"workers": 4, **row}]).series[0]
    assert given.series.throughputs[0][0] == pytest.approx(expected)
    unit = given.unit
    assert given.value(4, expected) == pytest.approx(row[unit])


def test_strong_steps_with_batches_go_by_the_global_batch() -> None:
    points = [
        {"workers": n, "step_s": 1.0 / n, "mode": "strong", "batch_per_worker": 256 / n, "workers_per_node": 16}
        for n in (1, 2, 4)
    ]
    one = worldsize.project(points, workers=[8])[0]
    assert one.unit == "step_s"
    rate, step = one.samples_per_s, one.expected
    assert step.value == pytest.approx(1 / 8, rel=0.03)
    assert rate.value == pytest.approx(256 / step.value)
    assert rate.ends[0] < rate.value < rate.ends[1]
    assert step.ends == pytest.approx((256 / rate.ends[1], 256 / rate.ends[0]))


BAD = [
    ("", "t.csv: the table has no measurement"),
    ("\n\n", "no measurement"),
    ("workers,samples_per_s\n", "no measurement"),
    ("worker,samples_per_s\n1,2\n", 't.csv, line 1: unknown column "worker". Did you mean "workers"?'),
    ("workers,sampels_per_s\n1,2\n", 'Did you mean "samples_per_s"?'),
    ("workers,samples_per_s,zzzz\n1,2,3\n", 'unknown column "zzzz". Leave it out.\nthe columns are workers'),
    ("samples_per_s\n2\n", 'column "workers" is missing'),
    ("workers\n2\n", "found none; keep one of samples_per_s"),
    ("workers,mode\n2,weak\n", "found none"),
    ("workers,samples_per_s,step_s\n1,2,3\n", "found samples_per_s, step_s"),
    ("workers,samples_per_s,value,unit\n1,2,3,step_s\n", "found samples_per_s, value, unit"),
    ("workers,value\n1,2\n", "found value"),
    ("workers,value,unit\n1,2,furlongs\n", 'line 2: unit="furlongs" is not known; use samples_per_s or'),
    ("workers,workers,samples_per_s\n1,1,2\n", 'column "workers" occurs more than once'),
    ("workers|samples_per_s\n1|2\n", 'unknown column "workers|samples_per_s"'),
    ("GPUs,img/s\n1,2\n", 'unknown column "gpus". Did you mean "workers"?'),
    ("workers,speedup,samples_per_s\n1,1,2\n", 'unknown column "speedup". Leave it out.'),
    (
        "workers;samples_per_s\n1;410,5\n",
        'samples_per_s="410,5" is not a positive, finite number (1e-30 to 1e30); write 410.5',
    ),
    ("workers,samples_per_s\n1,410 img/s\n", "write 410"),
    ("workers;step_s;mode\n1;0,125;weak\n", "write 0.125"),
    ("workers;samples_per_s\n1;410,250\n", "write 410250 or 410.250"),
    (
        "workers,samples_per_s,workers_per_node\n2,2,2\n4,4,2\n8,8,8\n",
        "line 4: workers_per_node is 8 here and 2 at t.csv, line 2",
    ),
    ("workers,train_s\n1,1:00:00\n", "leave the row out if it failed"),
    ("workers,samples_per_s\n1,2,3\n", "line 2: 3 cells for 2 columns"),
    ("workers,samples_per_s\n1,1,024\n", "put quotes around a value that contains a comma"),
    ("workers,samples_per_s\n1\n", "line 2: 1 cells for 2 columns"),
    ('workers,samples_per_s\n1,"2\n3,4\n', "not valid CSV"),
    ("workers,samples_per_s\n1,0\n", 'line 2: samples_per_s="0" is not a positive, finite number'),
    ("workers,samples_per_s\n1,-3\n", 'samples_per_s="-3"'),
    ("workers,samples_per_s\n1,nan\n", 'samples_per_s="nan"'),
    ("workers,samples_per_s\n1,inf\n", 'samples_per_s="inf"'),
    ("workers,samples_per_s\n1,1e999\n", 'samples_per_s="1e999"'),
    ("workers,samples_per_s\n1,1e200\n", 'samples_per_s="1e200" is not a positive, finite number (1e-30 to 1e30)'),
    ("workers,samples_per_s\n1,fast\n", 'samples_per_s="fast"'),
    ("workers,samples_per_s\n1,1_000\n", 'samples_per_s="1_000"'),
    (
        'workers,samples_per_s\n1,"1,024"\n',
        'samples_per_s="1,024" is not a positive, finite number (1e-30 to 1e30); write 1024 or 1.024',
    ),
    ("workers,samples_per_s\n1,\n", "line 2: samples_per_s is empty"),
    ("workers,samples_per_s\n0,5\n", 'workers="0" is not a whole number from 1'),
    ("workers,samples_per_s\n1.5,5\n", 'workers="1.5"'),
    ("workers,samples_per_s\n1e12,5\n", 'workers="1e12"'),
    ("workers,samples_per_s\n,5\n", "workers is empty"),
    ("workers,samples_per_s\n1,5\n\n1,6\n", "line 4: workers=1 already occurs in the table, at t.csv, line 2; number"),
    ("workers,samples_per_s,repeat\n1,5,0\n1,6,0\n", 'workers=1 with repeat "0" already occurs in the table'),
    ("workers,step_s\n1,5\n", "step_s requires a column `mode`"),
    ("workers,step_s,mode\n1,5,week\n", 'mode="week" is not known; use weak or strong or unknown'),
    ("workers,samples_per_s,mode\n1,5,weak\n2,6,strong\n", "line 3: mode is strong here and weak at t.csv, line 2"),
    ("workers,samples_per_s,workers_per_node\n1,5,8\n2,6,4\n", "workers_per_node is 4 here and 8"),
    ("workers,samples_per_s,workers_per_node\n1,5,none\n", 'workers_per_node="none"'),
    ("workers,samples_per_s,batch_per_worker\n1,5,varies\n", 'batch_per_worker="varies"'),
    ("workers,step_s,mode,batch_per_worker\n1,5,weak,32\n2,5,weak,64\n", "batch_per_worker is 64.0 here and 32.0"),
    ("workers,step_s,mode,batch_per_worker\n1,5,strong,32\n2,3,strong,32\n", "workers x batch_per_worker is 64.0"),
    ("workers,samples_per_s\n1,\x1b[2Jfast\n", r"\u001b[2Jfast"),
]


@pytest.mark.parametrize(("text", "said"), BAD, ids=range(len(BAD)))
def test_what_is_wrong_is_said_with_its_place_and_remedy(text: str, said: str) -> None:
    with pytest.raises(InputError) as caught:
        parse_table(text, "t.csv")
    assert said in str(caught.value)
    assert str(caught.value).startswith("t.csv")
    assert "\x1b" not in str(caught.value)


def test_all_wrong_rows_are_told_at_once_but_not_hundreds() -> None:
    text = "workers,samples_per_s\n" + "".join(f"{n},0\n" for n in range(1, 101))
    with pytest.raises(InputError) as caught:
        parse_table(text, "t.csv")
    lines = str(caught.value).splitlines()
    assert len(lines) == 21
    assert "line 5:" in lines[3]
    assert lines[-1] == "and 80 more problems; fix these first"


@pytest.mark.parametrize("content", [b"\xff\xfew\x00o\x00", b"\x00\x01\x02\x80", b"PK\x03\x04sheet", b"w\x00o\x00"])
def test_a_file_that_is_no_text_is_said(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_bytes(content)
    with pytest.raises(InputError, match=r"t\.csv is not text.*; save .*CSV in UTF-8"):
        read_table(path)


@pytest.mark.parametrize("sign", [",", ";", "\t"])
def test_semicolons_and_tabs_separate_too(sign: str) -> None:
    text = "workers,samples_per_s,model\n1,100,\n2,195,\n".replace(",", sign)
    assert parse_table(text, "t").series[0].series.samples_per_s.tolist() == pytest.approx([100, 195])


def test_a_table_is_answered_before_it_is_shown(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("workers,samples_per_s\n1,100\n2,196\n4,380\n8,400\n")
    shown = " ".join(CliRunner().invoke(app, ["predict", str(path), "--workers", "16"]).output.split())
    assert shown.startswith(
        "Use 4 workers: 3.80x as fast as 1, 95 % efficient. 8 workers: only 4.00x as fast as 1, 50 % efficient."
    )
    assert all(f" {count} " in shown for count in (1, 2, 4, 8, "~16"))
    assert " 2 196 1.96x 98 % 4 " in shown
    assert len(re.findall(r"\d–\d", shown)) == 2  # the one projected count
    path.write_text("workers,samples_per_s\n1,100\n2,196\n4,380\n")
    shown = " ".join(CliRunner().invoke(app, ["predict", str(path), "--workers", "8,512"]).output.split())
    assert re.match(r"Use 8 workers: 7\.\d+x as fast as 1 \(.* to .*, projected\), 9\d % efficient\.", shown)
    assert re.search(r"512 workers: .* too uncertain to rely on\.", shown)
    path.write_text("workers,samples_per_s,workers_per_node\n1,100,8\n2,120,8\n4,140,8\n8,150,8\n")
    shown = " ".join(CliRunner().invoke(app, ["predict", str(path), "--workers", "16,64"]).output.split())
    assert re.match(r"Use 1 worker\. 64 workers: .* too uncertain to rely on\.", shown)
    path.write_text("workers,samples_per_s\n4,100\n")
    shown = " ".join(CliRunner().invoke(app, ["predict", str(path)]).output.split())
    assert shown.startswith("Not enough evidence: only one worker count was measured. Best guess:")


def test_a_missing_file_and_a_folder_are_said(tmp_path: Path) -> None:
    for path, said in ((tmp_path / "none.csv", "does not exist"), (tmp_path, "cannot be read")):
        with pytest.raises(InputError, match=said):
            read_table(path)


@pytest.mark.parametrize(
    ("points", "said"),
    [
        ([], "points: there are no measurements"),
        ([3], r"points[0]: 3 is not a mapping"),
        (
            [{"workers": 1, "samples_per_s": 5}, {"workers": 2, "samples_per_s": math.nan}],
            "points[1]: samples_per_s=NaN",
        ),
        ([{"workers": True, "samples_per_s": 5}], "points[0]: workers=true"),
        ([{"workers": 1, "samples_per_s": None}], "found none"),
        ([{"workers": 1, "samples_per_s": [5]}], "samples_per_s=[5]"),
        ([{"workers": 1, "rate": 5}], 'points[0]: unknown column "rate"'),
        ([{"workers": 1, "samples_per_s": 5}] * 2, "points[1]: workers=1 already occurs in the table, at points[0]"),
    ],
)
def test_points_from_python_are_checked_alike(points: list[dict[str, object]], said: str) -> None:
    with pytest.raises(worldsize.WorldsizeError) as caught:
        worldsize.project(points, workers=[2])
    assert said in str(caught.value)


def test_a_node_size_that_contradicts_the_table_is_said(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("workers,samples_per_s,workers_per_node\n1,5,8\n2,9,8\n")
    assert read_table(path, workers_per_node=8).series[0].series.workers_per_node == 8
    with pytest.raises(InputError, match="contradicts the table, which says 8"):
        read_table(path, workers_per_node=4)


def test_points_that_are_text_are_refused_once() -> None:
    points: Any = "table.csv"
    with pytest.raises(InputError, match=r"not a list of measurements.*worldsize predict"):
        table_of(points)


def test_a_table_file_is_refused_with_a_remedy(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("workers,samples_per_s\n1,100\n2,190\n4,370\n")
    with pytest.raises(InputError, match=r"is a file, not a study folder; for a table, run `worldsize predict .*rows"):
        worldsize.predict(path, workers=[8])
    with path.open() as file:
        assert [one.workers for one in worldsize.predict(csv.DictReader(file), workers=[8])] == [8]


def test_predict_and_project_are_the_same() -> None:
    points = [{"workers": n, "samples_per_s": 100 * n} for n in (1, 2, 4)]
    assert worldsize.project is worldsize.predict
    assert [one.workers for one in worldsize.predict(points)] == [1, 2, 4, 8, 16, 32]
    for name, value in (("price", 2.5), ("workers_per_node", 8), ("network", "dgx-h100")):
        options: Any = {name: value}
        with pytest.raises(InputError, match=f"{name}=.* needs a study"):
            worldsize.predict(points, **options)


def test_noise_of_repeats_is_in_what_is_projected() -> None:
    rates = {1: (100, 102), 2: (150, 250), 4: (230, 590)}
    points = [
        {"workers": n, "samples_per_s": rate, "repeat": at} for n, each in rates.items() for at, rate in enumerate(each)
    ]
    between, measured, further = worldsize.project(points, workers=[3, 4, 8])
    for one in (between, further):
        assert one.samples_per_s.relative_width > measured.samples_per_s.relative_width


@pytest.mark.parametrize("workers", [[], [0], [2.5], ["x"], [True], "16", b"16", 16])
def test_counts_that_are_asked_for_are_checked(workers: Any) -> None:
    with pytest.raises(worldsize.WorldsizeError, match="workers"):
        worldsize.project([{"workers": 1, "samples_per_s": 5}], workers=workers)


def test_cells_as_pandas_spreadsheets_and_batch_systems_leave_them() -> None:
    plain = [{"workers": n, "samples_per_s": 100 * n, "mode": "weak", "workers_per_node": 8} for n in (1, 4, 16)]
    partial = [{**row, "mode": "Weak", "workers_per_node": min(int(str(row["workers"])), 8)} for row in plain]
    assert worldsize.project(partial, workers=[32]) == worldsize.project(plain, workers=[32])
    empty = {"workers_per_node": math.nan, "batch_per_worker": math.nan, "mode": math.nan, "repeat": math.nan}
    bare = [{"workers": n, "samples_per_s": 100 * n} for n in (1, 4, 16)]
    found = worldsize.project([{**row, **empty, "series_id": math.nan} for row in bare], workers=[32])
    assert found == worldsize.project(bare, workers=[32])


def test_project_gives_frozen_answers_in_the_order_asked_and_in_the_given_unit() -> None:
    points = [{"workers": n, "samples_per_s": 100 * n, "workers_per_node": 4} for n in (4, 1, 2)]
    found = worldsize.project(points, workers=[32, 4, 8])
    assert [one.workers for one in found] == [32, 4, 8]
    assert [one.measured for one in found] == [False, True, False]
    assert found[2].notes == ("beyond one node, where nothing was measured",)
    for one in found:
        assert one.unit == "samples_per_s"
        assert one.expected == one.samples_per_s
        assert one.samples_per_s.has_interval is not one.measured  # it ran once
    with pytest.raises(AttributeError):
        found[0].workers = 3  # type: ignore[misc]
    times = worldsize.project([{"workers": n, "epoch_s": 80 / n} for n in (1, 2, 4)], workers=[8])[0]
    low, high = times.expected.ends
    assert times.expected.value == pytest.approx(10, rel=0.05)
    assert times.samples_per_s.value == pytest.approx(1 / times.expected.value)  # of the same work a second
    assert low < times.expected.value < high


def test_series_of_one_stack_inform_each_other() -> None:
    header = "series_id,workers,samples_per_s,workers_per_node,framework\n"
    dear = "".join(f"{name},8,800,8,slow\n{name},16,800,8,slow\n" for name in "abc")
    own = "mine,1,100,8,{0}\nmine,4,390,8,{0}\nmine,8,770,8,{0}\n"
    same, other = (
        project_table(parse_table(header + dear + own.format(name), "t"), [16])[-1] for name in ("slow", "x")
    )
    assert same.series_id == other.series_id == "mine"
    assert same.expected.value < 0.8 * other.expected.value
    assert "cost of leaving a node estimated from 3 other series of the same stack" in same.notes


def test_project_loads_no_torch() -> None:
    check = (
        "import sys, worldsize\n"
        "worldsize.project([{'workers': 1, 'samples_per_s': 5}], workers=[2])\n"
        "sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", check], check=False).returncode == 0
