"""Synthetic data against the laws it states: eigenvalues, stable rates, minima, entropy."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional as F

from worldsize.data.linear import linear_regression
from worldsize.data.text import markov_entropy_bits, markov_table, markov_text, stationary
from worldsize.errors import InputError
from worldsize.worker.models import build


def descend(data, rate, steps):
    """Full-batch gradient descent on mean((w.x - y)^2) / 2 from 0, in double precision; the loss before each step."""
    inputs, targets = data.inputs.astype(np.float64), data.targets.astype(np.float64)
    weights, losses = np.zeros(inputs.shape[1]), []
    for _ in range(steps):
        residual = inputs @ weights - targets
        losses.append(float((residual**2).mean() / 2))
        weights = weights - rate * inputs.T @ residual / len(targets)
    return losses, weights


@given(
    features=st.integers(2, 12),
    condition=st.floats(1, 1000),
    largest=st.floats(0.01, 300),
    seed=st.integers(0, 1000),
    stream=st.integers(0, 2),
)
@settings(max_examples=40, deadline=None, derandomize=True)
def test_the_hessian_has_the_stated_eigenvalues(features, condition, largest, seed, stream):
    data = linear_regression(60, features, condition, 0.1, seed, largest_eigenvalue=largest, stream=stream)
    inputs = data.inputs.astype(np.float64)
    eigenvalues = np.linalg.eigvalsh(inputs.T @ inputs / len(inputs))
    np.testing.assert_allclose(eigenvalues[-1], data.largest_eigenvalue, rtol=1e-5)
    np.testing.assert_allclose(eigenvalues, np.geomspace(largest / condition, largest, features), rtol=1e-3)


@pytest.mark.parametrize("largest", [1.0, 150.0])
def test_gradient_descent_is_stable_up_to_two_over_the_largest_eigenvalue(largest):
    data = linear_regression(200, 8, 30.0, 0.5, seed=3, largest_eigenvalue=largest)
    limit = 2 / data.largest_eigenvalue
    below, found = descend(data, 0.98 * limit, 2000)
    above, _ = descend(data, 1.02 * limit, 2000)
    assert below[-1] == pytest.approx(0.5**2 / 2, rel=1e-5)
    np.testing.assert_allclose(found, data.weights, atol=1e-5)
    assert above[-1] > 1e6 * above[0]


def test_the_loss_follows_the_stated_law():
    data = linear_regression(100, 5, 20.0, 0.3, seed=1, largest_eigenvalue=4.0)
    eigenvalues, rate = np.geomspace(4.0 / 20, 4.0, 5), 0.3
    losses, _ = descend(data, rate, 40)
    law = [(0.3**2 + (eigenvalues * (1 - rate * eigenvalues) ** (2 * step)).sum()) / 2 for step in range(40)]
    np.testing.assert_allclose(losses, law, rtol=1e-5)


def test_the_linear_model_and_torch_see_the_same_limit():
    data = linear_regression(128, 6, 10.0, 0.1, seed=5)
    inputs, targets = torch.from_numpy(data.inputs), torch.from_numpy(data.targets)
    ends = []
    for factor in (0.9, 1.1):
        model = build("linear", classes=1, channels=6, size=1)
        optimizer = torch.optim.SGD(model.parameters(), lr=factor * 2 / data.largest_eigenvalue)
        for _ in range(200):
            loss = (0.5 * (model(inputs) - targets) ** 2).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        ends.append(loss.item())
    assert ends[0] == pytest.approx(0.1**2 / 2, rel=1e-3)
    assert ends[1] > 1e6


def test_another_stream_is_other_samples_of_the_same_regression():
    train, test = (linear_regression(80, 4, 10.0, 0.2, seed=9, stream=stream) for stream in (0, 1))
    np.testing.assert_array_equal(train.weights, test.weights)
    assert not np.allclose(train.inputs, test.inputs)
    assert np.mean((test.inputs @ test.weights - test.targets) ** 2) == pytest.approx(0.2**2, rel=1e-4)
    again = linear_regression(80, 4, 10.0, 0.2, seed=9)
    np.testing.assert_array_equal(train.inputs, again.inputs)
    np.testing.assert_array_equal(train.targets, again.targets)
    assert not np.allclose(train.inputs, linear_regression(80, 4, 10.0, 0.2, seed=10).inputs)
    assert (train.inputs.dtype, train.targets.dtype) == (np.float32, np.float32)


@pytest.mark.parametrize(
    ("samples", "features", "condition", "noise", "says"),
    [
        (4, 4, 10.0, 0.1, "samples=4"),
        (3, 4, 10.0, 0.0, "at least 4 samples"),
        (10, 4, 0.5, 0.0, "condition_number=0.5"),
        (10, 4, math.nan, 0.0, "condition_number=nan"),
        (10, 1, 5.0, 0.0, "needs features=2 or more"),
        (10, 4, 5.0, -1.0, "noise=-1.0"),
    ],
)
def test_an_impossible_regression_is_refused(samples, features, condition, noise, says):
    with pytest.raises(InputError, match=says):
        linear_regression(samples, features, condition, noise, seed=0)


def conditional_entropy_bits(text, order):
    """From counts alone: what the last `order` symbols leave unknown of the next."""
    states = int(text.max()) + 1
    contexts = np.zeros(len(text) - order, dtype=np.int64)
    for back in range(order, 0, -1):
        contexts = contexts * states + text[order - back : len(text) - back]
    counts = np.zeros((states**order, states))
    np.add.at(counts, (contexts, text[order:]), 1)
    seen = counts > 0
    rows = np.broadcast_to(counts.sum(axis=1, keepdims=True), counts.shape)
    return float((counts[seen] * np.log2(rows[seen] / counts[seen])).sum() / counts.sum())


@pytest.mark.parametrize(("states", "order", "concentration"), [(24, 2, 0.05), (48, 1, 0.1), (6, 3, 0.2)])
def test_a_long_text_has_the_stated_entropy(states, order, concentration):
    law = {"states": states, "order": order, "concentration": concentration, "seed": 4}
    text = markov_text(1_500_000, **law).astype(np.int64) - ord("A")
    entropy = markov_entropy_bits(**law)
    assert conditional_entropy_bits(text, order) == pytest.approx(entropy, rel=0.01)
    # It takes the whole context: a shorter memory leaves more unknown, so the order is real.
    assert conditional_entropy_bits(text, order - 1) > 1.02 * entropy


def test_the_entropy_of_a_source_worked_out_by_hand():
    """Two symbols, first order: pi = (p10, p01) / (p01 + p10), H = pi_0 h(p01) + pi_1 h(p10)."""
    table = markov_table(2, 1, 0.5, seed=7)
    leave_0, leave_1 = table[0, 1], table[1, 0]
    weights = np.array([leave_1, leave_0]) / (leave_0 + leave_1)
    h = [-p * math.log2(p) - (1 - p) * math.log2(1 - p) for p in (leave_0, leave_1)]
    np.testing.assert_allclose(stationary(table), weights, rtol=1e-12)
    assert markov_entropy_bits(states=2, order=1, concentration=0.5, seed=7) == pytest.approx(weights @ h, rel=1e-12)


@given(states=st.integers(2, 10), order=st.integers(1, 3), seed=st.integers(0, 99))
@settings(max_examples=30, deadline=None, derandomize=True)
def test_every_source_has_one_stationary_distribution(states, order, seed):
    table = markov_table(states, order, 0.05, seed)
    np.testing.assert_allclose(table.sum(axis=1), 1, rtol=1e-12)
    weights = stationary(table)
    assert weights.min() > 0
    assert weights.sum() == pytest.approx(1)
    # Grouped by their newest symbols, contexts are as frequent after a step as before it.
    after = (weights[:, None] * table).reshape(states, -1, states).sum(axis=0).reshape(-1)
    np.testing.assert_allclose(after, weights, atol=1e-12)


def test_streams_are_other_texts_of_one_source_and_seeds_are_other_sources():
    train, again, test, other = (
        markov_text(60_000, seed=seed, stream=stream) for seed, stream in ((0, 0), (0, 0), (0, 1), (1, 0))
    )
    np.testing.assert_array_equal(train, again)
    assert train.dtype == np.uint8
    assert set(bytes(train)) <= set(b"ABCDEFGHIJKLMNOPQRSTUVWX")
    shares = [np.bincount(text, minlength=128) / len(text) for text in (train, test, other)]
    assert not np.array_equal(train, test)
    assert abs(shares[0] - shares[1]).max() < 0.01
    assert abs(shares[0] - shares[2]).max() > 0.03


def test_a_text_begins_as_it_goes_on():
    """From the stationary distribution: no run-in that would count against the entropy."""
    law = {"states": 4, "order": 1, "concentration": 0.3, "seed": 6}
    first = [int(markov_text(1, **law, stream=stream)[0]) - ord("A") for stream in range(2000)]
    expected = stationary(markov_table(4, 1, 0.3, seed=6))
    assert expected.max() > 1.5 * expected.min()
    np.testing.assert_allclose(np.bincount(first, minlength=4) / 2000, expected, atol=0.035)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"states": 1}, "states=1"),
        ({"states": 63}, "states=63"),
        ({"order": 0}, "order=0"),
        ({"states": 40, "order": 2}, "1600 contexts"),
        ({"concentration": 0.0}, "concentration=0.0"),
        ({"length": 1}, "length=1"),
    ],
)
def test_an_impossible_source_is_refused(options, says):
    with pytest.raises(InputError, match=says):
        markov_text(**{"length": 100, **options})


def test_a_small_decoder_learns_to_look_back():
    """Below the entropy given one symbol it must attend to the one before; below the entropy itself it would cheat."""
    torch.set_num_threads(1)
    context, batch = 64, 24
    train, test = (torch.from_numpy(markov_text(200_000, seed=2, stream=stream)).long() for stream in (0, 1))
    torch.manual_seed(0)
    model = build("decoder", classes=256, channels=1, size=context, layers=2, width=64, heads=2)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    draws = torch.Generator().manual_seed(0)
    for _ in range(110):
        starts = torch.randint(len(train) - context, (batch, 1), generator=draws)
        texts = train[starts + torch.arange(context + 1)]
        loss = F.cross_entropy(model(texts[:, :-1]).transpose(1, 2), texts[:, 1:])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    texts = test[: 256 * (context + 1)].view(256, context + 1)
    with torch.no_grad():
        bits = F.cross_entropy(model(texts[:, :-1]).transpose(1, 2), texts[:, 1:]).item() / math.log(2)
    one_back = conditional_entropy_bits(train.numpy() - ord("A"), 1)
    assert markov_entropy_bits(seed=2) < bits < 0.95 * one_back
