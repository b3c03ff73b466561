"""A CNN with nothing in it that depends on the rest of its batch."""

from __future__ import annotations

from torch import nn

from worldsize.worker.models.shape import Headed, Shape


def plain_cnn(shape: Shape) -> nn.Module:
    """Two convolutions, two linear layers. No batch norm, no dropout: n workers follow one worker's curve exactly."""
    height, width = (((side - 2) // 2 - 2) // 2 for side in (shape.height, shape.width))
    trunk = nn.Sequential(
        nn.Conv2d(shape.channels, 16, 3),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(32 * height * width, 128),
        nn.ReLU(),
    )
    return Headed(trunk, nn.Linear(128, shape.classes))
