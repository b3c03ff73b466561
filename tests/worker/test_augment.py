"""Augmentation against what it must equal: rolls, flips, turns, crops; and its draws against their seeds."""

from __future__ import annotations

import pytest
import torch
from pydantic import ValidationError

from worldsize.spec.workload import AugmentSpec
from worldsize.worker.augment import augment, crop, cut_out, generator_for, warp

torch.set_num_threads(1)

LIGHT = {"zoom": 0.01, "shift": 0.01}
STRONG = {"rotation": 0.05, "zoom": 0.2, "shift": 0.2, "flip": "horizontal"}
EVERYTHING = {**STRONG, "flip": "both", "crop": 4, "cutout": 5}


def images(count=8, channels=3, height=24, width=32):
    return torch.rand(count, channels, height, width, generator=torch.Generator().manual_seed(11))


def spec(**fields):
    return AugmentSpec.model_validate(fields)


def numbers(value, count=8):
    return torch.full((count,), float(value))


def moved(batch, *, shift_x=0.0, shift_y=0.0, scale=1.0, turn=0.0, fill=0.0):
    count = len(batch)
    return warp(
        batch,
        shift_x=numbers(shift_x, count),
        shift_y=numbers(shift_y, count),
        scale=numbers(scale, count),
        turn=numbers(turn, count),
        fill=fill,
    )


def test_an_empty_spec_gives_the_same_tensor_and_draws_nothing():
    batch, generator = images(), generator_for(0, 0, 0)
    before = generator.get_state()
    assert augment(batch, spec(), generator) is batch
    assert torch.equal(generator.get_state(), before)


@pytest.mark.parametrize("fields", [LIGHT, STRONG, EVERYTHING, {"crop": 4}, {"cutout": 8}, {"flip": "vertical"}])
def test_a_seed_decides_the_images(fields):
    batch = images()
    one, again, other = (augment(batch, spec(**fields), generator_for(seed, 0, 0)) for seed in (3, 3, 4))
    assert torch.equal(one, again)
    assert not torch.equal(one, other)
    assert one.shape == batch.shape
    assert not one.requires_grad


def test_every_seed_rank_and_epoch_has_a_stream_of_its_own():
    keys = [(seed, rank, epoch) for seed in range(3) for rank in range(3) for epoch in range(3)]
    draws = {tuple(torch.rand(4, generator=generator_for(*key)).tolist()) for key in keys}
    assert len(draws) == len(keys)
    assert torch.equal(torch.rand(4, generator=generator_for(1, 2, 3)), torch.rand(4, generator=generator_for(1, 2, 3)))


def test_a_batch_moves_the_generator_on():
    batch, generator = images(), generator_for(0, 0, 0)
    assert not torch.equal(augment(batch, spec(**STRONG), generator), augment(batch, spec(**STRONG), generator))


def test_every_image_draws_for_itself():
    batch = images(1).expand(16, -1, -1, -1)
    results = augment(batch, spec(**STRONG), generator_for(0, 0, 0))
    assert len({tuple(image.flatten().tolist()) for image in results}) == 16


def test_switching_one_change_on_leaves_the_others_as_they_were():
    """Light shifts with and without flips: the flipped images are the others, mirrored, and nothing else."""
    batch = images(32)
    plain = augment(batch, spec(**LIGHT), generator_for(0, 0, 0))
    both = augment(batch, spec(**LIGHT, flip="horizontal"), generator_for(0, 0, 0))
    flipped = [torch.equal(a, b.flip(2)) for a, b in zip(both, plain, strict=True)]
    kept = [torch.equal(a, b) for a, b in zip(both, plain, strict=True)]
    assert [a != b for a, b in zip(flipped, kept, strict=True)] == [True] * 32
    assert 8 < sum(flipped) < 24


@pytest.mark.parametrize(("right", "down"), [(3, 0), (0, -5), (-4, 2)])
def test_a_shift_of_whole_pixels_is_a_roll(right, down):
    batch = images()
    rolled = torch.roll(batch, (down, right), dims=(2, 3))
    inside = (..., slice(max(down, 0), 24 + min(down, 0)), slice(max(right, 0), 32 + min(right, 0)))
    result = moved(batch, shift_x=right, shift_y=down, fill=0.25)
    torch.testing.assert_close(result[inside], rolled[inside], rtol=0, atol=1e-5)
    outside = torch.ones_like(batch, dtype=torch.bool)
    outside[inside] = False
    torch.testing.assert_close(result[outside], torch.full_like(result[outside], 0.25), rtol=0, atol=1e-5)


