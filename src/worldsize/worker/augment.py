"""Augment whole batches on the training device, without a loop over images or data-loading processes.

Pixel p of the result is read from position

    c + R(-turn) (p - c - shift) / scale        (c is the center; all in pixels)

so an image is scaled and turned about its center, then shifted. Crop, flips and cutout follow, in this order.
"""

from __future__ import annotations

import math
from typing import Literal

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from worldsize.spec.workload import AugmentSpec

DRAWS = (
    "shift_x", "shift_y", "zoom", "turn", "flip_x", "flip_y", "crop_x", "crop_y", "cutout_x", "cutout_y",
)  # fmt: skip
"""Random numbers drawn for every image, even if unused, so that enabling flips does not change the shifts."""

Fill = float | Literal["edge"]


def generator_for(seed: int, rank: int, epoch: int, device: torch.device | str = "cpu") -> torch.Generator:
    """Return a separate random stream for each rank and epoch. If shared, ranks would vary their images alike."""
    state = np.random.SeedSequence([seed, rank, epoch]).generate_state(1, np.uint64)[0]
    # Drop the top bit: some devices read seeds as signed numbers.
    return torch.Generator(device).manual_seed(int(state) >> 1)


@torch.no_grad()
def augment(images: Tensor, spec: AugmentSpec, generator: torch.Generator) -> Tensor:
    """Vary each image (N x C x H x W, floating point) by its own random numbers. An empty spec returns the same tensor.

    A CPU generator gives the same numbers on every device, at the cost of one small copy per batch.
    """
    if spec.changes_nothing:
        return images
    if images.dim() != 4 or not images.is_floating_point():
        raise ValueError(
            f"images of {images.dtype} with shape {tuple(images.shape)} cannot be augmented; "
            "use a floating-point tensor of shape N x C x H x W"
        )
    uniform = torch.rand(len(DRAWS), len(images), generator=generator, device=generator.device)
    draws = dict(zip(DRAWS, uniform.to(images.device, non_blocking=True), strict=True))
    height, width = images.shape[2:]
    if spec.moves:
        images = warp(
            images,
            shift_x=_symmetric(draws["shift_x"], spec.shift * width),
            shift_y=_symmetric(draws["shift_y"], spec.shift * height),
            scale=1 + _symmetric(draws["zoom"], spec.zoom),
            turn=_symmetric(draws["turn"], spec.rotation),
            fill=spec.fill,
        )
    if spec.crop:
        left, top = (_position(draws[name], 2 * spec.crop + 1) for name in ("crop_x", "crop_y"))
        images = crop(images, left=left, top=top, padding=spec.crop, fill=spec.fill)
    if spec.flip in ("horizontal", "both"):
        images = torch.where(_per_image(draws["flip_x"] < 0.5), images.flip(3), images)
    if spec.flip in ("vertical", "both"):
        images = torch.where(_per_image(draws["flip_y"] < 0.5), images.flip(2), images)
    if spec.cutout:
        assert spec.fill != "edge"
        center_x, center_y = _position(draws["cutout_x"], width), _position(draws["cutout_y"], height)
        images = cut_out(images, center_x=center_x, center_y=center_y, side=spec.cutout, value=spec.fill)
    return images


def warp(images: Tensor, *, shift_x: Tensor, shift_y: Tensor, scale: Tensor, turn: Tensor, fill: Fill) -> Tensor:
    """Shift (in pixels, right and down), scale and turn (in full turns, counterclockwise) each image, bilinearly."""
    height, width = images.shape[2:]
    right = torch.arange(width, device=images.device) - (width - 1) / 2
    down = torch.arange(height, device=images.device) - (height - 1) / 2
    x, y = right - shift_x[:, None, None], down[:, None] - shift_y[:, None, None]
    # Not a matrix product: it might run in TF32 or, under autocast, in bf16, and be off by whole pixels.
    cosine, sine = (
        function(2 * math.pi * turn)[:, None, None] / scale[:, None, None] for function in (torch.cos, torch.sin)
    )
    source_x, source_y = cosine * x - sine * y, sine * x + cosine * y
    grid = torch.stack((source_x * (2 / width), source_y * (2 / height)), dim=-1).to(images.dtype)
    if fill == "edge":
        return F.grid_sample(images, grid, mode="bilinear", padding_mode="border", align_corners=False)
    # The sampler reads zeros outside the image. Subtracting the fill first and adding it afterward turns them into it.
    moved = F.grid_sample(images - fill, grid, mode="bilinear", padding_mode="zeros", align_corners=False)
    return moved + fill


def crop(images: Tensor, *, left: Tensor, top: Tensor, padding: int, fill: Fill) -> Tensor:
    """Crop the padded images to their original size. `left` and `top` count from the corner of the padding."""
    count, channels, height, width = images.shape
    sides = (padding,) * 4
    padded = F.pad(images, sides, mode="replicate") if fill == "edge" else F.pad(images, sides, value=fill)
    rows = top[:, None] + torch.arange(height, device=images.device)
    columns = left[:, None] + torch.arange(width, device=images.device)
    image = torch.arange(count, device=images.device)[:, None, None, None]
    channel = torch.arange(channels, device=images.device)[:, None, None]
    return padded[image, channel, rows[:, None, :, None], columns[:, None, None, :]]


def cut_out(images: Tensor, *, center_x: Tensor, center_y: Tensor, side: int, value: float) -> Tensor:
    height, width = images.shape[2:]
    rows = torch.arange(height, device=images.device) - center_y[:, None] + side // 2
    columns = torch.arange(width, device=images.device) - center_x[:, None] + side // 2
    inside = ((rows >= 0) & (rows < side))[:, None, :, None] & ((columns >= 0) & (columns < side))[:, None, None, :]
    return images.masked_fill(inside, value)


def _symmetric(uniform: Tensor, limit: float) -> Tensor:
    return (2 * uniform - 1) * limit


def _position(uniform: Tensor, count: int) -> Tensor:
    """Return positions from 0 to `count` - 1. Numbers close to 1 may round up to `count`, hence the clamp."""
    return (uniform * count).long().clamp_(max=count - 1)


def _per_image(decisions: Tensor) -> Tensor:
    return decisions[:, None, None, None]
