"""The sum of causes is recovered from steps that were made of it, and projected as it would have gone on."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace

import numpy as np
import pytest

from worldsize.analysis.projection.step_model import Node, StepTiming, exchange_terms, fit_throughput, overlapped_step_s
from worldsize.analysis.speed.network import Network, Wire, ring_allreduce_s, ring_bytes
from worldsize.answer.predict.question import parse_network

FITTED, ASKED = (1, 2, 3, 4, 6), (8, 12, 16)
Machine = Callable[[int, int], tuple[float, float]]
"""(workers, batch) -> (busy, exchange)."""
FAST = Wire(latency_s=2e-6, bandwidth_bytes_per_s=450e9)
SLOW = Wire(latency_s=5e-6, bandwidth_bytes_per_s=50e9)
LOOPBACK = Wire(latency_s=60e-6, bandwidth_bytes_per_s=1e9)


def quiet_cores(workers: int, batch: int) -> tuple[float, float]:
    """16 cores that share memory: computing itself slows, a ring and stragglers come on top."""
    busy = 1e-3 + 2e-4 * batch * (1 + 0.4 * (workers - 1) / 15)
    exchange = ring_allreduce_s(4e5, workers, LOOPBACK) + 4e-4 * math.log2(workers)
    return busy, exchange


def gpus(workers: int, batch: int) -> tuple[float, float]:
    """Computing stays as it is; the exchange saturates."""
    return 2e-3 + 1e-4 * batch, ring_bytes(1e8, workers) / 20e9


def measured(
    machine: Machine, workers: Iterable[int], batches: Iterable[int], *, noise: float, overlap: float = 1.0
) -> Iterator[StepTiming]:
    rng = np.random.default_rng(5)
    for count in workers:
        for batch in batches:
            busy, exchange = machine(count, batch)
            shake = math.exp(rng.normal(0, noise)) if noise else 1.0
            step = overlapped_step_s(busy, exchange, 1, overlap) * shake
            yield StepTiming(workers=count, batch_per_worker=batch, step_s=step, local_s=min(busy * shake, step))


@pytest.mark.parametrize("machine", [quiet_cores, gpus])
@pytest.mark.parametrize(("noise", "within"), [(0.0, 0.06), (0.02, 0.12)])
def test_counts_never_run(machine: Machine, noise: float, within: float) -> None:
    model = fit_throughput(list(measured(machine, FITTED, (32, 128), noise=noise)), Node(workers_per_node=16))
    off = [
        model.parts(count, batch).step_s / overlapped_step_s(*machine(count, batch), 1, 1.0) - 1
        for count in ASKED
        for batch in (32, 128)
    ]
    assert np.max(np.abs(off)) < within


def test_a_batch_never_run_lies_between_its_neighbors() -> None:
    model = fit_throughput(list(measured(gpus, (1, 2, 4), (32, 128), noise=0.0)), Node(workers_per_node=8))
    busy, exchange = gpus(4, 64)
    assert model.parts(4, 64).step_s == pytest.approx(busy + exchange, rel=0.03)


def test_measured_settings_are_met() -> None:
    timed = list(measured(quiet_cores, FITTED, (64,), noise=0.02))
    model = fit_throughput(timed, Node(workers_per_node=16))
    for each in timed:
        assert model.parts(each.workers, 64).step_s == pytest.approx(each.step_s, rel=0.05)


def test_overlap_is_seen_when_batches_differ() -> None:
    """A large batch hides an exchange that a small one cannot."""
    timed = list(measured(gpus, (1, 2, 4, 8), (16, 64, 256), noise=0.0, overlap=5.0))
    model = fit_throughput(timed, Node(workers_per_node=8))
    assert model.overlap_known
    assert model.overlap > 2
    assert not fit_throughput(timed[:1], Node(workers_per_node=8)).overlap_known


def test_the_probed_link_gives_the_exchange_its_shape() -> None:
    wire = Wire(latency_s=200e-6, bandwidth_bytes_per_s=1e9)
    network = Network(inside=wire, across=None, workers_per_node=16, source="probed")

    def ring(workers: int, batch: int) -> tuple[float, float]:
        return 1e-4 * batch, ring_allreduce_s(5e6, workers, wire) if workers > 1 else 0.0

    timed = list(measured(ring, (1, 2, 4), (32,), noise=0.0))
    knowing = fit_throughput(timed, Node(workers_per_node=16, network=network, payload_bytes=5e6))
    truth = sum(ring(16, 32))
    assert knowing.parts(16, 32).step_s == pytest.approx(truth, rel=0.03)
    assert knowing.parts(16, 32).exposed_s == pytest.approx(ring(16, 32)[1], rel=0.1)


def test_cores_that_are_not_there_are_waited_for() -> None:
    timed = [
        StepTiming(workers=count, batch_per_worker=32, step_s=0.01, local_s=0.01, cores=1.25) for count in (1, 2, 4, 8)
    ]
    model = fit_throughput(timed, Node(workers_per_node=16, cores=16))
    assert model.parts(12, 32).step_s == pytest.approx(0.01, rel=0.02)
    assert model.parts(16, 32).step_s == pytest.approx(0.0125, rel=0.02)


def test_one_worker_and_a_declared_network() -> None:
    """Measure on one GPU, ask about 64."""
    alone = [StepTiming(workers=1, batch_per_worker=64, step_s=0.1, local_s=0.1)]
    model = fit_throughput(alone, Node(workers_per_node=1, payload_bytes=400e6))
    network = parse_network("8 x 450GB/s 2us, 50GB/s 5us")
    parts = model.parts_on(network, 64, 64, overlap=1.0, use=1.0)
    inside, between = ring_allreduce_s(400e6, 8, FAST), ring_allreduce_s(50e6, 8, SLOW)
    assert parts.exposed_s == pytest.approx(inside + between)
    assert parts.step_s == pytest.approx(0.1 + inside + between)
    hidden = model.parts_on(network, 64, 64, overlap=10.0, use=1.0)
    assert hidden.exposed_s < 0.01 * parts.exposed_s


def test_accumulation_hides_nothing_more_and_costs_no_exchange() -> None:
    """s micro-batches and one exchange: T = s C + X without overlap."""
    timed = [
        StepTiming(workers=2, batch_per_worker=16, accumulation=s, step_s=s * 0.01 + 0.004, local_s=s * 0.01)
        for s in (1, 2, 4)
    ]
    model = fit_throughput(timed, Node(workers_per_node=4))
    assert model.parts(2, 16, 8).step_s == pytest.approx(0.084, rel=0.05)


def test_data_loading_keeps_its_share() -> None:
    timed = [StepTiming(workers=n, batch_per_worker=32, step_s=0.02, local_s=0.02, load_s=0.015) for n in (1, 2)]
    parts = fit_throughput(timed, Node(workers_per_node=4)).parts(4, 32)
    assert parts.load_s == pytest.approx(0.75 * parts.step_s, rel=0.01)
    assert parts.load_s + parts.compute_s + parts.exposed_s == pytest.approx(parts.step_s)


def test_threads_that_exchange_take_turns() -> None:
    """16 cores hold the two threads of 8 workers; what 16 workers pay was never measured, and is predicted."""

    def exchange_s(workers: int) -> float:
        return 1e-3 * (workers - 1) * max(1.0, 2 * workers / 16) ** 2

    timed = [
        StepTiming(workers=n, batch_per_worker=32, step_s=0.02 + exchange_s(n), local_s=0.02)
        for n in (1, 2, 3, 4, 6, 8)
    ]
    model = fit_throughput(timed, Node(workers_per_node=16, cores=16))
    assert [model.is_more_crowded(n) for n in (8, 12, 16)] == [False, True, True]
    assert model.parts(16, 32).exposed_s == pytest.approx(exchange_s(16), rel=0.1)
    free, twice = (model.parts(16, 32, crowding=times).exposed_s for times in (0.0, 2.0))
    assert free == pytest.approx(exchange_s(16) / 4, rel=0.1)
    assert twice == pytest.approx(exchange_s(16) / 4 * 7, rel=0.1)
    gpus = fit_throughput(timed, Node(workers_per_node=16))
    assert not gpus.is_more_crowded(16)
    assert gpus.parts(16, 32).step_s == pytest.approx(0.02 + exchange_s(16) / 4, rel=0.03)


CORES = Node(
    workers_per_node=16,
    cores=16,
    network=Network(
        inside=Wire(latency_s=1e-4, bandwidth_bytes_per_s=1e9), across=None, workers_per_node=16, source=""
    ),
    payload_bytes=1e5,
)


@pytest.mark.parametrize("waiting", [0.0, 0.5, 2.0])
def test_waiting_for_others_takes_no_turns(waiting: float) -> None:
    """Only the ring that was probed is dearer in a crowd, however much of an exchange is waiting."""

    def exchange_s(workers: int) -> float:
        return (max(1.0, 2 * workers / 16) ** 2 + waiting) * CORES.link_s(workers)

    timed = [
        StepTiming(workers=n, batch_per_worker=32, step_s=0.02 + exchange_s(n), local_s=0.02) for n in (1, 2, 3, 4, 6)
    ]
    model = fit_throughput(timed, CORES)
    for workers in (8, 12, 16):
        assert model.parts(workers, 32).exposed_s == pytest.approx(exchange_s(workers), rel=0.1)


@pytest.mark.parametrize("constant_s", [0.0, 0.005])
def test_what_was_waited_for_others_may_come_along_to_another_network(constant_s: float) -> None:
    """The link is declared to take next to nothing: its exchange is gone, and the waiting may be left."""

    def waited_s(workers: int) -> float:
        return (constant_s or 2 * CORES.link_s(workers)) if workers > 1 else 0.0

    steps = {n: 0.02 + waited_s(n) + CORES.link_s(n) for n in (1, 2, 4, 6)}
    timed = [StepTiming(workers=n, batch_per_worker=32, step_s=step_s, local_s=0.02) for n, step_s in steps.items()]
    model = fit_throughput(timed, CORES)
    network = parse_network("8 x 1000GB/s 0.001us")
    gone, left = (model.parts_on(network, 6, 32, overlap=1.0, use=1.0, waiting=waits) for waits in (False, True))
    assert gone.exposed_s < 1e-4
    assert left.exposed_s == pytest.approx(waited_s(6), rel=0.4)
    unprobed = fit_throughput(timed, replace(CORES, network=None))
    assert unprobed.parts_on(network, 6, 32, overlap=1.0, use=1.0, waiting=True).exposed_s < 1e-4


def test_a_wire_between_nodes_takes_no_turns() -> None:
    """Two nodes of 4 cores: the ring inside one is 4 times as dear when it is full, a slow wire is not."""
    slow = Network(
        inside=Wire(latency_s=1e-4, bandwidth_bytes_per_s=1e9),
        across=Wire(latency_s=1e-4, bandwidth_bytes_per_s=1e6),
        workers_per_node=4,
        source="",
    )
    ground = replace(CORES, workers_per_node=4, cores=4, network=slow)
    dearer = exchange_terms(8, ground, 4, ground.exchange_slowdown(8)) - exchange_terms(8, ground, 4, 1.0)
    assert dearer.sum() == pytest.approx(3 * ground.link_s(4))
    assert ground.link_s(8) > 20 * ground.link_s(4)


@pytest.mark.parametrize("dearer", [1.0, 2.0, 8.0])
def test_what_was_measured_in_a_crowd_is_not_dearer_still(dearer: float) -> None:
    """However dear it is: not at all, less or more than elsewhere."""

    def step_s(workers: int) -> float:
        return 0.01 + (dearer if workers > 8 else 1.0) * CORES.link_s(workers)

    timed = [StepTiming(workers=n, batch_per_worker=32, step_s=step_s(n), local_s=0.01) for n in (1, 2, 4, 8, 16)]
    model = fit_throughput(timed, CORES)
    assert not model.is_more_crowded(16)
    for workers in (2, 4, 8, 16):
        assert model.parts(workers, 32).step_s == pytest.approx(step_s(workers), rel=0.05)


def test_one_count_at_the_edge_of_a_crowd_does_not_decide() -> None:
    """9 workers on 16 cores, 3 % of a step off: what 16 cost follows what is usual."""
    timed = [
        StepTiming(
            workers=n, batch_per_worker=32, step_s=0.01 + CORES.link_s(n) * CORES.exchange_slowdown(n), local_s=0.01
        )
        for n in (1, 2, 4, 8, 9)
    ]
    true_s = 0.01 + 4 * CORES.link_s(16)
    for off in (0.97, 1.03):
        model = fit_throughput([*timed[:-1], replace(timed[-1], step_s=off * timed[-1].step_s)], CORES)
        assert model.parts(16, 32).step_s == pytest.approx(true_s, rel=0.08)


def test_two_workers_on_two_cores_are_a_crowd_that_was_measured() -> None:
    timed = [
        StepTiming(workers=1, batch_per_worker=32, step_s=0.02, local_s=0.02),
        StepTiming(workers=2, batch_per_worker=32, step_s=0.025, local_s=0.02),
    ]
    for ground in (Node(workers_per_node=2, cores=2), replace(CORES, workers_per_node=2, cores=2)):
        model = fit_throughput(timed, ground)
        assert model.parts(2, 32).step_s == pytest.approx(0.025, rel=0.03)
        assert not model.is_more_crowded(2)


def test_wild_times_leave_no_step_without_time() -> None:
    timed = [StepTiming(workers=n, batch_per_worker=8, step_s=t, local_s=t) for n, t in ((1, 5.0), (2, 1.0), (4, 8.0))]
    model = fit_throughput(timed, Node(workers_per_node=16, cores=16))
    assert all(0 < model.parts(n, 8).step_s < math.inf for n in (1, 2, 4, 16))


def test_across_nodes_an_exchange_costs_no_less_than_inside_one() -> None:
    """Only the link inside was probed."""
    wire = Wire(latency_s=1e-4, bandwidth_bytes_per_s=1e9)
    network = Network(inside=wire, across=None, workers_per_node=2, source="probed")
    ground = Node(workers_per_node=2, cores=2, network=network, payload_bytes=1e7)
    assert ground.link_s(8) > ground.link_s(4) > ground.link_s(2) > 0