def test_an_edge_fill_repeats_the_last_pixels():
    batch = images()
    result = moved(batch, shift_x=3, fill="edge")
    torch.testing.assert_close(result[..., :3], batch[..., :1].expand(-1, -1, -1, 3), rtol=0, atol=1e-5)


def test_turns_are_counter_clockwise_and_in_pixels_also_where_an_image_is_wide():
    square = images(height=20, width=20)
    torch.testing.assert_close(moved(square, turn=0.25), square.rot90(1, dims=(2, 3)), rtol=0, atol=1e-4)
    wide = images(height=12, width=20)
    torch.testing.assert_close(moved(wide, turn=0.5), wide.flip(2, 3), rtol=0, atol=1e-4)
    # The square in the middle turns as a square: angles survive the unequal sides.
    middle = (..., slice(4, 16))
    torch.testing.assert_close(moved(wide, turn=0.25)[middle], wide[middle].rot90(1, dims=(2, 3)), rtol=0, atol=1e-4)


def test_a_scale_above_one_enlarges_about_the_center():
    """A ramp stays a ramp, half as steep, with its middle in place."""
    ramp = torch.linspace(-1, 1, 33).expand(8, 1, 33, 33)
    torch.testing.assert_close(moved(ramp, scale=2.0), ramp / 2, rtol=0, atol=1e-5)
    inside = (..., slice(9, 24))
    torch.testing.assert_close(moved(ramp, scale=0.5)[inside][..., 9:24, :], (2 * ramp)[inside][..., 9:24, :])


@pytest.mark.parametrize(
    ("flip", "seen"),
    [("horizontal", {(3,)}), ("vertical", {(2,)}), ("both", {(2,), (3,), (2, 3)})],
)
def test_flips_are_exact_and_fall_on_half_of_the_images(flip, seen):
    batch = images(400, channels=1, height=4, width=5)
    result = augment(batch, spec(flip=flip), generator_for(0, 0, 0))
    counts = dict.fromkeys([(), *seen], 0)
    for before, after in zip(batch[:, None], result[:, None], strict=True):
        (dims,) = [dims for dims in counts if torch.equal(before.flip(dims), after)]
        counts[dims] += 1
    assert all(count == pytest.approx(400 / len(counts), rel=0.25) for count in counts.values())


def test_a_crop_is_a_piece_of_the_padded_image():
    batch = images()
    left, top = torch.tensor([0, 4, 8, 3, 4, 1, 7, 5]), torch.tensor([4, 4, 0, 8, 6, 1, 2, 5])
    for fill, padded in (
        (0.5, torch.nn.functional.pad(batch, (4,) * 4, value=0.5)),
        ("edge", torch.nn.functional.pad(batch, (4,) * 4, mode="replicate")),
    ):
        result = crop(batch, left=left, top=top, padding=4, fill=fill)
        for place, (x, y) in enumerate(zip(left.tolist(), top.tolist(), strict=True)):
            assert torch.equal(result[place], padded[place, :, y : y + 24, x : x + 32])


def test_crops_fall_everywhere_within_the_padding():
    batch = torch.arange(49.0).reshape(1, 1, 7, 7).expand(600, -1, -1, -1) + 1
    result = augment(batch, spec(crop=1), generator_for(0, 0, 0))
    counts = torch.unique(result[:, 0, 3, 3], return_counts=True)
    assert counts[0].tolist() == [17, 18, 19, 24, 25, 26, 31, 32, 33]
    assert counts[1].min() > 600 / 9 / 1.5


def test_a_cutout_blanks_a_square_and_nothing_else():
    batch = images() + 1
    result = cut_out(batch, center_x=numbers(10).long(), center_y=numbers(2).long(), side=6, value=-1.0)
    expected = batch.clone()
    expected[:, :, 0:5, 7:13] = -1.0
    assert torch.equal(result, expected)


def test_cutouts_reach_every_pixel():
    batch = torch.ones(3000, 1, 9, 7)
    blank = augment(batch, spec(cutout=3), generator_for(0, 0, 0)) == 0
    assert blank.any(dim=0).all()
    assert blank.flatten(1).sum(1).max() == 9
    # At a corner only a quarter of the square and its middle lies inside.
    assert blank.flatten(1).sum(1).min() == 4


