"""Text as bytes, from any file or the built-in Markov source, cut into windows that do not overlap.

The Markov source is seeded, and its entropy is known exactly.
"""

from __future__ import annotations

from bisect import bisect_right
from pathlib import Path
from typing import Annotated

import numpy as np
import numpy.typing as npt
from pydantic import Field, PositiveFloat, PositiveInt

from worldsize.errors import DataError, InputError
from worldsize.spec.workload import Options

Floats = npt.NDArray[np.float64]

FIRST_SYMBOL = ord("A")
"""Symbols are printable, so that people can read the text."""
MAX_SYMBOLS = ord("~") - FIRST_SYMBOL + 1
MAX_CONTEXTS = 1024
"""The stationary distribution is the solution of one equation per context."""
ANY_SYMBOL = 0.02
"""Share of each row that is spread evenly. Any symbol can follow, so the stationary distribution is unique."""

FADING = 2 / 3
"""Influence of a symbol, relative to the one after it."""

SOURCE_STREAM = 0
"""The random stream for everything that training and test data have in common."""


def markov_text(
    length: int, *, states: int = 24, order: int = 2, concentration: float = 0.05, seed: int = 0, stream: int = 0
) -> npt.NDArray[np.uint8]:
    """Draw `length` bytes of a stationary Markov source. Another `stream` gives another text of the same source."""
    if length < order:
        raise InputError(f"length={length} is shorter than the first context (order={order}); use a larger length")
    table = markov_table(states, order, concentration, seed)
    draws = np.random.default_rng([seed, 1 + stream])
    contexts = len(table)
    context = int(draws.choice(contexts, p=stationary(table)))
    digits = [context // states**position % states for position in reversed(range(order))]
    # Lists and bisect: for one draw at a time, they are ten times as fast as arrays.
    rows = np.cumsum(table, axis=1)[:, :-1].tolist()
    for uniform in draws.random(length - order).tolist():
        symbol = bisect_right(rows[context], uniform)
        digits.append(symbol)
        context = (context * states + symbol) % contexts
    return np.asarray(digits, dtype=np.uint8) + np.uint8(FIRST_SYMBOL)


def markov_entropy_bits(*, states: int = 24, order: int = 2, concentration: float = 0.05, seed: int = 0) -> float:
    """Bits per byte that no model can beat: H = - sum over contexts c of pi_c sum over s of p(s|c) log2 p(s|c)."""
    table = markov_table(states, order, concentration, seed)
    return float(-stationary(table) @ (table * np.log2(table)).sum(axis=1))


def markov_table(states: int, order: int, concentration: float, seed: int) -> Floats:
    """One row per context (the last `order` symbols, the newest as the last digit), after Raftery 1985:

        p(s | context) = sum over j of share_j P_j(s | the symbol j places back),    share_j ~ FADING^j

    with Dirichlet rows in each P_j: the smaller the concentration, the more influence a symbol has. With an independent
    row for every pair, a model would stay at the entropy of single symbols for most of a short training. Here, each
    position it learns to use pays off at once, and from order 2 on it must look back to reach the entropy.
    """
    if not 2 <= states <= MAX_SYMBOLS:
        raise InputError(f"states={states} is out of range; use 2 to {MAX_SYMBOLS}, the number of printable symbols")
    if order < 1 or states**order > MAX_CONTEXTS:
        raise InputError(
            f"order={order} with states={states} makes {states ** max(order, 0)} contexts; use an order of at least 1 "
            f"and at most {MAX_CONTEXTS} contexts"
        )
    if not concentration > 0:
        raise InputError(f"concentration={concentration} is not above 0; use a value such as 0.05")
    source_draws = np.random.default_rng([seed, SOURCE_STREAM])
    shares = FADING ** np.arange(order)
    contexts = np.arange(states**order)
    table = np.full((len(contexts), states), ANY_SYMBOL / states)
    for back, share in enumerate((1 - ANY_SYMBOL) * shares / shares.sum()):
        rows = source_draws.dirichlet(np.full(states, concentration), size=states)
        table += share * rows[contexts // states**back % states]
    return table


def stationary(table: Floats) -> Floats:
    """Solve pi = pi T with sum(pi) = 1, where T drops the oldest symbol of a context and appends a new one."""
    contexts, states = table.shape
    transition = np.zeros((contexts, contexts))
    rows = np.arange(contexts)[:, None]
    transition[rows, (rows * states + np.arange(states)) % contexts] = table
    system = transition.T - np.eye(contexts)
    # The equations of pi = pi T add up to 0, so one of them is redundant: the condition on the sum replaces it.
    system[-1] = 1.0
    return np.linalg.solve(system, np.eye(contexts)[-1])


Bytes = npt.NDArray[np.uint8]


class TextOptions(Options):
    context: Annotated[int, Field(ge=2, le=65_536)] = 64
    """Tokens (bytes) per window, which is one sample."""
    length: Annotated[int, Field(ge=1_000)] = 1_000_000
    """Bytes of the Markov source, including the test part. Ignored for a file."""
    states: PositiveInt = 24
    order: PositiveInt = 2
    concentration: PositiveFloat = 0.05
    source_seed: Annotated[int, Field(ge=0)] = 0

    def entropy_bits(self) -> float:
        return markov_entropy_bits(
            states=self.states, order=self.order, concentration=self.concentration, seed=self.source_seed
        )


def windows(length: int, context: int, test_fraction: float) -> tuple[int, int]:
    """Return the number of training and test windows. Each part needs one extra byte, the target of its last token."""
    test = round(length * test_fraction)
    counts = (length - test - 1) // context, (test - 1) // context
    if min(counts) < 1:
        raise DataError(
            f"a text of {length} bytes is too short for a training and a test window of {context} bytes "
            f"(test_fraction={test_fraction}); give a longer text or a shorter context"
        )
    return counts


def read_text(path: Path | None, options: TextOptions, test_fraction: float) -> tuple[Bytes, Bytes]:
    """Read training and test bytes. The text is cut once, and its end is the test part."""
    if path is None:
        text = markov_text(
            options.length,
            states=options.states,
            order=options.order,
            concentration=options.concentration,
            seed=options.source_seed,
        )
    elif not path.is_file():
        raise DataError(f"{path} is not a file; give a text file")
    else:
        text = np.frombuffer(path.read_bytes(), dtype=np.uint8)
    windows(len(text), options.context, test_fraction)
    border = len(text) - round(len(text) * test_fraction)
    return text[:border], text[border:]
