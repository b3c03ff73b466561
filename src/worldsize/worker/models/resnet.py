"""Residual networks (He et al. 2015) for large and for small images.

Layers are named as in torchvision (conv1, layer1.0.bn2, fc, ...), so that pretrained weights can be loaded.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor, nn
from torch.nn import functional as F

from worldsize.errors import InputError
from worldsize.worker.models.shape import Shape

STAGE_WIDTHS = (64, 128, 256, 512)
SMALL_IMAGE = 64
"""Up to this side, the stem keeps the resolution. For larger images, it reduces the resolution by 4."""
SMALLEST_IMAGE = 16
"""Below this side, the last stage has one pixel, with which batch norm cannot train on a batch of one."""


@dataclass(frozen=True, kw_only=True)
class Convolution:
    filters: int
    kernel: int
    stride: int = 1


def basic_plan(width: int, stride: int) -> tuple[Convolution, ...]:
    return Convolution(filters=width, kernel=3, stride=stride), Convolution(filters=width, kernel=3)


def bottleneck_plan(width: int, stride: int) -> tuple[Convolution, ...]:
    """Narrow, convolve, then widen by 4. The 3x3 convolution has the stride, so that no pixel is skipped."""
    return (
        Convolution(filters=width, kernel=1),
        Convolution(filters=width, kernel=3, stride=stride),
        Convolution(filters=4 * width, kernel=1),
    )


class Residual(nn.Module):
    """relu(x + f(x)). f is a sequence of convolutions, each with batch norm, and with ReLUs in between."""

    def __init__(self, channels: int, plan: tuple[Convolution, ...]) -> None:
        super().__init__()
        self.depth = len(plan)
        inside, stride = channels, 1
        for number, step in enumerate(plan, start=1):
            self.add_module(f"conv{number}", _convolution(inside, step))
            self.add_module(f"bn{number}", nn.BatchNorm2d(step.filters))
            inside, stride = step.filters, stride * step.stride
        self.downsample: nn.Module = nn.Identity()
        if stride > 1 or inside != channels:
            shortcut = Convolution(filters=inside, kernel=1, stride=stride)
            self.downsample = nn.Sequential(_convolution(channels, shortcut), nn.BatchNorm2d(inside))
        # f starts at 0, so that the block starts as the identity. This allows large learning rates in deep networks
        # (Goyal et al. 2017).
        last = self.get_submodule(f"bn{self.depth}")
        assert isinstance(last, nn.BatchNorm2d)
        nn.init.zeros_(last.weight)

    def forward(self, inputs: Tensor) -> Tensor:
        outputs = inputs
        for number in range(1, self.depth + 1):
            outputs = getattr(self, f"bn{number}")(getattr(self, f"conv{number}")(outputs))
            if number < self.depth:
                outputs = F.relu(outputs, inplace=True)
        return F.relu(outputs + self.downsample(inputs), inplace=True)


class ResNet(nn.Module):
    """A stem, four stages (each with half the resolution and twice the channels of the last), mean, and linear head."""

    def __init__(
        self, shape: Shape, blocks: tuple[int, ...], plan: Callable[[int, int], tuple[Convolution, ...]]
    ) -> None:
        super().__init__()
        if min(shape.height, shape.width) < SMALLEST_IMAGE:
            raise InputError(
                f"size={shape.height}x{shape.width}: a residual network needs images of at least {SMALLEST_IMAGE} "
                "pixels per side; use mlp or softmax"
            )
        small = max(shape.height, shape.width) <= SMALL_IMAGE
        stem = Convolution(filters=STAGE_WIDTHS[0], kernel=3 if small else 7, stride=1 if small else 2)
        self.conv1 = _convolution(shape.channels, stem)
        self.bn1 = nn.BatchNorm2d(stem.filters)
        self.maxpool: nn.Module = nn.Identity() if small else nn.MaxPool2d(3, stride=2, padding=1)
        channels = stem.filters
        for stage, (width, count) in enumerate(zip(STAGE_WIDTHS, blocks, strict=True), start=1):
            layers: list[nn.Module] = []
            for block in range(count):
                steps = plan(width, 2 if stage > 1 and block == 0 else 1)
                layers.append(Residual(channels, steps))
                channels = steps[-1].filters
            self.add_module(f"layer{stage}", nn.Sequential(*layers))
        self.fc = nn.Linear(channels, shape.classes)

    def forward(self, images: Tensor) -> Tensor:
        features = self.maxpool(F.relu(self.bn1(self.conv1(images)), inplace=True))
        for stage in range(1, len(STAGE_WIDTHS) + 1):
            features = getattr(self, f"layer{stage}")(features)
        return self.fc(features.mean(dim=(2, 3)))


def resnet18(shape: Shape) -> nn.Module:
    return ResNet(shape, (2, 2, 2, 2), basic_plan)


def resnet50(shape: Shape) -> nn.Module:
    return ResNet(shape, (3, 4, 6, 3), bottleneck_plan)


def _convolution(channels: int, step: Convolution) -> nn.Conv2d:
    layer = nn.Conv2d(channels, step.filters, step.kernel, stride=step.stride, padding=step.kernel // 2, bias=False)
    nn.init.kaiming_normal_(layer.weight, mode="fan_out", nonlinearity="relu")
    return layer
