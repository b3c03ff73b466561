"""Planted causes are found: each appears in its own span, and no other span moves.

Turns with the cause and without it alternate in the same processes (span_ranks.py): drift falls on both.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.system.netns import two_nodes
from tests.system.ranks import run_ranks, tried
from tests.system.span_ranks import FAST_MBIT, SLOW_MBIT
from worldsize.analysis.speed.breakdown import WAITING, Traffic, exposed, separate_waiting
from worldsize.folder.record import SPAN_UNIT_S, SPANS

NAMES = (*SPANS, WAITING)


def on_one_machine(folder: Path, case: str) -> None:
    run_ranks("tests.system.span_ranks", folder, case)


def on_a_cable(folder: Path, case: str) -> None:
    with two_nodes(FAST_MBIT) as cable:
        run_ranks("tests.system.span_ranks", folder, case, cable=cable)


def moved(folder: Path, case: str) -> tuple[list[dict[str, float]], float]:
    """How much longer each span is with the cause, rank by rank; and what was planted. Medians over steps."""
    ranks = [np.load(folder / f"spans-{case.replace(' ', '-')}-rank{rank}.npz") for rank in range(2)]
    plain, planted = (_medians(np.stack([rank[kind] for rank in ranks], axis=1)) for kind in ("plain", "planted"))
    differences = [dict(zip(NAMES, (planted - plain)[rank].tolist(), strict=True)) for rank in range(2)]
    return differences, max(float(rank["seconds"]) for rank in ranks)


def _medians(spans: np.ndarray) -> np.ndarray:
    """Ranks x (spans and waiting)."""
    return np.asarray(np.median(separate_waiting(SPANS, spans), axis=0))


def assert_found(difference: dict[str, float], span: str, planted_s: float, also: tuple[str, ...] = ()) -> None:
    assert difference[span] == pytest.approx(planted_s, rel=0.2), difference
    for other, seconds in difference.items():
        if other != span and other not in also:
            assert abs(seconds) < max(0.15 * planted_s, 0.002), (other, difference)


@pytest.mark.long
@pytest.mark.parametrize(("case", "span"), [("loader", "data"), ("optimizer", "optimizer")])
def test_a_sleep_appears_where_it_was_planted(tmp_path: Path, case: str, span: str) -> None:
    def check(folder: Path) -> None:
        ranks, planted_s = moved(folder, case)
        for difference in ranks:
            assert_found(difference, span, planted_s)

    tried(tmp_path, lambda folder: on_one_machine(folder, case), check)


@pytest.mark.long
def test_a_rank_that_computes_more_is_waited_for(tmp_path: Path) -> None:
    def check(folder: Path) -> None:
        (first, second), planted_s = moved(folder, "slow rank")
        assert planted_s > 0.004
        assert_found(second, "forward", planted_s, also=(WAITING,))
        assert_found(first, WAITING, planted_s)

    tried(tmp_path, lambda folder: on_one_machine(folder, "slow rank"), check)


@pytest.mark.long
def test_a_slower_link_appears_as_communication(tmp_path: Path) -> None:
    def check(folder: Path) -> None:
        ranks, planted_s = moved(folder, "link")
        assert planted_s > 0.02
        for difference in ranks:
            assert_found(difference, "communication", planted_s)
        assert_exposed_is_total(folder)

    tried(tmp_path, lambda folder: on_a_cable(folder, "link"), check)


def assert_exposed_is_total(folder: Path) -> None:
    """With one bucket nothing overlaps: what the exchange adds to a step is what it takes, at the rate of the cable."""
    ranks = [np.load(folder / f"exchange-rank{rank}.npz") for rank in range(2)]
    steps = np.stack([rank["rows"][:, 1] for rank in ranks], axis=1) * SPAN_UNIT_S
    found = exposed([steps], [ranks[0]["rows"][:, 0]])
    assert found is not None
    total_s = float(ranks[0]["total_s"])
    assert found.seconds.value == pytest.approx(total_s, rel=0.15)
    traffic = Traffic(bytes=float(ranks[0]["bytes"]), seconds=total_s, workers=2)
    assert traffic.busbw == pytest.approx(SLOW_MBIT * 1e6 / 8, rel=0.1)
