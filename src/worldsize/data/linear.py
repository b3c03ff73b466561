"""The linear workload: its options, and a seeded regression whose Hessian is known exactly."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import numpy as np
import numpy.typing as npt
from pydantic import Field, PositiveFloat, PositiveInt

from worldsize.data.text import SOURCE_STREAM, Floats
from worldsize.errors import InputError
from worldsize.spec.workload import Options


@dataclass(frozen=True, kw_only=True)
class LinearData:
    inputs: npt.NDArray[np.float32]
    """samples x features."""
    targets: npt.NDArray[np.float32]
    weights: Floats
    """The exact minimizer of the loss. The minimum is noise^2 / 2."""
    largest_eigenvalue: float
    """Largest eigenvalue of the Hessian: gradient descent converges below a rate of 2 / largest_eigenvalue and diverges
    above."""


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
    """Draw a regression without bias whose Hessian has exactly the given eigenvalues on this sample.

    loss(w) = mean over samples of (w.x - y)^2 / 2, so its Hessian is X^T X / N. With orthonormal U and V,

        X = sqrt(N) U diag(sqrt(l)) V^T   =>   X^T X / N = V diag(l) V^T

    and l runs from largest / condition_number to largest in equal ratios. The targets are X w* plus noise with root
    mean square `noise`, orthogonal to X: it raises the minimum without moving it. w* has length 1 in each
    eigendirection, so that from w = 0 at rate r, after t steps,

        loss = (noise^2 + sum of l_i (1 - r l_i)^(2t)) / 2.

    Another `stream` gives another sample with the same w* and the same Hessian, for testing.
    """
    _check_regression(samples, features, condition_number, noise, largest_eigenvalue)
    source_draws = np.random.default_rng([seed, SOURCE_STREAM])
    draws = np.random.default_rng([seed, 1 + stream])
    directions = _orthonormal(source_draws, features, features)
    weights = directions @ source_draws.choice([-1.0, 1.0], size=features)
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


def _orthonormal(draws: np.random.Generator, rows: int, columns: int) -> Floats:
    """Draw uniformly distributed orthonormal columns. Signs are fixed, because they depend on the QR library."""
    basis, triangle = np.linalg.qr(draws.standard_normal((rows, columns)))
    return basis * np.where(np.diag(triangle) < 0, -1.0, 1.0)


def _check_regression(samples: int, features: int, condition_number: float, noise: float, largest: float) -> None:
    if features < 1 or samples < features + (noise > 0):
        raise InputError(
            f"samples={samples} and features={features} do not work with noise={noise}; "
            f"use at least {max(features, 1) + (noise > 0)} samples and 1 feature"
        )
    if not 1 <= condition_number < float("inf"):
        raise InputError(f"condition_number={condition_number} is not a finite number of 1 or more; use 1 or more")
    if features == 1 and condition_number != 1:
        raise InputError(f"condition_number={condition_number} needs features=2 or more; with one feature it must be 1")
    if not 0 <= noise < float("inf") or not 0 < largest < float("inf"):
        raise InputError(f"noise={noise}, largest_eigenvalue={largest}; use noise >= 0 and an eigenvalue > 0")


class LinearOptions(Options):
    samples: PositiveInt = 1_000
    features: PositiveInt = 20
    condition_number: Annotated[float, Field(ge=1)] = 30.0
    """Ratio of largest to smallest eigenvalue of the Hessian: how much slower the slowest direction is learned."""
    noise: Annotated[float, Field(ge=0)] = 0.1
    largest_eigenvalue: PositiveFloat = 1.0
    source_seed: Annotated[int, Field(ge=0)] = 0

    def draw(self, stream: int) -> LinearData:
        """Draw a sample. Stream 0 is the training sample; others are test samples of the same distribution."""
        return linear_regression(
            self.samples,
            self.features,
            self.condition_number,
            self.noise,
            self.source_seed,
            largest_eigenvalue=self.largest_eigenvalue,
            stream=stream,
        )
