"""Data made on the spot, seeded, whose right answer is known exactly: a linear regression and a text."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from worldsize.errors import SpecError

Floats = npt.NDArray[np.float64]

FIRST_SYMBOL = ord("A")
"""Symbols are printable, so that a text can be looked at."""
MOST_SYMBOLS = ord("~") - FIRST_SYMBOL + 1
MOST_CONTEXTS = 1024
"""The stationary distribution solves a system of so many equations."""
ANY_SYMBOL = 0.02
"""The share of each row that is spread evenly: every symbol can follow, so there is one stationary distribution."""

FADING = 2 / 3
"""What a symbol decides, against the one after it."""

THE_LAW = 0
"""Of the random streams of a seed, the one that draws what training and test data have in common."""


@dataclass(frozen=True, kw_only=True)
class LinearData:
    inputs: npt.NDArray[np.float32]
    """samples x features."""
    targets: npt.NDArray[np.float32]
    weights: Floats
    """The minimiser of the loss, exactly; it leaves noise^2 / 2."""
    largest_eigenvalue: float
    """Of the Hessian: gradient descent converges below a rate of 2 / largest_eigenvalue and diverges above."""


def linear_regression(
    samples: int,
    features: int,
    condition_number: float,
    noise: float,
    seed: int,
    *,
    largest_eigenvalue: float = 1.0,
    stream: int = 0,
) -> LinearData:
    """A regression through the origin (no bias) whose Hessian has stated eigenvalues, in the sample as drawn.

    loss(w) = mean over samples of (w.x - y)^2 / 2, so its Hessian is X^T X / N. With orthonormal U and V,

        X = sqrt(N) U diag(sqrt(l)) V^T   =>   X^T X / N = V diag(l) V^T

    and l runs from largest / condition_number to largest in equal ratios. The targets are X w* plus noise of that root
    mean square, orthogonal to X: it moves the minimum up and not aside. w* has the length 1 in each eigendirection, so
    that from w = 0 at rate r, after t steps,

        loss = (noise^2 + sum of l_i (1 - r l_i)^(2t)) / 2.

    Another `stream` is another sample of the same w* and the same Hessian: test data.
    """
    _check_regression(samples, features, condition_number, noise, largest_eigenvalue)
    law, draws = np.random.default_rng([seed, THE_LAW]), np.random.default_rng([seed, 1 + stream])
    directions = _orthonormal(law, features, features)
    weights = directions @ law.choice([-1.0, 1.0], size=features)
    eigenvalues = np.geomspace(largest_eigenvalue / condition_number, largest_eigenvalue, features)
    basis = _orthonormal(draws, samples, features + (noise > 0))
    inputs = samples**0.5 * (basis[:, :features] * np.sqrt(eigenvalues)) @ directions.T
    targets = inputs @ weights
    if noise:
        targets += noise * samples**0.5 * basis[:, features]
    return LinearData(
        inputs=inputs.astype(np.float32),
        targets=targets.astype(np.float32),
        weights=weights,
        largest_eigenvalue=largest_eigenvalue,
    )


def markov_text(
    length: int, *, states: int = 24, order: int = 2, concentration: float = 0.05, seed: int = 0, stream: int = 0
) -> npt.NDArray[np.uint8]:
    """So many bytes of a stationary Markov source. Another `stream` is another text of the same source: test data."""
    if length < order:
        raise SpecError(f"length={length} is shorter than order={order}, the first context; ask for more")
    table = markov_table(states, order, concentration, seed)
    draws = np.random.default_rng([seed, 1 + stream])
    contexts = len(table)
    context = int(draws.choice(contexts, p=stationary(table)))
    digits = [context // states**place % states for place in reversed(range(order))]
    # Lists and bisect: one draw at a time, they are ten times as quick as arrays.
    rows = np.cumsum(table, axis=1)[:, :-1].tolist()
    for uniform in draws.random(length - order).tolist():
        symbol = bisect_right(rows[context], uniform)
        digits.append(symbol)
        context = (context * states + symbol) % contexts
    return np.asarray(digits, dtype=np.uint8) + np.uint8(FIRST_SYMBOL)


def markov_entropy_bits(*, states: int = 24, order: int = 2, concentration: float = 0.05, seed: int = 0) -> float:
    """Bits a byte that no model can beat: H = - sum over contexts c of pi_c sum over s of p(s|c) log2 p(s|c)."""
    table = markov_table(states, order, concentration, seed)
    return float(-stationary(table) @ (table * np.log2(table)).sum(axis=1))


def markov_table(states: int, order: int, concentration: float, seed: int) -> Floats:
    """One row a context (the last `order` symbols, the newest as the last digit), after Raftery 1985:

        p(s | context) = sum over j of share_j P_j(s | the symbol j places back),    share_j ~ FADING^j

    with Dirichlet rows in each P_j: the smaller the concentration, the more a symbol decides. A table with rows of its
    own for every pair would hold a model up at the entropy of single symbols for most of a short training; here each
    place that it learns to look at pays at once, and from order 2 on it must look back to get to the entropy.
    """
    if not 2 <= states <= MOST_SYMBOLS:
        raise SpecError(f"states={states} is not in 2..{MOST_SYMBOLS}, the printable symbols; use fewer or more")
    if order < 1 or states**order > MOST_CONTEXTS:
        raise SpecError(
            f"order={order} with states={states} makes {states ** max(order, 0)} contexts; use an order of at least 1 "
            f"and at most {MOST_CONTEXTS} contexts"
        )
    if not concentration > 0:
        raise SpecError(f"concentration={concentration} is not above 0; use a value such as 0.05")
    law = np.random.default_rng([seed, THE_LAW])
    shares = FADING ** np.arange(order)
    contexts = np.arange(states**order)
    table = np.full((len(contexts), states), ANY_SYMBOL / states)
    for back, share in enumerate((1 - ANY_SYMBOL) * shares / shares.sum()):
        rows = law.dirichlet(np.full(states, concentration), size=states)
        table += share * rows[contexts // states**back % states]
    return table


def stationary(table: Floats) -> Floats:
    """pi = pi T with sum(pi) = 1, where T leads from a context to those that drop its oldest symbol for a new one."""
    contexts, states = table.shape
    transition = np.zeros((contexts, contexts))
    here = np.arange(contexts)[:, None]
    transition[here, (here * states + np.arange(states)) % contexts] = table
    system = transition.T - np.eye(contexts)
    # The equations of pi = pi T add up to 0, so one of them says nothing new: the sum takes its place.
    system[-1] = 1.0
    return np.linalg.solve(system, np.eye(contexts)[-1])


def _orthonormal(draws: np.random.Generator, rows: int, columns: int) -> Floats:
    """Columns of length 1 at right angles, evenly distributed: signs are fixed, as QR leaves them to the library."""
    basis, triangle = np.linalg.qr(draws.standard_normal((rows, columns)))
    return basis * np.where(np.diag(triangle) < 0, -1.0, 1.0)


def _check_regression(samples: int, features: int, condition_number: float, noise: float, largest: float) -> None:
    if features < 1 or samples < features + (noise > 0):
        raise SpecError(
            f"samples={samples} cannot carry features={features} with noise={noise} apart from them; "
            f"use at least {max(features, 1) + (noise > 0)} samples and 1 feature"
        )
    if not 1 <= condition_number < float("inf"):
        raise SpecError(f"condition_number={condition_number} is below 1 or not a number; use 1 or more")
    if features == 1 and condition_number != 1:
        raise SpecError(f"condition_number={condition_number} needs two eigenvalues; use features=2 or more, or 1")
    if not 0 <= noise < float("inf") or not 0 < largest < float("inf"):
        raise SpecError(f"noise={noise}, largest_eigenvalue={largest}: use noise of 0 or more, an eigenvalue above 0")
