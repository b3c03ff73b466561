"""Text as bytes: any file, or the built-in Markov source; cut into windows that do not overlap."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import numpy as np
import numpy.typing as npt
from pydantic import Field, PositiveFloat, PositiveInt

from worldsize.data.options import Options
from worldsize.data.sources import markov_entropy_bits, markov_text
from worldsize.errors import DataError

Bytes = npt.NDArray[np.uint8]


class TextOptions(Options):
    context: Annotated[int, Field(ge=2, le=65_536)] = 64
    """Tokens (bytes) of a window, which is one sample."""
    length: Annotated[int, Field(ge=1_000)] = 1_000_000
    """Bytes of the Markov source, test part included. A file has a length of its own."""
    states: PositiveInt = 24
    order: PositiveInt = 2
    concentration: PositiveFloat = 0.05
    source_seed: Annotated[int, Field(ge=0)] = 0

    def entropy_bits(self) -> float:
        return markov_entropy_bits(
            states=self.states, order=self.order, concentration=self.concentration, seed=self.source_seed
        )


def windows(length: int, context: int, test_share: float) -> tuple[int, int]:
    """Windows of the training and of the test part: each window needs one byte more, the last one's target."""
    test = round(length * test_share)
    counts = (length - test - 1) // context, (test - 1) // context
    if min(counts) < 1:
        raise DataError(
            f"a text of {length} bytes has no window of {context} bytes for training and one for testing "
            f"(test_share={test_share}); give a longer text or a shorter context"
        )
    return counts


def read_text(path: Path | None, options: TextOptions, test_share: float) -> tuple[Bytes, Bytes]:
    """Training and test bytes. A file is cut once: its end is the test part, never seen in training."""
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
    windows(len(text), options.context, test_share)
    border = len(text) - round(len(text) * test_share)
    return text[:border], text[border:]
