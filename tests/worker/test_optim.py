"""Optimisers against their formulas in float64, and the rate of every step."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, get_args

import numpy as np
import numpy.typing as npt
import pytest
import torch
from torch import nn, optim
from torch.nn import functional as F

from worldsize.spec.optimizer import OptimizerName, OptimizerSpec
from worldsize.spec.study import TrialSpec
from worldsize.spec.training import TrainSpec
from worldsize.spec.workload import WorkloadSpec
from worldsize.worker.optimizers import lr_of_step, make_optimizer, optimizer_recipe
from worldsize.worker.optimizers.layerwise import EPSILON, Lamb, Lars

Array = npt.NDArray[np.float64]
CPU = torch.device("cpu")
STEPS = 6
SAMPLES = 100


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    """As workers have: on so small tensors a second one waits longer than it works."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def lars_by_hand(
    weights: Array, gradients: Array, *, rate: float, decay: float, momentum: float, trust: float, adapt: bool
) -> Array:
    velocity = np.zeros_like(weights)
    for gradient in gradients:
        size, slope = np.linalg.norm(weights), np.linalg.norm(gradient)
        local = trust * size / (slope + decay * size) if adapt and size and slope else 1.0
        velocity = momentum * velocity + rate * local * (gradient + decay * weights)
        weights = weights - velocity
    return weights


def lamb_by_hand(weights: Array, gradients: Array, *, rate: float, decay: float, adapt: bool) -> Array:
    mean, square = np.zeros_like(weights), np.zeros_like(weights)
    for step, gradient in enumerate(gradients, start=1):
        mean = 0.9 * mean + 0.1 * gradient
        square = 0.999 * square + 0.001 * gradient**2
        update = mean / (1 - 0.9**step) / (np.sqrt(square / (1 - 0.999**step)) + EPSILON) + decay * weights
        size, length = np.linalg.norm(weights), np.linalg.norm(update)
        weights = weights - rate * (size / length if adapt and size and length else 1.0) * update
    return weights


def draw(*shape: int, seed: int = 0) -> Array:
    return np.random.default_rng(seed).normal(size=shape)


def stepped(optimizer: optim.Optimizer, parameters: list[nn.Parameter], gradients: list[Array]) -> list[Array]:
    for step in range(STEPS):
        for parameter, each in zip(parameters, gradients, strict=True):
            parameter.grad = torch.tensor(each[step], dtype=parameter.dtype)
        optimizer.step()
    return [parameter.detach().double().numpy() for parameter in parameters]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_lars_is_its_formula(dtype: torch.dtype) -> None:
    start, still, bias = draw(4, 3), draw(3, 2, seed=5), draw(4, seed=1)
    gradients = [draw(STEPS, 4, 3, seed=2), np.zeros((STEPS, 3, 2)), draw(STEPS, 4, seed=3)]
    parameters = [nn.Parameter(torch.tensor(each, dtype=dtype)) for each in (start, still, bias)]
    groups = [
        {"params": parameters[:2], "weight_decay": 0.05},
        {"params": parameters[2:], "weight_decay": 0.0, "adapt": False},
    ]
    ends = stepped(Lars(groups, lr=0.8, momentum=0.9, trust=0.02), parameters, gradients)
    by_hand = {"rate": 0.8, "momentum": 0.9, "trust": 0.02}
    wanted = [
        lars_by_hand(start, gradients[0], decay=0.05, adapt=True, **by_hand),  # type: ignore[arg-type]
        lars_by_hand(still, gradients[1], decay=0.05, adapt=True, **by_hand),  # type: ignore[arg-type]
        lars_by_hand(bias, gradients[2], decay=0.0, adapt=False, **by_hand),  # type: ignore[arg-type]
    ]
    for end, expected in zip(ends, wanted, strict=True):
        assert end == pytest.approx(expected, rel=1e-6, abs=1e-6)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_lamb_is_its_formula(dtype: torch.dtype) -> None:
    start, bias = draw(4, 3), draw(4, seed=1)
    gradients = [draw(STEPS, 4, 3, seed=2), draw(STEPS, 4, seed=3)]
    parameters = [nn.Parameter(torch.tensor(each, dtype=dtype)) for each in (start, bias)]
    groups = [
        {"params": parameters[:1], "weight_decay": 0.05},
        {"params": parameters[1:], "weight_decay": 0.0, "adapt": False},
    ]
    ends = stepped(Lamb(groups, lr=0.1), parameters, gradients)
    wanted = [
        lamb_by_hand(start, gradients[0], rate=0.1, decay=0.05, adapt=True),
        lamb_by_hand(bias, gradients[1], rate=0.1, decay=0.0, adapt=False),
    ]
    for end, expected in zip(ends, wanted, strict=True):
        assert end == pytest.approx(expected, rel=1e-6, abs=1e-6)