@pytest.mark.parametrize("fill", [0.0, 0.5])
def test_values_stay_within_those_of_the_image_and_the_fill(fill):
    result = augment(images(64), spec(**EVERYTHING, fill=fill), generator_for(5, 0, 0))
    assert result.min() >= -1e-6
    assert result.max() <= 1 + 1e-6


def test_the_changes_are_as_large_as_stated_and_no_larger():
    """A lone dot is followed: its farthest shift, over many images, is the stated fraction of each side."""
    batch = torch.zeros(2000, 1, 41, 61)
    batch[:, :, 20, 30] = 1.0
    result = augment(batch, spec(shift=0.2), generator_for(0, 0, 0))[:, 0]
    mass = result.sum((1, 2))
    x = (result.sum(1) * torch.arange(61)).sum(1) / mass - 30
    y = (result.sum(2) * torch.arange(41)).sum(1) / mass - 20
    assert (x.abs().max().item(), y.abs().max().item()) == pytest.approx((12.2, 8.2), rel=0.01)
    assert x.abs().mean().item() == pytest.approx(12.2 / 2, rel=0.05)
    assert abs(torch.corrcoef(torch.stack((x, y)))[0, 1].item()) < 0.1


def test_a_rotation_of_five_percent_is_up_to_eighteen_degrees_whatever_the_zoom():
    place = torch.arange(61) - 30
    spot = torch.exp(-(((place - 15) ** 2)[None, :] + (place**2)[:, None]) / 8)
    batch = spot.expand(2000, 1, 61, 61)
    result = augment(batch, spec(rotation=0.05, zoom=0.2), generator_for(0, 0, 0))[:, 0]
    mass = result.sum((1, 2))
    x, y = ((result.sum(side) * place).sum(1) / mass for side in (1, 2))
    degrees = torch.rad2deg(torch.atan2(-y, x))
    assert degrees.max().item() == pytest.approx(18, abs=0.1)
    assert degrees.min().item() == pytest.approx(-18, abs=0.1)
    scale = torch.hypot(x, y) / 15
    assert (scale.min().item(), scale.max().item()) == pytest.approx((0.8, 1.2), abs=0.005)
    assert abs(torch.corrcoef(torch.stack((degrees, scale)))[0, 1].item()) < 0.1


def test_autocast_does_not_blur_where_pixels_come_from():
    batch = images(height=224, width=224, count=2)
    exact = augment(batch, spec(**STRONG), generator_for(0, 0, 0))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        cast = augment(batch, spec(**STRONG), generator_for(0, 0, 0))
    assert torch.equal(exact, cast)


@pytest.mark.parametrize("batch", [torch.zeros(2, 3, 8, 8, dtype=torch.uint8), torch.zeros(3, 8, 8)])
def test_only_batches_of_floating_point_images_are_taken(batch):
    with pytest.raises(ValueError, match="use a floating-point tensor of shape N x C x H x W"):
        augment(batch, spec(**LIGHT), generator_for(0, 0, 0))


def test_recipes_are_read_from_plain_values():
    assert spec(**LIGHT) == AugmentSpec(zoom=0.01, shift=0.01)
    assert spec(**STRONG) == AugmentSpec(rotation=0.05, zoom=0.2, shift=0.2, flip="horizontal")
    assert AugmentSpec.model_validate_json(spec(**STRONG, fill="edge").model_dump_json()).fill == "edge"
    assert spec().changes_nothing
    assert not any(spec(**{name: value}).changes_nothing for name, value in EVERYTHING.items())


@pytest.mark.parametrize(
    "fields",
    [
        {"shift": -0.1},
        {"zoom": 1.0},
        {"rotation": 18},
        {"flip": "diagonal"},
        {"crop": 1.5},
        {"cutout": -1},
        {"fill": float("nan")},
        {"fill": "reflect"},
        {"shear": 0.1},
    ],
)
def test_other_values_are_refused(fields):
    with pytest.raises(ValidationError, match=next(iter(fields))):
        spec(**fields)


def test_a_cutout_needs_a_value_to_put_there():
    with pytest.raises(ValidationError, match=r"cutout=8 .*use a number for fill"):
        spec(cutout=8, fill="edge")
