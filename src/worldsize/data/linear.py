"""Options of the linear workload."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, PositiveFloat, PositiveInt

from worldsize.data.options import Options
from worldsize.data.sources import LinearData, linear_regression


class LinearOptions(Options):
    samples: PositiveInt = 1_000
    features: PositiveInt = 20
    condition_number: Annotated[float, Field(ge=1)] = 30.0
    """Largest over smallest eigenvalue of the Hessian: how much slower the slowest direction is learned."""
    noise: Annotated[float, Field(ge=0)] = 0.1
    largest_eigenvalue: PositiveFloat = 1.0
    source_seed: Annotated[int, Field(ge=0)] = 0

    def draw(self, stream: int) -> LinearData:
        """Stream 0 is the training sample, others are test samples of the same law."""
        return linear_regression(
            self.samples,
            self.features,
            self.condition_number,
            self.noise,
            self.source_seed,
            largest_eigenvalue=self.largest_eigenvalue,
            stream=stream,
        )