@pytest.mark.parametrize("kind", [Lars, Lamb])
def test_layers_without_adaptation_take_plain_steps(kind: Any) -> None:
    """Of momentum, with the same velocity at a constant rate, and of Adam."""
    gradients = [draw(STEPS, 5)]
    ours, theirs = (nn.Parameter(torch.tensor(draw(5, seed=1))) for _ in range(2))
    plain = optim.SGD([theirs], lr=0.1, momentum=0.9) if kind is Lars else optim.Adam([theirs], lr=0.1, eps=EPSILON)
    assert stepped(kind([ours], lr=0.1, adapt=False), [ours], gradients)[0] == pytest.approx(
        stepped(plain, [theirs], gradients)[0], rel=1e-12
    )


@pytest.mark.parametrize("kind", [Lars, Lamb])
def test_a_norm_of_zero_leaves_the_factor_at_one(kind: Any) -> None:
    """A layer that starts at 0 could never leave it otherwise; one without a slope must not become nan."""
    born, still, absent = (nn.Parameter(torch.zeros(3, 2)), nn.Parameter(torch.ones(3, 2)), nn.Parameter(torch.ones(2)))
    optimizer = kind([born, still, absent], lr=0.5)
    born.grad, still.grad = torch.full((3, 2), 2.0), torch.zeros(3, 2)
    optimizer.step()
    step = 0.5 * 2.0 if kind is Lars else 0.5
    assert torch.allclose(born, torch.full((3, 2), -step))
    assert torch.equal(still, torch.ones(3, 2))
    assert torch.equal(absent, torch.ones(2))
    assert absent not in optimizer.state


def test_lamb_counts_the_steps_of_each_parameter() -> None:
    """One that was frozen at first begins its bias correction when it begins to learn."""
    early, late = (nn.Parameter(torch.ones(2, 2, dtype=torch.float64)) for _ in range(2))
    optimizer = Lamb([early, late], lr=0.1)
    for step in range(4):
        early.grad = torch.tensor(draw(2, 2, seed=step))
        late.grad = None if step < 2 else torch.tensor(draw(2, 2, seed=step))
        optimizer.step()
    gradients = np.stack([draw(2, 2, seed=step) for step in (2, 3)])
    assert late.detach().numpy() == pytest.approx(
        lamb_by_hand(np.ones((2, 2)), gradients, rate=0.1, decay=0.0, adapt=True), rel=1e-9
    )


def small_model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(16, 3))


@pytest.mark.parametrize("name", get_args(OptimizerName))
def test_decay_is_for_weights_alone(name: str) -> None:
    model = small_model()
    model[0].requires_grad_(False)
    recipe = optimizer_recipe(OptimizerSpec(name=name, weight_decay=0.1), model, device=CPU)  # type: ignore[arg-type]
    weights, others = recipe.groups
    assert [parameter.ndim for parameter in weights["params"]] == [4, 2]  # frozen ones too
    assert [parameter.ndim for parameter in others["params"]] == [1, 1, 1, 1]
    assert (weights["weight_decay"], others["weight_decay"]) == (0.1, 0.0)
    if name in ("lars", "lamb"):
        assert (weights["adapt"], others["adapt"]) == (True, False)
    optimizer = make_optimizer(OptimizerSpec(name=name, weight_decay=0.1), model, device=CPU)  # type: ignore[arg-type]
    before = {key: value.clone() for key, value in model.named_parameters()}
    for parameter in model.parameters():
        if parameter.requires_grad:
            parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    changed = {key for key, value in model.named_parameters() if not torch.equal(value, before[key])}
    assert changed == {"3.weight"}


