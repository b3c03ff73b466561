"""The gate of `compare --fail-on slower`: its verdict on studies with a known slowdown, its words, its exit code."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

import worldsize
from tests.made import Made, write_study
from worldsize.analysis.estimate import Estimate
from worldsize.analysis.speed.compare import METRIC, THROUGHPUT, Compared, Difference, Side, compare, of_values
from worldsize.analysis.speed.slower import Gate, Verdict, gate_slower
from worldsize.cli.main import app
from worldsize.errors import InputError
from worldsize.report.words.gate import gate_sentence, more_repeats
from worldsize.spec.setting import Setting
from worldsize.spec.training import StrategySpec
from worldsize.study.study import Study

ONE = Setting(workers=1, batch_per_worker=32, scaling="weak", strategy=StrategySpec(), precision="fp32")
TWO = replace(ONE, workers=2)
STUDY = """\
name: gated
workload: digits
axes: {workers: [1, 2], batch_per_worker: [64]}
repeats: 4
"""


def speed(
    slowdown: tuple[float, float, float], *, significant: bool | None, setting: Setting = ONE, side: str = "B"
) -> Difference:
    """A difference in throughput: how much longer a step takes (value, low, high)."""
    value, low, high = slowdown
    return Difference(
        side=side,
        setting=setting,
        quantity=THROUGHPUT,
        first=100.0,
        other=100.0 / (1 + value),
        estimate=Estimate(value=1 / (1 + value), low=1 / (1 + high), high=1 / (1 + low)),
        p=None if significant is None else 0.01,
        p_holm=None if significant is None else 0.01 if significant else 0.5,
    )


def gate_of(*differences: Difference, margin: float = 0.0) -> Gate:
    compared = Compared(names=("A", "B"), common=(ONE, TWO), only={}, differences=differences)
    return gate_slower(compared, margin)


@pytest.mark.parametrize(
    ("slowdown", "significant", "margin", "verdict"),
    [
        ((0.03, 0.02, 0.04), True, 0.0, "slower"),
        ((0.03, 0.02, 0.04), True, 0.05, "not_slower"),
        ((0.06, 0.04, 0.08), True, 0.05, "slower"),  # the best estimate decides, not the end of the interval
        ((-0.20, -0.22, -0.18), True, 0.0, "not_slower"),
        ((0.01, -0.02, 0.04), False, 0.0, "not_slower"),
        ((0.01, -0.02, 0.04), False, 0.05, "not_slower"),
        ((0.01, -0.02, 0.04), False, 0.03, "cannot_tell"),
        ((0.01, -0.15, 0.20), False, 0.0, "cannot_tell"),
        ((0.04, 0.01, 0.07), False, 0.0, "cannot_tell"),  # alone it would be a slowdown; among many, it may be chance
        ((0.04, 0.01, 0.07), False, 0.10, "not_slower"),
        ((0.50, 0.40, 0.60), None, 0.0, "cannot_tell"),
    ],
)
def test_the_verdict_on_one_setting(
    slowdown: tuple[float, float, float], significant: bool | None, margin: float, verdict: Verdict
) -> None:
    gate = gate_of(speed(slowdown, significant=significant), margin=margin)
    assert gate.verdict == verdict
    assert gate.settings[0].change.ends == pytest.approx(slowdown[1:])


def test_one_slow_setting_fails_the_gate_and_one_open_setting_leaves_it_open() -> None:
    slow = speed((0.2, 0.1, 0.3), significant=True, setting=TWO)
    slower = speed((0.4, 0.3, 0.5), significant=True)
    open_ = speed((0.5, -0.5, 2.0), significant=False)
    fine = speed((0.0, -0.01, 0.01), significant=False, setting=TWO)
    assert gate_of(open_, slow).verdict == "slower"
    assert gate_of(open_, fine).verdict == "cannot_tell"
    assert [judged.difference for judged in gate_of(slow, slower).deciding] == [slower, slow]
    assert gate_of().verdict == "cannot_tell"


def test_only_speed_is_judged() -> None:
    worse = replace(speed((0.5, 0.4, 0.6), significant=True), quantity=METRIC)
    assert gate_of(worse, speed((0.0, -0.01, 0.01), significant=False)).verdict == "not_slower"


@pytest.mark.parametrize(("slowdown", "least", "most"), [(0.0, 0.0, 0.07), (0.10, 0.9, 1.0)])
def test_equal_studies_rarely_fail_and_slow_ones_do(slowdown: float, least: float, most: float) -> None:
    """2 % noise, 8 repeats, 3 worker counts: the margin is 5 %."""
    rng = np.random.default_rng(3)
    failed = 0
    for _ in range(300):
        sides = []
        for name, shift in (("A", 0.0), ("B", np.log1p(slowdown))):
            settings = [replace(ONE, workers=workers) for workers in (1, 2, 4)]
            means = {setting: {THROUGHPUT: of_values(rng.normal(5 - shift, 0.02, 8).tolist())} for setting in settings}
            sides.append(Side(name=name, means=means, step_s=dict.fromkeys(means, 0.01), baselines={}))
        failed += gate_slower(compare(sides), 0.05).verdict == "slower"
    assert least <= failed / 300 <= most


def folders(home: Path, slowdown: float, *, noise: float = 0.01, text: str = STUDY) -> tuple[Path, Path]:
    for name, factor in (("a", 1.0), ("b", 1 + slowdown)):
        times = {"forward": 4e-3 * factor, "backward": 6e-3 * factor}
        write_study(home / name, text, Made(times=lambda _, times=times: times, noise=noise))  # type: ignore[misc]
    return home / "a", home / "b"


def said(*arguments: object) -> tuple[int, list[str]]:
    answer = CliRunner().invoke(app, ["compare", *map(str, arguments)])
    return answer.exit_code, answer.output.splitlines()


def test_a_slowdown_exits_with_3_and_is_said_first(tmp_path: Path) -> None:
    first, other = folders(tmp_path, 0.1)
    code, lines = said(first, other, "--fail-on", "slower:5%")
    assert code == 3
    assert re.fullmatch(
        r"Slower: with \d workers?, steps of B take 1\d % more time \(.*\) than those of A; the limit is 5 %.", lines[0]
    )
    assert lines[1].startswith("Slower in 2 of 2 settings. ")
    assert said(first, other, "--fail-on", "slower")[0] == 3
    code, lines = said(first, other, "--fail-on", "slower:20.5%")
    assert code == 0
    assert lines[0].startswith("Not slower: ")
    assert lines[0].endswith("the limit is 20.5 %.")
    code, lines = said(other, first, "--fail-on", "slower")
    assert code == 0
    assert re.match(r"Not slower: with \d workers?, steps of B take [89]\.\d % less time \(", lines[0])
    assert said(first, other)[0] == 0


def test_noise_that_could_hide_a_slowdown_is_said_with_the_way_out(tmp_path: Path) -> None:
    first, other = folders(tmp_path, 0.0, noise=0.3)
    code, lines = said(first, other, "--fail-on", "slower:5%")
    assert code == 0
    assert lines[0].startswith("Cannot tell: ")
    comparison = worldsize.compare(first, other, allowed_slowdown=0.05)
    assert comparison.gate is not None
    commands = [command for command, _ in more_repeats(comparison, comparison.gate)]
    assert commands[0] == f"worldsize run {first}/study.yaml --set probe.repeats=8 --dir {first}-8-repeats"
    assert f"Next  {commands[0]}" in " ".join(line.strip(" \\") for line in lines)
    again = Study(first / "study.yaml", overrides={"probe.repeats": 8}, folder=tmp_path / "again")
    assert len(again.plan.trials) == 16
    in_turn = replace(comparison, command=("worldsize", "compare", "--runs", "a.yaml", "b.yaml"))
    assert [command for command, _ in more_repeats(in_turn, comparison.gate)] == [
        f"worldsize compare --runs a.yaml b.yaml --set probe.repeats=8 --dir {tmp_path}/8-repeats"
    ]


def test_a_single_run_decides_nothing(tmp_path: Path) -> None:
    first, other = folders(tmp_path, 1.0, text=STUDY.replace("repeats: 4", "repeats: 1"))
    code, lines = said(first, other, "--fail-on", "slower")
    assert code == 0
    assert lines[0].startswith("Cannot tell: with ")
    assert "the noise is unknown: only one run" in lines[0]


def test_without_a_common_setting_nothing_can_be_told(tmp_path: Path) -> None:
    first, _ = folders(tmp_path, 0.0)
    other = tmp_path / "other"
    write_study(other, STUDY.replace("[64]", "[32]"), Made(times=lambda _: {"forward": 1e-2}))
    code, lines = said(first, other, "--fail-on", "slower")
    assert code == 0
    assert lines[0] == "Cannot tell: the studies have no measured setting in common."
    assert not any(line.startswith("Next") for line in lines)


def test_json_carries_the_verdict(tmp_path: Path) -> None:
    first, other = folders(tmp_path, 0.1)
    code, lines = said(first, other, "--fail-on", "slower:5%", "--json")
    assert code == 3
    gate = json.loads("\n".join(lines))["gate"]
    comparison = worldsize.compare(first, other, allowed_slowdown=0.05)
    assert comparison.gate is not None
    assert gate["sentence"] == gate_sentence(comparison, comparison.gate)
    assert (gate["verdict"], gate["margin"], gate["next"]) == ("slower", 0.05, [])
    assert [(entry["workers"], entry["verdict"]) for entry in gate["settings"]] == [(1, "slower"), (2, "slower")]
    assert gate["settings"][0]["step_time_change"]["value"] == pytest.approx(0.1, abs=0.02)
    assert "gate" not in json.loads("\n".join(said(first, other, "--json")[1]))


def test_the_page_has_the_verdict(tmp_path: Path) -> None:
    first, other = folders(tmp_path, 0.1)
    assert said(first, other, "--fail-on", "slower", "--page", tmp_path / "page.html")[0] == 3
    assert "Slower: with " in (tmp_path / "page.html").read_text(encoding="utf-8")


@pytest.mark.parametrize("rule", ["faster", "slower:5", "slower:-5%", "slower:%", "slower:nan%", ""])
def test_a_bad_rule_is_refused_with_a_good_one(rule: str, tmp_path: Path) -> None:
    answer = CliRunner().invoke(app, ["compare", str(tmp_path), str(tmp_path), "--fail-on", rule])
    assert answer.exit_code == 2
    assert f"{rule!r} is not a rule; write slower, or slower:5%" in " ".join(answer.output.split())


def test_a_bad_share_is_refused(tmp_path: Path) -> None:
    first, other = folders(tmp_path, 0.0)
    with pytest.raises(InputError, match="allowed_slowdown=-1 is not a share"):
        worldsize.compare(first, other, allowed_slowdown=-1)


@pytest.mark.parametrize("option", [("--dir", "x"), ("--set", "repeats=2"), ("--small",), ("--data", "x")])
def test_options_of_runs_need_runs(option: tuple[str, ...], tmp_path: Path) -> None:
    answer = CliRunner().invoke(app, ["compare", *map(str, folders(tmp_path, 0.0)), *option])
    assert isinstance(answer.exception, InputError)
    assert f"{option[0]} is for studies that --runs runs; add --runs" in str(answer.exception)


def test_turns_are_between_two(tmp_path: Path) -> None:
    answer = CliRunner().invoke(app, ["compare", "--runs", "a", "b", "c", "--dir", str(tmp_path / "x")])
    assert isinstance(answer.exception, InputError)
    assert "--runs was given 3 studies" in str(answer.exception)
