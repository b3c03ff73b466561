"""Transfer learning: pretrained weights, a new head, and which layers learn.

The backbone is every parameter outside the head. Freezing and unfreezing change which parameters have gradients, so
the wrapper that averages gradients over ranks is rebuilt after either.
"""

from __future__ import annotations

import io
import warnings
from dataclasses import dataclass
from pathlib import Path
from types import MethodType
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from worldsize.errors import DataError, InputError
from worldsize.folder.files import write_atomic

WRAPPED = "module."
"""Prefix of every name in weights that were saved from inside DistributedDataParallel."""


@dataclass(frozen=True, kw_only=True)
class Loaded:
    loaded: tuple[str, ...]
    """Names of the entries taken from the file."""
    left_out: tuple[tuple[str, str], ...]
    """(name, why): entries of the file that do not fit the model, and entries of the model that keep initial values."""


def head_of(model: nn.Module) -> str:
    """The name of the last layer: the one that is replaced for other classes."""
    layers = [name for name, layer in model.named_modules() if isinstance(layer, nn.Linear | nn.Conv2d)]
    if not layers:
        raise InputError(
            f"{type(model).__name__} has no linear or convolutional layer, so none that could be its head; "
            "use another model for transfer learning"
        )
    return layers[-1]


def load_pretrained(model: nn.Module, path: Path) -> Loaded:
    """Copies into the model what fits by name and shape, and lists what does not, such as a head for other classes."""
    return fit_weights(model, _read_weights(path), str(path))


def fit_weights(model: nn.Module, theirs: dict[str, Tensor], source: str) -> Loaded:
    ours = model.state_dict()
    loaded, left_out = [], []
    for name, weights in theirs.items():
        if name not in ours:
            left_out.append((name, "the model has no such entry"))
        elif weights.shape != ours[name].shape:
            left_out.append((name, f"shape {tuple(weights.shape)} in the file, {tuple(ours[name].shape)} in the model"))
        elif weights.is_floating_point() != ours[name].is_floating_point():
            left_out.append((name, f"{weights.dtype} in the file, {ours[name].dtype} in the model"))
        else:
            loaded.append(name)
    left_out += [(name, "not in the file") for name in ours if name not in theirs]
    # Batch-norm counters have the same name and shape even in models that have nothing else in common.
    parameters = {name for name, _ in model.named_parameters(remove_duplicate=False)}
    if not parameters.intersection(loaded):
        raise DataError(
            f"{source} has {len(theirs)} entries (such as {_some(theirs)}) and none fits the model's {len(parameters)} "
            f"parameters (such as {_some(parameters)}) by name and shape; give the weights of this kind of model"
        )
    with torch.no_grad():
        for name in loaded:
            ours[name].copy_(theirs[name])
    return Loaded(loaded=tuple(loaded), left_out=tuple(left_out))


def save_weights(model: nn.Module, path: Path) -> None:
    """The state dict alone, on the CPU, whole or not at all; `load_pretrained` and plain torch.load both read it."""
    content = io.BytesIO()
    torch.save({name: weights.cpu() for name, weights in model.state_dict().items()}, content)
    write_atomic(path, content.getvalue())


def freeze(model: nn.Module, what: Literal["backbone"] | None) -> None:
    """Lets only the head learn. Batch norm in the backbone stays in eval mode, whatever model.train() says.

    Otherwise its running statistics would drift toward the new data while the weights stay the same.
    """
    if what is None:
        return
    if what != "backbone":
        raise InputError(f"freeze={what!r} is not a part of a model that can be frozen; use backbone, or leave it out")
    # By identity, not by name: the head and the embedding of a decoder are one tensor, which then learns.
    head = set(model.get_submodule(head_of(model)).parameters())
    for parameter in model.parameters():
        parameter.requires_grad_(parameter in head)
    for layer in _batch_norms(model):
        layer.eval()
        vars(layer)["train"] = MethodType(_stay, layer)


def unfreeze(model: nn.Module) -> None:
    """Lets everything learn again: fine-tuning, once the head has settled."""
    for parameter in model.parameters():
        parameter.requires_grad_(True)
    for layer in _batch_norms(model):
        vars(layer).pop("train", None)
    model.train(model.training)


def _stay(layer: nn.Module, _mode: bool = True) -> nn.Module:
    """Replaces `train` of a frozen layer."""
    return layer


def _batch_norms(model: nn.Module) -> list[nn.Module]:
    return [layer for layer in model.modules() if isinstance(layer, _BatchNorm)]


def _read_weights(path: Path) -> dict[str, Tensor]:
    """Tensors by name. Nothing in the file is ever executed: torch.load builds only plain tensors and containers."""
    if not path.is_file():
        raise DataError(f"{path} is not a file; give the path of a state dict saved with torch.save")
    try:
        with warnings.catch_warnings():
            # torch's warnings about an odd file add nothing to the errors below.
            warnings.simplefilter("ignore")
            content: Any = torch.load(path, weights_only=True, map_location="cpu")
    # A damaged file can fail anywhere in the reader, with any error.
    except Exception as error:
        raise DataError(
            f"{path} is not a file of plain weights ({_first_line(error)}); save them with "
            "torch.save(model.state_dict(), path), in the program that made them"
        ) from error
    if isinstance(content, dict) and isinstance(content.get("model"), dict):
        content = content["model"]
    if not isinstance(content, dict) or not content:
        raise DataError(f"{path} holds {_kind(content)}, not a state dict; save model.state_dict() with torch.save")
    for name, weights in content.items():
        if not isinstance(name, str) or not isinstance(weights, Tensor):
            raise DataError(
                f"{path} holds {_kind(weights)} under {name!r}, not a tensor under a name; save model.state_dict() "
                'itself, or {"model": model.state_dict()}'
            )
    if all(name.startswith(WRAPPED) for name in content):
        return {name.removeprefix(WRAPPED): weights for name, weights in content.items()}
    return dict(content)


def _first_line(error: Exception) -> str:
    return (str(error) or type(error).__name__).splitlines()[0]


def _kind(value: object) -> str:
    return "nothing" if value is None or value == {} else f"a {type(value).__name__}"


def _some(names: Any) -> str:
    return ", ".join(sorted(names)[:3])
