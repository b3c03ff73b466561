"""Workloads: data, model, their options, and image augmentation. Does not import torch."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, JsonValue, ValidationError, model_validator

from worldsize.errors import InputError, did_you_mean, shorten
from worldsize.spec.base import Count, Frozen, Label, or_say

Fraction = Annotated[float, Field(ge=0, lt=1)]


class AugmentSpec(Frozen):
    """Image augmentation. Shift, zoom and rotation give the largest change; each image gets a uniformly drawn change
    between minus and plus this value. If all values are 0, images do not change.

    A light recipe, with zoom and shifts up to 1 %: `{zoom: 0.01, shift: 0.01}`.
    A strong recipe, with rotation up to 5 % of a turn, zoom and shifts up to 20 %, and horizontal flips:
    `{rotation: 0.05, zoom: 0.2, shift: 0.2, flip: horizontal}`.
    """

    shift: Fraction = 0.0
    """Largest shift, as a fraction of the width and of the height, which are drawn separately. 0.2 moves a 100 x 50
    image by up to 20 pixels horizontally and up to 10 vertically."""
    zoom: Fraction = 0.0
    """The scale is drawn between 1 - zoom and 1 + zoom, the same for width and height. A scale above 1 enlarges."""
    rotation: Annotated[float, Field(ge=0, le=0.5)] = 0.0
    """Largest rotation, as a fraction of a full turn, like the factor of Keras' RandomRotation. 0.05 is up to 18
    degrees in either direction. To convert from degrees, divide by 360."""
    flip: Literal["none", "horizontal", "vertical", "both"] = "none"
    """Each image is flipped with probability 1/2. `both` draws the two directions separately."""
    crop: Annotated[int, Field(ge=0)] = 0
    """Pixels added on each side before the image is cropped to its original size at a random position."""
    cutout: Annotated[int, Field(ge=0)] = 0
    """Side, in pixels, of a square that is blanked. Its center is a random pixel, so part of it can lie outside."""
    fill: Annotated[float, Field(allow_inf_nan=False)] | Literal["edge"] = 0.0
    """What fills empty areas: a value, in the units of the model's input, or `edge` for the nearest edge pixel."""

    @model_validator(mode="after")
    def _cutout_needs_a_value(self) -> Self:
        if self.cutout and self.fill == "edge":
            raise ValueError(
                f"cutout={self.cutout} blanks pixels inside the image, and fill=edge fills only areas outside it; "
                "use a number for fill, such as 0"
            )
        return self

    @property
    def moves(self) -> bool:
        """Whether pixels are interpolated."""
        return bool(self.shift or self.zoom or self.rotation)

    @property
    def changes_nothing(self) -> bool:
        return not (self.moves or self.crop or self.cutout) and self.flip == "none"


class WorkloadSpec(Frozen):
    name: Annotated[
        str,
        Field(pattern=r"^([a-z0-9][a-z0-9-]*|[A-Za-z_][\w.]*:[A-Za-z_]\w*)$"),
        or_say("is not a workload; write a built-in name in lower case, or package.module:function"),
    ]
    """A built-in workload, or a function of your own: package.module:function."""
    path: str | None = None
    """Your data, for workloads that need it: a folder of images, a table of frames, or a text. Searched in the current
    folder, then in the data folder."""
    image_size: Annotated[int, Field(ge=8, le=1024)] | None = None
    """Side length, in pixels, to which image-folder and steering resize images."""
    test_fraction: Annotated[float, Field(gt=0, lt=1)] = 0.2
    """Fraction of the data used for testing, if the data has no test set of its own."""
    model: Label | None = None
    """A model to use instead of the workload's default: cnn, resnet18, torchvision:NAME, ..."""
    model_options: dict[str, JsonValue] = Field(default_factory=dict)
    """Options of the model, like {layers: 4, width: 256}."""
    data_options: dict[str, JsonValue] = Field(default_factory=dict)
    """Options of the data, or the arguments of your own function."""
    augment: AugmentSpec = AugmentSpec()
    pretrained: str | None = None
    """A file with initial weights, or `torchvision` for those of a torchvision model."""
    freeze: Literal["backbone"] | None = None
    """Train only the head; the backbone keeps its weights."""
    unfreeze_epoch: Count | None = None
    """Train all layers from this epoch on, counted from 0."""

    @property
    def own(self) -> bool:
        """Whether the workload is a function of the user."""
        return ":" in self.name

    @model_validator(mode="after")
    def _unfreeze_what_is_frozen(self) -> Self:
        if self.unfreeze_epoch is not None and self.freeze is None:
            raise ValueError(f"unfreeze_epoch={self.unfreeze_epoch} has nothing to unfreeze; add `freeze: backbone`")
        return self


class Options(Frozen):
    @classmethod
    def of(cls, workload: WorkloadSpec) -> Self:
        try:
            return cls.from_plain(workload.data_options)
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            name = ".".join(str(part) for part in first["loc"])
            rule = first["msg"][0].lower() + first["msg"][1:]
            if first["type"] == "extra_forbidden":
                rule = f"unknown option. {did_you_mean(name, cls.model_fields)}"
            raise InputError(
                f"workload.data_options.{name}={shorten(first['input'])} of {workload.name}: {rule}"
            ) from error
