"""How training images are varied. Without torch, so that a study file can be checked anywhere."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from worldsize.frozen import Frozen

Fraction = Annotated[float, Field(ge=0, lt=1)]


class AugmentSpec(Frozen):
    """Each value is the largest change; every image draws its own, evenly, in both directions. All 0: no change at all.

    A light recipe, zoom and shifts to 1 %: `{zoom: 0.01, shift: 0.01}`.
    A strong one, rotation 5 %, zoom 20 %, shifts 20 %, horizontal flips:
    `{rotation: 0.05, zoom: 0.2, shift: 0.2, flip: horizontal}`.
    """

    shift: Fraction = 0.0
    """Of the side, in both directions, drawn apart: 0.2 moves an image of 100 x 50 by up to 20 and up to 10 pixels."""
    zoom: Fraction = 0.0
    """The scale is drawn from 1 - zoom to 1 + zoom, the same for both sides; above 1 enlarges."""
    rotation: Annotated[float, Field(ge=0, le=0.5)] = 0.0
    """Of a full turn, as Keras' RandomRotation reads its factor: 5 % is 0.05, up to 18 degrees either way.
    Degrees are divided by 360."""
    flip: Literal["none", "horizontal", "vertical", "both"] = "none"
    """Each image with probability 1/2; `both` decides the two directions apart."""
    crop: Annotated[int, Field(ge=0)] = 0
    """Pixels added on every side before a piece of the old size is cut out at a random place."""
    cutout: Annotated[int, Field(ge=0)] = 0
    """Side, in pixels, of a square that is blanked. Its centre is any pixel, so part of it may lie outside."""
    fill: Annotated[float, Field(allow_inf_nan=False)] | Literal["edge"] = 0.0
    """What is put where the image has nothing: a value, in the units in which images reach the model, or the nearest
    pixel of its edge."""

    @model_validator(mode="after")
    def _cutout_needs_a_value(self) -> Self:
        if self.cutout and self.fill == "edge":
            raise ValueError(
                f"cutout={self.cutout} blanks pixels inside the image, where fill=edge has nothing to give: "
                "use a number, such as 0"
            )
        return self

    @property
    def moves(self) -> bool:
        """Whether pixels are interpolated."""
        return bool(self.shift or self.zoom or self.rotation)

    @property
    def changes_nothing(self) -> bool:
        return not (self.moves or self.crop or self.cutout) and self.flip == "none"