@pytest.mark.parametrize("name", get_args(OptimizerName))
def test_every_optimiser_learns_at_its_usual_rate(name: str) -> None:
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(6, 32), nn.ReLU(), nn.Linear(32, 3))
    inputs = torch.randn(256, 6)
    targets = inputs[:, :3].argmax(1)
    optimizer = make_optimizer(OptimizerSpec(name=name), model, device=CPU)  # type: ignore[arg-type]
    losses = []
    for _ in range(150):
        loss = F.cross_entropy(model(inputs), targets)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(float(loss.detach()))
    assert losses[-1] < 0.8 * losses[0]


@pytest.mark.parametrize("name", ["adam", "adamw"])
def test_the_fused_kernel_computes_the_same(name: str) -> None:
    ours, theirs = (nn.Parameter(torch.tensor(draw(50, 4), dtype=torch.float32)) for _ in range(2))
    model = nn.Module()
    model.weight = ours
    optimizer = make_optimizer(OptimizerSpec(name=name, weight_decay=0.01), model, device=CPU)  # type: ignore[arg-type]
    assert optimizer.defaults["fused"]
    plain = {"adam": optim.Adam, "adamw": optim.AdamW}[name]([theirs], lr=0.001, weight_decay=0.01, foreach=False)
    gradients = [draw(STEPS, 50, 4, seed=2)]
    assert stepped(optimizer, [ours], gradients)[0] == pytest.approx(
        stepped(plain, [theirs], gradients)[0], rel=1e-6, abs=1e-7
    )


def rates(steps: int, *, rate: float = 0.1, peak: float = 0.1, own_warmup: float | None = None, **train: Any) -> Array:
    """Of a trial with 10 steps an epoch."""
    trial = TrialSpec(
        id="t",
        kind="train",
        workload=WorkloadSpec(name="digits"),
        workers=1,
        batch_per_worker=5,
        accumulation=2,
        scaling="weak",
        optimizer=OptimizerSpec(lr=rate, warmup_epochs=own_warmup),
        strategy="ddp",  # type: ignore[arg-type]
        precision="fp32",
        peak_lr=peak,
        repeat=0,
        seed=0,
        threads_per_worker=1,
        train=TrainSpec(steps=steps, **train),
    )
    rate_at = lr_of_step(trial, SAMPLES)
    return np.array([rate_at(step) for step in range(steps)])


def test_the_rate_rises_from_the_base_rate() -> None:
    assert rates(12, peak=0.4, warmup_epochs=1) == pytest.approx([*np.linspace(0.13, 0.4, 10), 0.4, 0.4])


@pytest.mark.parametrize("base", [0.1, 0.3])
def test_the_rate_rises_from_nothing_where_the_base_rate_is_no_lower(base: float) -> None:
    assert rates(12, rate=base, warmup_epochs=1) == pytest.approx([*np.linspace(0.01, 0.1, 10), 0.1, 0.1])


def test_the_optimisers_own_warmup_comes_first() -> None:
    assert rates(3, own_warmup=0.0, warmup_epochs=1) == pytest.approx([0.1] * 3)
    assert rates(3, own_warmup=0.2) == pytest.approx([0.05, 0.1, 0.1])


def test_a_stepped_rate_falls_at_its_points() -> None:
    schedule = {"name": "step", "at": [0.5, 0.8], "factor": 0.2}
    assert rates(10, schedule=schedule) == pytest.approx([0.1] * 5 + [0.02] * 3 + [0.004] * 2)
    assert rates(20, schedule=schedule, warmup_epochs=1)[10:] == pytest.approx([0.1] * 5 + [0.02] * 3 + [0.004] * 2)


def test_the_cosine_falls_to_nothing_at_the_last_step() -> None:
    assert rates(8, schedule="cosine") == pytest.approx(0.05 * (1 + np.cos(np.pi * np.arange(1, 9) / 8)))


@pytest.mark.parametrize(("steps", "rise"), [(50, 0.3), (37, 0.25), (10, 0.15), (2, 0.3)])
def test_one_cycle_is_that_of_torch(steps: int, rise: float) -> None:
    optimizer = optim.SGD([nn.Parameter(torch.zeros(1))], lr=1.0)
    scheduler = optim.lr_scheduler.OneCycleLR(
        optimizer, max_lr=0.4, total_steps=steps, pct_start=rise, cycle_momentum=False
    )
    theirs = []
    for _ in range(steps):
        theirs.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        if len(theirs) < steps:
            scheduler.step()
    ours = rates(steps, peak=0.4, schedule={"name": "one-cycle", "rise": rise})
    assert ours == pytest.approx(theirs, rel=1e-9)
