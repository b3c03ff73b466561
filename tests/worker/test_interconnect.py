"""What the sweep tries next, on simulated links; which groups there are."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import pytest
import torch

from worldsize.worker.measure.links import ROUNDS, SIZES, SweepPlan, Turn, links_of, measure_links

BUDGET_S = 3.0


def simulate(cost_s: Callable[[Turn], float], links: int = 1) -> tuple[Counter[Turn], float, list[Turn]]:
    """How often each turn was taken, how long it all took, and the order."""
    plan, elapsed_s, order = SweepPlan(links, BUDGET_S), 0.0, []
    while (turn := plan.next(elapsed_s)) is not None:
        order.append(turn)
        plan.cost(turn, cost_s(turn))
        elapsed_s += cost_s(turn)
    return Counter(order), elapsed_s, order


def linear(latency_s: float, bytes_per_s: float) -> Callable[[Turn], float]:
    return lambda turn: latency_s + SIZES[turn.size] / bytes_per_s


def test_sizes_are_1_kb_to_64_mb() -> None:
    assert (SIZES[0], SIZES[-1], len(SIZES)) == (2**10, 2**26, 9)


def test_a_fast_link_is_done_before_the_box_ends() -> None:
    taken, took_s, order = simulate(linear(50e-6, 100e9))
    assert taken == {Turn(0, size): ROUNDS for size in range(len(SIZES))}
    assert took_s < 0.1
    assert [turn.size for turn in order[:18]] == [*range(9), *reversed(range(9))]  # a round up, a round down


@pytest.mark.parametrize("links", [1, 3])
@pytest.mark.parametrize("mbit_per_s", [1, 10, 200, 800, 8_000])
def test_the_box_holds_and_every_size_is_repeated(mbit_per_s: float, links: int) -> None:
    taken, took_s, _ = simulate(linear(1e-3, mbit_per_s * 1e6 / 8), links)
    assert took_s <= BUDGET_S
    assert min(taken.values()) >= 3
    assert len({turn.size for turn in taken}) >= 2
    assert len({turn.link for turn in taken}) == links


def test_a_link_that_collapses_overruns_the_box_by_one_repetition_at_most() -> None:
    cost = linear(1e-3, 1e9)
    _, took_s, order = simulate(lambda turn: 20.0 if turn.size == 6 else cost(turn))
    assert took_s <= BUDGET_S + 20.0
    assert order[-1] == Turn(0, 6)


def test_a_long_latency_leaves_several_sizes() -> None:
    taken, took_s, _ = simulate(linear(0.1, 1e9))
    assert len(taken) >= 4
    assert took_s <= BUDGET_S


def test_groups() -> None:
    def named(*hosts: str) -> dict[str, tuple[tuple[int, ...], ...]]:
        return {link.kind: link.groups for link in links_of(hosts)}

    assert named("a") == {}
    assert named("a", "a", "a") == {"inside": ((0, 1, 2),)}
    assert named("a", "b") == {"across": ((0, 1),)}
    assert named("a", "a", "b", "b") == {"inside": ((0, 1), (2, 3)), "across": ((0, 2),), "all": ((0, 1, 2, 3),)}
    assert named("a", "b", "b") == {"inside": ((1, 2),), "across": ((0, 1),), "all": ((0, 1, 2),)}


def test_one_worker_has_no_link() -> None:
    assert measure_links(0, ["a"], torch.device("cpu")) is None
