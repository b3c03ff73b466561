"""The schedule of probes that take turns: pure decisions, tried on simulated machines whose speed is known."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import numpy as np
import pytest

from worldsize.spec.study import ProbeSpec
from worldsize.worker.turns import BLOCK_S, COLD_STEPS, MIN_ROUNDS, Schedule, Turn, precision, was_disturbed

SPEC = ProbeSpec(max_seconds=4, tolerance=0.02)
Machine = Callable[[int, float], float]
"""Seconds of a step of a probe, at a time since the start."""


def run(
    machine: Machine, *specs: ProbeSpec, periods: tuple[int, ...] = (), noise: float = 0.0
) -> tuple[Schedule, list[tuple[Turn, float]]]:
    """Return the schedule, and its turns with the median of their steps that count."""
    schedule = Schedule(specs, periods or (1,) * len(specs), block_s=BLOCK_S["cpu"], seed=0)
    rng, now, turns = np.random.default_rng(0), 0.0, []
    while (turn := schedule.next()) is not None:
        step_s = np.zeros(turn.steps)
        for step in range(turn.steps):
            step_s[step] = machine(turn.probe, now) * np.exp(rng.normal(0, noise))
            now += step_s[step]
        schedule.report(step_s)
        turns.append((turn, float(np.median(step_s[turn.cold_steps :]))))
    return schedule, turns


def measured(turns: list[tuple[Turn, float]]) -> list[Turn]:
    return [turn for turn, _ in turns if not turn.warm_up]


def test_blocks_alternate_and_their_order_is_reversed_in_every_second_round() -> None:
    _, turns = run(lambda probe, _: 0.01 * (1 + probe), SPEC, SPEC, SPEC, noise=0.01)
    order = [turn.probe for turn in measured(turns)]
    rounds = [order[start : start + 3] for start in range(0, len(order), 3)]
    assert all(sorted(probes) == [0, 1, 2] for probes in rounds)
    assert all(first == second[::-1] for first, second in zip(rounds[::2], rounds[1::2], strict=False))
    assert len({tuple(probes) for probes in rounds}) > 2
    assert {turn.cold_steps for turn in measured(turns)} == {COLD_STEPS}
    lengths = {turn.probe: turn.steps - COLD_STEPS for turn in measured(turns)}
    assert lengths[0] == pytest.approx(10, abs=1)
    assert lengths[2] == pytest.approx(4, abs=1)


def test_a_machine_that_changes_its_speed_slows_all_settings_alike() -> None:
    """Two speeds, a factor of 1.4 apart, which last 3 s each. Measured one after another, the settings would differ."""

    def two_levels(_: int, now: float) -> float:
        return 0.01 * (1.4 if int(now / 3) % 2 else 1.0)

    schedule, turns = run(two_levels, SPEC, SPEC, noise=0.01)
    logs = [
        np.mean([np.log(median) for turn, median in turns if turn.probe == probe and not turn.warm_up])
        for probe in (0, 1)
    ]
    assert abs(logs[0] - logs[1]) < 0.02
    assert schedule.reached == [False, False]  # 4 s of each do not tell its mean to 2 %


def test_the_warm_up_lasts_until_steps_no_longer_get_faster() -> None:
    began = 0.02

    def cold(_: int, now: float) -> float:
        return 0.01 + began * np.exp(-now / 0.3)

    _, turns = run(cold, SPEC)
    warm_up_s = sum(turn.steps * median for turn, median in turns if turn.warm_up)
    assert 0.8 < warm_up_s < SPEC.max_seconds / 2 + 0.3
    assert next(median for turn, median in turns if not turn.warm_up) < 0.011
    _, steady = run(lambda *_: 0.01, SPEC)
    assert sum(turn.steps * median for turn, median in steady if turn.warm_up) == pytest.approx(0.6, abs=0.15)


def test_measuring_ends_when_all_are_precise_or_the_time_is_up() -> None:
    quiet, turns = run(lambda *_: 0.01, SPEC, SPEC, noise=0.02)
    assert quiet.reached == [True, True]
    assert len(measured(turns)) == 2 * MIN_ROUNDS
    noisy, turns = run(lambda *_: 0.01, ProbeSpec(max_seconds=2, tolerance=0.001), noise=0.5)
    assert noisy.reached == [False]
    assert sum(turn.steps * median for turn, median in turns if not turn.warm_up) == pytest.approx(2, rel=0.2)


def test_a_probe_of_long_steps_takes_no_more_of_them_than_its_time_holds() -> None:
    _, turns = run(lambda *_: 0.6, ProbeSpec(max_seconds=1.5, warmup_steps=2))
    assert [(turn.steps, turn.warm_up) for turn, _ in turns] == [(2, True)] + [(1, False)] * 5


def test_short_and_long_steps_share_the_rounds_until_one_is_out_of_time() -> None:
    _, turns = run(lambda probe, _: (0.002, 0.4)[probe], ProbeSpec(max_seconds=2), ProbeSpec(max_seconds=2), noise=0.3)
    counts = Counter(turn.probe for turn in measured(turns))
    assert counts[1] == 5
    assert counts[0] > 10


def test_a_block_has_whole_periods() -> None:
    """With local SGD, one step in eight exchanges: part of a period would be too fast or too slow."""
    _, turns = run(lambda *_: 0.03, SPEC, periods=(8,))
    assert {(turn.steps - turn.cold_steps) % 8 for turn in measured(turns)} == {0}


def test_disturbed_blocks_are_run_again_at_once_within_a_budget() -> None:
    schedule = Schedule([SPEC, SPEC], (1, 1), block_s=0.1, seed=0)
    order = []
    while (turn := schedule.next()) is not None and len(order) < 60:
        if not turn.warm_up:
            order.append(turn.probe)
        schedule.report(np.full(turn.steps, 0.01), disturbed=not turn.warm_up and len(order) % 7 == 3)
    again = list(range(2, len(order), 7))[: len(order) // 8]
    assert all(order[index] == order[index + 1] for index in again)
    always = Schedule([SPEC], (1,), block_s=0.1, seed=0)
    turns = 0
    while (turn := always.next()) is not None:
        always.report(np.full(turn.steps, 0.01), disturbed=True)
        turns += not turn.warm_up
    assert turns < 1.5 * MIN_ROUNDS  # a machine that is always busy is measured as it is


def test_precision_covers_the_mean_of_correlated_blocks() -> None:
    rng = np.random.default_rng(3)
    inside = 0
    for _ in range(400):
        level = np.repeat(rng.normal(0, 0.03, 10), 4)  # neighbors share most of their noise
        logs = level + rng.normal(0, 0.01, 40)
        inside += abs(float(logs.mean())) <= precision(np.exp(logs).tolist())
    assert inside / 400 > 0.8


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_the_default_time_suffices_for_the_default_precision(device: str) -> None:
    """Also on a GPU, where blocks are longer."""
    schedule = Schedule([ProbeSpec()], (1,), block_s=BLOCK_S[device], seed=0)
    rng = np.random.default_rng(0)
    while (turn := schedule.next()) is not None:
        schedule.report(0.005 * np.exp(rng.normal(0, 0.01, turn.steps)))
    assert schedule.reached == [True]


NAN = float("nan")


@pytest.mark.parametrize(
    ("delay_s", "stolen_s", "disturbed"),
    [
        (0.0, 0.0, False),
        (0.05, 0.0, True),
        (0.0, 0.15, True),
        (0.0, 0.05, False),  # of 0.2 s: two cores
        (NAN, NAN, False),
        (NAN, 0.15, True),
        (0.05, NAN, True),
        (0.02, 0.0, False),
    ],
)
def test_lost_cpu_time_is_a_disturbance(delay_s: float, stolen_s: float, disturbed: bool) -> None:
    grown = {"at_s": 0.1, "process_delay_s": delay_s, "host_stolen_s": stolen_s}
    assert was_disturbed(grown, cores=2, shares_cores=False) is disturbed


def test_ranks_that_share_cores_wait_for_each_other() -> None:
    grown = {"at_s": 0.1, "process_delay_s": 0.05, "host_stolen_s": 0.0}
    assert was_disturbed(grown, cores=2, shares_cores=True) is False
