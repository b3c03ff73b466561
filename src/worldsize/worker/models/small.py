"""Small models: two convex ones, a multilayer perceptron, two CNNs for digits, and one for steering angles."""

from __future__ import annotations

from collections.abc import Sequence

from torch import nn

from worldsize.errors import InputError
from worldsize.worker.models.shape import (
    Headed,
    Regressor,
    Shape,
    check_all_positive,
    check_fraction,
    check_one_output,
    check_positive,
)


def linear(shape: Shape) -> nn.Module:
    """y = w.x without bias, from w = 0. Half the squared error has the Hessian X^T X / N, which gives stable rates."""
    check_one_output("linear", shape)
    return Regressor(nn.Flatten(), _zeros(nn.Linear(shape.features, 1, bias=False)))


def softmax(shape: Shape) -> nn.Module:
    """Multinomial logistic regression: logits = W x + b, from 0, since a convex problem needs no random start."""
    return Headed(nn.Flatten(), _zeros(nn.Linear(shape.features, shape.classes)))


def mlp(shape: Shape, *, hidden: Sequence[int] = (256, 128)) -> nn.Module:
    """Fully connected layers of the sizes in `hidden`, each with a ReLU."""
    trunk: list[nn.Module] = [nn.Flatten()]
    features = shape.features
    for size in check_all_positive("hidden", hidden):
        trunk += [nn.Linear(features, size), nn.ReLU()]
        features = size
    return Headed(nn.Sequential(*trunk), nn.Linear(features, shape.classes))


def cnn(shape: Shape, *, width: int = 16, hidden: int = 128, dropout: float = 0.3) -> nn.Module:
    """Two convolutions and two linear layers, for images of about 28 or 32 pixels. 99 % on MNIST in a few epochs.

    Only the convolutions have batch norm. After linear layers, it could not train on a batch of one, and a rank may
    have a single sample in the last batch of an epoch.
    """
    if min(shape.height, shape.width) < 16:
        raise InputError(
            f"size={shape.height}x{shape.width}: cnn needs images of at least 16 pixels per side; use mlp or softmax"
        )
    channels, neurons = check_positive("width", width), check_positive("hidden", hidden)
    dropped = check_fraction("dropout", dropout)
    height, breadth = (((side - 4) // 2 - 4) // 2 for side in (shape.height, shape.width))
    trunk = nn.Sequential(
        *_convolved(shape.channels, channels),
        *_convolved(channels, 2 * channels),
        nn.Flatten(),
        nn.Dropout(dropped),
        nn.Linear(2 * channels * height * breadth, neurons),
        nn.ReLU(),
        nn.Dropout(dropped),
    )
    return Headed(trunk, nn.Linear(neurons, shape.classes))


def steering_cnn(shape: Shape) -> nn.Module:
    """A regressor like PilotNet (Bojarski et al. 2016): five convolutions, three hidden linear layers, an angle.

    The convolutions are padded, to allow small frames. There is no pooling, because the position of the road in the
    frame determines the angle.
    """
    check_one_output("steering-cnn", shape)
    if min(shape.height, shape.width) < 16:
        raise InputError(
            f"size={shape.height}x{shape.width}: steering-cnn needs frames of at least 16 pixels per side; "
            "use larger frames"
        )
    trunk: list[nn.Module] = []
    channels, height, width = shape.channels, shape.height, shape.width
    for filters, kernel, stride in ((24, 5, 2), (36, 5, 2), (48, 5, 2), (64, 3, 1), (64, 3, 1)):
        convolution = nn.Conv2d(channels, filters, kernel, stride=stride, padding=kernel // 2, bias=False)
        trunk += [convolution, nn.BatchNorm2d(filters), nn.ReLU()]
        channels, height, width = filters, -(-height // stride), -(-width // stride)
    trunk.append(nn.Flatten())
    features = channels * height * width
    for size in (100, 50, 10):
        # Ten ReLUs can all die in one unlucky step, which makes the angle constant forever. ELUs cannot die.
        trunk += [nn.Linear(features, size), nn.ELU()]
        features = size
    return Regressor(nn.Sequential(*trunk), nn.Linear(features, 1))


def _convolved(channels: int, filters: int) -> list[nn.Module]:
    # Pooling before the ReLU gives the same result with a quarter of the pixels to rectify. Batch norm needs no bias.
    return [nn.Conv2d(channels, filters, 5, bias=False), nn.BatchNorm2d(filters), nn.MaxPool2d(2), nn.ReLU()]


def _zeros(layer: nn.Linear) -> nn.Linear:
    for parameter in layer.parameters():
        nn.init.zeros_(parameter)
    return layer


def plain_cnn(shape: Shape) -> nn.Module:
    """Two convolutions and two linear layers, without batch norm and dropout: any number of workers learns the same."""
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
