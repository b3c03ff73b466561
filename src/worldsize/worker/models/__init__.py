"""Models by name: `build("resnet18", classes=10, channels=3, size=32)`."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable
from typing import Any

from torch import nn

from worldsize.errors import InputError, did_you_mean, shorten
from worldsize.worker.models.decoder import decoder
from worldsize.worker.models.resnet import resnet18, resnet50
from worldsize.worker.models.shape import Shape, check_positive
from worldsize.worker.models.small import cnn, linear, mlp, plain_cnn, softmax, steering_cnn
from worldsize.worker.models.transfer import (
    Loaded,
    fit_weights,
    freeze,
    head_of,
    load_pretrained,
    save_weights,
    unfreeze,
)

__all__ = [
    "MODELS",
    "Loaded",
    "build",
    "freeze",
    "head_of",
    "load_pretrained",
    "load_torchvision_weights",
    "save_weights",
    "unfreeze",
]

MODELS: dict[str, Callable[..., nn.Module]] = {
    "linear": linear,
    "softmax": softmax,
    "mlp": mlp,
    "plain-cnn": plain_cnn,
    "cnn": cnn,
    "resnet18": resnet18,
    "resnet50": resnet50,
    "steering-cnn": steering_cnn,
    "decoder": decoder,
}
"""Functions that build a model from the shape of the data and, as keywords, the model's own options."""
TORCHVISION = "torchvision:"


def build(name: str, *, classes: int, channels: int, size: int | tuple[int, int], **options: Any) -> nn.Module:
    """Return the model called `name`, with random weights. `size` is the side of a square, or (height, width)."""
    height, width = (size, size) if isinstance(size, int) else size
    shape = Shape(
        classes=check_positive("classes", classes),
        channels=check_positive("channels", channels),
        height=check_positive("size", height),
        width=check_positive("size", width),
    )
    if name.startswith(TORCHVISION):
        return _torchvision(name.removeprefix(TORCHVISION), shape, options)
    if name not in MODELS:
        raise InputError(f"unknown model {shorten(name)}. {did_you_mean(name, (*MODELS, TORCHVISION + 'NAME'))}")
    parameters = inspect.signature(MODELS[name]).parameters.values()
    known = [parameter.name for parameter in parameters if parameter.kind is parameter.KEYWORD_ONLY]
    for option in options:
        if option not in known:
            hint = did_you_mean(option, known, otherwise="" if known else "Leave it out.")
            raise InputError(f"{option}={shorten(options[option])} is not an option of the model {name}. {hint}")
    return MODELS[name](shape, **options)


def load_torchvision_weights(model: nn.Module, name: str) -> Loaded:
    """Load torchvision's own weights into a model that was built as `torchvision:NAME`. Download them once."""
    if not name.startswith(TORCHVISION):
        raise InputError(
            f"pretrained=torchvision needs a torchvision model, but the model is {name}; "
            f"use one, such as `model: {TORCHVISION}resnet18`, or set `pretrained` to a file"
        )
    models = _import_torchvision(name)
    weights = models.get_model_weights(name.removeprefix(TORCHVISION)).DEFAULT
    return fit_weights(model, weights.get_state_dict(progress=False, check_hash=True), str(weights))


def _import_torchvision(name: str) -> Any:
    try:
        return importlib.import_module("torchvision.models")
    # A torchvision that was built for another torch raises RuntimeError when it registers its operators.
    except (ImportError, RuntimeError) as error:
        raise InputError(
            f"model={name} needs torchvision, which cannot be imported ({error}); install the version for this torch, "
            f"or use a built-in model: {', '.join(MODELS)}"
        ) from error


def _torchvision(name: str, shape: Shape, options: dict[str, Any]) -> nn.Module:
    """Return a classifier of torchvision, which is imported only here."""
    models = _import_torchvision(TORCHVISION + name)
    names = models.list_models(module=models)
    if name not in names:
        raise InputError(f"model={TORCHVISION}{name} is not a classifier of torchvision. {did_you_mean(name, names)}")
    if shape.channels != 3:
        raise InputError(f"channels={shape.channels}: torchvision models need 3 channels; use color images")
    try:
        return models.get_model(name, weights=None, num_classes=shape.classes, **options)
    except (TypeError, ValueError) as error:
        raise InputError(f"model={TORCHVISION}{name} does not accept these options ({error}); correct them") from error
