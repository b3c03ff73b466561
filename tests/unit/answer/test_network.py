"""Declared networks are read as written, and cost what the formulas say."""

from __future__ import annotations

import pytest

from worldsize.analysis.speed.network import Network, Wire, allreduce_s, node_layout, ring_allreduce_s
from worldsize.answer.predict.question import PRESETS, parse_network
from worldsize.errors import InputError

FAST = Wire(latency_s=2e-6, bandwidth_bytes_per_s=450e9)
SLOW = Wire(latency_s=5e-6, bandwidth_bytes_per_s=50e9)


def test_a_declared_network() -> None:
    found = parse_network("8 x 450GB/s 2us, 50GB/s 5us")
    assert (found.workers_per_node, found.inside, found.across) == (8, FAST, SLOW)
    assert "8 x 450GB/s" in found.source


def test_rates_of_a_node_and_units() -> None:
    found = parse_network("4x16GB/s,100Gbit/s/node 10us")
    assert found.across == Wire(latency_s=10e-6, bandwidth_bytes_per_s=12.5e9, shared_by_node=True)
    assert found.inside is not None
    assert found.inside.latency_s == 2e-6


def test_one_node_has_no_way_out() -> None:
    alone = parse_network("2 x 1GB/s")
    assert allreduce_s(1e6, 2, alone) is not None
    assert allreduce_s(1e6, 3, alone) is None


def test_presets_name_their_source() -> None:
    for name, network in PRESETS.items():
        assert parse_network(name.upper()) is network
        assert len(network.source) > 20


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("fast", "neither a preset"),
        ("dgx-h10", 'Did you mean "dgx-h100"'),
        ("450GB/s 2us", "the number of workers per node"),
        ("0 x 450GB/s", "the number of workers per node"),
        ("8 x 450GB/s, 8 x 50GB/s", "is not a rate across nodes"),
        ("8 x 450furlongs/s", "unknown unit"),
        ("8 x 0GB/s", "a rate of 0"),
        ("8 x 450GB/s/node", "a rate inside a node is per worker"),
        ("8 x 450GB/s, 50GB/s, 1GB/s", "neither a preset"),
    ],
)
def test_what_cannot_be_read_says_how_to_write_it(text: str, words: str) -> None:
    with pytest.raises(InputError, match=words):
        parse_network(text)


def test_ring_and_two_levels() -> None:
    size = 100e6
    assert ring_allreduce_s(size, 4, FAST) == pytest.approx(6 * 2e-6 + 1.5 * size / 450e9)
    both = Network(inside=FAST, across=SLOW, workers_per_node=8, source="")
    assert allreduce_s(size, 8, both) == pytest.approx(ring_allreduce_s(size, 8, FAST))
    inside_s = ring_allreduce_s(size, 8, FAST)
    assert allreduce_s(size, 32, both) == pytest.approx(inside_s + ring_allreduce_s(size / 8, 4, SLOW))
    shared = Network(
        inside=FAST,
        across=Wire(latency_s=5e-6, bandwidth_bytes_per_s=50e9, shared_by_node=True),
        workers_per_node=8,
        source="",
    )
    assert allreduce_s(size, 32, shared) == pytest.approx(inside_s + ring_allreduce_s(size, 4, SLOW))


def test_nodes_are_filled_one_after_another() -> None:
    assert [node_layout(workers, 8) for workers in (1, 8, 9, 64)] == [(1, 1), (8, 1), (8, 2), (8, 8)]
